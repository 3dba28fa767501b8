"""From what the user wrote to an opened model: a local path, or a Hub id.

A format is either read exactly or refused with the reason and the way out. Nothing is half-read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError, SecurityError, nearest
from ramerge.checkpoint.base import Checkpoint
from ramerge.checkpoint.files import (
    json_object,
    open_regular,
    read_exactly,
    read_small,
    resolve_inside,
    shown,
    sniff,
)
from ramerge.checkpoint.hub import download, parse_hub_id
from ramerge.checkpoint.lora import open_adapter
from ramerge.checkpoint.lora_config import CONFIG as ADAPTER_CONFIG
from ramerge.checkpoint.quantised import refuse_quantised
from ramerge.checkpoint.refusals import TO_SAFETENSORS, UNQUANTISED, refusal, refuse_unmerged
from ramerge.checkpoint.safetensors import INDEX, SINGLE, open_directory, open_file
from ramerge.checkpoint.sidefiles import CONFIG

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class _Place(NamedTuple):
    """Something that exists on this machine: a directory or a file, and the commit it came from."""

    path: Path
    source: str
    revision: str | None = None


def open_checkpoint(
    source: str, *, base: Checkpoint | None = None, allow_pickle: bool = False
) -> Checkpoint:
    """Open a model, whatever form it has.

    Args:
        source: a directory, a ``.safetensors`` file, or a Hub id ``org/name[@revision]``; with
            ``+ADAPTER`` behind it for a model with a LoRA adapter on it. A path that exists is
            local; ``./`` and ``hf:`` in front force one reading.
        base: the opened base, onto which a bare adapter is put.
        allow_pickle: read pickled weights too.

    Raises:
        CorruptInputError: damaged, incomplete, or no such path.
        IncompatibleError: a format that cannot be merged.
        SecurityError: refused for safety.
        HubError: the Hub could not serve it.
    """
    first, *adapters = _split(source)
    checkpoint = _open(_locate(first, pickles=allow_pickle), base)
    for adapter in adapters:
        try:
            place = _locate(adapter, pickles=False)
            if not _is_adapter(place.path):
                raise IncompatibleError(f"{shown(adapter)} in {shown(source)} is not an adapter")
            checkpoint = open_adapter(
                place.path, checkpoint, source=source, revision=place.revision, owns_base=True
            )
        except MergeError:
            checkpoint.close()
            raise
    return checkpoint


def _split(source: str) -> list[str]:
    """``model+adapter+…`` as its parts; a ``+`` inside an existing path is part of the path."""
    pieces = source.split("+")
    parts = []
    while pieces:
        joined = ["+".join(pieces[:i]) for i in range(len(pieces), 1, -1)]
        part = next((p for p in joined if Path(p).expanduser().exists()), pieces[0])
        parts.append(part)
        pieces = pieces[part.count("+") + 1 :]
    return parts


def _locate(source: str, *, pickles: bool) -> _Place:
    """Where a source is, after a download if it is on the Hub."""
    path = Path(source).expanduser()
    if not source.startswith("hf:") and path.exists():
        return _Place(path, source)
    hub = parse_hub_id(source)
    if hub is None or _looks_local(source, path):
        raise _missing(source, path, could_be_hub=hub is not None)
    snapshot = download(hub, pickles=pickles)
    return _Place(snapshot.directory, source, snapshot.commit)


def _open(place: _Place, base: Checkpoint | None) -> Checkpoint:
    """A model, or an adapter on the given base."""
    if not place.path.is_dir():
        return _open_single(place.path, place.source)
    if base is not None and _is_adapter(place.path):
        return open_adapter(place.path, base, source=place.source, revision=place.revision)
    return _open_directory(place)


def _is_adapter(path: Path) -> bool:
    """Whether a directory holds an adapter and no model."""
    return (path / ADAPTER_CONFIG).exists() and not any(
        (path / n).exists() for n in (SINGLE, INDEX)
    )


def _looks_local(source: str, path: Path) -> bool:
    """Whether a missing source was meant as a path: ``./x``, absolute, or beside files."""
    if source.startswith("hf:"):
        return False
    return source.startswith((".", "/", "~")) or (path.parent != Path() and path.parent.is_dir())


def _missing(source: str, path: Path, *, could_be_hub: bool) -> MergeError:
    """The error for a path that does not exist, with the nearest name beside it."""
    if "://" in source:
        return CorruptInputError(
            f"{shown(source.split('://', maxsplit=1)[0])} URLs are not read",
            hint="give a path or a Hub id",
        )
    parent = path.parent
    siblings = [entry.name for entry in os.scandir(parent)] if parent.is_dir() else []
    like = nearest(path.name, siblings)
    hints = [f"did you mean {shown(parent / like)}?"] if like else []
    if could_be_hub:
        hints.append(f"for the model of that name on the Hub write {shown('hf:' + source)}")
    elif not like:
        hints.append("a model on the Hub is written `org/name`")
    what = "does not exist" if parent.is_dir() else f"does not exist, nor does {shown(parent)}"
    return CorruptInputError(f"{shown(source)} {what}", hint="; ".join(hints))


def _open_single(path: Path, source: str) -> Checkpoint:
    """A bare file: safetensors, or a refusal by name."""
    fd, size = open_regular(path, path.name)
    try:
        head = bytearray(min(size, 512))
        read_exactly(fd, 0, memoryview(head), path.name)
    finally:
        os.close(fd)
    kind = sniff(bytes(head))
    if kind == "a GGUF file" or path.suffix == ".gguf":
        raise IncompatibleError(
            f"{shown(source)} is a GGUF file, which is quantised", hint=UNQUANTISED
        )
    if path.suffix in _PICKLES:
        raise SecurityError(
            f"{shown(source)} is a Python pickle, which can run code when read", hint=TO_SAFETENSORS
        )
    checkpoint = open_file(path, source=source)
    return _checked(checkpoint)


def _open_directory(place: _Place) -> Checkpoint:
    names = {entry.name for entry in os.scandir(place.path)}
    if not names & {SINGLE, INDEX}:
        raise refusal(names, place.path, place.source)
    return _checked(
        open_directory(
            place.path,
            source=place.source,
            config=read_config(place.path),
            revision=place.revision,
        )
    )


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, unless its weights are quantised or hold an adapter that was never merged."""
    try:
        refuse_quantised(checkpoint)
        refuse_unmerged(checkpoint)
    except MergeError:
        checkpoint.close()
        raise
    return checkpoint


def read_config(directory: Path) -> Mapping[str, Any] | None:
    """Parsed config.json of a directory, None where there is none.

    Raises:
        CorruptInputError: it is not a JSON object.
        SecurityError: it is a link out of the directory.
    """
    if not os.path.lexists(directory / CONFIG):
        return None
    try:
        path = resolve_inside(directory, CONFIG, "the model")
    except FileNotFoundError:
        raise CorruptInputError(
            f"{shown(CONFIG)} in {shown(directory)} is a link to a file that is missing"
        ) from None
    return json_object(read_small(path, CONFIG), CONFIG)
