"""SHA-256 of files, computed while the merge reads them instead of reading them once more."""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ramerge._errors import CorruptInputError
from ramerge._types import Bytes
from ramerge.models.base import Checkpoint, Extent, OutputFile
from ramerge.output.promises import check_promises, check_unchanged, stamp

STEP = 1 << 20  # bytes per read


def hash_file(path: Path) -> tuple[int, str]:
    """Size and hex SHA-256 of a file, read with a bounded buffer."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(STEP):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


class OrderedHasher:
    """Hashes one file from pieces that several threads feed in file order.

    A piece that is early waits for its predecessors. That cannot block for ever, because threads
    take their pieces in order. What nobody feeds (the header, tensors left out) is read from the
    file here.
    """

    def __init__(self, path: Path, extents: Sequence[Extent]) -> None:
        """Args: the file; extents that will be fed, ascending."""
        self._path = path
        self._digest = hashlib.sha256()
        self._position = 0  # bytes hashed
        self._ends = [(e.offset, e.offset + e.nbytes) for e in extents if e.nbytes]
        self._current = 0  # index of the extent being fed
        self._next = self._ends[0][0] if self._ends else -1  # where the next piece to be fed starts
        self._turn = threading.Condition()
        self._aborted = False

    def update(self, offset: int, data: Bytes) -> None:
        """Hash ``data``, which lies at ``offset``, once all bytes before it are hashed."""
        if not data.size:
            return
        with self._turn:
            while self._next != offset and not self._aborted:
                self._turn.wait()
        if self._aborted:
            return
        # Only the thread whose turn it is gets here, so the digest needs no lock.
        self._fill(offset)
        self._digest.update(data.data)
        self._position = offset + data.size
        with self._turn:
            self._next = self._position
            if self._position == self._ends[self._current][1]:
                self._current += 1
                last = self._current == len(self._ends)
                self._next = -1 if last else self._ends[self._current][0]
            self._turn.notify_all()

    def _fill(self, until: int) -> None:
        if until <= self._position:
            return
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._position)
            while self._position < until:
                piece = file.read(min(STEP, until - self._position))
                if not piece:
                    raise CorruptInputError(f"`{self._path.name}` became shorter while it was read")
                self._digest.update(piece)
                self._position += len(piece)

    def finish(self) -> tuple[int, str]:
        """Hash what is left; returns size and hex digest."""
        size = self._path.stat().st_size
        self._fill(size)
        return size, self._digest.hexdigest()

    def abort(self) -> None:
        """Wake every waiting thread: a predecessor failed and will never come."""
        with self._turn:
            self._aborted = True
            self._turn.notify_all()


class InputHashes:
    """SHA-256 of every input file of a merge; the engine's observer (`engine.Observer`).

    Tensors that are visited in the order in which they lie are hashed on the way, most often all of
    them; the bytes between are read once more.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], visited: Sequence[Sequence[str]]) -> None:
        """Take the streams in engine order, and of each the tensors to be read, in order."""
        self._checkpoints = checkpoints
        self._stamps = {f.path: stamp(f.path) for c in checkpoints for f in c.files()}
        self._hashers: list[dict[str, OrderedHasher]] = []
        self._extents: list[dict[str, Extent]] = []
        for checkpoint, names in zip(checkpoints, visited, strict=True):
            paths = {file.name: file.path for file in checkpoint.files()}
            extents = {n: e for n in names if (e := checkpoint.extent(n)) is not None}
            followed = dict(_by_file(extents))
            self._extents.append(
                {n: e for tensors in followed.values() for n, e in tensors.items()}
            )
            self._hashers.append(
                {f: OrderedHasher(paths[f], list(t.values())) for f, t in followed.items()}
            )

    def __call__(self, stream: int, name: str, start: int, data: Bytes) -> None:
        """Take note of a piece that was read: elements from ``start`` of tensor ``name``."""
        extent = self._extents[stream].get(name)
        if extent is None or not data.size:
            return
        hasher = self._hashers[stream].get(extent.file)
        if hasher is not None:
            itemsize = self._checkpoints[stream].spec(name).dtype.itemsize
            hasher.update(extent.offset + start * itemsize, data)

    def abort(self) -> None:
        """Wake all threads that wait for their turn."""
        for hashers in self._hashers:
            for hasher in hashers.values():
                hasher.abort()

    def finish(self) -> list[tuple[OutputFile, ...]]:
        """Name, size and digest of every file, per stream.

        Raises:
            CorruptInputError: a file changed while it was read, or is not what its origin says.
        """
        files = {f.path: f for checkpoint in self._checkpoints for f in checkpoint.files()}
        followed = {
            file.path: hashers[file.name]
            for checkpoint, hashers in zip(self._checkpoints, self._hashers, strict=True)
            for file in checkpoint.files()
            if file.name in hashers
        }

        def digest(path: Path) -> tuple[int, str]:
            return followed[path].finish() if path in followed else hash_file(path)

        with ThreadPoolExecutor(4) as pool:
            done = dict(zip(files, pool.map(digest, files), strict=True))
        for path, file in files.items():
            check_unchanged(file, self._stamps[path])
        result = []
        for checkpoint in self._checkpoints:
            result.append(tuple(OutputFile(f.name, *done[f.path]) for f in checkpoint.files()))
            check_promises(checkpoint, result[-1])
        return result


def _by_file(extents: Mapping[str, Extent]) -> Iterator[tuple[str, dict[str, Extent]]]:
    """Each file with those of its tensors that come in the order in which they lie."""
    files: dict[str, list[tuple[str, Extent]]] = {}
    for name, extent in extents.items():
        if extent.nbytes:
            files.setdefault(extent.file, []).append((name, extent))
    for file, tensors in files.items():
        kept = longest_ascent([extent.offset for _, extent in tensors])
        yield file, dict(tensors[i] for i in kept)


def longest_ascent(values: Sequence[int]) -> list[int]:
    """Indices of a longest subsequence that ascends strictly (patience sorting)."""
    tops: list[int] = []  # tops[k]: value that ends the best ascent of k + 1 values so far
    at: list[int] = []  # its index
    before: list[int] = []  # index of the value before values[i] in its ascent, or -1
    for i, value in enumerate(values):
        k = bisect_left(tops, value)
        before.append(at[k - 1] if k else -1)
        tops[k : k + 1], at[k : k + 1] = [value], [i]
    ascent = []
    i = at[-1] if at else -1
    while i >= 0:
        ascent.append(i)
        i = before[i]
    return ascent[::-1]
