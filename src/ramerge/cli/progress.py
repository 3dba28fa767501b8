"""A progress bar in bytes with rate and time left, on stderr, where a person is watching."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from ramerge.cli.render import say, size

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.status import Status

    from ramerge.run.chunks import Step

REDRAW_S = 0.05
LINE_S = 30.0
PREPARING = "reading headers; the first run of a method also compiles its kernel"


class ProgressBar:
    """Use as a context manager and pass as ``progress=``. Writes a line every 30 s when stderr is not a terminal.

    Each phase has its own bar and its own clock: its time left follows from its own recent rate.
    Before the first step there is only a sign of life, as the first run of a method compiles its kernel.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        """Args: enabled: False keeps it silent (`--quiet`, `--json`)."""
        self._show = enabled and sys.stderr.isatty()
        self._lines = enabled and not self._show
        self._line_at = time.monotonic() + LINE_S
        self._waiting: Status | None = None
        self._bar: Bar | None = None
        self._tasks: dict[str, TaskID] = {}
        self._next = 0.0

    def __enter__(self) -> ProgressBar:
        if self._show:
            from rich.console import Console

            self._waiting = Console(stderr=True).status(PREPARING)
            self._waiting.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for shown in (self._waiting, self._bar):
            if shown is not None:
                shown.stop()

    def __call__(self, step: Step) -> None:
        """Show ``step``; called from the engine after every chunk."""
        now = time.monotonic()
        if self._lines and now >= self._line_at:
            self._line_at = now + LINE_S
            say("progress", _line(step))
        if self._waiting is None or (now < self._next and step.done < step.total):
            return
        self._next = now + REDRAW_S
        if self._bar is None:
            self._waiting.stop()
            self._bar = _new_bar()
            self._bar.start()
        if step.phase not in self._tasks:
            self._tasks[step.phase] = self._bar.add_task(step.phase, total=step.total)
        self._bar.update(self._tasks[step.phase], completed=step.done, total=step.total)


def _line(step: Step) -> str:
    share = step.done / max(step.total, 1)
    return f"{step.phase}: {size(step.done)} of {size(step.total)}, {share:.0%}"


def _new_bar() -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=15,
    )
