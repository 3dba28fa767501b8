"""The report as one self-contained HTML page: no remote asset, a strict content security policy, charts without scripts.

Names and texts from users and models are escaped everywhere: by jinja in the page, by `svg` in charts, and in the embedded
JSON by replacing what could end a script element.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ramerge._types import Json
from ramerge.report import svg

MASK_TEXTS = {
    "abs": "moved by more than {epsilon:g}",
    "exact": "different in any bit of its value",
    "grid": "different on the base's own grid of numbers",
}
MOST_INTERSECTIONS = 40


def page(data: Json) -> str:
    """The page for a probe report's JSON object."""
    from jinja2 import Environment

    style, script = _read("report.css"), _read("report.js")
    environment = Environment(autoescape=True)
    from markupsafe import Markup

    from ramerge._version import __version__

    kind = data["mask"]["kind"]
    return environment.from_string(_read("report.html")).render(
        **data,
        ramerge=__version__,
        mask_text=MASK_TEXTS[kind].format(epsilon=data["mask"]["epsilon"]),
        style=Markup(style),  # noqa: S704 (our own file)
        script=Markup(script),  # noqa: S704 (our own file)
        style_hash=_digest(style),
        script_hash=_digest(script),
        most_intersections=MOST_INTERSECTIONS,
        densest=max((a["density"] for p in data["layers"] for a in p["agents"]), default=0),
        embedded=Markup(_embedded(data)),  # noqa: S704 (escaped by _embedded)
        number=svg.number,
        percent=svg.percent,
        compact=svg.compact,
        **{name: Markup(chart) for name, chart in _charts(data).items()},  # noqa: S704 (escaped by svg)
        maps=[(name, Markup(chart)) for name, chart in _maps(data)],  # noqa: S704 (escaped by svg)
        matrices=[(title, text, Markup(chart)) for title, text, chart in _matrices(data)],  # noqa: S704 (escaped by svg)
    )


def _read(name: str) -> str:
    return files("ramerge.report").joinpath("templates", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
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
    names = [a["name"] for a in agents]
    met = [(e["agents"], e["elements"]) for e in data["intersections"][:MOST_INTERSECTIONS]]
    masks = [
        (a["name"], list(a["density_by_mask"].items()), colour(t)) for t, a in enumerate(agents)
    ]
    lines = [
        (a["name"], [(m["log10"], m["elements"]) for m in a["magnitudes"]], colour(t))
        for t, a in enumerate(agents)
    ]
    elements = max(data["elements"], 1)
    return {
        "overlap": svg.upset(names, met, elements, "elements by the agents that changed them"),
        "masks": svg.grouped_bars(masks, "density of each agent under each mask"),
        "magnitudes": svg.histogram(lines, "changed elements by magnitude of the change"),
    }


@dataclass(frozen=True, slots=True)
class _PairFigure:
    """A figure of the JSON's ``pairs``, as a matrix; ``shade`` gives -1 to 1."""

    key: str
    title: str
    text: str
    shade: Callable[[float], float]
    show: Callable[[float | None], str]


def _plain(value: float | None) -> str:
    """A figure of two digits, for a cell."""
    return svg.number(None if value is None else round(value, 3), 2)


PAIR_FIGURES = (
    _PairFigure(
        "ratio",
        "Overlap against chance",
        "Elements that both changed, by what independent choices would give; above 1 they share more than chance.",
        lambda ratio: math.log2(ratio) / 3 if ratio > 0 else -1.0,
        _plain,
    ),
    _PairFigure(
        "cosine",
        "Direction",
        "Cosine of the task vectors: 0 unrelated, 1 the same, -1 opposite.",
        float,
        _plain,
    ),
    _PairFigure(
        "sign_conflict",
        "Sign conflict",
        "Of the elements that both changed, how many they move opposite ways; chance gives 50 %.",
        float,
        svg.percent,
    ),
)


def _matrices(data: Json) -> list[tuple[str, str, str]]:
    """Title, explanation and chart of every figure that belongs to two agents."""
    names = [a["name"] for a in data["agents"]]
    place = {name: i for i, name in enumerate(names)}
    pairs = {(place[p["b"]], place[p["a"]]): p for p in data["pairs"]}
    made = []
    for figure in PAIR_FIGURES if pairs else ():
        values = {at: pair[figure.key] for at, pair in pairs.items()}
        cells = {
            at: (figure.show(v), 0.0 if v is None else figure.shade(v)) for at, v in values.items()
        }
        made.append((figure.title, figure.text, svg.matrix(names, cells, figure.title)))
    return made


def _maps(data: Json) -> list[tuple[str, str]]:
    places = data["layers"]
    layers = sorted({p["layer"] for p in places}, key=lambda x: -1 if x is None else x)
    modules = list(dict.fromkeys(p["module"] for p in places))
    rows = ["–" if layer is None else str(layer) for layer in layers]
    by_place = {(p["layer"], p["module"]): p for p in places}
    most = max((a["density"] for p in places for a in p["agents"]), default=0) or 1
    charts = []
    for t, agent in enumerate(data["agents"]):
        values = [
            [
                by_place[layer, module]["agents"][t]["density"]
                if (layer, module) in by_place
                else None
                for module in modules
            ]
            for layer in layers
        ]
        label = f"density of {agent['name']} by layer and module"
        chart = svg.heat_map(_last_parts(modules), rows, values, label, "changed", most)
        charts.append((agent["name"], chart))
    return charts


def _last_parts(modules: Sequence[str]) -> list[str]:
    """`q_proj` for `self_attn.q_proj` where that says enough."""
    short = [m.rpartition(".")[2] for m in modules]
    return [s if short.count(s) == 1 else m for s, m in zip(short, modules, strict=True)]
