"""Models of the Hugging Face Hub, ``org/name[@revision]``: downloaded, or found in the cache.

Whatever goes wrong becomes a HubError with a hint. The library's own error texts are not passed
on: they quote request URLs and headers, and a message may end in a log that others read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ramerge._errors import HubError
from ramerge.models.files import shown

_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_WANTED = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.spm",
    "*.bpe",
    "LICENSE*",
    "NOTICE*",
]
_PICKLES = ["pytorch_model*.bin", "adapter_model.bin"]
# Copies of the weights in other layouts, as many gigabytes as the model itself.
_UNWANTED = [
    "consolidated*",
    "original/*",
    "onnx/*",
    "openvino/*",
    "*.gguf",
    "*.onnx",
    "runs/*",
    "checkpoint-*/*",
]


class HubId(NamedTuple):
    """A model on the Hub. ``revision`` None is the default branch."""

    repo: str
    revision: str | None


class Snapshot(NamedTuple):
    """A downloaded model: its directory in the cache, and the commit that was resolved."""

    directory: Path
    commit: str


def parse_hub_id(source: str) -> HubId | None:
    """``org/name[@revision]``, perhaps after ``hf:``, as parts; None for another form."""
    match = _ID.fullmatch(source.removeprefix("hf:"))
    return None if match is None else HubId(match["repo"], match["revision"])


def download(hub: HubId, *, pickles: bool = False) -> Snapshot:
    """Fetch a model into the Hub's cache, or find it there when offline.

    Args:
        hub: which model.
        pickles: fetch ``pytorch_model*.bin`` too.

    Raises:
        HubError: no such model or revision, no access, no network and not in the cache.
    """
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            hub.repo,
            revision=hub.revision,
            allow_patterns=_WANTED + (_PICKLES if pickles else []),
            ignore_patterns=_UNWANTED,
        )
    except Exception as error:  # the library raises errors of three HTTP stacks
        raise _explained(error, hub) from None
    return Snapshot(Path(path), Path(path).name)


def _explained(error: Exception, hub: HubId) -> HubError:
    from huggingface_hub import errors

    model = shown(hub.repo if hub.revision is None else f"{hub.repo}@{hub.revision}")
    if isinstance(error, errors.GatedRepoError):
        return HubError(
            f"{model} is gated",
            hint="accept its terms on the Hub, then log in with `hf auth login`",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return HubError(
            f"{model} is not on the Hub, or it is private",
            hint="check the spelling; for a private model log in with `hf auth login`; write ./ "
            "before a local path",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(f"{shown(hub.repo)} has no revision {shown(hub.revision)}")
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return HubError(
            f"{model} is not (completely) in the local cache, and the Hub cannot be reached",
            hint="download it where there is a network, or write ./ before a local path",
        )
    if isinstance(error, OSError) and error.errno == 28:
        return HubError(
            f"{model} does not fit on the disk that holds the Hub cache",
            hint="set HF_HOME to another disk",
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    detail = f"HTTP {status}" if status else type(error).__name__
    return HubError(
        f"{model} could not be fetched from the Hub ({detail})",
        hint="try again; finished files are kept",
    )
