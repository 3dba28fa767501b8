"""Charts as inline SVG: small, printable, readable without scripts, and every text in them escaped.

Colours come from the page's CSS variables (``--c0`` … per agent, ``--ink``, ``--soft``), so that light and dark both work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

ROW = 26  # pixels of a row


def number(value: float | None, digits: int = 3) -> str:
    """A figure as people read it: 12,345 · 0.123 · 4.5e-6 · –."""
    if value is None:
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def percent(share: float | None) -> str:
    """A share as a percentage with a sensible number of digits."""
    if share is None:
        return "–"
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else f"{100 * share:.2g} %"


def compact(count: float) -> str:
    """A count in thousands, millions, billions."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:.0f}"


def bars(rows: Sequence[tuple[str, float, str, str]], label: str) -> str:
    """Horizontal bars. Each row: name, length, text at its end, colour."""
    longest = max((length for _, length, _, _ in rows), default=0) or 1
    body = []
    for i, (name, length, text, colour) in enumerate(rows):
        y = i * ROW
        width = 330 * length / longest
        body.append(
            f'<text x="0" y="{y + 17}" class="t">{escape(name)}</text>'
            f'<rect x="150" y="{y + 5}" width="{max(width, 1):.1f}" height="15" rx="3" fill="{colour}">'
            f"<title>{escape(name)}: {escape(text)}</title></rect>"
            f'<text x="{158 + width:.1f}" y="{y + 17}" class="t v">{escape(text)}</text>'
        )
    return _figure(620, max(len(rows), 1) * ROW, "".join(body), label)


def upset(names: Sequence[str], rows: Sequence[tuple[Sequence[str], int]], label: str) -> str:
    """All intersections of sets: a column of dots says which agents, a bar how many elements only they changed."""
    left, step, height = 150, 44, 130
    most = max((n for _, n in rows), default=0) or 1
    body = []
    for j, name in enumerate(names):
        y = height + 24 + j * 22
        body.append(f'<text x="0" y="{y + 4}" class="t">{escape(name)}</text>')
        body.append(
            f'<line x1="{left}" x2="{left + len(rows) * step}" y1="{y}" y2="{y}" class="g"/>'
        )
    for i, (members, count) in enumerate(rows):
        x = left + i * step + step / 2
        tall = (height - 22) * count / most
        title = f"only {' + '.join(members)}: {count:,} elements"
        body.append(
            f'<rect x="{x - 12}" y="{height - tall:.1f}" width="24" height="{max(tall, 1):.1f}" rx="2" class="b">'
            f"<title>{escape(title)}</title></rect>"
            f'<text x="{x}" y="{height - tall - 5:.1f}" class="t v m">{compact(count)}</text>'
        )
        spots = [height + 24 + j * 22 for j, name in enumerate(names) if name in members]
        body.append(f'<line x1="{x}" x2="{x}" y1="{min(spots)}" y2="{max(spots)}" class="d"/>')
        body += [f'<circle cx="{x}" cy="{y}" r="6" class="d"/>' for y in spots]
    return _figure(
        left + max(len(rows), 1) * step + 10, height + 24 + len(names) * 22, "".join(body), label
    )


def heat_map(
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
    label: str,
    what: str,
    most: float,
) -> str:
    """Cells shaded from nothing to ``most``, which all maps of a page share; hover says the number."""
    left, cell, head = 160, 22, 20 + 7 * max((len(c) for c in columns), default=1)
    body = []
    for j, column in enumerate(columns):
        x = left + j * cell + cell / 2
        body.append(
            f'<text transform="translate({x + 4},{head - 6}) rotate(-50)" class="t">{escape(column)}</text>'
        )
    for i, (name, line) in enumerate(zip(rows, values, strict=True)):
        y = head + i * 16
        body.append(f'<text x="0" y="{y + 12}" class="t">{escape(name)}</text>')
        for j, value in enumerate(line):
            if value is None:
                continue
            title = f"{name} · {columns[j]}: {what} {percent(value)}"
            body.append(
                f'<rect x="{left + j * cell}" y="{y}" width="{cell - 1}" height="15" class="h"'
                f' fill-opacity="{0.05 + 0.95 * value / most:.3f}"><title>{escape(title)}</title></rect>'
            )
    return _figure(left + len(columns) * cell + 60, head + len(rows) * 16, "".join(body), label)


def histogram(series: Sequence[tuple[str, Sequence[tuple[float, int]], str]], label: str) -> str:
    """Lines over log10 of a magnitude. Each series: name, (log10, elements), colour."""
    points = [p for _, line, _ in series for p in line]
    if not points:
        return "<p>Nothing changed.</p>"
    low, high = min(p[0] for p in points) - 0.3, max(p[0] for p in points) + 0.6
    most = max(p[1] for p in points)
    width, height = 620, 220

    def place(x: float, n: float) -> tuple[float, float]:
        return 40 + (x - low) / (high - low) * (width - 60), 190 - 170 * n / most

    body = []
    for decade in range(math.ceil(low), math.floor(high) + 1):
        x, _ = place(decade, 0)
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="190" class="g"/>'
            f'<text x="{x:.1f}" y="208" class="t m">1e{decade}</text>'
        )
    for name, line, colour in series:
        path = " ".join("{:.1f},{:.1f}".format(*place(x, n)) for x, n in line)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, n in line:
            cx, cy = place(x, n)
            body.append(
                f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3.5" fill="{colour}">'
                f"<title>{escape(name)}: {n:,} elements from |τ| = {10**x:.2g}</title></circle>"
            )
    return _figure(width, height, "".join(body), label)


def intervals(rows: Sequence[tuple[str, float, float, float, str]], label: str) -> str:
    """Points with their intervals. Each row: name, value, low, high, colour."""
    left, width, tall = 130, 420, max(len(rows), 1) * ROW
    ticks = _ticks(min(row[2] for row in rows), max(row[3] for row in rows))

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
        y = i * ROW + ROW / 2
        title = f"{name}: {value:.2f} [{low:.1f}, {high:.1f}]"
        body.append(
            f'<text x="0" y="{y + 4}" class="t">{escape(_cut(name))}</text>'
            f'<line x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"'
            f' stroke-linecap="round" stroke-opacity=".45"/>'
            f'<circle cx="{at(value):.1f}" cy="{y}" r="5" fill="{colour}"><title>{escape(title)}</title></circle>'
            f'<text x="{at(high) + 9:.1f}" y="{y + 4}" class="t v">{value:.1f}</text>'
        )
    return _figure(width, tall + 22, "".join(body), label)


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
    return _figure(left + width + 100, top + height + 42, "".join(body), label)


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
    """A name that fits beside a chart; the whole of it is in the chart's hover text."""
    return name if len(name) <= 17 else f"{name[:16]}…"


def _figure(width: float, height: float, body: str, label: str) -> str:
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        f' role="img" aria-label="{escape(label)}">{body}</svg></div>'
    )
