"""Charts as inline SVG: small, printable, readable without scripts, and every text in them escaped.

Colours come from the page's CSS variables (``--c0`` … per agent, ``--ink``, ``--soft``), so that light and dark both work.
Labels of rows stand in a picture of their own, so that they stay in sight while a wide chart is scrolled beside them;
bars have lengths in percent, so that they fit any width without being shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

ROW = 26  # pixels of a row of bars
DOT = 22  # pixels between two agents' dots, and between two rows of them
LONGEST = 60  # percent of the width that the longest bar takes; the rest is for its text
LETTER = 7.2  # pixels that a letter of a label takes, at most nearly


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


def short(name: str, most: int = 16) -> str:
    """A label that fits; the whole name stands in its title."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def bars(rows: Sequence[tuple[str, float, str, str]], label: str) -> str:
    """Horizontal bars. Each row: name (may be empty), length, text at its end, colour."""
    longest = max((length for _, length, _, _ in rows), default=0) or 1
    body = []
    for i, (_, length, text, colour) in enumerate(rows):
        body.append(_bar(i * ROW + 5, 15, length / longest, text, text, f'fill="{colour}"'))
    names = labels([name for name, _, _, _ in rows], ROW, 0)
    return beside(names, fluid(max(len(rows), 1) * ROW, "".join(body), label))


def upset(
    names: Sequence[str], rows: Sequence[tuple[Sequence[str], int]], most: int, label: str
) -> str:
    """Intersections of sets, one a row: dots say which agents, a bar how many elements only they changed, against ``most``."""
    head = slanted_height(names)
    height = head + max(len(rows), 1) * DOT
    dots = [slanted(names, DOT, head)]
    lengths = []
    for j in range(len(names)):
        x = j * DOT + DOT / 2
        dots.append(f'<line x1="{x}" x2="{x}" y1="{head}" y2="{height}" class="g"/>')
    for i, (members, count) in enumerate(rows):
        y = head + i * DOT + DOT / 2
        spots = [j * DOT + DOT / 2 for j, name in enumerate(names) if name in members]
        dots.append(f'<line x1="{min(spots)}" x2="{max(spots)}" y1="{y}" y2="{y}" class="d"/>')
        dots += [f'<circle cx="{x}" cy="{y}" r="6" class="d"/>' for x in spots]
        title = f"only {' + '.join(members)}: {count:,} elements"
        lengths.append(_bar(y - 7, 14, count / most, compact(count), title, 'class="b"'))
    left = figure(len(names) * DOT + 14, height, "".join(dots), "which agents", "dots")
    return beside(left, fluid(height, "".join(lengths), label))


def histogram(series: Sequence[tuple[str, Sequence[tuple[float, int]], str]], label: str) -> str:
    """Lines over log10 of a magnitude. Each series: name, (log10, elements), colour."""
    points = [p for _, line, _ in series for p in line]
    if not points:
        return "<p>Nothing changed.</p>"
    low, high = min(p[0] for p in points) - 0.3, max(p[0] for p in points) + 0.6
    most = max(p[1] for p in points)
    width, height = 620, 236

    def place(x: float, n: float) -> tuple[float, float]:
        return 46 + (x - low) / (high - low) * (width - 60), 190 - 170 * n / most

    body = [
        f'<line x1="46" x2="{width - 14}" y1="{y}" y2="{y}" class="g"/>'
        f'<text x="40" y="{y + 4}" class="t v e">{compact(n)}</text>'
        for n, y in ((most, 20), (most / 2, 105), (0, 190))
    ]
    step = max(1, math.ceil((high - low) / 8))
    for decade in range(math.ceil(low), math.floor(high) + 1, step):
        x, _ = place(decade, 0)
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="190" class="g"/>'
            f'<text x="{x:.1f}" y="208" class="t v m">1e{decade}</text>'
        )
    body.append(f'<text x="{width / 2}" y="230" class="t v m">|τ| of an element</text>')
    body += [_line(name, line, colour, place) for name, line, colour in series]
    picture = figure(width, height, "".join(body), label, "grow")
    return f'<div class="scroll">{picture}</div>'


def _line(name: str, line: Sequence[tuple[float, int]], colour: str, place: object) -> str:
    spots = [(*place(x, n), x, n) for x, n in line]  # type: ignore[operator]
    path = " ".join(f"{cx:.1f},{cy:.1f}" for cx, cy, _, _ in spots)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>' + "".join(
        f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{colour}">'
        f"<title>{escape(name)}: {n:,} elements with |τ| from {10**x:.2g} to {2 * 10**x:.2g}</title></circle>"
        for cx, cy, x, n in spots
    )


# --- pieces ------------------------------------------------------------------------------------


def _bar(y: float, tall: float, share: float, text: str, title: str, look: str) -> str:
    width = LONGEST * share
    return (
        f'<rect x="0" y="{y:g}" width="{width:.2f}%" height="{tall:g}" rx="3" {look}>'
        f"<title>{escape(title)}</title></rect>"
        f'<text x="{width:.2f}%" dx="7" y="{y + tall - 3:g}" class="t v">{escape(text)}</text>'
    )


def labels(names: Sequence[str], row: float, head: float) -> str:
    """A column of names, one a row, below an empty head."""
    width = max((len(short(n)) for n in names), default=1) * LETTER + 10
    body = "".join(
        f'<text x="0" y="{head + i * row + row / 2 + 4:g}" class="t">{escape(short(name))}'
        f"<title>{escape(name)}</title></text>"
        for i, name in enumerate(names)
        if name
    )
    return figure(width, head + max(len(names), 1) * row, body, "names", "names")


def slanted_height(names: Sequence[str]) -> float:
    """Pixels that slanted names above columns need."""
    return 16 + max((len(short(n)) for n in names), default=1) * LETTER * 0.64


def slanted(names: Sequence[str], step: float, head: float) -> str:
    """Names above columns, slanted so that long ones fit."""
    return "".join(
        f'<text transform="translate({j * step + step / 2 + 3:g},{head - 7:g}) rotate(-40)" class="t">'
        f"{escape(short(name))}<title>{escape(name)}</title></text>"
        for j, name in enumerate(names)
    )


def beside(left: str, right: str) -> str:
    """A picture that stays and one that scrolls, if it is wider than what room there is."""
    return f'<div class="chart">{left}<div class="scroll">{right}</div></div>'


def fluid(height: float, body: str, label: str) -> str:
    """A picture as wide as the room that it gets; lengths in it are percentages."""
    return (
        f'<svg class="fluid" width="100%" height="{height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{body}</svg>"
    )


def figure(width: float, height: float, body: str, label: str, kind: str = "") -> str:
    """A picture of a size of its own, which is never shrunk but in a room that says so."""
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        f' role="img" aria-label="{escape(label)}">{body}</svg>'
    )
