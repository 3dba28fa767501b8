"""Models whose tensors lie in files piece by piece: pickles, ranks of a run, DCP chunks.

A piece is a rectangular block of a tensor. Elements are read straight from the files (`pread`), in
runs as long as the block allows; the whole tensor is never put together.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ramerge._errors import CorruptInputError
from ramerge._types import Bytes, DType, TensorSpec
from ramerge.models.base import Extent, Notice, SourceFile
from ramerge.models.files import read_exactly, redacted, shown
from ramerge.models.formats.torchfile import OpenFile, Stored


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a tensor: where it begins in the tensor, and where its elements are."""

    offset: tuple[int, ...]
    stored: Stored


@dataclass(frozen=True, slots=True)
class Pieced:
    """A tensor and the pieces that tile it."""

    spec: TensorSpec
    pieces: tuple[Piece, ...]


class PiecedCheckpoint:
    """A model of `Pieced` tensors; satisfies `Checkpoint`. Reads are thread-safe."""

    __slots__ = (
        "_files",
        "_open",
        "_tensors",
        "config",
        "directory",
        "notices",
        "revision",
        "source",
    )

    def __init__(
        self,
        tensors: Mapping[str, Pieced],
        files: Iterable[OpenFile],
        *,
        source: str,
        directory: Path | None,
        config: Mapping[str, Any] | None,
        revision: str | None = None,
        notices: tuple[Notice, ...] = (),
    ) -> None:
        self.source = redacted(source)
        self.revision = revision
        self.directory = directory
        self.config = config
        self.notices = notices
        self._tensors = tensors
        self._files = tuple(sorted(files))
        self._open = True

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        return tuple(sorted(self._tensors))

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor. Raises KeyError for an unknown name."""
        return self._tensors[name].spec

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Fill ``out`` with elements [start, stop) of a tensor; see `Checkpoint.read`."""
        tensor = self._tensors[name]
        if not self._open:
            raise ValueError(f"{self.source} is closed")
        assert 0 <= start <= stop <= max(tensor.spec.elements, 0)
        for piece in tensor.pieces:
            _read_piece(piece, tensor.spec, start, stop, out)

    def extent(self, name: str) -> Extent | None:
        """Position of a tensor that lies in one piece; None for the others."""
        tensor = self._tensors[name]
        (first, *others) = tensor.pieces or (None,)
        if others or first is None or not first.stored.contiguous:
            return None
        return Extent(first.stored.file.name, first.stored.offset, tensor.spec.nbytes)

    def files(self) -> tuple[SourceFile, ...]:
        """The weights files, sorted by name."""
        return tuple(SourceFile(f.name, f.path, f.size) for f in self._files)

    def close(self) -> None:
        """Release file descriptors. Reading afterwards is an error."""
        if self._open:
            self._open = False
            for file in self._files:
                os.close(file.fd)


def _read_piece(piece: Piece, spec: TensorSpec, start: int, stop: int, out: Bytes) -> None:
    """The elements of one piece that fall into [start, stop) of the whole tensor."""
    local = piece.stored.shape
    if 0 in local or start >= stop:
        return
    run, outer = _runs(local, spec.shape)
    steps = _row_major(spec.shape)
    origin = sum(o * s for o, s in zip(piece.offset, steps, strict=True))
    begins = _run_begins(local[:outer], steps[:outer], origin, start - run, stop)
    width = spec.dtype.itemsize
    for index, begin in begins:
        low, high = max(begin, start), min(begin + run, stop)
        if low < high:
            here = index * run + low - begin
            read_stored(piece.stored, here, out[(low - start) * width : (high - start) * width])


