"""Programs that try to get out of the box or to forge a verdict. Run as a program: all of them, results as JSON."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

from ramerge.evaluate.sandbox import check
from ramerge.evaluate.sandbox.launch import Limits, unprivileged
from ramerge.evaluate.sandbox.programs import run_program, run_tests

LIMITS = Limits(seconds=8.0, memory_mb=512)
MARK = Path("/tmp/ramerge-escaped")

ESCAPES = {
    **check.PROBES,
    "write to the host's /tmp": "import os\ntry:\n os.makedirs('/tmp'); open('/tmp/ramerge-escaped', 'w').write('x'); print('OUT')\nexcept OSError: print('held')",
    "read the home directory": "import os; print('OUT' if os.path.exists('/root') or os.path.exists('/home') else 'held')",
    "kill the parent": "import os, signal\ntry:\n [os.kill(p, 9) for p in range(3, 60000)]\n print('OUT')\nexcept OSError: print('held')",
    "connect to loopback": "import socket\ntry:\n socket.create_connection(('127.0.0.1', PORT), 1); print('OUT')\nexcept OSError: print('held')",
    "use an abstract socket": "import socket\ns = socket.socket(socket.AF_UNIX)\ntry:\n s.connect('\\0/tmp/.X11-unix/X0'); print('OUT')\nexcept OSError: print('held')",
    "mount": "import ctypes\nr = ctypes.CDLL(None).mount(b'none', b'/box', b'tmpfs', 0, None)\nprint('held' if r else 'OUT')",
    "raise its limits": "import resource\ntry:\n resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); print('OUT')\nexcept (OSError, ValueError): print('held')",
    "open a device": "import os\ntry:\n os.open('/dev/mem', 0); print('OUT')\nexcept OSError: print('held')",
    "inherit descriptors": "import os\nopen_ = [f for f in os.listdir('/proc/self/fd') if int(f) > 3]\nprint('held' if not open_ else f'OUT {open_}')",
    "type into the terminal": "import fcntl\ntry:\n fcntl.ioctl(0, 0x5412, b'x'); print('OUT')\nexcept OSError: print('held')",
}


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


def missing():
    """Why no box can be built on this machine, whatever we do; "" where one can."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "needs bubblewrap"
    plain = [bwrap, "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(plain, capture_output=True, text=True, check=False, **unprivileged())
    return f"bubblewrap cannot build a box here: {done.stderr.strip()}" if done.returncode else ""


def program(code, given="", limits=LIMITS):
    return asyncio.run(run_program(code, given, limits))


def judged(code, tests, limits=LIMITS):
    return asyncio.run(run_tests(code, tests, limits))


def escape(name):
    """What the program got: "held" is nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        code = ESCAPES[name].replace("PORT", str(listening.getsockname()[1]))
        return program(code).output.strip()


def forge(name):
    """The verdict on a wrong solution that forges."""
    tests = "assert isinstance(f(), int) and abs(f() - 2) < 0.5 and f() == 2"
    return judged(FORGERIES[name], tests).verdict


if __name__ == "__main__":
    check.require()
    found = {
        "user": os.geteuid(),
        "escapes": {name: escape(name) for name in ESCAPES},
        "forgeries": {name: forge(name) for name in FORGERIES},
    }
    print(json.dumps(found))
