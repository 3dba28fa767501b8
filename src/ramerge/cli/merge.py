"""`ramerge merge`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramerge.cli import options as opt
from ramerge.cli.progress import ProgressBar
from ramerge.cli.render import columns, emit_json, percent, say, seconds, size

if TYPE_CHECKING:
    from ramerge.api import MergeReport

Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        metavar="DIR",
        help="Output directory; must be empty or not exist.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check everything from headers, write nothing (= ramerge plan)."
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Also write the probe's HTML report on the inputs; reads them once more.",
        show_default=False,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted run of the same merge.")
]


def merge(
    *,
    config: opt.Config = None,
    out: Out,
    base: opt.Base = None,
    agents: opt.Agents = None,
    method: opt.MethodName = None,
    parameters: opt.Assignments = None,
    preset: opt.Preset = None,
    out_dtype: opt.OutDtype = None,
    shard_size: opt.ShardSize = None,
    threads: opt.Threads = None,
    memory: opt.Memory = "1GB",
    nonfinite: opt.NonFinite = None,
    exclude: opt.Exclude = None,
    extra: opt.Extra = None,
    vocabulary: opt.Vocabulary = None,
    allow_pickle: opt.AllowPickle = False,
    allow_remote_code: opt.AllowRemoteCode = False,
    tokenizer_from: opt.TokenizerFrom = None,
    dry_run: DryRun = False,
    overwrite: opt.Overwrite = False,
    resume: Resume = False,
    report: Report = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Merge agents that share one base into one model, whole or not at all.

    Example: ramerge merge --base ./base --agent coder=./a --agent tools=./b --out ./merged
    """
    job = opt.job({k: v for k, v in locals().items() if k != "report"})
    opt.check_writable(report)
    if dry_run:
        from ramerge.cli.plan import show_plan

        show_plan(job, as_json=as_json, quiet=quiet)
        return
    show_report(run_merge(job, progress=not (quiet or as_json)), as_json=as_json, quiet=quiet)
    if report is not None:
        write_report(job, report, progress=not (quiet or as_json))


def run_merge(job: dict[str, Any], *, progress: bool) -> MergeReport:
    """Merge with a progress bar; on an interruption, say what is kept and how to go on."""
    from ramerge import api

    try:
        with ProgressBar(enabled=progress) as bar:
            return api.merge(**job, progress=bar)
    except KeyboardInterrupt:
        out = Path(job["out"])
        if any(path.is_dir() for path in out.parent.glob(f"{out.name}.partial-*")):
            say(
                "note",
                "finished tensors are kept; the same command with --resume goes on from there",
            )
        raise


def write_report(job: dict[str, Any], file: Path, *, progress: bool) -> None:
    """The probe's page on the inputs of a merge."""
    from ramerge import api

    shared = {
        "config",
        "base",
        "agents",
        "out_dtype",
        "extra",
        "vocabulary",
        "threads",
        "memory",
        "allow_pickle",
    }
    with ProgressBar(enabled=progress) as bar:
        found = api.probe(**{k: v for k, v in job.items() if k in shared}, progress=bar)
    file.write_text(found.to_html(), encoding="utf-8")


def show_report(report: MergeReport, *, as_json: bool, quiet: bool) -> None:
    """Print the report to stdout, and what a reader must not overlook to stderr."""
    if as_json:
        emit_json(report.to_json())
    elif not quiet:
        if report.resumed:
            say("note", f"resumed: {report.resumed:,} of {report.tensors:,} tensors were finished")
        for text in report.decisions:
            say("note", text)
        for text in report.warnings:
            say("warning", text)
        typer.echo(describe(report))


def describe(report: MergeReport) -> str:
    """The report as text: a row per agent, and the work done; unique and shared are shares of what the agent changed."""
    head = ("agent", "dtype", "changed", "unique", "shared", "ρ", "λ", "λ stored", "lost")
    rows = [
        (
            a.name,
            a.dtype,
            percent(a.density),
            percent(a.unique / max(a.changed, 1)),
            percent(a.shared / max(a.changed, 1)),
            _number(a.rho, "{:.3g}"),
            _number(a.lam, "{:.3f}"),
            _number(a.lam_effective, "{:.3f}"),
            "-" if a.lost_to_rounding is None else percent(a.lost_to_rounding),
        )
        for a in report.agents
    ]
    passes = "1 pass" if report.passes == 1 else f"{report.passes} passes"
    rate = size((report.bytes_read + report.bytes_written) / max(report.seconds, 1e-9))
    work = f"{passes} over {size(report.bytes_read)}, {seconds(report.seconds)}, {rate}/s"
    held = f"{report.tensors:,} tensors, {size(report.bytes_written)}"
    table = columns([head, *rows], right=range(2, len(head)))
    return (
        f"{table}\n{report.method}: {report.elements:,} elements, {work}\n"
        f"wrote {report.output}: {held}, verified"
    )


def _number(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else form.format(value)
