"""One writer per output directory, across processes; the loser learns who the winner is.

The lock is the file ``DIR.partial-lock`` with the holder's host, boot, pid and start time in it,
and a flock on it. Neither alone is enough: a killed process leaves its file behind but not its
flock, and some network file systems grant every flock. So a lock is free when there is no file, or
when flock is ours *and* the holder named in the file is known to be dead.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ramerge._errors import OutputBusyError

_NO_FLOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_PATIENCE = 0.5  # seconds for a competitor to write its name into the file it has just made


class OutputLock:
    """Held from the first check to the final rename, or to the process's death."""

    def __init__(self, out: Path) -> None:
        self.path = out.with_name(f"{out.name}.partial-lock")
        self._out = out
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            OutputBusyError: another run has it; names host and pid.
            OSError: the file cannot be made.
        """
        with _one_at_a_time(self.path):
            while self._fd < 0:
                self._fd = self._create()
                if self._fd < 0:
                    self._fd = self._take_over()

    def release(self) -> None:
        """Let go, and leave no file behind. Harmless when not held."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self._is_current(fd):
                self.path.unlink()
            os.close(fd)

    def _create(self) -> int:
        """The lock as a new file, or -1 when there is one already."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return -1
        if not _flock(fd):  # someone opened it in between, and thinks that it was left behind
            raise self._busy(fd)
        return self._claim(fd)

    def _take_over(self) -> int:
        """The lock as a file that a dead process left behind, or -1 when it vanished meanwhile."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return -1
        if not _flock(fd):
            raise self._busy(fd)
        if not self._is_current(fd):
            os.close(fd)
            return -1
        if _lives(_named(fd)):
            raise self._busy(fd)
        return self._claim(fd)

    def _claim(self, fd: int) -> int:
        """Write our name into the file."""
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(_myself()).encode(), 0)
        except OSError:
            self.path.unlink(missing_ok=True)
            os.close(fd)
            raise
        return fd

    def _is_current(self, fd: int) -> bool:
        try:
            return os.fstat(fd).st_ino == self.path.stat().st_ino
        except FileNotFoundError:
            return False

    def _busy(self, fd: int) -> OutputBusyError:
        holder = _named(fd)
        os.close(fd)
        who = f"process {holder.get('pid', 'unknown')} on host {holder.get('host', 'unknown')}"
        return OutputBusyError(
            f"`{self._out.name}` is being written by {who}",
            hint="wait for it or choose another --out; "
            f"if that process is gone, delete `{self.path.name}`",
        )


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process of this host at a time look at the lock, on any file system.

    The name of an abstract socket can be bound once, and is free again when its process dies.
    Where there is no such thing, two heirs of the same dead lock could both take it without flock.
    """
    name = "\0ramerge-" + hashlib.sha256(os.fsencode(path)).hexdigest()
    deadline = time.monotonic() + 10 * _PATIENCE
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        while True:
            try:
                door.bind(name)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
            break
        yield


def _flock(fd: int) -> bool:
    """Whether nobody else has the flock; where the file system has none, nobody can."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_FLOCK
    return True


def _myself() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def _boot() -> str:
    """Identity of the running kernel: the same in all its containers, another after a restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks: a recycled pid is another process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _named(fd: int) -> dict[str, Any]:
    """Who the file says holds it; empty when nobody has written that within `_PATIENCE`."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            holder = json.loads(os.pread(fd, 4096, 0))
        except ValueError:
            holder = None
        if isinstance(holder, dict) and holder.keys() == _myself().keys():
            return holder
        if time.monotonic() > deadline:
            return {}
        time.sleep(0.01)


def _lives(holder: dict[str, Any]) -> bool:
    """Whether the holder may still be running. Nobody can ask another host's process, so it may."""
    if not holder:
        return False
    if holder["boot"] != _boot():
        return bool(holder["host"] != socket.gethostname())
    try:
        os.kill(holder["pid"], 0)
    except PermissionError:
        return True
    except (OSError, TypeError, OverflowError):
        return False
    return bool(_started(holder["pid"]) == holder["started"])
