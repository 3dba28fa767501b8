"""`ramerge plan`: everything that can be known before a single weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramerge.cli import options as opt
from ramerge.cli.render import columns, emit_json, say, seconds, size

if TYPE_CHECKING:
    from ramerge.planning.plan import Plan

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="DIR",
        help="Where the model would go; checks it and the disk.",
        show_default=False,
    ),
]


def plan(
    *,
    config: opt.Config = None,
    base: opt.Base = None,
    agents: opt.Agents = None,
    method: opt.MethodName = None,
    parameters: opt.Assignments = None,
    preset: opt.Preset = None,
    out: Out = None,
    out_dtype: opt.OutDtype = None,
    shard_size: opt.ShardSize = None,
    nonfinite: opt.NonFinite = None,
    exclude: opt.Exclude = None,
    extra: opt.Extra = None,
    vocabulary: opt.Vocabulary = None,
    memory: opt.Memory = "1GB",
    overwrite: opt.Overwrite = False,
    allow_pickle: opt.AllowPickle = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show what a merge would do and every problem it would hit, from headers alone.

    Example: ramerge plan merge.yml --out ./merged
    """
    show_plan(opt.job(locals()), as_json=as_json, quiet=quiet)


def show_plan(job: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Plan ``job`` and print the plan; its problems, if any, are raised together."""
    from inspect import signature

    from ramerge import api

    wanted = signature(api.plan).parameters
    result = api.plan(**{key: value for key, value in job.items() if key in wanted})
    needs = estimate(result, job["memory"])
    if as_json:
        emit_json(result.to_json() | needs)
    elif not quiet:
        for text in result.decisions:
            say("note", text)
        for text in result.warnings:
            say("warning", text)
        typer.echo(describe(result, needs))


def estimate(plan: Plan, memory: str) -> dict[str, Any]:
    """What a merge will need: bytes of buffers, and seconds at a rate that is named, not promised."""
    from ramerge.run import sizes

    threads = sizes.default_threads()
    widest = max((s.dtype.itemsize for t in plan.tensors for s in (t.base, t.output)), default=4)
    streams = len(plan.agents) + len(plan.auxiliary) + 2
    buffers = threads * streams * widest * sizes.chunk_size(plan, threads, memory)
    moved = plan.bytes_read + 2 * plan.bytes_written  # what is written is read back
    return {"buffer_bytes": buffers, "seconds_at_1_GB_per_second": round(moved / 1e9, 1)}


def describe(plan: Plan, needs: dict[str, Any]) -> str:
    """The plan as text: who is merged into what, and what it takes."""
    settings = ", ".join(f"{key} {value}" for key, value in plan.parameters.items())
    files = len(plan.layout.shards)
    rows = [("base", plan.base.source)]
    rows += [
        (f"agent {name}", agent.source)
        for name, agent in zip(plan.agent_names, plan.agents, strict=True)
    ]
    merged = f"{len(plan.merged):,} of {len(plan.tensors):,} tensors"
    rows += [
        ("method", f"{plan.method.name} ({settings})" if settings else plan.method.name),
        ("merged", f"{merged}, {plan.elements:,} elements"),
        ("reads", f"{size(plan.bytes_read)} a pass; {plan.method.cost}"),
        ("writes", f"{size(plan.bytes_written)} in {files} file{'s' if files > 1 else ''}"),
        ("memory", f"{size(needs['buffer_bytes'])} of buffers, and Python with its kernels"),
        ("time", f"{seconds(needs['seconds_at_1_GB_per_second'])} a pass at 1 GB/s"),
    ]
    return columns(rows)
