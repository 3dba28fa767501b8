"""From what the user wrote to an opened model: a local path, or a Hub id.

A format is either read exactly or refused with the reason and the way out. Nothing is half-read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from ramerge.checkpoint.quantised import refuse_quantised
from ramerge.checkpoint.refusals import TO_SAFETENSORS, UNQUANTISED, refusal
from ramerge.checkpoint.safetensors import INDEX, SINGLE, open_directory, open_file
from ramerge.checkpoint.sidefiles import CONFIG

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_checkpoint(
    source: str, *, base: Checkpoint | None = None, allow_pickle: bool = False
) -> Checkpoint:
    """Open a model, whatever form it has.

    Args:
        source: a directory, a ``.safetensors`` file, or a Hub id ``org/name[@revision]``. A path
        that exists is
            local; ``./`` and ``hf:`` in front force one reading.
        base: the opened base, which an adapter is applied to.
        allow_pickle: read pickled weights too.

    Raises:
        ConfigError: not a path and not a Hub id.
        CorruptInputError: damaged or incomplete.
        IncompatibleError: a format that cannot be merged.
        SecurityError: refused for safety.
        HubError: the Hub could not serve it.
    """
    path = Path(source).expanduser()
    if not source.startswith("hf:"):
        if path.is_dir():
            return _open_directory(path, source, base=base, allow_pickle=allow_pickle)
        if path.exists():
            return _open_single(path, source)
    hub = parse_hub_id(source)
    if hub is None or _looks_local(source, path):
        raise _missing(source, path, could_be_hub=hub is not None)
    snapshot = download(hub, pickles=allow_pickle)
    return _open_directory(
        snapshot.directory, source, base=base, allow_pickle=allow_pickle, revision=snapshot.commit
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


def _open_directory(
    directory: Path,
    source: str,
    *,
    base: Checkpoint | None,
    allow_pickle: bool,
    revision: str | None = None,
) -> Checkpoint:
    names = {entry.name for entry in os.scandir(directory)}
    config = read_config(directory)
    if SINGLE in names or INDEX in names:
        return _checked(open_directory(directory, source=source, config=config, revision=revision))
    raise refusal(names, directory, source)


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, unless its weights are quantised."""
    try:
        refuse_quantised(checkpoint)
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
