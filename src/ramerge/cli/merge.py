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
        help="Where the merged model goes; absent or empty.",
        show_default=False,
    ),
]
NonFinite = Annotated[
    str | None,
    typer.Option(
        "--nonfinite",
        metavar="POLICY",
        help="On NaN or infinity: error, keep_base or propagate. [default: error]",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check everything from headers, write nothing (= ramerge plan)."
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace DIR as a whole, once the new model is complete."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted run of the same merge.")
]


def merge(
    *,
    config: opt.Config = None,
    out: Out,
    base: opt.Base = None,
    agent: opt.Agents = None,
    method: opt.MethodName = None,
    assignments: opt.Assignments = None,
    preset: opt.Preset = None,
    out_dtype: opt.OutDtype = None,
    shard_size: opt.ShardSize = None,
    threads: opt.Threads = None,
    memory: opt.Memory = "1GB",
    nonfinite: NonFinite = None,
    allow_pickle: opt.AllowPickle = False,
    allow_remote_code: opt.AllowRemoteCode = False,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Merge agents that share one base into one model, whole or not at all.

    Example: ramerge merge --base ./base --agent coder=./a --agent tools=./b --out ./merged
    """
    job: dict[str, Any] = opt.inputs(
        config=config,
        base=base,
        agents=agent,
        method=method,
        assignments=assignments,
        preset=preset,
    )
    job |= {"out": out, "out_dtype": out_dtype, "shard_size": shard_size, "nonfinite": nonfinite}
    job |= {"threads": threads, "memory": memory, "overwrite": overwrite, "resume": resume}
    job |= {"allow_pickle": allow_pickle, "allow_remote_code": allow_remote_code}
    if dry_run:
        from ramerge.cli.plan import show_plan

        show_plan(job, as_json=as_json, quiet=quiet)
        return
    report = run_merge(job, progress=not (quiet or as_json))
    if as_json:
        emit_json(report.to_json())
    elif not quiet:
        typer.echo(describe(report))


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


def describe(report: MergeReport) -> str:
    """The report as text: a row per agent, one line on rounding, one on the work done."""
    head = ("agent", "dtype", "changed", "unique", "shared", "ρ", "λ", "λ after rounding", "lost")
    rows = [
        (
            a.name,
            a.dtype,
            percent(a.density),
            f"{a.unique:,}",
            f"{a.shared:,}",
            "-" if a.rho is None else f"{a.rho:.3g}",
            "-" if a.lam is None else f"{a.lam:.4g}",
            "-" if a.lam_effective is None else f"{a.lam_effective:.4g}",
            "-" if a.lost_to_rounding is None else percent(a.lost_to_rounding),
        )
        for a in report.agents
    ]
    lines = [columns([head, *rows], right=range(2, len(head)))]
    rate = size(report.bytes_read / max(report.seconds, 1e-9))
    passes = "1 pass" if report.passes == 1 else f"{report.passes} passes"
    lines.append(
        f"{report.method}: {report.elements:,} elements, {size(report.bytes_read)} read in "
        f"{seconds(report.seconds)} ({rate}/s), {passes}"
    )
    lines += [f"note: {text}" for text in (*report.decisions, *report.warnings)]
    lines.append(f"wrote {report.output}, verified: {len(report.files)} files")
    return "\n".join(lines)
