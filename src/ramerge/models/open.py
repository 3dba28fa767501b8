"""From what the user wrote to an opened model: a local path, or a Hub id.

A format is either read exactly or refused with the reason and the way out. Nothing is half-read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError, SecurityError, nearest
from ramerge.models.base import Checkpoint, Notice
from ramerge.models.facts import CONFIG
from ramerge.models.files import (
    json_object,
    open_regular,
    read_exactly,
    read_small,
    resolve_inside,
    shown,
)
from ramerge.models.formats.dcp import METADATA, open_dcp
from ramerge.models.formats.pickles import NAMING as PICKLES
from ramerge.models.formats.pickles import open_pickle_directory, open_pickle_file
from ramerge.models.formats.quantised import refuse_quantised
from ramerge.models.formats.safetensors import INDEX, SINGLE, open_directory, open_file
from ramerge.models.formats.verl import RANK_FILE, open_verl
from ramerge.models.hub import download, parse_hub_id
from ramerge.models.lora.adapter import open_adapter
from ramerge.models.lora.config import CONFIG as ADAPTER_CONFIG
from ramerge.models.refusals import ALLOW_PICKLE, UNQUANTISED, refusal, refuse_unmerged
from ramerge.models.views.renamed import without_prefixes

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
    checkpoint = _open(_locate(first, pickles=allow_pickle), base, allow_pickle=allow_pickle)
    for adapter in adapters:
        try:
            place = _locate(adapter, pickles=allow_pickle)
            if not _is_adapter(place.path):
                raise IncompatibleError(f"{shown(adapter)} in {shown(source)} is not an adapter")
            checkpoint = open_adapter(
                place.path,
                checkpoint,
                source=source,
                revision=place.revision,
                owns_base=True,
                allow_pickle=allow_pickle,
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


def _open(place: _Place, base: Checkpoint | None, *, allow_pickle: bool) -> Checkpoint:
    """A model, or an adapter on the given base."""
    if not place.path.is_dir():
        return _checked(_open_single(place, allow_pickle=allow_pickle))
    if base is not None and _is_adapter(place.path):
        return open_adapter(
            place.path,
            base,
            source=place.source,
            revision=place.revision,
            allow_pickle=allow_pickle,
        )
    return _checked(_open_directory(place, allow_pickle=allow_pickle))


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


def _open_single(place: _Place, *, allow_pickle: bool) -> Checkpoint:
    """A bare file: safetensors, a pickle, or a refusal by name."""
    path, source = place.path, place.source
    if path.suffix in _PICKLES:
        if not allow_pickle:
            raise SecurityError(f"{shown(source)} is a Python pickle", hint=ALLOW_PICKLE)
        return open_pickle_file(path, source=source)
    fd, size = open_regular(path, path.name)
    try:
        head = bytearray(min(size, 4))
        read_exactly(fd, 0, memoryview(head), path.name)
    finally:
        os.close(fd)
    if head == b"GGUF":
        text = f"{shown(source)} is a GGUF file, which is quantised"
        raise IncompatibleError(text, hint=UNQUANTISED)
    return open_file(path, source=source)


def _open_directory(place: _Place, *, allow_pickle: bool) -> Checkpoint:
    directory, source = place.path, place.source
    names = {entry.name for entry in os.scandir(directory)}
    if names & {SINGLE, INDEX}:
        config = read_config(directory)
        checkpoint = open_directory(
            directory, source=source, config=config, revision=place.revision
        )
        checkpoint.notices += _adapter_inside(directory, source)
        return checkpoint
    if not allow_pickle or _is_adapter(directory):
        raise refusal(names, directory, source)
    if any(RANK_FILE.fullmatch(name) for name in names):
        side = directory / "huggingface" if "huggingface" in names else directory
        return open_verl(directory, source=source, config=read_config(side), side_files=side)
    if METADATA in names:
        return open_dcp(directory, source=source, config=read_config(directory))
    if names & {PICKLES.single, PICKLES.index}:
        config = read_config(directory)
        return open_pickle_directory(
            directory, source=source, config=config, revision=place.revision
        )
    raise refusal(names, directory, source)


def _adapter_inside(directory: Path, source: str) -> tuple[Notice, ...]:
    """A word about an adapter that lies below the weights: are they merged, or still the base?"""
    inside = [e.name for e in os.scandir(directory) if (directory / e / ADAPTER_CONFIG).exists()]
    return tuple(
        Notice("adapter-inside", f"{shown(source)} is read without the adapter {shown(name)} in it")
        for name in sorted(inside)
    )


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the names that its model has, unless its weights cannot be merged."""
    try:
        refuse_quantised(checkpoint)
        refuse_unmerged(checkpoint)
        return without_prefixes(checkpoint)
    except MergeError:
        checkpoint.close()
        raise


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
