"""What an output says of itself: where it came from, what was done, what its bytes must be.

No time, host or absolute path stands in it, so equal inputs give equal manifests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramerge._errors import MergeError, VerificationError
from ramerge._types import Json
from ramerge.models.base import OutputFile
from ramerge.models.files import json_object, read_small

MANIFEST = "ramerge_manifest.json"
_LIMIT = 64 << 20  # bytes; 300,000 tensors


def manifest_bytes(
    facts: Mapping[str, Any], output: Sequence[OutputFile], tensors: Mapping[str, str]
) -> bytes:
    """The manifest as it stands in the file.

    Args:
        facts: everything about inputs and method, as docs/concepts/output.md lists it; kept in this order.
        output: all files but the manifest.
        tensors: CRC-32 of every tensor's bytes, in hex, so that a damaged one can be named.
    """
    files = [{"file": f.name, "size": f.size, "sha256": f.sha256} for f in output]
    whole = finite({**facts, "output": files, "tensor_crc32": dict(sorted(tensors.items()))})
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """A JSON value with null for numbers that JSON has no word for (NaN, infinities)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [finite(member) for member in value]
    return value


def read_manifest(directory: Path) -> tuple[Json, tuple[OutputFile, ...], Mapping[str, str]]:
    """The manifest of a merged model: all of it, its files, and the CRC-32 of its tensors.

    Raises:
        VerificationError: there is none, or it is damaged.
    """
    try:
        data = read_small(directory / MANIFEST, MANIFEST, _LIMIT)
        whole = json_object(data, MANIFEST)
        files = tuple(
            OutputFile(str(f["file"]), int(f["size"]), str(f["sha256"])) for f in whole["output"]
        )
        tensors = {str(name): str(crc) for name, crc in whole["tensor_crc32"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unusable(directory, f"is damaged: {error} is missing or of a wrong kind") from None
    except MergeError as error:
        raise _unusable(directory, f"is missing or damaged: {error.message}") from None
    return whole, files, tensors


def _unusable(directory: Path, what: str) -> VerificationError:
    return VerificationError(
        f"`{MANIFEST}` in `{directory.name}` {what}",
        hint="only directories that ramerge has written, and finished, can be verified",
    )
