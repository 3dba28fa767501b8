"""Run a program on an input, or a solution against tests, and say what happened: five outcomes, never mixed up.

``pass`` and ``fail`` are verdicts on the program; ``timeout`` and ``crash`` are its own doing and count as
not passed; a box that cannot be built is nobody's answer and raises.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ramerge._errors import SandboxError
from ramerge.evaluate.foreign import parse
from ramerge.evaluate.sandbox import inside
from ramerge.evaluate.sandbox.launch import OUTPUT_BYTES, Box, Limits, as_json, launch

Verdict = Literal["pass", "fail", "timeout", "crash"]
MAIN = "/box/main.py"
CALLS = 100_000  # a test that calls more often is stopped
BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Run:
    """How a program ended: ``pass`` here means exit code 0. ``output`` is its standard output."""

    verdict: Verdict
    output: str = ""
    why: str = ""


async def run_program(code: str, given: str, limits: Limits) -> Run:
    """Run ``code`` with ``given`` on its standard input.

    Raises:
        SandboxError: the box could not be built.
    """
    box = await launch({MAIN: code}, MAIN, limits)
    try:
        async with asyncio.timeout(limits.seconds + START_S):
            out, error = await _communicate(box, given)
    except TimeoutError:
        return Run("timeout")
    except _TooMuchError:
        return Run("crash", why="more than 1 MiB of output")
    finally:
        started = box.started
        await box.end()
    if not started:
        raise SandboxError(f"the sandbox could not be built: {error.strip()[:200]}")
    ended = box.process.returncode
    return Run("pass" if ended == 0 else "crash", out, why=error.strip().rpartition("\n")[2][:200])


START_S = 1.0  # for building the box; not taken from the program's own time


class _TooMuchError(Exception):
    """A program wrote more than it may."""


async def _communicate(box: Box, given: str) -> tuple[str, str]:
    process = box.process
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    async def feed(writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(given.encode("utf-8", "replace"))
            await writer.drain()
            writer.close()
        except (BrokenPipeError, ConnectionResetError):
            pass  # a program need not read all of its input

    _, out, error = await asyncio.gather(
        feed(process.stdin), _capped(process.stdout), _capped(process.stderr)
    )
    await process.wait()
    return out.decode("utf-8", "replace"), error.decode("utf-8", "replace")


async def _capped(reader: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while piece := await reader.read(65536):
        found += piece
        if len(found) > OUTPUT_BYTES:
            raise _TooMuchError
    return bytes(found)


def called_names(tests: str) -> list[str]:
    """Names that ``tests`` uses but neither defines, imports nor finds among the built-ins: the solution's.

    Built-ins are never taken from the solution, which could otherwise bring its own ``abs`` or ``len`` to the verdict.
    """
    nodes = [node for statement in parse(tests) for node in ast.walk(statement)]
    own: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.alias):
            own.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            own.add(node.id)
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return sorted(used - own - BUILTINS)


async def run_tests(
    code: str, tests: str, limits: Limits, *, names: Sequence[str] | None = None
) -> Run:
    """Whether the solution ``code`` passes ``tests``, each in a box of its own.

    Args:
        code: the solution.
        tests: a program that raises nothing if the solution is right; it calls the solution's functions by name.
        limits: of each box; the wall clock covers both.
        names: the functions taken from the solution; default `called_names`.

    Raises:
        SandboxError: a box could not be built.
    """
    wanted = called_names(tests) if names is None else list(names)
    solution = await launch({MAIN: inside.SOLUTION}, MAIN, limits)
    try:
        checker = await launch({MAIN: inside.CHECKER}, MAIN, limits)
    except BaseException:
        await solution.end()
        raise
    try:
        async with asyncio.timeout(limits.seconds + START_S):
            return await _converse(solution, checker, code, tests, wanted)
    except TimeoutError:
        return Run("timeout")
    finally:
        await asyncio.gather(solution.end(), checker.end())


async def _converse(
    solution: Box, checker: Box, code: str, tests: str, names: Sequence[str]
) -> Run:
    """Carry calls from the checker to the solution and answers back, until there is a verdict."""
    nonce = secrets.token_hex(16)
    answer = await _exchange(solution, {"code": code, "nonce": secrets.token_hex(16)})
    if answer is None or "nonce" not in answer:
        raise await _not_built(solution)
    loaded = await _read(solution)
    if loaded is None or "loaded" not in loaded:
        return Run("crash", why=str((loaded or {}).get("error", "ended while loading"))[:200])
    message = await _exchange(checker, {"tests": tests, "names": list(names), "nonce": nonce})
    for _ in range(CALLS):
        if message is None:
            raise await _not_built(checker)
        if "verdict" in message:
            passed = message["verdict"] == "pass" and message.get("nonce") == nonce
            return Run("pass" if passed else "fail", why=str(message.get("why", "")))
        reply = await _exchange(solution, message)
        if reply is None:
            return Run("crash", why="ended during a call")
        message = await _exchange(checker, reply)
    return Run("timeout", why="too many calls")


async def _exchange(box: Box, message: dict[str, Any]) -> dict[str, Any] | None:
    """Send one line, read one."""
    assert box.process.stdin is not None
    try:
        box.process.stdin.write(json.dumps(message).encode() + b"\n")
        await box.process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        return None
    return await _read(box)


async def _read(box: Box) -> dict[str, Any] | None:
    """One JSON object from a box; None where it ended, or wrote something else."""
    assert box.process.stdout is not None
    try:
        found = as_json(await box.process.stdout.readline())
    except ValueError:  # a line longer than the limit
        return None
    return found if isinstance(found, dict) else None


async def _not_built(box: Box) -> SandboxError:
    assert box.process.stderr is not None
    text = (await box.process.stderr.read(2000)).decode("utf-8", "replace").strip()
    return SandboxError(f"the sandbox could not be built: {text[:200] or 'no reason given'}")
