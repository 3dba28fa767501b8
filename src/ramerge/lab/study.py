"""The study: train or load the agents of every cell, merge them in every way, score.

A cell is one base and one triple of agents in one regime. Its results go to one file in the cache,
so that an interrupted study goes on where it stopped; the report is made from these files alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ramerge._errors import ConfigError, nearest
from ramerge.lab import fisher
from ramerge.lab.agents import (
    VERSION,
    Cell,
    Log,
    base_directory,
    deterministic,
    get_agents,
    get_base,
)
from ramerge.lab.arms import NORMS, Arm, Case, arms, leads, methods
from ramerge.lab.environments import AGENTS, TASKS, environments
from ramerge.lab.geometry import measure
from ramerge.lab.model import Shape, Weights
from ramerge.lab.processes import spread
from ramerge.lab.regimes import REGIMES, Regime
from ramerge.lab.scoring import Bench, Score, score_arm

RESULTS = 1  # raised when results of older code must not be mixed with new ones
CROWD = 3  # seeds whose agents are merged together
_PUBLISHED = ("ta_mean", "ta_sum", "ties", "dare_ties", "norm_matched", "ram", "ram_plus", "tsv_m")
FEW = frozenset({*_PUBLISHED, "gram", "ta_unit", "gram_unit", "tsv_unit"})  # pairs and crowds


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        regimes: how agents are trained.
        bases: base seeds.
        seeds: agent seeds of every base.
        level: ``fast``: methods and controls; ``full``: pairs, crowds and ablations, too.
    """

    regimes: tuple[Regime, ...]
    bases: int
    seeds: int
    level: str

    def cells(self) -> list[Cell]:
        """All cells; regimes vary fastest, so that an interrupted study has something of each."""
        return [
            Cell(r, b, s)
            for s in range(self.seeds)
            for b in range(self.bases)
            for r in self.regimes
        ]


FAST = Plan(("geometry",), bases=1, seeds=3, level="fast")
FULL = Plan(tuple(REGIMES), bases=2, seeds=5, level="full")


def planned(
    *,
    full: bool = False,
    regimes: Sequence[str] | None = None,
    bases: int | None = None,
    seeds: int | None = None,
) -> Plan:
    """The fast or the full plan, with what is given in place of its own.

    Raises:
        ConfigError: there is no such regime.
    """
    plan = FULL if full else FAST
    return Plan(
        tuple(regime_named(r) for r in regimes) if regimes else plan.regimes,
        bases or plan.bases,
        seeds or plan.seeds,
        plan.level,
    )


def regime_named(name: str) -> Regime:
    """The regime of that name.

    Raises:
        ConfigError: there is none.
    """
    for regime in REGIMES:
        if regime == name:
            return regime
    close = nearest(name, REGIMES)
    hint = f"did you mean `{close}`?" if close else f"regimes: {', '.join(REGIMES)}"
    raise ConfigError(f"there is no regime `{name}`", hint=hint)


def run(
    plan: Plan, cache: Path, *, jobs: int = 2, log: Log = lambda _: None
) -> list[dict[str, Any]]:
    """Run what is missing and return the results of all cells, in order.

    Args:
        plan: what to run.
        cache: trained models and results; may be shared by several plans.
        jobs: processes, of one thread each.
        log: gets one line for each step.
    """
    for seed in range(plan.bases):
        deterministic()
        get_base(cache, seed, log=log)
    if (
        plan.level == "full"
    ):  # crowds take agents of other seeds: train all before any cell is scored
        spread(_train, [(cache, c) for c in plan.cells()], jobs, log)
    missing = [(cache, c, plan.level) for c in plan.cells() if _read(cache, c, plan.level) is None]
    spread(_score, missing, jobs, log)
    return finished(plan, cache)


def finished(plan: Plan, cache: Path) -> list[dict[str, Any]]:
    """Results of the plan's cells that are scored, in order."""
    return [f for c in plan.cells() if (f := _read(cache, c, plan.level)) is not None]


def _train(cache: Path, cell: Cell) -> str:
    deterministic()
    get_agents(cache, cell, get_base(cache, cell.base_seed))
    return f"agents of {cell.name} are ready"


