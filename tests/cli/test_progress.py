"""The progress bar: bytes, rate and time left, on a terminal; lines in a log; never on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from helpers.cli import child_environment

SCRIPT = """
import time
from types import SimpleNamespace
from ramerge.cli.progress import ProgressBar

with ProgressBar(enabled={enabled}) as bar:
    time.sleep(0.2)
    for phase, total in (("merge", 4_000_000), ("verify", 1_000_000)):
        for part in range(5):
            bar(SimpleNamespace(phase=phase, done=total * part // 4, total=total))
            time.sleep(0.05)
print("result")
"""


def run_on_a_terminal(enabled):
    """What lands on stdout, and on the terminal that stderr is."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(enabled=enabled)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=child_environment(TERM="xterm"),
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return process.communicate()[0], shown.decode()


def test_on_a_terminal_each_phase_shows_bytes_and_rate():
    out, shown = run_on_a_terminal(enabled=True)
    assert out == "result\n"
    for text in ("compiles its kernel", "merge", "verify", "4.0 MB", "MB/s", "0:00:0"):
        assert text in shown


def test_it_can_be_switched_off():
    assert run_on_a_terminal(enabled=False) == ("result\n", "")


@pytest.mark.parametrize("enabled", [True, False])
def test_without_a_terminal_it_is_silent(enabled):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(enabled=enabled)],
        capture_output=True,
        text=True,
        check=True,
        env=child_environment(),
    )
    assert (done.stdout, done.stderr) == ("result\n", "")


LINES = """
from types import SimpleNamespace
from ramerge.cli import progress

progress.LINE_S = {every}
with progress.ProgressBar(enabled={enabled}) as bar:
    for done in (1_000_000, 2_000_000):
        bar(SimpleNamespace(phase="merge", done=done, total=4_000_000))
"""


@pytest.mark.parametrize(
    ("every", "enabled", "lines"),
    [
        (0, True, ["progress: merge: 1.0 MB of 4.0 MB, 25%", "progress: merge: 2.0 MB of 4.0 MB, 50%"]),
        (1e9, True, []),
        (0, False, []),
    ],
)  # fmt: skip
def test_in_a_log_a_line_says_how_far_it_is(every, enabled, lines):
    done = subprocess.run(
        [sys.executable, "-c", LINES.format(every=every, enabled=enabled)],
        capture_output=True,
        text=True,
        check=True,
        env=child_environment(),
    )
    assert done.stderr.splitlines() == lines
