"""`ramerge demo`: the main job on a miniature set, in seconds and without network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramerge.cli import options as opt
from ramerge.cli.merge import run_merge, show_report

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
    from ramerge.demo import write_demo_set

    base, agents = write_demo_set(out, overwrite=overwrite)
    text = not (as_json or quiet)
    if text:
        names = ",".join(("base", *agents))
        typer.echo(f"wrote {out}/{{{names}}}: 0.2 M parameters each, drawn at random, not trained")
    job = {
        "base": str(base),
        "agents": [f"{name}={path}" for name, path in agents.items()],
        "method": "ram_plus",
        "out": out / "merged",
        "overwrite": overwrite,
    }
    show_report(run_merge(job, progress=text), as_json=as_json, quiet=quiet)
    if text:
        flags = " ".join(f"--agent {name}={path}" for name, path in agents.items())
        typer.echo(f"\nnext  ramerge verify {out}/merged")
        typer.echo(f"      ramerge merge --base {base} {flags} --method ram --out {out}/ram")
