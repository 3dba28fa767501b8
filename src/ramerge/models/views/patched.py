"""A checkpoint some of whose tensors are put together from rows of others.

A patched tensor is a list of segments, each a run of elements of a tensor of some checkpoint.
Nothing is copied: a read goes to the segments that it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ramerge._types import Bytes, DType, TensorSpec
from ramerge.models.base import Checkpoint, Extent, Notice, SourceFile
from ramerge.models.numbers import read_numbers


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements [start, stop) of tensor ``name`` in ``checkpoint``."""

    checkpoint: Checkpoint
    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Patch:
    """A tensor and the segments that follow each other in it."""

    spec: TensorSpec
    segments: tuple[Segment, ...]


def patch(name: str, shape: tuple[int, ...], segments: Iterable[Segment]) -> Patch:
    """A tensor from segments; F32 (F64 if one is) where their dtypes differ."""
    kept = tuple(s for s in segments if s.stop > s.start)
    dtypes = {s.checkpoint.spec(s.name).dtype for s in kept}
    if len(dtypes) > 1:
        dtypes = {DType.F64 if DType.F64 in dtypes else DType.F32}
    spec = TensorSpec(name, dtypes.pop() if dtypes else DType.F32, shape)
    assert sum(s.stop - s.start for s in kept) == spec.elements
    return Patch(spec, kept)


def alias(name: str, checkpoint: Checkpoint, source: str) -> Patch:
    """Tensor ``source`` of ``checkpoint``, called ``name``."""
    spec = checkpoint.spec(source)
    return patch(name, spec.shape, [Segment(checkpoint, source, 0, spec.elements)])


class PatchedCheckpoint:
    """Another checkpoint, with tensors replaced, added or hidden; satisfies `Checkpoint`.

    Hidden tensors are not among the names, but whoever knows them can still read them. Closing it
    closes the other checkpoint; those that segments come from are closed by their owners.
    """

    __slots__ = ("_hidden", "_inner", "_patches", "config", "directory", "notices", "revision",
                 "source")  # fmt: skip

    def __init__(
        self, inner: Checkpoint, patches: Mapping[str, Patch], hidden: Iterable[str] = ()
    ) -> None:
        self.source = inner.source
        self.revision = inner.revision
        self.directory = inner.directory
        self.config = inner.config
        self.notices: tuple[Notice, ...] = inner.notices
        self._inner = inner
        self._patches = dict(patches)
        self._hidden = frozenset(hidden)

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        return tuple(sorted({*self._inner.names(), *self._patches} - self._hidden))

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor. Raises KeyError for an unknown name."""
        found = self._patches.get(name)
        return self._inner.spec(name) if found is None else found.spec

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Fill ``out`` with elements [start, stop) of a tensor; see `Checkpoint.read`."""
        found = self._patches.get(name)
        if found is None:
            self._inner.read(name, start, stop, out)
            return
        width, begin = found.spec.dtype.itemsize, 0
        for segment in found.segments:
            end = begin + segment.stop - segment.start
            low, high = max(start, begin), min(stop, end)
            if low < high:
                part = out[(low - start) * width : (high - start) * width]
                shift = segment.start - begin
                _read_as(found.spec.dtype, segment, low + shift, high + shift, part)
            begin = end

    def extent(self, name: str) -> Extent | None:
        """None for patched tensors; the other checkpoint's answer for all others."""
        return None if name in self._patches else self._inner.extent(name)

    def files(self) -> tuple[SourceFile, ...]:
        """The other checkpoint's files."""
        return self._inner.files()

    def close(self) -> None:
        """Close the other checkpoint."""
        self._inner.close()


def _read_as(dtype: DType, segment: Segment, start: int, stop: int, out: Bytes) -> None:
    """Elements of a segment's tensor as ``dtype``: as they are, or widened."""
    if segment.checkpoint.spec(segment.name).dtype is dtype:
        segment.checkpoint.read(segment.name, start, stop, out)
        return
    numbers = np.empty(stop - start, np.float64 if dtype is DType.F64 else np.float32)
    read_numbers(segment.checkpoint, segment.name, start, stop, numbers)
    out[:] = numbers.view(np.uint8)
