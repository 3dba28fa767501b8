"""The report as one self-contained HTML page: no remote asset, a strict content security policy, charts without scripts.

Names and texts from users and models are escaped everywhere: by jinja in the page, by `svg` in charts, and in the embedded
JSON by replacing what could end a script element.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
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
        **{name: Markup(chart) for name, chart in _charts(data).items()},  # noqa: S704 (escaped by svg)
        maps=[(name, Markup(chart)) for name, chart in _maps(data)],  # noqa: S704 (escaped by svg)
    )


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
    names = [a["name"] for a in agents]
    met = [(e["agents"], e["elements"]) for e in data["intersections"][:MOST_INTERSECTIONS]]
    masks = [
        (f"{a['name']} · {mask}", share, svg.percent(share), colour(t))
        for t, a in enumerate(agents)
        for mask, share in a["density_by_mask"].items()
    ]
    lines = [
        (a["name"], [(m["log10"], m["elements"]) for m in a["magnitudes"]], colour(t))
        for t, a in enumerate(agents)
    ]
    return {
        "overlap": svg.upset(names, met, "elements by the agents that changed them"),
        "masks": svg.bars(masks, "density of each agent under each mask"),
        "magnitudes": svg.histogram(lines, "changed elements by magnitude of the change"),
    }


def _maps(data: Json) -> list[tuple[str, str]]:
    places = data["layers"]
    layers = sorted({p["layer"] for p in places}, key=lambda x: -1 if x is None else x)
    modules = list(dict.fromkeys(p["module"] for p in places))
    columns = ["–" if layer is None else str(layer) for layer in layers]
    by_place = {(p["layer"], p["module"]): p for p in places}
    most = max((a["density"] for p in places for a in p["agents"]), default=0) or 1
    charts = []
    for t, agent in enumerate(data["agents"]):
        values = [
            [
                by_place[layer, module]["agents"][t]["density"]
                if (layer, module) in by_place
                else None
                for layer in layers
            ]
            for module in modules
        ]
        label = f"density of {agent['name']} by module and layer"
        charts.append(
            (agent["name"], svg.heat_map(columns, modules, values, label, "changed", most))
        )
    return charts
