"""Model-written code stays in its box, cannot forge a verdict, and its ways to fail are told apart."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.sandbox import ESCAPES, FORGERIES, MARK, escape, forge, judged, missing, program
from ramerge._errors import SandboxError
from ramerge.evaluate.sandbox import check, launch
from ramerge.evaluate.sandbox.launch import Limits
from ramerge.evaluate.sandbox.programs import called_names

SOURCE = Path(__file__).parents[2] / "src"
boxed = pytest.mark.skipif(bool(missing()), reason=missing())


@boxed
@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_held(name):
    assert escape(name) == "held"
    assert not MARK.exists()


@boxed
def test_tracing_the_boxs_own_init_stops_the_box_and_nothing_else():
    code = "import ctypes, time\nctypes.CDLL(None).ptrace(16, 1, 0, 0)\ntime.sleep(60)"
    assert program(code, limits=Limits(seconds=0.5)).verdict == "timeout"


@boxed
def test_a_fork_bomb_dies_with_its_box():
    named = f"bomb{os.getpid()}"  # other tests run boxes too
    code = f"""
import ctypes, os, time
ctypes.CDLL(None).prctl(15, b"{named}")
for _ in range(9):
    try: os.fork()
    except OSError: pass
time.sleep(600)
"""
    assert program(code, limits=Limits(seconds=1.0)).verdict == "timeout"
    assert named not in running()


def running():
    """Names of all processes of this machine."""
    names = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            names.append(path.read_text().strip())
    return names


@boxed
@pytest.mark.parametrize("name", FORGERIES)
def test_a_verdict_cannot_be_forged(name):
    assert forge(name) != "pass"


@boxed
def test_every_way_to_end_is_told_apart():
    assert program("print(input()[::-1])", "abc").output == "cba\n"
    assert program("raise ValueError('x')").verdict == "crash"
    assert program("import os; os.kill(os.getpid(), 11)").verdict == "crash"
    assert program("while True: pass", limits=Limits(seconds=0.3)).verdict == "timeout"
    assert program("print('x' * (2 << 20))").verdict == "crash"
    assert program("x = [0]\nwhile True: x += x").verdict == "crash"
    assert judged("def f(x): return x + 1", "assert f(1) == 2").verdict == "pass"
    assert judged("def f(x): return x + 1", "assert f(1) == 3").verdict == "fail"
    assert judged("def f(x): return", "assert g(1) == 3").verdict == "fail"
    assert judged("def f(:", "assert f(1) == 3").verdict == "crash"
    assert judged("def f(): \n while True: pass", "f()", Limits(seconds=0.3)).verdict == "timeout"


@boxed
@pytest.mark.parametrize(
    "value",
    [
        "(1, 'a')",
        "{(1, 2): {3}}",
        "2**80",
        "1j",
        "b'x'",
        "float('inf')",
        "frozenset([1])",
        "[None, True, 1.5]",
        "{}",
        "'\\ud800'",
    ],
)
def test_values_cross_the_wall_unchanged(value):
    run = judged("def f(x): return x", f"v = {value}\nassert f(v) == v and type(f(v)) is type(v)")
    assert (run.verdict, run.why) == ("pass", "")


@boxed
def test_exceptions_cross_the_wall_by_name():
    tests = "try:\n    f()\nexcept KeyError: pass\nelse: raise AssertionError"
    assert judged("def f(): raise KeyError('k')", tests).verdict == "pass"


def test_names_come_from_the_solution_only_where_nothing_else_has_them():
    tests = "import math\ndef check(c):\n    for x in [1]:\n        assert math.floor(c(x)) == abs(helper(x))\ncheck(target)"
    assert called_names(tests) == ["helper", "target"]


@boxed
def test_the_self_check_passes_here():
    check.require()


@boxed
@pytest.mark.skipif(os.geteuid() != 0, reason="root runs this as a normal user")
def test_the_self_check_and_every_probe_hold_for_a_normal_user():
    python = launch.tools()[1]
    version = subprocess.run(  # noqa: PLW1510
        [python, "-c", "import sys; print(sys.version_info >= (3, 11))"],
        capture_output=True,
        text=True,
    )
    readable = subprocess.run(  # noqa: PLW1510
        ["cat", SOURCE / "ramerge/_errors.py"],
        user=65533,
        group=65533,
        extra_groups=[],
        capture_output=True,
    )
    if version.stdout.strip() != "True" or readable.returncode:
        pytest.skip("the system's Python is too old, or a normal user cannot read this checkout")
    done = subprocess.run(  # noqa: PLW1510
        [python, Path(__file__).parents[1] / "helpers" / "sandbox.py"],
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        user=65533,
        group=65533,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["user"] == 65533
    assert set(found["escapes"].values()) == {"held"}, found["escapes"]
    assert "pass" not in found["forgeries"].values(), found["forgeries"]
    assert (len(found["escapes"]), len(found["forgeries"])) == (len(ESCAPES), len(FORGERIES))


@pytest.fixture
def _no_cache():
    launch.tools.cache_clear()
    yield
    launch.tools.cache_clear()


@pytest.mark.usefixtures("_no_cache")
def test_without_bubblewrap_nothing_runs(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="not installed") as caught:
        check.require()
    assert caught.value.exit_code == 11


@pytest.mark.usefixtures("_no_cache")
def test_a_bubblewrap_that_cannot_build_is_an_error_not_a_score(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    monkeypatch.setattr(launch, "unprivileged", dict)
    with pytest.raises(SandboxError, match="No permissions"):
        program("print(1)")
    with pytest.raises(SandboxError):
        judged("def f(): pass", "f()")


@pytest.mark.usefixtures("_no_cache")
def test_a_box_that_does_not_hold_is_refused(monkeypatch, tmp_path):
    """A `bwrap` that runs its program without any box must be noticed."""
    fake = tmp_path / "bwrap"
    fake.write_text(
        f"#!{sys.executable}\nimport os, sys\na = sys.argv\n"
        "fd = int(a[a.index('--json-status-fd') + 1]); os.write(fd, b'{\"child-pid\": 1}')\n"
        "src = a[a.index('--ro-bind-data') + 1]; rest = a[a.index('--') + 1:]\n"
        "rest[-1] = '/proc/self/fd/' + src\nos.execv(rest[0], rest)\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(fake))
    monkeypatch.setattr(launch, "unprivileged", dict)
    with pytest.raises(SandboxError, match="does not hold"):
        check.require()


@boxed
def test_a_box_that_outlives_bubblewrap_is_ended_and_a_stranger_is_not():
    """A killed bubblewrap may not have tied its child to itself yet."""
    stranger = subprocess.Popen(["sleep", "97533"])
    assert not launch._first_of_a_box(stranger.pid)
    stranger.kill()
    stranger.wait()
    namespaces = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    alone = subprocess.Popen([*namespaces, "sleep", "97532"])
    try:
        for _ in range(200):
            children = Path(f"/proc/{alone.pid}/task/{alone.pid}/children").read_text().split()
            if children and launch._first_of_a_box(int(children[0])):
                break
            time.sleep(0.02)
        else:
            pytest.skip("unshare is not allowed here")
        asyncio.run(launch._gone(int(children[0])))
        assert alone.wait(timeout=10) != 0
    finally:
        alone.kill()
        alone.wait()