def _score(cache: Path, cell: Cell, level: str) -> str:
    """Score one cell and write its results."""
    deterministic()
    base = get_base(cache, cell.base_seed)
    case = make_case(cache, cell, base)
    bench = Bench.draw()
    rows = [_row("three", s) for arm in arms(AGENTS) for s in _scored(arm, case, bench, level)]
    if level == "full":
        rows += [_row(setting, s) for setting, s in _more(cache, cell, case, bench)]
    found = {
        **_identity(cell, level),
        "agents": measure(base, case.agents),
        "rows": rows,
    }
    path = _path(cache, cell, level)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found) + "\n", "utf-8")
    return f"{cell.name} is scored: {len(rows)} models"


def _scored(arm: Arm, case: Case, bench: Bench, level: str) -> Iterator[Score]:
    if level == "full" or arm.kind != "ablation":
        yield from score_arm(arm, case, bench)


def make_case(cache: Path, cell: Cell, base: Weights) -> Case:
    """The cell's agents, in both precisions, with their Fisher information."""
    agents = get_agents(cache, cell, base)
    exact = get_agents(cache, cell, base, "fp32")
    directory = base_directory(cache, cell.base_seed) / cell.regime / f"seed-{cell.agent_seed}"
    files = {}
    for name, task in zip(AGENTS, TASKS, strict=False):
        path = directory / f"{name}.fisher.safetensors"
        if not path.is_file():
            found = fisher.information(agents[name], Shape(), environments()[task], cell.agent_seed)
            fisher.write(found, path)
        files[name] = path
    return Case(base, agents, exact, files, seed=1000 * cell.base_seed + cell.agent_seed)


def _more(cache: Path, cell: Cell, case: Case, bench: Bench) -> Iterator[tuple[str, Score]]:
    """Pairs of the cell's agents, and six and eight agents with those of two other seeds."""
    for pair in combinations(AGENTS, 2):
        yield from _few("+".join(pair), case, {n: case.agents[n] for n in pair}, bench)
    everyone = {}
    for seed in (cell.agent_seed, *(s for s in range(CROWD) if s != cell.agent_seed))[:CROWD]:
        other = Cell(cell.regime, cell.base_seed, seed)
        for name, agent in get_agents(cache, other, case.base).items():
            everyone[f"{name}-{seed}"] = agent
    for count in (6, 8):
        yield from _few(f"{count} agents", case, dict(list(everyone.items())[:count]), bench)


def _few(
    setting: str, case: Case, agents: Mapping[str, Weights], bench: Bench
) -> Iterator[tuple[str, Score]]:
    """The main methods, untuned, for other agents than the cell's three."""
    other = Case(case.base, agents, {}, {}, case.seed)
    for arm in [*methods(len(agents)), *leads()]:
        if arm.name in FEW:
            plain = Arm(arm.name, arm.label, arm.kind, arm.make)
            for found in score_arm(plain, other, bench):
                yield setting, found


def _row(setting: str, found: Score) -> dict[str, Any]:
    """As JSON: right answers as hexadecimal digits, one string a task."""
    row = asdict(found)
    row["setting_of"] = setting
    row["right"] = [np.packbits(bits).tobytes().hex() for bits in found.right]
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def unpack(right: Sequence[str], problems: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rewards ``[K, P]`` from the digits of a row."""
    bits = [np.unpackbits(np.frombuffer(bytes.fromhex(r), np.uint8))[:problems] for r in right]
    return np.stack(bits).astype(np.float64)


def _identity(cell: Cell, level: str) -> dict[str, Any]:
    return {**asdict(cell), "level": level, "version": [VERSION, RESULTS], "norms": list(NORMS)}


def _path(cache: Path, cell: Cell, level: str) -> Path:
    return cache / "results" / f"{cell.regime}-{cell.base_seed}-{cell.agent_seed}-{level}.json"


def _read(cache: Path, cell: Cell, level: str) -> dict[str, Any] | None:
    """The cell's results, if they were made by this code."""
    path = _path(cache, cell, level)
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found if all(found.get(k) == v for k, v in _identity(cell, level).items()) else None
