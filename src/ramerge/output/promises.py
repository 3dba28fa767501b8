"""Are inputs what their origin says they are?

safetensors has no checksum: a flipped bit in an input gives a model that loads. But the merge
computes every input file's SHA-256 anyway, and two origins say what it should be: the manifest of a
model that ramerge wrote, and the Hub's cache, which names large files by their SHA-256.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ramerge._errors import CorruptInputError, VerificationError
from ramerge.models.base import Checkpoint, OutputFile, SourceFile
from ramerge.models.files import open_regular, shown
from ramerge.output.manifest import MANIFEST, read_manifest
from ramerge.output.verify import locate

_BLOB = re.compile(r"[0-9a-f]{64}")
Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp:
    """What changes when a file does: size, time of change, and which file it is."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def check_unchanged(file: SourceFile, before: Stamp) -> None:
    """Whether a file is still the one that was opened.

    Raises:
        CorruptInputError: it was written to, or replaced, while it was read.
    """
    if stamp(file.path) != before:
        raise CorruptInputError(
            f"{shown(file.name)} changed while it was read", hint="merge again when it is complete"
        )


def check_promises(checkpoint: Checkpoint, files: Sequence[OutputFile]) -> None:
    """Compare an input's files with what its origin says of them, where it says anything.

    Args:
        checkpoint: the input.
        files: its files with the SHA-256 that was computed.

    Raises:
        CorruptInputError: names the model, the file, and the tensor if the manifest allows it.
    """
    paths = {file.name: file.path for file in checkpoint.files()}
    expected: dict[str, str] = {}
    tensors: dict[str, str] = {}
    if checkpoint.directory is not None and (checkpoint.directory / MANIFEST).is_file():
        try:
            _, listed, crcs = read_manifest(checkpoint.directory)
        except VerificationError as error:
            raise CorruptInputError(f"{error.message}, an input", hint=None) from None
        expected, tensors = {f.name: f.sha256 for f in listed}, dict(crcs)
    for file in files:
        real = Path(os.path.realpath(paths[file.name]))
        blob = real.name if real.parent.name == "blobs" and _BLOB.fullmatch(real.name) else None
        wanted, by = (blob, "the Hub") if blob else (expected.get(file.name), "its manifest")
        if wanted is not None and wanted != file.sha256:
            where = _where(paths[file.name], file.name, tensors)
            raise CorruptInputError(
                f"{shown(file.name)} of {shown(checkpoint.source)} is damaged{where}: "
                f"{by} has another SHA-256",
                hint="fetch or make it again"
                + ("" if blob else f"; if it was changed on purpose, delete its `{MANIFEST}`"),
            )


def _where(path: Path, name: str, tensors: dict[str, str]) -> str:
    if not tensors:
        return ""
    fd, size = open_regular(path, name)
    try:
        return locate(fd, size, name, tensors)
    finally:
        os.close(fd)
