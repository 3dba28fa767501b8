"""A model whose embedding rows stand in another vocabulary's order.

The wrapped `Checkpoint` looks like any other, so the engine merges embeddings of different
vocabularies like all other tensors. Rows are read where they lie; only rows that a model lacks are
made up, from other models' rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ramerge._types import I64, Bytes, TensorSpec
from ramerge.models.base import Checkpoint, Extent, Notice, SourceFile
from ramerge.models.memory import numpy_dtype

Row = tuple[Checkpoint, str, int]  # model, tensor, row


@dataclass(frozen=True, slots=True)
class RowMap:
    """Where the rows of one tensor come from.

    Attributes:
        own: int64 ``[rows]``: row of the wrapped model's tensor, or -1.
        borrowed: for each row of -1, the rows of other models whose mean it is; none make zeros.
    """

    own: I64
    borrowed: Mapping[int, tuple[Row, ...]]

    @property
    def rows(self) -> int:
        """Rows of the tensor as it is presented."""
        return self.own.size

    def is_identity(self, rows: int) -> bool:
        """Whether it presents a tensor of ``rows`` rows as it is."""
        return self.rows == rows and bool(np.array_equal(self.own, np.arange(rows)))


class RemappedCheckpoint:
    """A `Checkpoint` with the rows of some tensors rearranged; the rest is passed through."""

    def __init__(self, inner: Checkpoint, maps: Mapping[str, RowMap]) -> None:
        self.source = inner.source
        self.revision = inner.revision
        self.directory: Path | None = inner.directory
        self.config: Mapping[str, Any] | None = inner.config
        self.notices: tuple[Notice, ...] = inner.notices
        self._inner = inner
        self._maps = {n: m for n, m in maps.items() if not m.is_identity(inner.spec(n).shape[0])}
        self._edges = {name: _edges(rows.own) for name, rows in self._maps.items()}

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        return self._inner.names()

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor, with as many rows as the new vocabulary has."""
        spec = self._inner.spec(name)
        if name not in self._maps:
            return spec
        return replace(spec, shape=(self._maps[name].rows, *spec.shape[1:]))

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Fill ``out`` with elements [start, stop) of the rearranged tensor."""
        if name not in self._maps:
            self._inner.read(name, start, stop, out)
            return
        spec, edges = self._inner.spec(name), self._edges[name]
        width, size = prod(spec.shape[1:]), spec.dtype.itemsize
        run = int(np.searchsorted(edges, start // max(width, 1), side="right")) - 1
        at = start
        while at < stop:  # runs of rows that are neighbours in the model, too
            first, end = int(edges[run]), min(int(edges[run + 1]) * width, stop)
            piece = out[(at - start) * size : (end - start) * size]
            own = int(self._maps[name].own[first])
            if own >= 0:
                shift = (own - first) * width
                self._inner.read(name, at + shift, end + shift, piece)
            else:
                self._make(name, spec, at, end, piece)
            at, run = end, run + 1

    def extent(self, name: str) -> Extent | None:
        """Position of the raw bytes in a file; None for rearranged tensors."""
        return None if name in self._maps else self._inner.extent(name)

    def files(self) -> tuple[SourceFile, ...]:
        """Files of the wrapped model."""
        return self._inner.files()

    def close(self) -> None:
        """Close the wrapped model."""
        self._inner.close()

    def _make(self, name: str, spec: TensorSpec, start: int, stop: int, out: Bytes) -> None:
        """Elements of one row that the model lacks: the mean of borrowed rows, rounded once."""
        width = prod(spec.shape[1:])
        row = start // width
        first = row * width
        rows = self._maps[name].borrowed[row]
        total = np.zeros(stop - start, np.float64)
        for model, tensor, number in rows:
            total += _floats(model, tensor, number * width + start - first, stop - start)
        mean = total / len(rows) if len(rows) > 1 else total
        out[:] = mean.astype(numpy_dtype(spec.dtype)).view(np.uint8)


def _floats(model: Checkpoint, tensor: str, start: int, count: int) -> Any:
    dtype = model.spec(tensor).dtype
    raw = np.empty(count * dtype.itemsize, np.uint8)
    model.read(tensor, start, start + count, raw)
    return raw.view(numpy_dtype(dtype)).astype(np.float64)


def _edges(own: I64) -> I64:
    """First rows of runs that can be read at once, and the end. Made-up rows are runs of one."""
    breaks = np.flatnonzero((np.diff(own) != 1) | (own[1:] < 0) | (own[:-1] < 0)) + 1
    return np.concatenate(([0], breaks, [own.size])).astype(np.int64)
