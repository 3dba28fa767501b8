"""Charts as inline SVG: small, printable, readable without scripts, and every text in them escaped.

Colours come from the page's CSS variables (``--c0`` … per agent, ``--ink``, ``--soft``), so that light and dark both work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape


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


def shortened(name: str, most: int = 20) -> str:
    """A name that fits beside a chart; hovering and the tables have it whole."""
    return name if len(name) <= most else name[: most - 1] + "…"


def grouped_bars(groups: Sequence[tuple[str, Sequence[tuple[str, float]], str]], label: str) -> str:
    """Thin bars in groups. Each group: name, (mask, share) per bar, colour; bars that agree are drawn as one."""
    wide, thin = 200, 12
    left = 14 + 7.2 * max((len(shortened(name)) for name, _, _ in groups), default=1)
    longest = max((share for _, group, _ in groups for _, share in group), default=0) or 1
    body, y = [], 0
    for name, group, colour in groups:
        texts = {percent(share) for _, share in group}
        rows = [("under all masks", group[0][1])] if len(texts) == 1 else group
        body.append(f'<text x="0" y="{y + 11}" class="t">{escape(shortened(name))}</text>')
        for what, share in rows:
            width = max(wide * share / longest, 1)
            body.append(
                f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{thin}" rx="2" fill="{colour}">'
                f"<title>{escape(name)}, {escape(what)}: {percent(share)}</title></rect>"
                f'<text x="{left + width + 8:.1f}" y="{y + 11}" class="t v">{percent(share)} {escape(what)}</text>'
            )
            y += thin + 4
        y += 10
    return _figure(left + wide + 160, max(y, 1), "".join(body), label)


def upset(
    names: Sequence[str], rows: Sequence[tuple[Sequence[str], int]], total: int, label: str
) -> str:
    """Intersections of sets, the largest first: dots say which agents, a bar how many elements only they changed."""
    step, row, head, wide = 20, 20, 16 + 6 * max((len(shortened(n)) for n in names), default=1), 200
    left = len(names) * step + 14
    most = max((n for _, n in rows), default=0) or 1
    body = []
    for j, name in enumerate(names):
        x = j * step + step / 2
        body.append(
            f'<text transform="translate({x + 4},{head - 6}) rotate(-55)" class="t">{escape(shortened(name))}</text>'
            f'<line x1="{x}" x2="{x}" y1="{head}" y2="{head + len(rows) * row}" class="g"/>'
        )
    for i, (members, count) in enumerate(rows):
        y = head + i * row + row / 2
        title = f"only {' + '.join(members)}: {count:,} elements"
        spots = [j * step + step / 2 for j, name in enumerate(names) if name in members]
        width = max(wide * count / most, 1)
        body.append(f'<line x1="{min(spots)}" x2="{max(spots)}" y1="{y}" y2="{y}" class="d"/>')
        body += [f'<circle cx="{x}" cy="{y}" r="5" class="d"/>' for x in spots]
        body.append(
            f'<rect x="{left}" y="{y - 7}" width="{width:.1f}" height="14" rx="2" class="b">'
            f"<title>{escape(title)}</title></rect>"
            f'<text x="{left + width + 8:.1f}" y="{y + 4}" class="t v">{compact(count)}, {percent(count / total)}</text>'
        )
    slanted = 6 * max((len(shortened(n)) for n in names[-1:]), default=0)
    return _figure(
        left + wide + max(110, slanted - wide), head + len(rows) * row + 4, "".join(body), label
    )


def heat_map(
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
    label: str,
    what: str,
    most: float,
) -> str:
    """Cells shaded by the root of value / ``most``, which all maps of a page share; hover says the number."""
    left, cell, tall = 34, 18, 13
    head = 14 + 5.6 * max((len(c) for c in columns), default=1)
    body = []
    for j, column in enumerate(columns):
        x = left + j * cell + cell / 2
        body.append(
            f'<text transform="translate({x + 4},{head - 6}) rotate(-60)" class="t">{escape(column)}</text>'
        )
    for i, (name, line) in enumerate(zip(rows, values, strict=True)):
        y = head + i * tall
        body.append(f'<text x="{left - 8}" y="{y + 10}" class="t v e">{escape(name)}</text>')
        for j, value in enumerate(line):
            if value is None:
                continue
            title = f"layer {name}, {columns[j]}: {what} {percent(value)}"
            body.append(
                f'<rect x="{left + j * cell}" y="{y}" width="{cell - 1}" height="{tall - 1}" class="h"'
                f' fill-opacity="{0.04 + 0.96 * math.sqrt(value / most):.3f}"><title>{escape(title)}</title></rect>'
            )
    right = max((j * cell + 3.4 * len(c) for j, c in enumerate(columns)), default=0) + 14
    width = left + max(len(columns) * cell, right)
    return _figure(width, head + len(rows) * tall, "".join(body), label)


def matrix(
    names: Sequence[str],
    cells: Mapping[tuple[int, int], tuple[str, float]],
    label: str,
) -> str:
    """One figure for every pair of agents, below the diagonal.

    Args:
        names: of the agents.
        cells: (row, column), row > column -> text, and shade from -1 to 1; the sign picks the colour.
        label: what the figure is.
    """
    cell, left = 50, 12 + 8.2 * max((len(shortened(n)) for n in names), default=1)
    body = []
    for i, name in enumerate(names[1:], 1):
        y = (i - 1) * cell
        body.append(
            f'<text x="{left - 8}" y="{y + 29}" class="t e">{escape(shortened(name))}</text>'
        )
        for j in range(i):
            text, shade = cells[i, j]
            kind = "h" if shade >= 0 else "a"
            body.append(
                f'<g><rect x="{left + j * cell}" y="{y}" width="{cell - 2}" height="{cell - 2}" rx="4" class="{kind}"'
                f' fill-opacity="{0.06 + 0.6 * min(abs(shade), 1):.3f}"/>'
                f'<text x="{left + j * cell + cell / 2 - 1}" y="{y + 29}" class="t m">{escape(text)}</text>'
                f"<title>{escape(f'{label}, {names[j]} and {name}: {text}')}</title></g>"
            )
    foot = (len(names) - 1) * cell
    for j, name in enumerate(names[:-1]):
        x = left + j * cell + cell / 2
        body.append(
            f'<text transform="translate({x + 4},{foot + 8}) rotate(-55)" class="t e">{escape(shortened(name))}</text>'
        )
    slanted = 12 + 6 * max((len(shortened(n)) for n in names[:-1]), default=1)
    return _figure(left + (len(names) - 1) * cell, foot + slanted, "".join(body), label)


def histogram(series: Sequence[tuple[str, Sequence[tuple[float, int]], str]], label: str) -> str:
    """Lines over log10 of a magnitude, as shares of each series' sum. Each series: name, (log10, elements), colour."""
    points = [p for _, line, _ in series for p in line]
    if not points:
        return "<p>Nothing changed.</p>"
    low, high = min(p[0] for p in points) - 0.3, max(p[0] for p in points) + 0.6
    sums = [sum(n for _, n in line) or 1 for _, line, _ in series]
    most = max(n / s for (_, line, _), s in zip(series, sums, strict=True) for _, n in line)
    width, height = 480, 220

    def place(x: float, share: float) -> tuple[float, float]:
        return 48 + (x - low) / (high - low) * (width - 68), 190 - 170 * share / most

    body = []
    for decade in range(math.ceil(low), math.floor(high) + 1):
        x, _ = place(decade, 0)
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="190" class="g"/>'
            f'<text x="{x:.1f}" y="208" class="t m">1e{decade}</text>'
        )
    for part in (0.5, 1.0):
        _, y = place(low, most * part)
        body.append(
            f'<line x1="48" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" class="g"/>'
            f'<text x="42" y="{y + 4:.1f}" class="t v e">{percent(most * part)}</text>'
        )
    for (name, line, colour), total in zip(series, sums, strict=True):
        path = " ".join("{:.1f},{:.1f}".format(*place(x, n / total)) for x, n in line)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, n in line:
            cx, cy = place(x, n / total)
            said = f"{name}: {n:,} elements ({percent(n / total)}) from |τ| = {10**x:.2g}"
            body.append(
                f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3.5" fill="{colour}"><title>{escape(said)}</title></circle>'
            )
    return _figure(width, height, "".join(body), label)


def _figure(width: float, height: float, body: str, label: str) -> str:
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        f' role="img" aria-label="{escape(label)}">{body}</svg></div>'
    )
