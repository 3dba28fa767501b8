"""One weights file that is being written: every piece checksummed, and compared when read back.

safetensors has no checksum, so nothing in the file itself could show that a piece went to the wrong
place or never arrived. Here every piece leaves its CRC-32 behind when it is written, and the file
counts as good only when a second reader gets those CRCs from what it reads back. That reader
follows behind the writers, tensor by tensor, while the bytes are still in the page cache; its
SHA-256 of the file is the manifest's.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ramerge._errors import VerificationError
from ramerge._types import Bytes, TensorSpec
from ramerge.models.base import OutputFile
from ramerge.output.crc import combine_all, crc_hex
from ramerge.output.disk import reserve, write_all
from ramerge.output.layout import encode_header

STEP = 1 << 20  # bytes per read


class ShardFile:
    """An output file, open for writing from several threads.

    Attributes:
        path: the file.
        size: its bytes, header included.
        sealed: CRC-32 of every tensor that is whole.
    """

    def __init__(
        self,
        path: Path,
        specs: tuple[TensorSpec, ...],
        metadata: Mapping[str, str],
        *,
        reopen: bool,
    ) -> None:
        """Create the file at its full size, with its header; or reopen an interrupted run's.

        Raises:
            OSError: it cannot be made, or there is no room.
            ValueError: what should be reopened is not this file.
        """
        self.path = path
        self.sealed: dict[str, int] = {}
        self._header = encode_header(specs, metadata)
        self._places: dict[str, tuple[int, TensorSpec]] = {}
        at = len(self._header)
        for spec in specs:
            self._places[spec.name] = (at, spec)
            at += spec.nbytes
        self.size = at
        self._pieces: dict[str, dict[int, tuple[int, int]]] = {}  # tensor: byte -> (length, CRC)
        self._guard = threading.Lock()
        flags = 0 if reopen else os.O_CREAT | os.O_EXCL
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
        try:
            self._check() if reopen else self._fill()
            self._reader = ReadBack(path, self._header, specs)
        except BaseException:
            os.close(self._fd)
            raise

    def _fill(self) -> None:
        reserve(self._fd, self.size)
        write_all(self._fd, self._header, 0)

    def _check(self) -> None:
        same = os.fstat(self._fd).st_size == self.size
        if not same or os.pread(self._fd, len(self._header), 0) != self._header:
            raise ValueError(f"`{self.path.name}` is not the interrupted run's file")

    @property
    def names(self) -> tuple[str, ...]:
        """Tensors in file order."""
        return tuple(self._places)

    def nbytes(self, name: str) -> int:
        """Bytes of a tensor."""
        return self._places[name][1].nbytes

    def write(self, name: str, start: int, data: Bytes) -> None:
        """Put raw bytes at element ``start`` of a tensor; again only as a piece of equal extent."""
        at, spec = self._places[name]
        first = start * spec.dtype.itemsize
        if first + data.nbytes > spec.nbytes:
            raise VerificationError(
                f"tensor `{name}` has {spec.nbytes} bytes, "
                f"a piece of {data.nbytes} was to go to byte {first}"
            )
        crc = zlib.crc32(data.data)
        with self._guard:
            if self.sealed.pop(name, None) is not None:
                self._reader.forget(name)
            self._pieces.setdefault(name, {})[first] = (data.nbytes, crc)
        write_all(self._fd, data.data, at + first)

    def seal(self, name: str) -> int:
        """A tensor's last piece has been written: its CRC-32.

        Raises:
            VerificationError: some of its bytes never came.
        """
        with self._guard:
            pieces = sorted(self._pieces.pop(name, {}).items())
            expected, nbytes = 0, self.nbytes(name)
            for first, (length, _) in pieces:
                if first != expected:
                    break
                expected += length
            if expected != nbytes:
                raise VerificationError(
                    f"tensor `{name}` has {nbytes} bytes, byte {expected} was not written"
                )
            crc = self.sealed[name] = combine_all(piece for _, piece in pieces)
        return crc

    def adopt(self, name: str, crc: int) -> bool:
        """Whether a tensor of an interrupted run still has this CRC-32, and so is whole."""
        at, spec = self._places[name]
        found = 0
        for piece in pieces_of(self._fd, at, at + spec.nbytes, self.path.name):
            found = zlib.crc32(piece, found)
        if found == crc:
            self.sealed[name] = crc
        return found == crc

    def follow(self) -> None:
        """Read back what is whole by now, up to the first tensor that is not."""
        self._reader.follow(self.sealed)

    def read_back(self) -> OutputFile:
        """Read the rest of the file; name, size and SHA-256 when all of it is as written.

        Raises:
            VerificationError: names the file and the tensor.
            OSError: it cannot be read.
        """
        return self._reader.finish(self.sealed)

    def sync(self) -> None:
        """Put all bytes on stable storage."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the descriptors; closing twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._reader.close()
            os.close(fd)


