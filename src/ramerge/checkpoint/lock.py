"""One writer per output directory, across processes; the loser learns who the winner is.

The lock is the file ``DIR.partial-lock`` with the holder's host, boot, pid and start time in it,
and a flock on it. Neither alone is enough: a killed process leaves its file behind but not its
flock, and some network file systems grant every flock. So a lock is free when there is no file, or
when flock is ours *and* the holder named in the file is known to be dead.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
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
        while self._fd < 0:
            self._fd = self._create()
            if self._fd < 0:
                self._fd = self._take_over()

    def release(self) -> None:
        """Let go, and leave no file behind. Harmless when not held."""
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def _create(self) -> int:
        """The lock as a new file, or -1 when there is one already."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return -1
        if _flock(fd) is False:  # someone opened it in between, and thinks that it was left behind
            raise self._busy(fd)
        os.pwrite(fd, json.dumps(_myself()).encode(), 0)
        return fd

    def _take_over(self) -> int:
        """The lock as a file that a dead process left behind, or -1 when it vanished meanwhile."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return -1
        locked = _flock(fd)
        if locked is False:
            raise self._busy(fd)
        if not self._is_current(fd):
            os.close(fd)
            return -1
        holder = _named(fd)
        if _lives(holder):
            raise self._busy(fd)
        if locked is None:
            return self._break(fd, holder)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(_myself()).encode(), 0)
        return fd

    def _break(self, fd: int, holder: dict[str, Any]) -> int:
        """Without flock: move the dead lock aside, so that one of several heirs makes the new."""
        os.close(fd)
        aside = self.path.with_name(f"{self.path.name}-{os.getpid()}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return -1
        moved = os.open(aside, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _named(moved) != holder:  # it was a quicker heir's new lock: give it back
                os.link(aside, self.path)
                raise self._busy(os.dup(moved))
        finally:
            os.close(moved)
            aside.unlink()
        return -1

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


def _flock(fd: int) -> bool | None:
    """Whether the flock is ours; None where the file system has none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _NO_FLOCK else False
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
        if isinstance(holder, dict):
            return holder
        if time.monotonic() > deadline:
            return {}
        time.sleep(0.01)


def _lives(holder: dict[str, Any]) -> bool:
    """Whether the holder may still be running. Nobody can ask another host's process, so it may."""
    if not holder:
        return False
    if holder.get("boot") != _boot():
        return holder.get("host") != socket.gethostname()
    pid = holder.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return pid == os.getpid() and holder == _myself()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(pid) == holder.get("started")
