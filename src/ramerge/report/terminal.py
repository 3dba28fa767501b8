"""A probe report as text: compact tables and a small heat map, readable without colour."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ramerge._types import Json
from ramerge.report.svg import compact, number, percent

SHADES = "·░▒▓█"


def table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Aligned columns; the first ``left`` to the left, the rest to the right."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if c < left else cell.rjust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def summary(data: Json) -> str:
    """A line on the whole and one for each agent."""
    return "\n\n".join([_head(data), _agents(data)])


def render(data: Json) -> str:
    """The whole report."""
    parts = [_head(data), _agents(data)]
    if data["pairs"]:
        parts.append(_pairs(data))
    if data.get("dilution"):
        parts.append(_dilution(data))
    parts.append(_heat_map(data))
    return "\n\n".join(parts)


def _head(data: Json) -> str:
    share = percent(data["unchanged"] / data["elements"] if data["elements"] else 0)
    mask = data["mask"]["kind"] + (
        f" > {data['mask']['epsilon']:g}" if data["mask"]["kind"] == "abs" else ""
    )
    return f"{compact(data['elements'])} elements, {share} changed by no agent (mask {mask})"


def _agents(data: Json) -> str:
    rows = [
        (
            "agent",
            "dtype",
            "changed",
            "unique",
            "shared",
            "ρ",
            "λ",
            "‖τ‖/‖θ₀‖",
            "max |τ|",
            "conflict",
            "exact",
            "grid",
        )
    ]
    for a in data["agents"]:
        masks = a["density_by_mask"]
        rows.append(
            (
                a["name"], a["dtype"], percent(a["density"]), *(percent(s) for s in _regions(a)),
                number(a["rho"]), number(a["lambda"], 4), number(a["relative_norm"]), number(a["largest"]),
                percent(a["sign_conflict"]), percent(masks["exact"]), percent(masks["grid"]),
            )
        )  # fmt: skip
    return table(rows, left=2)


def _regions(agent: Json) -> tuple[float, float]:
    """Unique and shared elements as shares of what the agent changed."""
    changed = max(agent["changed"], 1)
    return agent["unique"] / changed, agent["shared"] / changed


def _pairs(data: Json) -> str:
    rows = [("pair", "both", "by chance", "ratio", "opposite", "cosine")]
    rows += [
        (
            f"{p['a']} · {p['b']}", compact(p["both"]), compact(p["expected_by_chance"]), number(p["ratio"]),
            percent(p["sign_conflict"]), number(p["cosine"]),
        )
        for p in data["pairs"]
    ]  # fmt: skip
    return table(rows)


def _dilution(data: Json) -> str:
    """What of each agent is left after each method: projections on its unique and its shared elements."""
    names = [a["name"] for a in data["agents"]]
    rows = [
        ("what is left of", *(f"{n} {region}" for n in names for region in ("unique", "shared")))
    ]
    for row in data["dilution"]:
        parts = (a[region]["projection"] for a in row["agents"] for region in ("unique", "shared"))
        rows.append((row["method"], *(number(part) for part in parts)))
    return table(rows)


def _heat_map(data: Json) -> str:
    """Density by module (rows) and layer (columns), one block an agent."""
    places = data["layers"]
    layers = sorted({p["layer"] for p in places}, key=lambda x: -1 if x is None else x)
    modules = list(dict.fromkeys(p["module"] for p in places))
    width = max(map(len, modules), default=0)
    most = max((a["density"] for p in places for a in p["agents"]), default=0) or 1
    numbered = [layer for layer in layers if layer is not None]
    span = f"layer {numbered[0]}–{numbered[-1]}" if numbered else "no layer"
    first = ", the first column outside layers" if numbered and None in layers else ""
    blocks = [
        f"density by module and {span}{first}; all agents on one scale, █ from {percent(most * 0.64)}"
    ]
    for t, agent in enumerate(data["agents"]):
        density = {(p["module"], p["layer"]): p["agents"][t]["density"] for p in places}
        lines = [agent["name"]]
        for module in modules:
            cells = "".join(_shade(density.get((module, layer)), most) for layer in layers)
            lines.append(f"{module.ljust(width)}  {cells}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _shade(value: float | None, most: float) -> str:
    """Spread at the lower end by a root, as in the page, so that sparse agents show beside dense ones."""
    if value is None:
        return " "
    return SHADES[min(int(math.sqrt(value / most) * len(SHADES)), len(SHADES) - 1)]
