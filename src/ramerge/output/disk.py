"""The few system calls of careful writing: all or an error, reserved room, durable names.

A failing call becomes an `OutputError` that names the file, what it needs and what is free
(`writing`).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramerge._errors import OutputError

_AT_FDCWD, _EXCHANGE = -100, 2
_RESUME = "--resume then goes on from the tensors that are finished"
_HINTS = {
    errno.ENOSPC: f"free some space; {_RESUME}",
    errno.EDQUOT: f"your disk quota is used up: free some space; {_RESUME}",
    errno.EACCES: "the directory above --out must be writable",
    errno.EROFS: "the file system is mounted read-only: choose another --out",
    errno.EIO: "the disk reports an error: see the kernel's log",
}
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}


def write_all(fd: int, data: memoryview | bytes, at: int) -> None:
    """Write all of ``data`` at an offset; the system may take less at a time."""
    view = memoryview(data)
    while view.nbytes:
        count = os.pwrite(fd, view, at)
        view = view[count:]
        at += count


def reserve(fd: int, size: int) -> None:
    """Give an empty file its size and its room: a full disk is found before the work, not after.

    fallocate(2) itself and not posix_fallocate, which on a file system without it writes to every
    block.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is not None:
        if call(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
            return
        code = ctypes.get_errno()
        if code not in _UNSUPPORTED:
            raise OSError(code, os.strerror(code))
    os.ftruncate(fd, size)


def write_new(path: Path, data: bytes) -> None:
    """Create a file exclusively, with the mode of the umask, and make its content durable."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def writing(path: Path, nbytes: int | None = None) -> Iterator[None]:
    """Turn a failing system call into an OutputError: the file, the bytes needed and free."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        try:
            room = f", {free_bytes(path):,} bytes are free"
        except OSError:
            room = ""
        allowed = error.errno not in {errno.EACCES, errno.EPERM}  # else room is not the matter
        needs = "" if nbytes is None or not allowed else f" ({nbytes:,} bytes needed{room})"
        raise OutputError(
            f"cannot write `{path.name}`: {reason}{needs}", hint=_HINTS.get(error.errno or 0)
        ) from error


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def free_bytes(path: Path) -> int:
    """Bytes this user may still write on the file system of ``path`` (its nearest parent)."""
    while not path.exists() and path != path.parent:
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def exchange(a: Path, b: Path) -> bool:
    """Swap two directories in one step (Linux); False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(b))
