"""A process that has everything imported and compiled, and forks a child for every command.

A run of ramerge costs a second of imports; the bench needs thousands. Reads one JSON object a line
on stdin and answers with one on the descriptor that its argument names:

    {"argv": [...], "log": path, "stop": bool, ...}  ->  {"pid": n}
    {"wait": pid}                                           ->  {"status": n, "rss": kilobytes}
    {"quit": true}

With ``stop`` the child stops itself before it begins, so that strace can attach.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import sys

import numpy as np


def main() -> None:
    from ramerge.cli.app import run

    warm = json.loads(sys.stdin.readline())
    pid = (
        os.fork()
    )  # where nothing is compiled yet, compiling takes memory that is not ours to show
    if pid == 0:
        os._exit(run(warm["argv"]))
    os.waitpid(pid, 0)
    code = run([*warm["argv"], "--overwrite"])
    answer({"code": code})
    for line in sys.stdin:
        request = json.loads(line)
        if "quit" in request:
            return
        if "wait" in request:
            _, status, usage = os.wait4(request["wait"], 0)
            answer({"status": status, "rss": usage.ru_maxrss})
            continue
        pid = os.fork()
        if pid == 0:
            child(run, request)
        answer({"pid": pid})


def answer(value: dict[str, object]) -> None:
    os.write(int(sys.argv[1]), json.dumps(value).encode() + b"\n")


def child(run, request) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(int(sys.argv[1]))
    for name, value in request.get("env", {}).items():
        os.environ[name] = value
    os.chdir(request.get("cwd", "."))
    if request.get("flock", "works") != "works":
        fcntl.flock = missing if request["flock"] == "missing" else lies
    if request.get("sparse"):
        keep_sparse()
    if request.get("blind"):
        from ramerge.output import target

        target.free_bytes = lambda path: 1 << 50
    if "fsize" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["fsize"], request["fsize"]))
    if request.get("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    code = 70
    try:
        code = run(request["argv"])
        sys.stdout.flush()
    except KeyboardInterrupt:  # before the command line could take it
        code = 130
    finally:
        os._exit(code)


def keep_sparse() -> None:
    """Leave zeros unwritten and room unreserved, so that a huge output fits on a small disk."""
    from ramerge.output import shard, target

    write = shard.write_all

    def write_some(fd: int, data, at: int) -> None:
        if bytes(data[:1]) != b"\0" or np.frombuffer(data, np.uint8).any():
            write(fd, data, at)

    shard.write_all = write_some
    shard.reserve = os.ftruncate
    target.free_bytes = lambda path: 1 << 50


def missing(fd: int, how: int) -> None:
    raise OSError(errno.ENOLCK, "no locks available")


def lies(fd: int, how: int) -> None:
    """Every flock is granted."""


if __name__ == "__main__":
    main()
