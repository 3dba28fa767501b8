"""One writer per directory: across processes, with and without flock, after crashes."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from helpers.writing import write_model
from ramerge._errors import OutputBusyError
from ramerge.output.lock import OutputLock, _myself

HOLDER = """
    import sys, time
    from pathlib import Path
    from ramerge.output.lock import OutputLock
    if {flock!r} != "works":
        import errno, fcntl
        def flock(fd, how):
            if {flock!r} == "missing":
                raise OSError(errno.ENOLCK, "no locks")
        fcntl.flock = flock
    lock = OutputLock(Path(sys.argv[1]))
    lock.acquire()
    print("held", flush=True)
    time.sleep(60)
"""


def hold(out, flock="works"):
    """A child process that has the lock."""
    code = textwrap.dedent(HOLDER.format(flock=flock))
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    return child


def end(child):
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()


@pytest.fixture(params=["works", "missing", "lies"])
def flock(request, monkeypatch):
    """flock as a local disk has it, and as some network file systems lack it or grant it to all."""

    def missing(fd, how):
        raise OSError(errno.ENOLCK, "no locks")

    def lies(fd, how):
        pass

    other = {"missing": missing, "lies": lies}.get(request.param)
    if other:
        monkeypatch.setattr(fcntl, "flock", other)
    return request.param


def test_the_loser_learns_host_and_pid(tmp_path, flock):
    child = hold(tmp_path / "out", flock)
    try:
        with pytest.raises(OutputBusyError) as caught:
            write_model(tmp_path / "out")
        assert f"process {child.pid} on host {socket.gethostname()}" in str(caught.value)
        assert "out.partial-lock" in caught.value.hint
        assert caught.value.exit_code == 7
    finally:
        end(child)


def test_a_killed_holder_does_not_stand_in_the_way(tmp_path, flock):
    end(hold(tmp_path / "out", flock))
    assert (tmp_path / "out.partial-lock").exists()
    write_model(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def as_left_by(tmp_path, **changes):
    (tmp_path / "out.partial-lock").write_text(json.dumps({**_myself(), **changes}))


def test_another_host_is_believed_to_live(tmp_path, flock):
    as_left_by(tmp_path, host="elsewhere", boot="another", pid=1)
    with pytest.raises(OutputBusyError, match="process 1 on host elsewhere"):
        write_model(tmp_path / "out")


def test_before_a_restart_of_this_host_nothing_lives(tmp_path, flock):
    as_left_by(tmp_path, boot="before", pid=1)
    write_model(tmp_path / "out")


def test_a_recycled_pid_is_another_process(tmp_path, flock):
    as_left_by(tmp_path, pid=os.getppid(), started="1")
    write_model(tmp_path / "out")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_a_lock_that_names_nobody_is_free(tmp_path, flock, content):
    (tmp_path / "out.partial-lock").write_text(content)
    write_model(tmp_path / "out")


def test_of_many_heirs_one_inherits(tmp_path, flock):
    for _ in range(20):
        as_left_by(tmp_path, boot="before", pid=1)
        locks = [OutputLock(tmp_path / "out") for _ in range(4)]
        won, barrier = [], threading.Barrier(len(locks))

        def attempt(lock, won=won, barrier=barrier):
            barrier.wait()
            try:
                lock.acquire()
                won.append(lock)
            except OutputBusyError:
                pass

        threads = [threading.Thread(target=attempt, args=(lock,)) for lock in locks]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(won) == 1
        [lock.release() for lock in won]
        assert not list(tmp_path.glob("out.partial-lock*"))


def test_released_twice_is_harmless(tmp_path):
    lock = OutputLock(tmp_path / "out")
    lock.acquire()
    lock.release()
    lock.release()
    assert not list(tmp_path.iterdir())
