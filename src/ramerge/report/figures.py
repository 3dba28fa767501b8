"""Plotly figures from a probe report's JSON, for notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ramerge._errors import ConfigError, nearest
from ramerge._types import Json


def figure(data: Json, name: str) -> Any:
    """A plotly figure of the report.

    Raises:
        ConfigError: no such figure, or plotly is not installed.
    """
    if name not in FIGURES:
        close = nearest(name, FIGURES)
        hint = f"did you mean `{close}`?" if close else f"there are {', '.join(FIGURES)}"
        raise ConfigError(f"there is no figure `{name}`", hint=hint)
    try:
        return FIGURES[name](data)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "plotly":
            raise
        raise ConfigError("figures need plotly", hint="pip install 'ramerge[plot]'") from None


def _density(data: Json) -> Any:
    """Layer by module heat maps, one an agent."""
    from plotly.subplots import make_subplots

    names = [a["name"] for a in data["agents"]]
    chart = make_subplots(rows=len(names), cols=1, subplot_titles=names)
    modules = list(dict.fromkeys(p["module"] for p in data["layers"]))
    layers = sorted({p["layer"] for p in data["layers"]}, key=lambda x: -1 if x is None else x)
    for t in range(len(names)):
        by_place = {(p["module"], p["layer"]): p["agents"][t]["density"] for p in data["layers"]}
        z = [[by_place.get((m, layer)) for layer in layers] for m in modules]
        chart.add_heatmap(
            z=z,
            x=[str(x) for x in layers],
            y=modules,
            zmin=0,
            coloraxis="coloraxis",
            row=t + 1,
            col=1,
        )
    return chart


def _overlap(data: Json) -> Any:
    """Elements changed by exactly these agents."""
    import plotly.graph_objects as go

    met = data["intersections"]
    return go.Figure(
        go.Bar(x=[" + ".join(m["agents"]) for m in met], y=[m["elements"] for m in met])
    )


def _magnitude(data: Json) -> Any:
    """Changed elements by log10 of the change."""
    import plotly.graph_objects as go

    lines = [
        go.Scatter(
            name=a["name"],
            x=[m["log10"] for m in a["magnitudes"]],
            y=[m["elements"] for m in a["magnitudes"]],
        )
        for a in data["agents"]
    ]
    return go.Figure(lines)


def _matrix(data: Json, key: str) -> Any:
    """A figure of pairs as a symmetric matrix."""
    import plotly.graph_objects as go

    names = [a["name"] for a in data["agents"]]
    by_pair = {frozenset((p["a"], p["b"])): p[key] for p in data["pairs"]}
    z = [[by_pair.get(frozenset((a, b))) for b in names] for a in names]
    return go.Figure(go.Heatmap(z=z, x=names, y=names))


FIGURES: dict[str, Callable[[Json], Any]] = {
    "density": _density,
    "overlap": _overlap,
    "magnitude": _magnitude,
    "cosine": lambda data: _matrix(data, "cosine"),
    "conflict": lambda data: _matrix(data, "sign_conflict"),
    "chance": lambda data: _matrix(data, "ratio"),
}
