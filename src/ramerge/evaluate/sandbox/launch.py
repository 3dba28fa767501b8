"""The box: one bubblewrap process with nothing in it but an interpreter.

No network, no files of the host but a read-only ``/usr``, an empty environment, its own process ids, no
capabilities, no further user namespaces, a 16 MB scratch directory. Limits on memory, file size, processor
time, open files and processes are set inside, before the program starts, and cannot be raised. When we run
as root, bubblewrap is started as nobody: the limit on processes does not bind root. The parent keeps the
wall clock and counts the bytes of output.

Not covered: a hole in the kernel. Run evaluations of models you distrust in a virtual machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ramerge._errors import SandboxError

OUTPUT_BYTES = 1 << 20
SCRATCH_BYTES = 16 << 20
NOBODY = 65534
END_S = 30.0  # the kernel needs milliseconds to end a box
PROGRAMS = ("/usr/bin/python3", "/usr/local/bin/python3")

PROFILE = (
    "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
    "--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY),
    "--clearenv", "--setenv", "PATH", "/usr/bin", "--setenv", "LANG", "C.UTF-8", "--hostname", "box",
    "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev",
    "--size", str(SCRATCH_BYTES), "--tmpfs", "/box",
)  # fmt: skip

# Runs first inside the box: set the limits, become the program. argv: memory bytes, CPU seconds, file to run.
ENTRY = """
import os, resource as r, sys
memory, seconds, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for limit, value in ((r.RLIMIT_AS, memory), (r.RLIMIT_CPU, seconds), (r.RLIMIT_FSIZE, 16 << 20),
                     (r.RLIMIT_CORE, 0), (r.RLIMIT_NOFILE, 64), (r.RLIMIT_NPROC, 32)):
    r.setrlimit(limit, (value, value))
os.execv(sys.executable, [sys.executable, "-I", "-B", path])
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: wall clock; processor time is limited to little more, for processes that outlive it.
        memory_mb: address space.
    """

    seconds: float = 10.0
    memory_mb: int = 1024


@dataclass(slots=True)
class Box:
    """A started program. ``started`` says whether bubblewrap got as far as running something."""

    process: asyncio.subprocess.Process
    status: int  # file descriptor on which bubblewrap reports the child

    @property
    def started(self) -> bool:
        """Whether the box was built; only meaningful once output or the end of the process was seen."""
        return self._first() is not None

    async def end(self) -> None:
        """Kill everything inside, and return when nothing of it is left; called once."""
        if self.process.returncode is None:
            first = self._first()
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            if first is not None:
                await _gone(first)
        await self.process.wait()
        os.close(self.status)

    def _first(self) -> int | None:
        """The box's process 1 as the host counts it; None where there is none (yet)."""
        told = as_json(os.pread(self.status, 4096, 0).partition(b"\n")[0])
        return told.get("child-pid") if isinstance(told, dict) else None


@cache
def tools() -> tuple[str, str]:
    """Paths of bubblewrap and of the interpreter used inside.

    Raises:
        SandboxError: either is missing.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError(
            "model-written code runs only in bubblewrap, which is not installed",
            hint="apt-get install bubblewrap",
        )
    python = next((path for path in PROGRAMS if Path(path).exists()), None)
    if python is None:
        raise SandboxError(
            f"the sandbox holds nothing of the host but /usr, and there is no {PROGRAMS[0]}",
            hint="apt-get install python3",
        )
    return bwrap, python


def command(files: Sequence[tuple[int, str]], main: str, limits: Limits, status: int) -> list[str]:
    """The bubblewrap command line: ``files`` are (file descriptor, path inside), ``main`` is run."""
    bwrap, python = tools()
    box = [bwrap, *PROFILE]
    for name in ("lib", "lib64", "bin"):
        if Path("/usr", name).is_dir():
            box += ["--symlink", f"usr/{name}", f"/{name}"]
    for descriptor, path in files:
        box += ["--ro-bind-data", str(descriptor), path]
    box += ["--remount-ro", "/", "--chdir", "/box", "--json-status-fd", str(status), "--"]
    seconds = int(limits.seconds) + 3  # the wall clock ends a busy program first, and as a timeout
    entry = [python, "-I", "-S", "-c", ENTRY, str(limits.memory_mb << 20), str(seconds), main]
    return [*box, *entry]


async def launch(files: Mapping[str, str], main: str, limits: Limits) -> Box:
    """Start the program ``main`` in a new box.

    Args:
        files: path inside (below ``/box``) -> text.
        main: one of them.
        limits: of the program.

    Raises:
        SandboxError: bubblewrap or an interpreter is missing, or cannot be started.
    """
    descriptors = [(_in_memory(text), path) for path, text in files.items()]
    status = os.memfd_create("status", 0)
    try:
        keep = (*(descriptor for descriptor, _ in descriptors), status)
        process = await asyncio.create_subprocess_exec(
            *command(descriptors, main, limits, status),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=keep,
            limit=OUTPUT_BYTES + 1,
            start_new_session=True,
            **unprivileged(),
        )
    except OSError as error:
        os.close(status)
        raise SandboxError(f"bubblewrap does not start: {error.strerror}") from error
    finally:
        for descriptor, _ in descriptors:
            os.close(descriptor)
    return Box(process, status)


async def _gone(first: int) -> None:
    """End a box's process 1, and with it everything in the box, and wait until it is no more.

    It dies with bubblewrap, but not where that is killed before the two have been tied together.
    """
    try:
        process = os.pidfd_open(first)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        if _first_of_a_box(first):
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        async with asyncio.timeout(END_S):
            await ended.wait()
    except TimeoutError as error:
        raise SandboxError(f"a box does not end (process {first})") from error
    finally:
        loop.remove_reader(process)
        os.close(process)


def _first_of_a_box(pid: int) -> bool:
    """Whether a process is number 1 of a namespace of its own: the number alone may have been given away again."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next(
        (line.split()[1:] for line in status.splitlines() if line.startswith("NSpid")), []
    )
    return len(numbers) > 1 and numbers[-1] == "1"


def unprivileged() -> dict[str, Any]:
    """Arguments that make a child process nobody, where we are root."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def _in_memory(text: str) -> int:
    descriptor = os.memfd_create("file", 0)
    data = text.encode("utf-8", "surrogatepass")
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def as_json(line: bytes) -> Any:
    """A line from inside a box, or None where it is not JSON: whatever comes out is data from an enemy."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
