"""`ramerge plan`: everything that can be known before a single weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ramerge.cli import options as opt
from ramerge.cli.render import emit_json

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
    agent: opt.Agents = None,
    method: opt.MethodName = None,
    assignments: opt.Assignments = None,
    preset: opt.Preset = None,
    out: Out = None,
    out_dtype: opt.OutDtype = None,
    shard_size: opt.ShardSize = None,
    memory: opt.Memory = "1GB",
    allow_pickle: opt.AllowPickle = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Say what a merge would do, and every problem that it would meet, from headers alone.

    Example: ramerge plan merge.yml --out ./merged
    """
    job = opt.inputs(
        config=config,
        base=base,
        agents=agent,
        method=method,
        assignments=assignments,
        preset=preset,
    )
    job |= {
        "out": out,
        "out_dtype": out_dtype,
        "shard_size": shard_size,
        "memory": memory,
        "allow_pickle": allow_pickle,
    }
    show_plan(job, as_json=as_json, quiet=quiet)


def show_plan(job: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Plan ``job`` and print the plan; its problems, if any, are raised together."""
    from ramerge import api

    result = api.plan(**job)
    if as_json:
        emit_json(result.to_json())
    elif not quiet:
        typer.echo(result)
