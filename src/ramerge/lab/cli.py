"""`ramerge lab`: the miniature study from the command line."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ramerge._errors import ConfigError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Train miniature agents by RL, merge them in every way, report with intervals.",
)
Cache = Annotated[
    Path,
    typer.Option(
        "--cache", metavar="DIR", help="Where trained models and results are kept and found again."
    ),
]


Full = Annotated[
    bool,
    typer.Option(
        "--full/--fast", help="All regimes, pairs, crowds and ablations; or minutes of it."
    ),
]
Regimes = Annotated[
    list[str] | None,
    typer.Option("--regime", help="natural, bf16 or geometry; may be repeated."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Triples of agents for each base.")
]
Bases = Annotated[
    int | None, typer.Option("--bases", min=1, help="Bases, each pre-trained from its seed.")
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Processes, of one thread each.")]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where the report goes.")]


@app.command("run")
def run(
    *,
    full: Full = False,
    regime: Regimes = None,
    seeds: Seeds = None,
    bases: Bases = None,
    cache: Cache = Path("lab-cache"),
    out: Out = Path("lab"),
    jobs: Jobs = 2,
) -> None:
    """Train what is missing, score every merge, write REPORT.md and report.html.

    Example: ramerge lab run --full --seeds 5
    """
    _require_torch()
    from ramerge.lab import cost, report, study

    plan = study.planned(full=full, regimes=regime, bases=bases, seeds=seeds)
    found = study.run(plan, cache, jobs=jobs, log=_log)
    _log("measuring the cost of merging")
    for path in report.write(found, cost.measure(), out, planned=len(plan.cells())):
        typer.echo(str(path))


@app.command("report")
def write_report(
    *,
    full: Full = False,
    regime: Regimes = None,
    seeds: Seeds = None,
    bases: Bases = None,
    cache: Cache = Path("lab-cache"),
    out: Out = Path("lab"),
) -> None:
    """Write the report from the cells that are scored so far, without scoring any.

    Example: ramerge lab report --full
    """
    _require_torch()
    from ramerge.lab import cost, report, study

    plan = study.planned(full=full, regimes=regime, bases=bases, seeds=seeds)
    found = study.finished(plan, cache)
    if not found:
        raise ConfigError(
            f"`{cache}` holds no results of this plan", hint="`ramerge lab run` makes them"
        )
    _log("measuring the cost of merging")
    for path in report.write(found, cost.measure(), out, planned=len(plan.cells())):
        typer.echo(str(path))


@app.command("stories")
def stories(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="Holds stories260K.bin and tok512.bin.")
    ],
    *,
    regime: Regimes = None,
    seeds: Seeds = None,
    cache: Cache = Path("lab-cache"),
    out: Out = Path("lab"),
    jobs: Jobs = 2,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Only of the cells that are scored so far.")
    ] = False,
) -> None:
    """The same study from a base with real pre-training: llama2.c's stories260K.

    Example: ramerge lab stories ~/stories260k --seeds 3
    """
    _require_torch()
    from ramerge.lab.regimes import REGIMES
    from ramerge.lab.stories import report, study
    from ramerge.lab.study import regime_named

    regimes = [regime_named(r) for r in regime] if regime else list(REGIMES)
    cells = study.cells(regimes, seeds or study.SEEDS)
    if not report_only:
        study.run(study.Place(source, cache), cells, jobs=jobs, log=_log)
    found = study.finished(cache, cells)
    if not found:
        raise ConfigError(
            f"`{cache}` holds no results of stories", hint="without --report-only they are made"
        )
    for path in report.write(found, out, planned=len(cells)):
        typer.echo(str(path))


@app.command("export-demo")
def export_demo(
    target: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where base, agents and provenance go.")
    ],
    *,
    cache: Cache = Path("lab-cache"),
    regime: Annotated[
        str, typer.Option("--regime", help="natural, bf16 or geometry.")
    ] = "geometry",
) -> None:
    """Package the first base and its first three agents, in BF16, with where they come from.

    Example: ramerge lab export-demo src/ramerge/data/demo
    """
    _require_torch()
    from ramerge.lab.agents import Cell, deterministic
    from ramerge.lab.packaging import package
    from ramerge.lab.study import regime_named

    deterministic()
    found = package(cache, Cell(regime_named(regime), 0, 0), target)
    for name in found["sha256"]:
        typer.echo(str(target / name))


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise ConfigError(
            "the lab needs torch, which is not installed", hint="pip install 'ramerge[lab]'"
        )


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")
