"""The report as one HTML page: no script, nothing remote, names and texts escaped by jinja and `charts`.

Dressed as the probe's page is: `report.html.style` is the style of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

from ramerge.evaluate import charts
from ramerge.evaluate.render import EVENTS, NOTE, beside, events, label, settled
from ramerge.evaluate.report import EvaluationReport, Key, published
from ramerge.report.html import colour, digest, style

MOST_TRUNCATED = 0.05  # of a column's answers, before the page warns


def html(report: EvaluationReport) -> str:
    """The report as one self-contained page."""
    from jinja2 import Environment
    from markupsafe import Markup

    from ramerge._version import __version__

    own = files("ramerge.evaluate").joinpath("data")
    css = style() + own.joinpath("report.css").read_text(encoding="utf-8")
    template = own.joinpath("report.html").read_text(encoding="utf-8")
    main, rest = report.main, [key for key in report.keys if key not in report.main]
    return (
        Environment(autoescape=True, trim_blocks=True)
        .from_string(template)
        .render(
            report=report,
            main=main,
            rest=rest,
            domains=[(d, len(list(g))) for d, g in groupby(main, lambda k: report.domains[k[0]])],
            sizes={key: _size(report, key) for key in report.keys},
            paper=beside(main),
            source=published()["source"],
            published_note=published()["note"],
            warnings=_warnings(report),
            events=events(report),
            label=label,
            settled=settled,
            known=lambda score: score is not None and not math.isnan(score.mean),
            tasks=sum(len(found) for found in report.outcomes.values()),
            columns=list(dict.fromkeys(key[0] for key in report.keys)),
            settings=[(name, _shown(value)) for name, value in report.settings.items()],
            note=NOTE,
            ramerge=__version__,
            css=Markup(css),  # noqa: S704 (our own file)
            css_hash=digest(css),
            averages=Markup(_averages(report)),  # noqa: S704 (escaped by charts)
            pareto=Markup(_pareto(report)),  # noqa: S704 (escaped by charts)
        )
    )


def _size(report: EvaluationReport, key: Key) -> int | None:
    """Tasks of a column, None where the models differ."""
    sizes = {row[key].score.n + row[key].errors for row in report.cells.values() if key in row}
    return sizes.pop() if len(sizes) == 1 else None


def _averages(report: EvaluationReport) -> str:
    rows = [
        (model, row["all"].mean, row["all"].low, row["all"].high, colour(number))
        for number, (model, row) in enumerate(report.averages.items())
        if "all" in row
    ]
    return charts.intervals(rows, "average score of each model with its interval") if rows else ""


def _pareto(report: EvaluationReport) -> str:
    points = [
        (m, report.merge_seconds[m], row["all"].mean, colour(number), m in report.pareto)
        for number, (m, row) in enumerate(report.averages.items())
        if m in report.merge_seconds and "all" in row
    ]
    return (
        charts.scatter(points, "merge time, seconds", "average", "average score against merge time")
        if points
        else ""
    )


def _warnings(report: EvaluationReport) -> list[str]:
    """What a reader should know before comparing numbers."""
    found = []
    if report.errors:
        found.append(
            f"{report.errors} tasks got no answer. Their columns are incomplete and enter no average; "
            "running the same command again asks only for what is missing."
        )
    for model, row in report.cells.items():
        for (column, _), cell in row.items():
            cut = cell.flags.get("truncated", 0)
            if cell.main and cut > MOST_TRUNCATED * max(1, cell.score.n):
                found.append(
                    f"{model}, {column}: {EVENTS['truncated']} {cut} times in {cell.score.n} tasks."
                )
    small = [label(k) for k in report.main if (_size(report, k) or 0) < SMALL]
    if small:
        found.append(f"Fewer than {SMALL} tasks, so wide intervals: {_listed(small)}.")
    return list(dict.fromkeys(found))


SMALL = 100


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items()) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "–" if value is None else str(value)
