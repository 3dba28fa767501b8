"""FSDP checkpoints of verl's trainers: one ``model_world_size_W_rank_R.pt`` for each rank.

A rank's file maps parameter names to its part of each tensor (DTensor, ShardedTensor) or to the
whole tensor (buffers, and everything when there was one rank). Configuration and tokenizer lie in
``huggingface/`` beside them. ``fsdp_config.json`` may be absent: the files say all that is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError
from ramerge.models.base import Notice
from ramerge.models.files import resolve_inside, shown
from ramerge.models.formats.pickles import state_dict
from ramerge.models.formats.pieces import Piece, Pieced, PiecedCheckpoint, read_stored, tiled, whole
from ramerge.models.formats.torchfile import OpenFile, Shard, Stored, Value, open_torch, read_torch

_SAMPLES = 64  # places at which replicas are compared
_SAMPLE = 16_384  # elements at each
RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def rank_files(directory: Path) -> list[str]:
    """Names of the rank files, in rank order; empty where there are none.

    Raises:
        CorruptInputError: a rank is missing, or files of two world sizes are mixed.
    """
    found = [m for e in os.scandir(directory) if (m := RANK_FILE.fullmatch(e.name))]
    sizes = sorted({int(m[1]) for m in found})
    if len(sizes) > 1:
        raise CorruptInputError(
            f"{shown(directory)} mixes the files of runs with {sizes[0]} and {sizes[1]} ranks"
        )
    ranks = {int(m[2]): m[0] for m in found}
    missing = [r for size in sizes for r in range(size) if r not in ranks]
    if missing:
        raise CorruptInputError(
            f"{shown(directory)} has {len(ranks)} of {sizes[0]} rank files; rank {missing[0]} is "
            "missing",
            hint="copy the files of all ranks into one directory",
        )
    return [ranks[r] for r in sorted(ranks)]


def open_verl(
    directory: Path, *, source: str, config: Mapping[str, Any] | None, side_files: Path
) -> PiecedCheckpoint:
    """Open the rank files of a directory as one model.

    Args:
        directory: holds the rank files.
        source: as the user named it.
        config: parsed config.json of the model.
        side_files: directory that holds configuration and tokenizer.

    Raises:
        CorruptInputError: files are missing or damaged, or parts do not make up the tensors.
        IncompatibleError: a placement that is not read.
        SecurityError: a pickle refers to anything that tensors do not need.
    """
    files: list[OpenFile] = []
    ranks: list[dict[str, Value]] = []
    notices: list[Notice] = []
    try:
        for name in rank_files(directory):
            files.append(open_torch(resolve_inside(directory, name, "the checkpoint"), name))
            tensors, notes = state_dict(read_torch(files[-1]), name)
            ranks.append(tensors)
            notices += notes
        pieced = {name: _assemble(name, parts) for name, parts in _by_name(ranks, files)}
    except MergeError:
        for file in files:
            os.close(file.fd)
        raise
    return PiecedCheckpoint(
        pieced,
        files,
        source=source,
        directory=side_files,
        config=config,
        notices=tuple(notices),
    )


def _by_name(
    ranks: Sequence[Mapping[str, Value]], files: Sequence[OpenFile]
) -> Iterator[tuple[str, list[Value]]]:
    """Every tensor with its part on each rank, in rank order."""
    for name in ranks[0]:
        parts = []
        for rank, file in zip(ranks, files, strict=True):
            if name not in rank:
                raise CorruptInputError(f"{shown(name)} is not in {shown(file.name)}")
            parts.append(rank[name])
        yield name, parts
    first = set(ranks[0])
    for rank, file in zip(ranks, files, strict=True):
        extra = next((name for name in rank if name not in first), None)
        if extra is not None:
            raise CorruptInputError(f"{shown(extra)} is in {shown(file.name)} only")


def _assemble(name: str, parts: list[Value]) -> Pieced:
    """One tensor from its part on each rank."""
    first = parts[0]
    if isinstance(first, Stored):
        return _replicated(name, parts)
    if isinstance(first, Shard):
        return _placed(name, [p for p in parts if isinstance(p, Shard)], len(parts))
    shards = [shard for part in parts if isinstance(part, list) for shard in part]
    pieces = [Piece(shard.offset or (), shard.local) for shard in shards]
    return tiled(name, shards[0].local.dtype, shards[0].shape, pieces)


def _replicated(name: str, parts: list[Value]) -> Pieced:
    """A tensor that every rank holds whole: a buffer, or any tensor of a run with one rank."""
    first = parts[0]
    assert isinstance(first, Stored)
    for part in parts[1:]:
        if not isinstance(part, Stored) or (part.shape, part.dtype) != (first.shape, first.dtype):
            raise CorruptInputError(f"{shown(name)} differs in shape between ranks")
        if not _looks_equal(part, first):
            raise CorruptInputError(
                f"{shown(name)} is whole on every rank, but not the same on all of them"
            )
    return whole(name, first)


def _looks_equal(one: Stored, other: Stored) -> bool:
    """Whether two tensors have the same bits: all of them, or at `_SAMPLES` places of a large one."""
    n = prod(one.shape)
    for start in range(0, n, max(n // _SAMPLES, _SAMPLE)):
        size = min(_SAMPLE, n - start) * one.dtype.itemsize
        here, there = np.empty(size, np.uint8), np.empty(size, np.uint8)
        read_stored(one, start, here)
        read_stored(other, start, there)
        if not np.array_equal(here, there):
            return False
    return True


def _placed(name: str, shards: list[Shard], ranks: int) -> Pieced:
    """A DTensor on a one-dimensional mesh, or on one whose other dimensions hold replicas."""
    first = shards[0]
    split = [dim for dim in first.dims if dim is not None]
    if len(shards) != ranks or any((s.shape, s.dims) != (first.shape, first.dims) for s in shards):
        raise CorruptInputError(f"{shown(name)} is placed in different ways on different ranks")
    if not split:
        return _replicated(name, [shard.local for shard in shards])
    if len(split) > 1:
        raise IncompatibleError(
            f"{shown(name)} is split along {len(split)} dimensions of the device mesh",
            hint="run `python -m verl.model_merger merge` on the checkpoint first",
        )
    dim, position = split[0], 0
    pieces: list[Piece] = []
    for shard in _one_replica(shards, first):
        offset = tuple(position if d == dim else 0 for d in range(len(first.shape)))
        pieces.append(Piece(offset, shard.local))
        position += shard.local.shape[dim] if shard.local.shape else 0
    kept = [p for p in pieces if prod(p.stored.shape)]
    return tiled(name, first.local.dtype, first.shape, kept)


def _one_replica(shards: list[Shard], first: Shard) -> list[Shard]:
    """Ranks of the first replica (HSDP: the outer mesh dimension repeats the tensor)."""
    dim = next(d for d in first.dims if d is not None)
    size, total = 0, first.shape[dim]
    for i, shard in enumerate(shards):
        size += shard.local.shape[dim]
        if size >= total and first.dims[0] is None:
            return shards[: i + 1]
    return shards
