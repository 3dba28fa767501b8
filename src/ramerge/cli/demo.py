"""`ramerge demo`: the main job on a miniature set, in seconds and without network."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ramerge.cli import options as opt
from ramerge.cli.merge import run_merge, show_report
from ramerge.cli.render import columns
from ramerge.miniature.demo import AGENTS, DemoSet, write_demo_set

Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="DIR", help="Where the inputs and the merged model go."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier demo in DIR.")]


def demo(
    *,
    out: Out = Path("demo-out"),
    overwrite: Overwrite = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Merge a miniature base with three agents by RAM+, and keep everything to look at.

    Example: ramerge demo --out demo-out
    """
    demo_set = write_demo_set(out, overwrite=overwrite)
    text = not (as_json or quiet)
    if text:
        typer.echo(
            f"wrote {out}: a base and three agents of 0.1 M parameters, each trained for one task"
        )
    agents = [f"{name}={path}" for name, path in demo_set.agents.items()]
    job = {
        "base": str(demo_set.base),
        "agents": agents,
        "method": "ram_plus",
        "out": out / "merged",
        "overwrite": overwrite,
    }
    show_report(run_merge(job, progress=text), as_json=as_json, quiet=quiet)
    if text:
        typer.echo(f"\n{_scores(demo_set, out / 'merged')}")
        flags = " ".join(["--base", str(demo_set.base), *(f"--agent {agent}" for agent in agents)])
        program = _program()
        typer.echo(f"\nnext  {program} verify {out}/merged")
        typer.echo(f"      {program} probe {flags}")


def _program() -> str:
    """What to type to run us: the name alone where the shell would find it."""
    called = Path(sys.argv[0])
    found = shutil.which("ramerge") is not None or called.name != "ramerge"
    return "ramerge" if found else os.path.relpath(called)


def _scores(demo_set: DemoSet, merged: Path) -> str:
    """What each model solves of its held-out tasks: base and agents from their training, the merge measured now."""
    tasks = list(AGENTS.values())
    scores: dict[str, Mapping[str, float]] = {m: demo_set.accuracy[m] for m in ("base", *AGENTS)}
    note = ""
    try:
        from ramerge.lab.agents import accuracies
        from ramerge.lab.model import load
    except ImportError:
        note = "\nScoring the merged model needs torch: pip install 'ramerge[lab]', then run this again"
    else:
        scores["merged"] = accuracies(load(merged), "test")
    rows = [("solves", *tasks)]
    rows += [(m, *(f"{100 * found[t]:.0f} %" for t in tasks)) for m, found in scores.items()]
    return columns(rows, right=range(1, len(rows[0]))) + note
