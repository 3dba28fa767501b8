"""Figures as SVG text: enough for points with intervals, and no dependency that draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH = 720
INK, GREY, ACCENT = "#222", "#bbb", "#0b6e99"


def intervals(title: str, rows: Sequence[tuple[str, float, float, float]], *, zero: bool) -> str:
    """A row each: label, value, low, high (in points), on one axis; ``zero`` draws a line at 0."""
    left, top, step = 370, 34, 20
    height = top + step * len(rows) + 30
    low = min([r[2] for r in rows] + ([0.0] if zero else []))
    high = max([r[3] for r in rows] + ([0.0] if zero else []))
    span = max(high - low, 1e-9)

    def x(value: float) -> float:
        return left + (WIDTH - left - 30) * (value - low) / span

    parts = [_text(10, 18, title, bold=True)]
    if zero:
        parts.append(_line(x(0), x(0), top - 8, height - 24, GREY))
    for index, (label, value, a, b) in enumerate(rows):
        y = top + step * index + 8
        parts.append(_text(10, y + 4, label))
        parts.append(_line(x(a), x(b), y, y, ACCENT))
        parts.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="4" fill="{ACCENT}"/>')
    ticks = (low, (low + high) / 2, high)
    parts += [_text(x(v), height - 8, f"{v:.1f}", anchor="middle") for v in ticks]
    return _svg(height, parts)


def scatter(title: str, points: Sequence[tuple[str, float, float]], across: str, up: str) -> str:
    """Labelled points on a logarithmic axis; the Pareto front (fast and good) is coloured."""
    height, left, bottom, top = 420, 60, 50, 40
    logs = [math.log10(p[1]) for p in points]
    ys = [p[2] for p in points]
    x0, x1, y0, y1 = min(logs) - 0.1, max(logs) + 0.5, min(ys), max(ys)
    parts = [
        _text(10, 18, title, bold=True),
        _text(WIDTH / 2, height - 8, across, anchor="middle"),
        _text(10, 34, up),
    ]
    for (label, seconds, value), log in zip(points, logs, strict=True):
        x = left + (WIDTH - left - 20) * (log - x0) / max(x1 - x0, 1e-9)
        y = height - bottom - (height - bottom - top - 10) * (value - y0) / max(y1 - y0, 1e-9)
        best = not any(p[1] <= seconds and p[2] > value for p in points)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{ACCENT if best else GREY}"/>')
        parts.append(_text(x + 7, y + 4, label))
    for log in range(math.ceil(x0), math.floor(x1) + 1):
        x = left + (WIDTH - left - 20) * (log - x0) / max(x1 - x0, 1e-9)
        parts.append(_text(x, height - 28, f"{10.0**log:g}", anchor="middle"))
    for value in (y0, (y0 + y1) / 2, y1):
        y = height - bottom - (height - bottom - top - 10) * (value - y0) / max(y1 - y0, 1e-9)
        parts.append(_text(left - 12, y + 4, f"{value:.1f}", anchor="end"))
    return _svg(height, parts)


def _text(x: float, y: float, text: str, *, bold: bool = False, anchor: str = "start") -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _line(x1: float, x2: float, y1: float, y2: float, colour: str) -> str:
    ends = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="2"/>'


def _svg(height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">'
    )
    return "\n".join(
        [head, f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>', *parts, "</svg>"]
    )
