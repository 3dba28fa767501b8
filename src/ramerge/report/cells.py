"""Charts of shaded cells: heat maps by module and layer, and matrices of pairs of agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from ramerge.report.svg import beside, figure, labels, slanted, slanted_height

CELL, LINE = 18, 18  # pixels of a heat map's cell
BAND = 41  # layers side by side; deeper models go on below, so that they can be printed
WIDE, TALL = 62, 32  # pixels of a matrix's cell, which holds a number

Values = Sequence[Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Shade:
    """How a value becomes a colour: ``strength`` gives -1 … 1; below 0 is the other colour."""

    strength: Callable[[float], float]
    text: Callable[[float | None], str]


def heat_map(
    columns: Sequence[str], rows: Sequence[str], values: Values, what: str, shade: Shade
) -> str:
    """Cells by row (module) and column (layer); hover says the number.

    Args:
        columns: labels of the columns.
        rows: labels of the rows.
        values: by row and column; None where there is nothing.
        what: names chart and figure, as ``density of coder``.
        shade: colour and text of a value; maps that share it can be compared.
    """
    bands = -(-len(columns) // BAND) or 1
    size = -(-len(columns) // bands) or 1
    return "".join(
        _band(columns[at : at + size], rows, [line[at : at + size] for line in values], what, shade)
        for at in range(0, max(len(columns), 1), size)
    )


def _band(
    columns: Sequence[str], rows: Sequence[str], values: Values, what: str, shade: Shade
) -> str:
    lines = [(n, v) for n, v in zip(rows, values, strict=True) if any(x is not None for x in v)]
    head = 20
    body = [
        f'<text x="{j * CELL + CELL / 2 - 0.5}" y="{head - 6}" class="t v m">{escape(column)}</text>'
        for j, column in enumerate(columns)
        if not column.isdigit() or int(column) % (2 if len(columns) > 12 else 1) == 0
    ]
    for i, (name, line) in enumerate(lines):
        for j, value in enumerate(line):
            if value is None:
                continue
            where = f"{name}, layer {columns[j]}" if columns[j].isdigit() else name
            body.append(
                f'<rect x="{j * CELL}" y="{head + i * LINE}" width="{CELL - 1}" height="{LINE - 1}" rx="2"'
                f' class="h" fill-opacity="{opacity(shade.strength(value))}">'
                f"<title>{escape(where)}: {escape(what)} {escape(shade.text(value))}</title></rect>"
            )
    cells = figure(len(columns) * CELL + 8, head + len(lines) * LINE, "".join(body), what, "cells")
    return beside(labels([name for name, _ in lines], LINE, head), cells)


def matrix(names: Sequence[str], values: Values, what: str, shade: Shade) -> str:
    """A symmetric figure of pairs; the number stands in its cell, hover names the pair."""
    head = slanted_height(names)
    body = [slanted(names, WIDE, head)]
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            x, y = j * WIDE, head + i * TALL
            if i == j:
                body.append(
                    f'<rect x="{x}" y="{y}" width="{WIDE - 2}" height="{TALL - 2}" rx="3" class="o"/>'
                )
                continue
            strength = 0.0 if value is None else shade.strength(value)
            text = shade.text(value)
            title = f"{names[i]} and {names[j]}: {what} {text}"
            strong = " on" if abs(strength) > 0.75 else ""
            body.append(
                f"<g><title>{escape(title)}</title>"
                f'<rect x="{x}" y="{y}" width="{WIDE - 2}" height="{TALL - 2}" rx="3"'
                f' class="{"h" if strength >= 0 else "l"}" fill-opacity="{opacity(strength)}"/>'
                f'<text x="{x + WIDE / 2 - 1:g}" y="{y + TALL / 2 + 3:g}" class="t m{strong}">{escape(text)}</text></g>'
            )
    room = max((min(len(n), 16) for n in names[-1:]), default=0) * 4  # the last slanted name
    cells = figure(
        len(names) * WIDE + room, head + len(names) * TALL, "".join(body), what, "matrix"
    )
    return beside(labels(names, TALL, head), cells)


def scale(ends: Sequence[tuple[float, str]], name: str) -> str:
    """A colour scale: strengths with their texts, from left to right."""
    low, high = ends[0][0], ends[-1][0]
    steps, width = 25, 240
    body = []
    for i in range(steps):
        strength = low + (high - low) * i / (steps - 1)
        kind = "h" if strength >= 0 else "l"
        body.append(
            f'<rect x="{i * width / steps:.1f}" y="0" width="{width / steps + 0.3:.1f}" height="10" class="{kind}"'
            f' fill-opacity="{opacity(strength)}"/>'
        )
    anchors: list[Literal["", "m", "e"]] = ["", *["m"] * (len(ends) - 2), "e"]  # type: ignore[list-item]
    for (strength, text), anchor in zip(ends, anchors, strict=True):
        x = width * (strength - low) / (high - low)
        body.append(f'<text x="{x:g}" y="25" class="t v {anchor}">{escape(text)}</text>')
    return figure(width, 30, "".join(body), f"colour scale of {name}", "scale")


def opacity(strength: float) -> str:
    """Of a cell's colour; a value of nothing is still a cell."""
    return f"{0.06 + 0.94 * min(abs(strength), 1.0):.3f}"
