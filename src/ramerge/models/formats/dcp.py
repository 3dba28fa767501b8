"""torch distributed checkpoints (DCP): ``.metadata``, and ``*.distcp`` files of tensor chunks.

``.metadata`` is a pickle that says which chunk of which tensor lies where; every chunk is a
``torch.save`` archive of its own inside a data file. Trainers save the model beside optimizer
state: the model's part is taken, and the rest is left aside with a notice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError
from ramerge._types import DType
from ramerge.models.base import Notice
from ramerge.models.files import is_plain, read_small, resolve_inside, shown
from ramerge.models.formats.pieces import Piece, Pieced, PiecedCheckpoint, tiled
from ramerge.models.formats.torchfile import (
    METADATA_BUILDERS,
    OpenFile,
    Stored,
    open_torch,
    read_torch,
)
from ramerge.models.formats.unpickle import Global, Opaque, load

METADATA = ".metadata"
_MODEL_KEYS = ("model", "module", "state_dict", "model_state_dict")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Where one chunk of a tensor lies."""

    offset: tuple[int, ...]
    file: str
    start: int
    length: int


def open_dcp(directory: Path, *, source: str, config: Mapping[str, Any] | None) -> PiecedCheckpoint:
    """Open a distributed checkpoint.

    Args:
        directory: holds ``.metadata``.
        source: as the user named it.
        config: parsed config.json of the model, if there is one.

    Raises:
        CorruptInputError: files are missing or damaged, or chunks do not make up the tensors.
        IncompatibleError: compressed chunks.
        SecurityError: a pickle refers to anything that tensors do not need.
    """
    path = resolve_inside(directory, METADATA, "the checkpoint")
    data = read_small(path, METADATA)
    metadata = load(data, METADATA_BUILDERS, persistent=_no_storage, name=METADATA)
    files: dict[str, OpenFile] = {}
    try:
        specs, chunks, names = _described(metadata)
        for name in {chunk.file for key in names for chunk in chunks.get(key, ())}:
            files[name] = _open(directory, name)
        pieced = {
            new: _tensor(new, specs[key], chunks.get(key, []), files) for key, new in names.items()
        }
    except MergeError:
        for file in files.values():
            os.close(file.fd)
        raise
    return PiecedCheckpoint(
        pieced,
        files.values(),
        source=source,
        directory=directory if config is not None else None,
        config=config,
        notices=_left_aside(set(specs) - set(names)),
    )


def _open(directory: Path, name: str) -> OpenFile:
    try:
        return open_torch(resolve_inside(directory, name, shown(METADATA)), name)
    except FileNotFoundError:
        raise CorruptInputError(
            f"{shown(name)} is missing in {shown(directory)}",
            hint="copy the files of all ranks into one directory",
        ) from None


def _described(
    metadata: Any,
) -> tuple[dict[str, Opaque], dict[str, list[_Chunk]], dict[str, str]]:
    """Tensors of the metadata by full name, their chunks, and the model's names for its own."""
    if not isinstance(metadata, Opaque) or metadata.kind.name != "Metadata":
        raise CorruptInputError(f"{shown(METADATA)} does not describe a distributed checkpoint")
    try:
        entries = metadata.get("state_dict_metadata")
        specs = {k: v for k, v in entries.items() if v.kind.name == "TensorStorageMetadata"}
        chunks: dict[str, list[_Chunk]] = {}
        for index, info in metadata.get("storage_data").items():
            if index.get("fqn") in specs:
                chunks.setdefault(index.get("fqn"), []).append(_chunk(index, info))
        names = _model_names(specs, metadata.get("planner_data") or {})
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        text = f"{shown(METADATA)} is not as torch writes it ({error})"
        raise CorruptInputError(text) from None
    return specs, chunks, names


def _chunk(index: Opaque, info: Opaque) -> _Chunk:
    if info.get("transform_descriptors"):
        raise IncompatibleError(
            f"the chunks of {shown(index.get('fqn'))} are compressed",
            hint="save the checkpoint without stream transforms",
        )
    return _Chunk(
        tuple(index.get("offset") or ()),
        str(info.get("relative_path")),
        int(info.get("offset")),
        int(info.get("length")),
    )


def _model_names(specs: Mapping[str, Opaque], paths: Mapping[str, Any]) -> dict[str, str]:
    """Full name to the model's own name, for the tensors of the model.

    ``paths`` gives each full name as its keys in the nested state dict. The model is below one of
    `_MODEL_KEYS`; a flat state dict is a model altogether.
    """
    found = {key: tuple(map(str, paths.get(key, (key,)))) for key in specs}
    for model in _MODEL_KEYS:
        below = {
            key: ".".join(path[path.index(model) + 1 :])
            for key, path in found.items()
            if model in path[:-1]
        }
        if below:
            return _plain(below)
    return _plain({key: path[-1] for key, path in found.items() if len(path) == 1})


def _plain(names: dict[str, str]) -> dict[str, str]:
    bad = next((n for n in names.values() if not is_plain(n)), None)
    if bad is not None or not names:
        what = "no tensors of a model" if bad is None else f"a tensor called {shown(bad)}"
        raise CorruptInputError(f"{shown(METADATA)} holds {what}")
    return names


def _tensor(name: str, spec: Opaque, chunks: list[_Chunk], files: Mapping[str, OpenFile]) -> Pieced:
    """One tensor, its chunks opened and checked against the metadata."""
    properties = spec.get("properties").state
    dtype = properties[0] if isinstance(properties, tuple) else spec.get("properties").get("dtype")
    if not isinstance(dtype, Global):
        raise CorruptInputError(f"{shown(METADATA)} gives no dtype for {shown(name)}")
    pieces = []
    for chunk in {c.offset: c for c in chunks}.values():
        stored = read_torch(files[chunk.file], start=chunk.start, length=chunk.length)
        if not isinstance(stored, Stored):
            raise CorruptInputError(f"a chunk of {shown(name)} in {shown(chunk.file)} is no tensor")
        pieces.append(Piece(chunk.offset or (0,) * len(stored.shape), stored))
    return tiled(name, DType.parse(dtype.name), tuple(spec.get("size")), pieces)


def _left_aside(names: set[str]) -> tuple[Notice, ...]:
    if not names:
        return ()
    some = ", ".join(map(shown, sorted(names)[:5]))
    text = f"{len(names)} tensors that are not the model's are left aside: {some}"
    return (Notice("entries-left-aside", text, tuple(sorted(names))),)


def _no_storage(_: Any) -> Any:
    raise CorruptInputError(f"{shown(METADATA)} holds tensor data")
