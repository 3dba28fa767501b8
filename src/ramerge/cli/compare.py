"""`ramerge compare`: the models of several evaluations in one table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ramerge.cli import options as opt
from ramerge.cli.render import columns, emit_json, say

if TYPE_CHECKING:
    from ramerge.evaluate.report import EvaluationReport
    from ramerge.evaluate.statistics import Estimate


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of finished evaluations.")
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Also write a report.", show_default=False),
    ] = None,
    json_output: opt.AsJson = False,
) -> None:
    """Put the models of several evaluations into one table, with paired differences.

    Example: ramerge compare scores-base scores-merged
    """
    from ramerge.evaluate.compare import compare as read
    from ramerge.evaluate.report import write

    report = read(runs)
    show(report, as_json=json_output)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(report, out)
        say("note", f"wrote {out / 'report.html'}")


def show(report: EvaluationReport, *, as_json: bool) -> None:
    """Print a report: one JSON object, or a table with a row a data set and a column a model."""
    if as_json:
        emit_json(report.as_json())
        return
    typer.echo(columns([[printable(cell) for cell in row] for row in _rows(report)]))
    if len(report.models) > 1:
        typer.echo(
            "\n* best of its row. In brackets, 95 % intervals; of differences, paired over the tasks"
        )


def _rows(report: EvaluationReport) -> list[list[str]]:
    from ramerge.evaluate.render import label

    rows = [["", "tasks", *report.models]]
    for key in report.main:
        found = [report.cells[m].get(key) for m in report.models]
        best = report.best.get(key, ())
        shown = [
            _score(None if c is None else c.score, "*" if m in best else "", c.errors if c else 0)
            for m, c in zip(report.models, found, strict=True)
        ]
        sizes = {c.score.n + c.errors for c in found if c is not None}
        rows.append([label(key), "/".join(map(str, sorted(sizes))), *shown])
    averages = [report.averages[m].get("all") for m in report.models]
    rows.append(["average", "", *map(_score, averages)])
    if len(report.models) > 1:
        gaps = [report.average_differences[m] for m in report.models[1:]]
        rows.append([f"minus {report.models[0]}", "", "", *(_score(gap, sign="+") for gap in gaps)])
    return rows


def printable(text: str) -> str:
    """``text`` with whatever could disturb a terminal spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _score(score: Estimate | None, mark: str = "", errors: int = 0, sign: str = "") -> str:
    if score is None or math.isnan(score.mean):
        text = "–"
    else:
        text = f"{score.mean:{sign}.1f} [{score.low:{sign}.1f}, {score.high:{sign}.1f}]{mark}"
    return f"{text} {errors} errors" if errors else text
