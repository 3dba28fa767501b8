"""Text for people and JSON for programs: plain columns, readable without colour."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

_COLOURS = {"error": "red", "warning": "yellow", "hint": "cyan"}


def coloured(stream: Any) -> bool:
    """Whether ``stream`` is a terminal whose user has not asked for plain text."""
    return (
        bool(stream.isatty())
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def say(kind: str, message: str, *, hint: str | None = None) -> None:
    """Print ``kind: message`` to stderr, and ``hint: ...`` after a blank line.

    Args:
        kind: ``error``, ``warning`` or any other word.
        message: a sentence without a full stop.
        hint: the way out.
    """
    colour = coloured(sys.stderr)

    def label(word: str) -> str:
        return typer.style(f"{word}:", fg=_COLOURS.get(word), bold=True) if colour else f"{word}:"

    text = f"{label(kind)} {message}"
    if hint is not None:
        text += f"\n\n{label('hint')} {hint}"
    with contextlib.suppress(OSError):  # a log on the disk that is full must not hide the exit code
        typer.echo(text, err=True, color=colour)


def emit_json(value: Any) -> None:
    """Print one JSON object to stdout; NaN and infinities as null."""
    from ramerge.output.manifest import finite

    typer.echo(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def size(nbytes: float) -> str:
    """Bytes for people, in powers of 1000: ``15.2 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def seconds(value: float) -> str:
    """A duration for people: ``0.4 s``, ``3 min 20 s``, ``1 h 5 min``."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def percent(share: float) -> str:
    """A share as a percentage with enough digits to tell it from nothing and from everything."""
    digits = 1 if share == 0 or 0.001 <= share <= 0.999 or share == 1 else 4
    return f"{100 * share:.{digits}f} %"


def columns(rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), gap: str = "  ") -> str:
    """Rows of cells as aligned text.

    Args:
        rows: cells, every row of one length.
        right: indices of the columns that align to the right (numbers).
        gap: what stands between columns.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    flush_right = set(right)
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in flush_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(gap.join(cells).rstrip())
    return "\n".join(lines)
