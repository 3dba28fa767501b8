"""The report as one self-contained HTML page: no remote asset, a strict content security policy, charts without scripts.

Names and texts from users and models are escaped everywhere: by jinja in the page, by `svg` in charts, and in the embedded
JSON by replacing what could end a script element.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from ramerge._types import Json
from ramerge.report import cells, svg

MASK_TEXTS = {
    "abs": "moved by more than {epsilon:g}",
    "exact": "different in any bit of its value",
    "grid": "different on the base's own grid of numbers",
}
FIRST_INTERSECTIONS = 20  # in one picture; the others unfold


def page(data: Json) -> str:
    """The page for a probe report's JSON object."""
    from jinja2 import Environment

    sheet, script = style(), _read("report.js")
    environment = Environment(autoescape=True)
    from markupsafe import Markup

    from ramerge._version import __version__

    kind = data["mask"]["kind"]
    return environment.from_string(_read("report.html")).render(
        **data,
        ramerge=__version__,
        mask_text=MASK_TEXTS[kind].format(epsilon=data["mask"]["epsilon"]),
        style=Markup(sheet),  # noqa: S704 (our own file)
        script=Markup(script),  # noqa: S704 (our own file)
        style_hash=digest(sheet),
        script_hash=digest(script),
        embedded=Markup(_embedded(data)),  # noqa: S704 (escaped by _embedded)
        number=svg.number,
        percent=svg.percent,
        compact=svg.compact,
        first=FIRST_INTERSECTIONS,
        **{name: Markup(chart) for name, chart in _charts(data).items()},  # noqa: S704 (escaped by svg)
        maps=[(name, Markup(chart)) for name, chart in _maps(data)],  # noqa: S704 (escaped by svg)
        matrices=[_marked(m) for m in _matrices(data)],
    )


def _marked(matrix: _Matrix) -> _Matrix:
    from markupsafe import Markup

    chart, scale = Markup(matrix.chart), Markup(matrix.scale)  # noqa: S704 (escaped by svg)
    return matrix._replace(chart=chart, scale=scale)


def _read(name: str) -> str:
    return files("ramerge.report").joinpath("templates", name).read_text(encoding="utf-8")


def style() -> str:
    """The style sheet of every page."""
    return _read("report.css")


def digest(text: str) -> str:
    """What a content security policy names an inline style or script by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(data: Json) -> str:
    """JSON that cannot end the script element that it stands in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def colour(agent: int) -> str:
    """The page's colour of an agent."""
    return f"var(--c{agent % 8})"


def _charts(data: Json) -> dict[str, str]:
    agents: list[Mapping[str, Any]] = data["agents"]
    masks = [
        ("" if m else a["name"], share, f"{mask} {svg.percent(share)}", colour(t))
        for t, a in enumerate(agents)
        for m, (mask, share) in enumerate(_by_mask(a))
    ]
    lines = [
        (a["name"], [(m["log10"], m["elements"]) for m in a["magnitudes"]], colour(t))
        for t, a in enumerate(agents)
    ]
    return {
        "overlap": _overlap(data, 0, FIRST_INTERSECTIONS),
        "more_overlap": _overlap(data, FIRST_INTERSECTIONS, None),
        "masks": svg.bars(masks, "density of each agent under each mask"),
        "magnitudes": svg.histogram(lines, "changed elements by magnitude of the change"),
        "map_scale": cells.scale(
            [(0, "0 %"), (0.5, svg.percent(_densest(data) / 4)), (1, svg.percent(_densest(data)))],
            "density",
        ),
    }


def _by_mask(agent: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Densities by mask; one for all where they are the same."""
    shares: dict[str, float] = agent["density_by_mask"]
    same = len(set(shares.values())) == 1
    return [("all", next(iter(shares.values())))] if same else list(shares.items())


def _overlap(data: Json, first: int, last: int | None) -> str:
    """Rows of intersections in pictures of a hand's height, so that a page can break between two of them."""
    names = [a["name"] for a in data["agents"]]
    met = [(e["agents"], e["elements"]) for e in data["intersections"]]
    most = max((n for _, n in met[first:last]), default=0) or 1
    what = "elements by the agents that changed them"
    stop = len(met) if last is None else min(last, len(met))
    starts = range(first, stop, FIRST_INTERSECTIONS)
    return "".join(
        svg.upset(names, met[at : min(at + FIRST_INTERSECTIONS, stop)], most, what) for at in starts
    )


def _densest(data: Json) -> float:
    """Of all places and agents; 1 where nothing changed."""
    return max((a["density"] for p in data["layers"] for a in p["agents"]), default=0) or 1


def _maps(data: Json) -> list[tuple[str, str]]:
    places, most = data["layers"], _densest(data)
    layers = sorted({p["layer"] for p in places}, key=lambda x: -1 if x is None else x)
    modules = list(dict.fromkeys(p["module"] for p in places))
    columns = ["–" if layer is None else str(layer) for layer in layers]
    by_place = {(p["layer"], p["module"]): p for p in places}
    shade = cells.Shade(
        lambda share: math.sqrt(share / most), svg.percent
    )  # sparse agents show too
    charts = []
    for t, agent in enumerate(data["agents"]):
        found = [[by_place.get((layer, module)) for layer in layers] for module in modules]
        values = [[p and p["agents"][t]["density"] for p in line] for line in found]
        what = f"density of {agent['name']}"
        charts.append((agent["name"], cells.heat_map(columns, modules, values, what, shade)))
    return charts


class _Matrix(NamedTuple):
    """One figure of the pairs, drawn."""

    title: str
    note: str
    chart: str
    scale: str


def _matrices(data: Json) -> list[_Matrix]:
    """Overlap against chance, cosines and sign conflicts of all pairs of agents."""
    names = [a["name"] for a in data["agents"]]
    pairs = {frozenset((p["a"], p["b"])): p for p in data["pairs"]}
    made = []
    for key, (title, note, shade, ends) in _MATRICES.items() if pairs else ():
        values = [[pairs.get(frozenset((a, b)), {}).get(key) for b in names] for a in names]
        chart = cells.matrix(names, values, title.lower(), shade)
        made.append(_Matrix(title, note, chart, cells.scale(ends, title.lower())))
    return made


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.{2 if ratio < 10 else 0}f}×"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-0.00", "0.00").replace("-", "−")


def _octaves(ratio: float) -> float:
    """A ratio as a strength: 1 is nothing, 4 and a quarter are the ends."""
    return max(-1.0, min(1.0, math.log2(ratio) / 2)) if ratio > 0 else -1.0


_MATRICES = {
    "ratio": (
        "Overlap against chance",
        (
            "How often two agents change the same element, against two that choose independently: 1× is chance, more"
            " means that they compete for the same weights."
        ),
        cells.Shade(_octaves, _times),
        [(-1.0, "≤ ¼×"), (0.0, "1× (chance)"), (1.0, "≥ 4×")],
    ),
    "sign_conflict": (
        "Sign conflict",
        (
            "Of the elements that both change, how many they push in opposite directions; half is what unrelated"
            " changes would give."
        ),
        cells.Shade(float, svg.percent),
        [(0.0, "0 %"), (0.5, "50 %"), (1.0, "100 %")],
    ),
    "cosine": (
        "Cosine of task vectors",
        "The angle between the whole changes: +1 the same direction, 0 unrelated, −1 opposite.",
        cells.Shade(float, _signed),
        [(-1.0, "−1"), (0.0, "0"), (1.0, "+1")],
    ),
}