class ReadBack:
    """The second reader of one file: opens it anew and takes nothing from the writer but CRCs."""

    def __init__(self, path: Path, header: bytes, specs: tuple[TensorSpec, ...]) -> None:
        self._path, self._header, self._specs = path, header, specs
        self._order = {spec.name: i for i, spec in enumerate(specs)}
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._turn = threading.Lock()
        self._stale = False
        self._restart()

    def _restart(self) -> None:
        self._stale = False
        self._next = 0  # tensor
        self._at = len(self._header)  # byte
        self._digest = hashlib.sha256(self._header)

    def forget(self, name: str) -> None:
        """A tensor is being written again: what was read of it does not count any more."""
        if self._order[name] < self._next:
            self._stale = True

    def follow(self, crcs: Mapping[str, int]) -> None:
        """Read tensors in file order as long as their CRC-32 is known.

        Raises:
            VerificationError: other bytes come back than were written.
        """
        with self._turn:
            while not self._stale and self._next < len(self._specs):
                spec = self._specs[self._next]
                crc = crcs.get(spec.name)
                if crc is None:
                    break
                self._compare(spec, crc)
                self._next += 1

    def _compare(self, spec: TensorSpec, expected: int) -> None:
        crc = 0
        for piece in pieces_of(self._fd, self._at, self._at + spec.nbytes, self._path.name):
            self._digest.update(piece)
            crc = zlib.crc32(piece, crc)
        self._at += spec.nbytes
        if crc != expected:
            raise VerificationError(
                f"tensor `{spec.name}` in `{self._path.name}` reads back as {crc_hex(crc)}, "
                f"{crc_hex(expected)} was written",
                hint="the disk or the memory is at fault: check both before trying again",
            )

    def finish(self, crcs: Mapping[str, int]) -> OutputFile:
        """Read the rest, and the header; all CRCs must be known."""
        if self._stale:
            self._restart()
        self.follow(crcs)
        assert self._next == len(self._specs), "commit has checked that every tensor is whole"
        name, size = self._path.name, os.fstat(self._fd).st_size
        if size != self._at:
            raise VerificationError(f"`{name}` is {size} bytes where {self._at} were written")
        if os.pread(self._fd, len(self._header), 0) != self._header:
            raise VerificationError(f"`{name}` has another header than was written")
        return OutputFile(name, size, self._digest.hexdigest())

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def pieces_of(fd: int, start: int, stop: int, name: str) -> Iterator[memoryview]:
    """Bytes [start, stop) of a file, in pieces that are overwritten by the next.

    Raises:
        VerificationError: the file ends before.
        OSError: it cannot be read.
    """
    room = memoryview(bytearray(min(STEP, max(stop - start, 1))))
    while start < stop:
        count = os.preadv(fd, [room[: stop - start]], start)
        if count == 0:
            raise VerificationError(f"`{name}` ends at byte {start}, before its last tensor")
        yield room[:count]
        start += count
