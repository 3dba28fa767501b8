"""`ramerge compare`: the models of several evaluations in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ramerge.cli import options as opt
from ramerge.cli.render import emit_json, say

if TYPE_CHECKING:
    from ramerge.evaluate.report import EvaluationReport


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
    """Print a report: Markdown, or one JSON object."""
    from ramerge.evaluate.render import markdown

    if as_json:
        emit_json(report.as_json())
    else:
        typer.echo(markdown(report), nl=False)
