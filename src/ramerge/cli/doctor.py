"""`ramerge doctor`: is every agent what it claims to be?"""

from __future__ import annotations

import typer

from ramerge.cli import options as opt
from ramerge.cli.progress import ProgressBar
from ramerge.cli.render import coloured, emit_json

_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


def doctor(
    *,
    base: opt.Base = None,
    agents: opt.Agents = None,
    threads: opt.Threads = None,
    memory: opt.Memory = "1GB",
    allow_pickle: opt.AllowPickle = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Read base and agents and say what stands against merging them; exit code 4 where something does.

    Example: ramerge doctor --base ./base --agent coder=./a --agent tools=./b
    """
    import sys

    from ramerge import api

    with ProgressBar(enabled=not (quiet or as_json)) as bar:
        findings = api.doctor(
            base, agents, threads=threads, memory=memory, allow_pickle=allow_pickle, progress=bar
        )
    if as_json:
        emit_json({"findings": [f.to_json() for f in findings]})
    else:
        width = max((len(f.model) for f in findings), default=0)
        for f in findings:
            if quiet and f.severity != "error":
                continue
            word = f.severity.ljust(8)
            word = typer.style(word, fg=_COLOURS[f.severity]) if coloured(sys.stdout) else word
            typer.echo(f"{word} {f.model.ljust(width)}  {f.code}: {f.evidence}")
            if f.hint:
                typer.echo(f"{' ' * (10 + width)} hint: {f.hint}")
    if any(f.severity == "error" for f in findings):
        raise typer.Exit(4)
