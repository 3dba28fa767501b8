"""What a program costs: wall, CPU, peak memory, measured from outside.

Peak memory is read from /proc while the program runs, not from rusage: after a fork, rusage starts
at the size of the program that forked. Anonymous memory is what the program itself asked for; the
rest of RSS is mapped files, which the kernel may drop.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.005


@dataclass(frozen=True, slots=True)
class Cost:
    """One run. Seconds and bytes."""

    wall: float
    cpu: float
    rss: int
    anonymous: int
    output: str


class FailedRunError(RuntimeError):
    """The program ended with an error."""


def measure(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Cost:
    """Run ``command`` to its end and say what it cost.

    Raises:
        FailedRunError: it ended with another code than 0; the message has the end of its output.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=errors, env=environment
        )
        peak = Peak(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        peak.stop()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise FailedRunError(
                f"{command} ended with {process.returncode}: {errors.read()[-2000:]}"
            )
        return Cost(wall, usage.ru_utime + usage.ru_stime, peak.rss, peak.anonymous, output.read())


class Peak:
    """Watches one process's memory until `stop`."""

    def __init__(self, pid: int) -> None:
        self.rss = self.anonymous = 0
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            try:
                lines = self._status.read_text().splitlines()
            except (FileNotFoundError, ProcessLookupError):
                return
            sizes = {key: value for key, _, value in (line.partition(":") for line in lines)}
            self.rss = max(self.rss, _bytes(sizes.get("VmHWM")))
            self.anonymous = max(self.anonymous, _bytes(sizes.get("RssAnon")))


def _bytes(text: str | None) -> int:
    """``"   1234 kB"`` in bytes; 0 for a process that has ended and has no memory any more."""
    return 1024 * int(text.split()[0]) if text else 0


def warm(files: Sequence[Path]) -> None:
    """Bring files into the page cache."""
    buffer = bytearray(1 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def cool(files: Sequence[Path]) -> None:
    """Drop files from the page cache."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
