"""One weights file that is being written: every piece checksummed, and compared when read back.

safetensors has no checksum, so nothing in the file itself could show that a piece went to the wrong
place or never arrived. Here every piece leaves its CRC-32 behind when it is written, and the file
counts as good only when a second reader gets those CRCs from what it reads back.
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
from ramerge.checkpoint.base import OutputFile
from ramerge.checkpoint.crc import combine_all, crc_hex
from ramerge.checkpoint.disk import reserve, write_all
from ramerge.checkpoint.layout import encode_header

STEP = 1 << 20  # bytes per read


class ShardFile:
    """An output file, open for writing from several threads."""

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
        self.header = encode_header(specs, metadata)
        self._places: dict[str, tuple[int, TensorSpec]] = {}
        at = len(self.header)
        for spec in specs:
            self._places[spec.name] = (at, spec)
            at += spec.nbytes
        self.size = at
        self._pieces: dict[str, dict[int, tuple[int, int]]] = {}  # tensor -> byte -> (length, CRC)
        self._guard = threading.Lock()
        self._fd = os.open(
            path,
            os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if reopen else os.O_CREAT | os.O_EXCL),
            0o666,
        )
        try:
            self._check_reopened() if reopen else self._fill()
        except BaseException:
            os.close(self._fd)
            raise

    def _fill(self) -> None:
        reserve(self._fd, self.size)
        write_all(self._fd, self.header, 0)

    def _check_reopened(self) -> None:
        if (
            os.fstat(self._fd).st_size != self.size
            or os.pread(self._fd, len(self.header), 0) != self.header
        ):
            raise ValueError(
                f"`{self.path.name}` is not the file that the interrupted run was writing"
            )

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
        write_all(self._fd, data.data, at + first)
        crc = zlib.crc32(data.data)
        with self._guard:
            self._pieces.setdefault(name, {})[first] = (data.nbytes, crc)

    def seal(self, name: str) -> int:
        """CRC-32 of a tensor whose last piece has been written.

        Raises:
            VerificationError: some of its bytes never came.
        """
        with self._guard:
            pieces = sorted(self._pieces.pop(name, {}).items())
        expected = 0
        for first, (nbytes, _) in pieces:
            if first != expected:
                break
            expected += nbytes
        nbytes = self._places[name][1].nbytes
        if expected != nbytes:
            raise VerificationError(
                f"tensor `{name}` has {nbytes} bytes, byte {expected} was not written"
            )
        return combine_all(piece for _, piece in pieces)

    def read_crc(self, name: str) -> int:
        """CRC-32 of a tensor as the file has it now."""
        at, spec = self._places[name]
        crc = 0
        for piece in _read(self._fd, at, at + spec.nbytes, self.path.name):
            crc = zlib.crc32(piece, crc)
        return crc

    def sync(self) -> None:
        """Put all bytes on stable storage."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the descriptor; closing twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def read_back(
    path: Path, header: bytes, specs: tuple[TensorSpec, ...], crcs: Mapping[str, int]
) -> OutputFile:
    """Second reader: open a finished file anew and compare it with what was to be written.

    Args:
        path: the file.
        header: its expected first bytes.
        specs: its tensors in file order.
        crcs: CRC-32 of each tensor.

    Returns:
        name, size and SHA-256.

    Raises:
        VerificationError: names the file, and the tensor or the sizes.
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        end = len(header) + sum(spec.nbytes for spec in specs)
        size = os.fstat(fd).st_size
        if size != end:
            raise VerificationError(f"`{path.name}` is {size} bytes where {end} were written")
        found = os.pread(fd, len(header), 0)
        if found != header:
            raise VerificationError(f"`{path.name}` has another header than was written")
        digest = hashlib.sha256(found)
        at = len(header)
        for spec in specs:
            crc = 0
            for piece in _read(fd, at, at + spec.nbytes, path.name):
                digest.update(piece)
                crc = zlib.crc32(piece, crc)
            at += spec.nbytes
            if crc != crcs[spec.name]:
                raise VerificationError(
                    f"tensor `{spec.name}` in `{path.name}` reads back as {crc_hex(crc)}, "
                    f"{crc_hex(crcs[spec.name])} was written",
                    hint="the disk or the memory is at fault: check both before trying again",
                )
        return OutputFile(path.name, size, digest.hexdigest())
    finally:
        os.close(fd)


def _read(fd: int, start: int, stop: int, name: str) -> Iterator[memoryview]:
    """Bytes [start, stop) in pieces that are overwritten by the next."""
    room = memoryview(bytearray(min(STEP, max(stop - start, 1))))
    while start < stop:
        count = os.preadv(fd, [room[: stop - start]], start)
        if count == 0:
            raise VerificationError(f"`{name}` ends at byte {start}, before its last tensor")
        yield room[:count]
        start += count