def _runs(local: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, int]:
    """Longest run contiguous in both, and how many dimensions lie outside."""
    run, outer = 1, len(local)
    for n, total in zip(reversed(local), reversed(whole), strict=True):
        outer -= 1
        run *= n
        if n != total:
            break
    return run, outer


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _run_begins(
    counts: tuple[int, ...], steps: tuple[int, ...], origin: int, low: int, high: int
) -> Iterable[tuple[int, int]]:
    """(index, flat begin) of the runs that begin in (low, high), in order."""
    total = prod(counts)
    first = _bisect(lambda i: _begin(i, counts, steps) + origin > low, total)
    for index in range(first, total):
        begin = _begin(index, counts, steps) + origin
        if begin >= high:
            return
        yield index, begin


def _bisect(holds: Any, n: int) -> int:
    """The first index of [0, n) where the monotonic ``holds`` is true, or n."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _begin(index: int, counts: tuple[int, ...], steps: tuple[int, ...]) -> int:
    begin = 0
    for count, step in zip(reversed(counts), reversed(steps), strict=True):
        index, digit = divmod(index, count)
        begin += digit * step
    return begin


def read_stored(stored: Stored, start: int, out: Bytes) -> None:
    """Fill ``out`` with the elements of a stored tensor from ``start`` on.

    Raises:
        CorruptInputError: the file ends early.
    """
    width = stored.dtype.itemsize
    if stored.contiguous:
        read_exactly(stored.file.fd, stored.offset + start * width, out.data, stored.file.name)
        return
    count = out.size // width
    span = sum((n - 1) * step for n, step in zip(stored.shape, stored.stride, strict=True)) + 1
    page = stored.offset - stored.offset % mmap.ALLOCATIONGRANULARITY
    length = stored.offset - page + span * width
    with mmap.mmap(stored.file.fd, length, prot=mmap.PROT_READ, offset=page) as mapped:
        flat = np.frombuffer(mapped, f"V{width}", span, stored.offset - page)
        strides = [step * width for step in stored.stride]
        view = np.lib.stride_tricks.as_strided(flat, stored.shape, strides, writeable=False)
        out[:] = np.frombuffer(view.flat[start : start + count].tobytes(), np.uint8)
        del view, flat


def whole(name: str, stored: Stored) -> Pieced:
    """A tensor that lies in one piece."""
    spec = TensorSpec(name, stored.dtype, stored.shape)
    return Pieced(spec, (Piece((0,) * len(stored.shape), stored),))


def tiled(name: str, dtype: DType, shape: tuple[int, ...], pieces: Iterable[Piece]) -> Pieced:
    """A tensor from its pieces, which must fill it without holes and overlaps.

    Raises:
        CorruptInputError: they do not.
    """
    found = tuple(sorted(pieces, key=lambda p: p.offset))
    for piece in found:
        stored = piece.stored
        ends = [o + n for o, n in zip(piece.offset, stored.shape, strict=True)]
        if stored.dtype is not dtype or any(e > n for e, n in zip(ends, shape, strict=True)):
            raise CorruptInputError(
                f"a piece of {shown(name)} is {stored.dtype.name} {list(stored.shape)} at "
                f"{list(piece.offset)}, outside {dtype.name} {list(shape)}"
            )
    have = sum(prod(p.stored.shape) for p in found)
    if have != prod(shape) or _overlap(found):
        raise CorruptInputError(
            f"the pieces of {shown(name)} have {have} elements together, {prod(shape)} are needed",
            hint="a rank's file is missing, or files of two runs are mixed",
        )
    return Pieced(TensorSpec(name, dtype, shape), found)


def _overlap(pieces: tuple[Piece, ...]) -> bool:
    """Whether two of the pieces, sorted by offset, share an element."""
    full = [p for p in pieces if prod(p.stored.shape)]
    for i, one in enumerate(full):
        for other in full[i + 1 :]:
            if one.offset and other.offset[0] >= one.offset[0] + one.stored.shape[0]:
                break
            if all(
                a < b + m and b < a + n
                for a, n, b, m in zip(
                    one.offset, one.stored.shape, other.offset, other.stored.shape, strict=True
                )
            ):
                return True
    return False
