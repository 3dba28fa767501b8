"""`ramerge probe`: what training did to the weights, as tables, JSON or a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ramerge.cli import options as opt
from ramerge.cli.progress import ProgressBar
from ramerge.cli.render import emit_json, say

Mask = Annotated[
    str,
    typer.Option("--mask", metavar="MASK", help="When an element is changed: abs, exact or grid."),
]
Epsilon = Annotated[
    float, typer.Option("--epsilon", help="Of the abs mask: changed means |τ| above this.")
]
R = Annotated[float, typer.Option("--r", help="For the preview of λ = 1 + r·min(ρ, alpha).")]
Alpha = Annotated[float, typer.Option("--alpha", help="For the preview of λ.")]
ToJson = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the figures as JSON (- for stdout).",
        show_default=False,
    ),
]
ToHtml = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Write the report as one HTML page.", show_default=False
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="METHODS",
        help="Also measure how much of each agent survives these methods, as ties,ram_plus.",
        show_default=False,
    ),
]


def probe(
    *,
    config: opt.Config = None,
    base: opt.Base = None,
    agents: opt.Agents = None,
    mask: Mask = "abs",
    epsilon: Epsilon = 1e-5,
    r: R = 0.1,
    alpha: Alpha = 1.0,
    against: Against = None,
    json_file: ToJson = None,
    html_file: ToHtml = None,
    out_dtype: opt.OutDtype = None,
    extra: opt.Extra = None,
    vocabulary: opt.Vocabulary = None,
    threads: opt.Threads = None,
    memory: opt.Memory = "1GB",
    allow_pickle: opt.AllowPickle = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure in one pass what training changed: density, overlap, ρ, lengths, angles, conflicts, layer by layer.

    Example: ramerge probe --base ./base --agent coder=./a --agent tools=./b --html report.html
    """
    from ramerge import api
    from ramerge.report.terminal import render

    opt.check_writable(json_file, html_file)
    to_stdout = json_file is not None and str(json_file) == "-"
    with ProgressBar(enabled=not quiet) as bar:
        report = api.probe(
            base, agents, config=config, mask=mask, epsilon=epsilon, r=r, alpha=alpha, out_dtype=out_dtype,
            against=tuple(m.strip() for m in against.split(",")) if against else (),
            extra=_policy(extra), vocabulary=_policy(vocabulary), threads=threads, memory=memory,
            allow_pickle=allow_pickle, progress=bar,
        )  # fmt: skip
    for warning in report.data["warnings"]:
        say("warning", warning)
    if to_stdout:
        emit_json(report.to_json())
        return
    if json_file is not None:
        report.save_json(json_file)
    if html_file is not None:
        html_file.write_text(report.to_html(), encoding="utf-8")
    if not quiet:
        typer.echo(render(report.data))
        for file in (json_file, html_file):
            if file is not None:
                typer.echo(f"\nwrote {file}")


def _policy(text: str | None) -> Any:
    return text
