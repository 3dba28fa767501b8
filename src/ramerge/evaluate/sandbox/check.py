"""Prove, before any model-written program runs, that the box holds on this machine.

Each probe is a program that tries to get out and prints what it got; an empty box prints the expected word.
Anything else is a refusal (exit 11): there is no weaker fallback.
"""

from __future__ import annotations

import asyncio

from ramerge._errors import SandboxError
from ramerge.evaluate.sandbox.launch import Limits
from ramerge.evaluate.sandbox.programs import run_program, run_tests

TRY = "try:\n    {}\n    print('OUT')\nexcept (OSError, MemoryError) as e:\n    print('held')\n"
PROBES = {
    "reach the network": TRY.format("import socket; socket.create_connection(('1.1.1.1', 53), 2)"),
    "read the host's files": TRY.format("open('/etc/passwd').read()"),
    "write outside its directory": TRY.format("open('/usr/x', 'w').write('x')"),
    "write to the root": TRY.format("open('/x', 'w').write('x')"),
    "fill the disk": TRY.format(
        "[open(f'/box/{i}', 'wb').write(bytes(1 << 22)) for i in range(9)]"
    ),
    "take more memory": TRY.format("bytearray(8 << 30)"),
    "start processes without end": TRY.format(
        "import os, time\n    for i in range(200):\n        if os.fork() == 0:\n            time.sleep(3); os._exit(0)"
    ),
    "see the environment": "import os; print('OUT' if set(os.environ) - {'PATH', 'LANG', 'PWD', 'LC_CTYPE'} else 'held')",
    "see other processes": "import os; print('OUT' if sum(n.isdigit() for n in os.listdir('/proc')) > 3 else 'held')",
    "become root": TRY.format("import os; os.setuid(0)"),
    "make a namespace": TRY.format(
        "import ctypes, os; r = ctypes.CDLL(None).unshare(0x10000000)\n    if r: raise OSError"
    ),
}
LIMITS = Limits(seconds=10.0, memory_mb=512)


async def self_check() -> None:
    """Run every probe.

    Raises:
        SandboxError: one of them got out, or the box cannot be built; names it.
    """
    for name, code in PROBES.items():
        found = await run_program(code, "", LIMITS)
        if found.output.strip() != "held":
            raise SandboxError(
                f"the sandbox does not hold: a program could {name} ({found.verdict}: {(found.output or found.why)[:80]!r})",
                hint="model-written code is not run without a working bubblewrap; see docs/guides/evaluate.md",
            )
    slow = await run_program("import time; time.sleep(60)", "", Limits(seconds=0.3))
    forged = await run_tests("def f():\n    return 1", "assert f() == 2", LIMITS)
    honest = await run_tests("def f():\n    return 2", "assert f() == 2", LIMITS)
    if (slow.verdict, forged.verdict, honest.verdict) != ("timeout", "fail", "pass"):
        raise SandboxError(
            f"the sandbox judges wrongly: {slow.verdict}, {forged.verdict}, {honest.verdict}"
        )


def require() -> None:
    """`self_check`, from code that is not asynchronous.

    Raises:
        SandboxError: see `self_check`.
    """
    asyncio.run(self_check())
