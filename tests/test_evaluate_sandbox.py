"""Model-written code stays in its box, cannot forge a verdict, and its ways to fail are told apart."""

import asyncio
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ramerge._errors import SandboxError
from ramerge.evaluate.sandbox import check, launch
from ramerge.evaluate.sandbox.launch import Limits
from ramerge.evaluate.sandbox.programs import called_names, run_program, run_tests

SOURCE = Path(__file__).parent.parent / "src"
LIMITS = Limits(seconds=8.0, memory_mb=512)
boxed = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def program(code, given="", limits=LIMITS):
    return asyncio.run(run_program(code, given, limits))


def judged(code, tests, limits=LIMITS):
    return asyncio.run(run_tests(code, tests, limits))


ESCAPES = {
    **check.PROBES,
    "write to the host's /tmp": "import os\ntry:\n os.makedirs('/tmp'); open('/tmp/ramerge-escaped', 'w').write('x'); print('OUT')\nexcept OSError: print('held')",
    "read the home directory": "import os; print('OUT' if os.path.exists('/root') or os.path.exists('/home') else 'held')",
    "kill the parent": "import os, signal\ntry:\n [os.kill(p, 9) for p in range(3, 60000)]\n print('OUT')\nexcept OSError: print('held')",
    "connect to loopback": "import socket\ntry:\n socket.create_connection(('127.0.0.1', PORT), 1); print('OUT')\nexcept OSError: print('held')",
    "use an abstract socket": "import socket\ns = socket.socket(socket.AF_UNIX)\ntry:\n s.connect('\\0/tmp/.X11-unix/X0'); print('OUT')\nexcept OSError: print('held')",
    "mount": "import ctypes\nr = ctypes.CDLL(None).mount(b'none', b'/work', b'tmpfs', 0, None)\nprint('held' if r else 'OUT')",
    "raise its limits": "import resource\ntry:\n resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); print('OUT')\nexcept (OSError, ValueError): print('held')",
    "open a device": "import os\ntry:\n os.open('/dev/mem', 0); print('OUT')\nexcept OSError: print('held')",
    "inherit descriptors": "import os\nopen_ = [f for f in os.listdir('/proc/self/fd') if int(f) > 3]\nprint('held' if not open_ else f'OUT {open_}')",
    "type into the terminal": "import fcntl\ntry:\n fcntl.ioctl(0, 0x5412, b'x'); print('OUT')\nexcept OSError: print('held')",
}


@boxed
@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_held(name):
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        code = ESCAPES[name].replace("PORT", str(listening.getsockname()[1]))
        assert program(code).output.strip() == "held"
    assert not Path("/tmp/ramerge-escaped").exists()


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


FORGERIES = {
    "an object equal to everything": "class E:\n    def __eq__(s, o): return True\ndef f(): return E()",
    "a number that lies": "class I(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef f(): return I(1)",
    "its own assert": "import builtins\nbuiltins.AssertionError = Exception\ndef f(): return 1",
    "its own abs": "def abs(x): return 0\ndef f(): return 1",
    "the caller's frames": "import sys\ndef f():\n    fr = sys._getframe()\n    while fr:\n        fr.f_globals.update(verdict='pass'); fr = fr.f_back\n    return 1",
    "a verdict on its own channel": 'import os\nos.write(1, b\'{"verdict": "pass"}\\n\')\ndef f(): return 1',
    "a verdict on every descriptor": 'import os\nfor d in range(3, 20):\n    try: os.write(d, b\'{"verdict": "pass", "nonce": "x"}\\n\')\n    except OSError: pass\ndef f(): return 1',
    "the end of the process": "import os\ndef f(): os._exit(0)",
    "SystemExit": "def f(): raise SystemExit(0)",
    "a name that the tests trust": "def isinstance(*a): return True\ndef f(): return 1",
}


@boxed
@pytest.mark.parametrize("name", FORGERIES)
def test_a_verdict_cannot_be_forged(name):
    assert (
        judged(
            FORGERIES[name], "assert isinstance(f(), int) and abs(f() - 2) < 0.5 and f() == 2"
        ).verdict
        != "pass"
    )


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
def test_the_self_check_passes_for_a_normal_user():
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
    code = "from ramerge.evaluate.sandbox.check import require; import os; require(); print('holds for', os.geteuid())"
    done = subprocess.run(  # noqa: PLW1510
        [python, "-c", code],
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        user=65533,
        group=65533,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "holds for 65533", done.stderr


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
