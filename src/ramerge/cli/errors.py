"""How a command ends: exceptions and signals become one message on stderr and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import typer

from ramerge._errors import MergeError, ProblemsError
from ramerge.cli.answers import answer
from ramerge.cli.render import emit_json, say

if TYPE_CHECKING:
    from ramerge._types import Json

_OS_HINTS = {
    errno.EACCES: "change its permissions, or run as a user who may read it",
    errno.ENOSPC: "free some space",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
READER_GONE = 141  # what a shell reports for a program that SIGPIPE ended


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[list[int]]:
    """Let SIGTERM unwind the program as Ctrl-C does, so that threads stop and files are closed.

    Yields:
        the signals received so far.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        received.append(number)
        raise KeyboardInterrupt

    previous = {}
    with contextlib.suppress(ValueError):  # only the main thread may install handlers
        previous = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def guarded(command: Callable[[], None], *, debug: bool, as_json: bool = False) -> int:
    """Run ``command``; print what went wrong, if anything; return the exit code.

    Args:
        command: the work, already bound to its arguments.
        debug: show tracebacks.
        as_json: say it on stdout too, as one JSON object.
    """
    with signals_as_interrupts() as received:
        try:
            command()
            sys.stdout.flush()
        except KeyboardInterrupt:
            number = received[-1] if received else signal.SIGINT
            say("error", "stopped by Ctrl-C" if number == signal.SIGINT else "stopped by SIGTERM")
            return 128 + number
        except typer.Exit as stop:
            return stop.exit_code
        except BrokenPipeError:
            _discard_stdout()
            return READER_GONE
        except Exception as error:
            if debug:
                import traceback

                traceback.print_exc()
            code = explain_failure(error)
            if as_json:
                emit_json({"error": failure(error, code)})
            return code
    return 0


def explain_failure(error: Exception) -> int:
    """Print ``error`` as one message, with a hint where there is one; return its exit code."""
    if isinstance(error, MergeError):
        say("error", error.message, hint=error.hint)
        return error.exit_code
    usage = getattr(error, "format_message", None)  # click's exceptions, wherever typer keeps them
    if usage is not None:
        context = getattr(error, "ctx", None)
        path = "ramerge" if context is None else context.command_path
        message = usage().rstrip(".")
        hint = answer(message, path) or f"`{path} --help` lists what it takes"
        say("error", message[:1].lower() + message[1:], hint=hint)
        return 2
    if isinstance(error, OSError) and error.strerror:
        where = f" `{error.filename}`" if error.filename else ""
        say(
            "error",
            f"{error.strerror[:1].lower()}{error.strerror[1:]}{where}",
            hint=_OS_HINTS.get(error.errno or 0, "--debug shows where"),
        )
        return 6
    text = " ".join(str(error).split())
    say(
        "error",
        f"unexpected {type(error).__name__}{': ' if text else ''}{text}",
        hint="this is a bug in ramerge; --debug shows the traceback to report",
    )
    return 1


def failure(error: Exception, code: int) -> Json:
    """An error for programs: ``kind``, ``exit_code``, ``message``, ``hint``, and single ``problems`` where it is several."""
    message = error.message if isinstance(error, MergeError) else str(error)
    told: Json = {
        "kind": type(error).__name__,
        "exit_code": code,
        "message": message,
        "hint": getattr(error, "hint", None),
    }
    if isinstance(error, ProblemsError):
        told["problems"] = [failure(p, p.exit_code) for p in error.problems]
    return told


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush has nothing to complain of."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
