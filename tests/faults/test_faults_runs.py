"""Kills, signals and rivals at random moments of whole runs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from harness import Server, clear, digest, go_on, merge_argv, model_set


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A set that takes some tenths of a second, its command, its reference and its duration."""
    work = tmp_path_factory.mktemp("runs")
    models = model_set(work / "models", scale=500)
    out = work / "out"
    argv = merge_argv(models, out, "--threads=2", "--shard-size=3MB")
    server = Server(merge_argv(models, work / "warm"), work / "logs")
    result = server.run(argv)
    assert result.code == 0, result
    reference = digest(out)
    clear(out)
    seconds = sorted(timed(server, argv, out) for _ in range(5))[2]
    before = digest(models)
    yield server, argv, out, reference, seconds
    server.close()
    assert digest(models) == before, "inputs are never written"


def timed(server, argv, out):
    result = server.run(argv)
    clear(out)
    return result.seconds


def send(pid, number):
    """A signal to a child that may have ended by now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children(pid):
    """Processes whose parent is ``pid``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(path.parent.name)
    return found


def check(out, reference):
    """Absent or whole, and nothing beside but leftovers."""
    if out.exists():
        assert digest(out) == reference
    beside = [p.name for p in out.parent.glob("out*") if p != out]
    assert all(name.startswith("out.partial-") for name in beside), beside
    return out.exists()


@pytest.mark.parametrize("passes", [1, 2])
def test_kills_at_random_moments(bench, size, passes, record):
    """Where every ρ is clipped the inputs are read once; without a clip they are read again."""
    server, argv, out, reference, seconds = bench
    if passes == 2:
        argv = [*argv, "--set=alpha=100"]
        result = server.run(argv)
        reference, seconds = digest(out), result.seconds
        assert json.loads((out / "ramerge_manifest.json").read_text())["passes"] == 2
        clear(out)
    draw = random.Random(passes)
    whole = resumed = 0
    total = 200 if size == "full" else 6
    for i in range(total):
        pid, log = server.start(argv)
        time.sleep(draw.uniform(0, 1.1 * seconds))
        send(pid, signal.SIGKILL)
        result = server.wait(pid, log)
        assert result.code in {0, -9}
        if check(out, reference):
            whole += 1
        else:
            resumed += any(out.parent.glob("out.partial-*/.ramerge_journal.jsonl"))
            again = go_on(server, argv, resume=bool(i % 2))
            assert again.code == 0, again
            assert digest(out) == reference
            assert not list(out.parent.glob("out.partial-*"))
        clear(out)
    if size == "full":
        text = f"0 partial outputs ({whole} had finished); every rerun and --resume exact"
        record(
            "2 kill",
            f"SIGKILL at random moments, 2 threads, inputs read {passes}×",
            f"{total}",
            text,
        )


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_at_random_moments(bench, size, name, record):
    server, argv, out, reference, seconds = bench
    number = signal.Signals[name]
    draw = random.Random(int(number))
    slowest, done = 0.0, 0
    total = 50 if size == "full" else 5
    for i in range(total):
        pid, log = server.start(argv)
        time.sleep(0.01 + draw.uniform(0, seconds))
        send(pid, number)
        began = time.monotonic()
        result = server.wait(pid, log, began)
        slowest = max(slowest, result.seconds)
        assert result.code in {0, 128 + number, -number}, result  # a shell makes 128 + n of -n
        done += result.code == 0
        assert result.seconds < 5
        assert "Traceback" not in result.text
        if not check(out, reference):
            again = go_on(server, argv, resume=bool(i % 2))
            assert again.code == 0, again
            assert digest(out) == reference
        clear(out)
    assert not children(server.process.pid), "no orphan"
    if size == "full":
        text = f"exit {128 + number} in {slowest:.2f} s at most ({done} had finished); no orphan"
        record("3 signals", f"{name} at random moments", f"{total}", text)


@pytest.mark.parametrize("flock", ["works", "missing", "lies"])
def test_two_runs_into_one_directory(bench, size, flock, record):
    server, argv, out, reference, seconds = bench
    offsets = (0.0, 0.02, 0.25, 0.5, 0.8)
    total = 40 if size == "full" else 5
    named = late = 0
    for i in range(total):
        one = server.start(argv, flock=flock)
        time.sleep(offsets[i % 5] * seconds)
        two = server.start(argv, flock=flock)
        results = [server.wait(*one), server.wait(*two)]
        assert sorted(r.code for r in results) == [0, 7], results
        loser = next(r for r in results if r.code == 7)
        pids = f"process (?:{one[0]}|{two[0]}) on host {re.escape(socket.gethostname())}"
        if re.search(pids, loser.text):
            named += 1
        else:
            assert "exists and holds" in loser.text, loser
            late += 1
        assert digest(out) == reference
        assert [p.name for p in out.parent.glob("out*")] == ["out"]
        clear(out)
    assert named
    if size == "full":
        text = (
            f"one wins, one exits 7: {named} × naming host and pid, {late} × after the other's end"
        )
        record("3 rivals", f"pairs of runs, 5 offsets, flock {flock}", f"{total}", text)
