"""The two charts of the report, as inline SVG in the style of `ramerge.report.svg`; every text in them is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ramerge.report.svg import figure, number


def intervals(rows: Sequence[tuple[str, float, float, float, str]], label: str) -> str:
    """Points with their intervals. Each row: name, value, low, high, colour."""
    left, width, row = 130, 420, 26
    tall = row * max(len(rows), 1)
    ticks = _ticks(min(r[2] for r in rows), max(r[3] for r in rows))

    def at(value: float) -> float:
        return left + (width - left - 50) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    body = [
        (
            f'<line x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="0" y2="{tall}" class="g"/>'
            f'<text x="{at(tick):.1f}" y="{tall + 16}" class="t v m">{number(tick)}</text>'
        )
        for tick in ticks
    ]
    for i, (name, value, low, high, colour) in enumerate(rows):
        y = i * row + row / 2
        title = f"{name}: {value:.2f} [{low:.1f}, {high:.1f}]"
        body.append(
            f'<text x="0" y="{y + 4}" class="t">{escape(_cut(name))}</text>'
            f'<line x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"'
            f' stroke-linecap="round" stroke-opacity=".45"/>'
            f'<circle cx="{at(value):.1f}" cy="{y}" r="5" fill="{colour}"><title>{escape(title)}</title></circle>'
            f'<text x="{at(high) + 9:.1f}" y="{y + 4}" class="t v">{value:.1f}</text>'
        )
    return figure(width, tall + 22, "".join(body), label)


def scatter(
    points: Sequence[tuple[str, float, float, str, bool]], across: str, up: str, label: str
) -> str:
    """Named points. Each: name, x, y, colour, whether it is filled (else a ring)."""
    left, top, width, height = 40, 22, 320, 180
    xs, ys = _ticks(0, max(p[1] for p in points)), _ticks(*_ends([p[2] for p in points]))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + width * (x - xs[0]) / (xs[-1] - xs[0]),
            top + height * (1 - (y - ys[0]) / (ys[-1] - ys[0])),
        )

    body = [f'<text x="0" y="12" class="t v">{escape(up)}</text>']
    body.append(
        f'<text x="{left + width / 2}" y="{top + height + 34}" class="t v m">{escape(across)}</text>'
    )
    for x in xs:
        px, _ = place(x, ys[0])
        body.append(f'<text x="{px:.1f}" y="{top + height + 16}" class="t v m">{number(x)}</text>')
    for y in ys:
        _, py = place(xs[0], y)
        body.append(
            f'<line x1="{left}" x2="{left + width}" y1="{py:.1f}" y2="{py:.1f}" class="g"/>'
            f'<text x="{left - 8}" y="{py + 4:.1f}" class="t v e">{number(y)}</text>'
        )
    for name, x, y, colour, filled in points:
        px, py = place(x, y)
        body.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="6" stroke="{colour}" stroke-width="2.5"'
            f' fill="{colour if filled else "none"}"><title>{escape(name)}: {y:.2f} for {number(x)}</title></circle>'
            f'<text x="{px + 11:.1f}" y="{py + 4:.1f}" class="t">{escape(_cut(name))}</text>'
        )
    return figure(left + width + 100, top + height + 42, "".join(body), label)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest value; apart, where they are the same."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 1, high + 1)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that span ``low`` to ``high``."""
    high = high if high > low else low + 1
    rough = (high - low) / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = unit * min((m for m in (1, 2, 5, 10) if m * unit >= rough), default=10)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(n * step, 10) for n in range(first, last + 1)]


def _cut(name: str) -> str:
    """A name that fits beside a chart; hovering says the whole of it."""
    return name if len(name) <= 17 else f"{name[:16]}…"
