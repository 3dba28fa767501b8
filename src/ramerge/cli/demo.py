"""`ramerge demo`: the main job on a miniature set, in seconds and without network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramerge.cli import options as opt
from ramerge.cli.merge import run_merge, show_report
from ramerge.cli.render import columns, percent

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
    from ramerge.demo import copy_trained_set

    base, agents, accuracies = copy_trained_set(out, overwrite=overwrite)
    text = not (as_json or quiet)
    if text:
        names = ",".join(("base", *agents))
        typer.echo(
            f"wrote {out}/{{{names}}}: 0.1 M parameters each, trained by reinforcement learning"
        )
    job = {
        "base": str(base),
        "agents": [f"{name}={path}" for name, path in agents.items()],
        "method": "ram_plus",
        "out": out / "merged",
        "overwrite": overwrite,
    }
    show_report(run_merge(job, progress=text), as_json=as_json, quiet=quiet)
    if text:
        typer.echo("\n" + _scores(accuracies, out))
        flags = " ".join(f"--agent {name}={path}" for name, path in agents.items())
        typer.echo(f"\nnext  ramerge probe --base {base} {flags} --html {out}/report.html")
        typer.echo(f"      ramerge verify {out}/merged")


def _scores(accuracies: dict[str, dict[str, float]], out: Path) -> str:
    """Test accuracies by task: of base and agents as measured in training, of the merge measured now."""
    tasks = list(accuracies["base"])
    rows = [("accuracy on test", *tasks)]
    rows += [
        (name, *(percent(scores[task]) for task in tasks)) for name, scores in accuracies.items()
    ]
    note = ""
    try:
        from ramerge.lab.agents import accuracies as measure
        from ramerge.lab.model import load
    except ImportError:
        note = (
            "\nthe merge's own scores need torch: pip install 'ramerge[lab]', then run this again"
        )
    else:
        merged = measure(load(out / "merged"), "test")
        rows.append(("merged", *(percent(merged[task]) for task in tasks)))
    return columns(rows, right=range(1, len(rows[0]))) + note
