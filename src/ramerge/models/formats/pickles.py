"""Weights that ``torch.save`` wrote: ``pytorch_model.bin``, sharded or not, and bare files.

Read without torch: see `torchfile` and `unpickle`. Only with `allow_pickle`, because whoever reads
such a file with other tools trusts its author; here nothing in it runs either way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError
from ramerge.models.base import Notice
from ramerge.models.files import is_plain, resolve_inside, shown
from ramerge.models.formats.index import (
    Index,
    Naming,
    check_agreement,
    check_present,
    check_total,
    ignored,
    read_index,
)
from ramerge.models.formats.pieces import PiecedCheckpoint, whole
from ramerge.models.formats.torchfile import OpenFile, Shard, Stored, Value, open_torch, read_torch

SINGLE = "pytorch_model.bin"
NAMING = Naming(
    SINGLE, f"{SINGLE}.index.json", re.compile(r"pytorch_model-\d{5,}-of-\d{5,}\.bin"), ".bin"
)
# Trainers put the weights under one of these keys, beside optimizers and counters.
_NESTED = ("state_dict", "model_state_dict", "model", "module")


class _Opened(NamedTuple):
    """Open files and the tensors of all of them together."""

    files: list[OpenFile]
    tensors: dict[str, Stored]
    notices: tuple[Notice, ...]


def open_pickle_file(path: Path, *, source: str) -> PiecedCheckpoint:
    """Open a bare file.

    Raises:
        SecurityError: the pickle refers to anything that tensors do not need.
        CorruptInputError: damaged, or no tensors in it.
    """
    opened = _open_all({path.name: path})
    pieced = {name: whole(name, stored) for name, stored in opened.tensors.items()}
    return PiecedCheckpoint(
        pieced, opened.files, source=source, directory=None, config=None, notices=opened.notices
    )


def open_pickle_directory(
    directory: Path, *, source: str, config: Mapping[str, Any] | None, revision: str | None = None
) -> PiecedCheckpoint:
    """Open a directory with `SINGLE`, or shards and their index; raises as `open_pickle_file`."""
    present = {e.name for e in os.scandir(directory) if e.name.startswith("pytorch_model")}
    present = {name for name in present if name.endswith(NAMING.suffix)}
    index = read_index(directory, NAMING)
    used = check_present(index, present, directory, NAMING)
    opened = _open_all({n: resolve_inside(directory, n, "the model") for n in sorted(used)}, index)
    pieced = {name: whole(name, stored) for name, stored in opened.tensors.items()}
    return PiecedCheckpoint(
        pieced,
        opened.files,
        source=source,
        directory=directory,
        config=config,
        revision=revision,
        notices=(*ignored(present - used), *opened.notices),
    )


def _open_all(paths: Mapping[str, Path], index: Index | None = None) -> _Opened:
    opened = _Opened([], {}, ())
    notices: list[Notice] = []
    homes: list[tuple[str, list[str]]] = []
    try:
        for name, path in paths.items():
            opened.files.append(open_torch(path, name))
            found, notes = state_dict(read_torch(opened.files[-1]), name)
            homes.append((name, list(found)))
            opened.tensors.update(_plain(found, name))
            notices += notes
        if index is not None:
            check_agreement(index, homes, NAMING)
            stored = sum(_nbytes(tensor) for tensor in opened.tensors.values())
            notices += check_total(index, stored, NAMING)
    except MergeError:
        for file in opened.files:
            os.close(file.fd)
        raise
    return opened._replace(notices=tuple(notices))


def _plain(tensors: Mapping[str, Value], name: str) -> dict[str, Stored]:
    """The tensors, none of which may be a part of a distributed one."""
    part = next((k for k, v in tensors.items() if not isinstance(v, Stored)), None)
    if part is not None:
        raise IncompatibleError(
            f"{shown(part)} in {shown(name)} is one rank's part of a tensor",
            hint="give the directory that holds the files of all ranks",
        )
    return {k: v for k, v in tensors.items() if isinstance(v, Stored)}


def _nbytes(stored: Stored) -> int:
    return prod(stored.shape) * stored.dtype.itemsize


def state_dict(value: Any, name: str) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """The tensors of what a file holds, by name, and what was left aside.

    Args:
        value: result of `read_torch`.
        name: what messages call the file.

    Raises:
        CorruptInputError: there are none, or a name is not plain text.
    """
    if not isinstance(value, dict):
        raise CorruptInputError(f"{shown(name)} holds no state dict but a {type(value).__name__}")
    key = next((k for k in _NESTED if _holds_tensors(value.get(k))), None)
    inner = value if key is None else value[key]
    tensors = {k: v for k, v in inner.items() if _is_tensor(v)}
    bad = next((k for k in tensors if not isinstance(k, str) or not k or not is_plain(k)), None)
    if bad is not None or not tensors:
        what = "no tensors" if bad is None else f"a tensor called {shown(bad)}"
        raise CorruptInputError(f"{shown(name)} holds {what}")
    left = sorted(
        str(k) for k in (*inner, *(value if key else ())) if k not in tensors and k != key
    )
    if not left:
        return tensors, ()
    text = f"entries of {shown(name)} that are no weights are left aside: "
    return tensors, (Notice("entries-left-aside", text + ", ".join(map(shown, left[:10]))),)


def _is_tensor(value: Any) -> TypeGuard[Value]:
    if isinstance(value, list):
        return bool(value) and all(isinstance(part, Shard) for part in value)
    return isinstance(value, Stored | Shard)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(_is_tensor(v) for v in value.values())
