"""The same study on stories: train or load, merge in every way, score, one result file a cell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramerge._types import F64
from ramerge.lab.agents import Cell, Log, deterministic
from ramerge.lab.arms import NORMS, Case, arms
from ramerge.lab.geometry import measure
from ramerge.lab.processes import spread
from ramerge.lab.regimes import REGIMES, Regime
from ramerge.lab.scoring import Score, score_arm
from ramerge.lab.stories import agents
from ramerge.lab.stories.agents import AGENTS
from ramerge.lab.stories.bench import TEST, VALIDATION, StoryBench

RESULTS = 1  # raised when results of older code must not be mixed with new ones
SEEDS = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where the base comes from, and where everything made from it is kept."""

    source: Path
    cache: Path


def cells(regimes: Sequence[Regime] = tuple(REGIMES), seeds: int = SEEDS) -> list[Cell]:
    """All cells; regimes vary fastest, so that an interrupted study has something of each."""
    return [Cell(regime, 0, seed) for seed in range(seeds) for regime in regimes]


def run(
    place: Place, wanted: Sequence[Cell], *, jobs: int = 2, log: Log = lambda _: None
) -> list[dict[str, Any]]:
    """Run what is missing and return the results of all cells, in order.

    Raises:
        ConfigError: the base's files are not in ``place.source``.
    """
    agents.get_root(place.source, place.cache)
    missing = [(place, cell) for cell in wanted if _read(place.cache, cell) is None]
    spread(_score, missing, jobs, log)
    return finished(place.cache, wanted)


def finished(cache: Path, wanted: Sequence[Cell]) -> list[dict[str, Any]]:
    """Results of the cells that are scored, in order."""
    return [found for cell in wanted if (found := _read(cache, cell)) is not None]


def _score(place: Place, cell: Cell) -> str:
    deterministic()
    root = agents.get_root(place.source, place.cache)
    case = agents.make_case(root, cell)
    bench = StoryBench.draw(root.author, root.weights)
    found = {
        **_identity(cell),
        "agents": measure(case.base, case.agents),
        "rows": rows(case, bench),
    }
    path = _path(place.cache, cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found) + "\n", "utf-8")
    return f"stories, {cell.name}, is scored: {len(found['rows'])} models"


def rows(case: Case, bench: StoryBench) -> list[dict[str, Any]]:
    """Every arm but the ablations, in all its variants, as JSON."""
    plain = [arm for arm in arms(AGENTS) if arm.kind != "ablation"]
    return [_row(found) for arm in plain for found in score_arm(arm, case, bench)]


def _row(found: Score) -> dict[str, Any]:
    """As JSON: right answers as hexadecimal digits, retention as numbers."""
    row = asdict(found)
    *judged, kept = found.right
    row["setting_of"] = "three"
    row["right"] = [np.packbits(task > 0.5).tobytes().hex() for task in judged]
    row["kept"] = [round(float(value), 5) for value in kept]
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def rewards(row: Mapping[str, Any]) -> F64:
    """Rewards ``[K, P]`` of a row, retention last."""
    bits = [np.frombuffer(bytes.fromhex(task), np.uint8) for task in row["right"]]
    return np.stack([*(np.unpackbits(b)[: len(row["kept"])] for b in bits), row["kept"]])


def _identity(cell: Cell) -> dict[str, Any]:
    settings = [agents.VERSION, RESULTS, VALIDATION, TEST]
    return {**asdict(cell), "version": settings, "norms": list(NORMS)}


def _path(cache: Path, cell: Cell) -> Path:
    return cache / "stories" / "results" / f"{cell.regime}-{cell.agent_seed}.json"


def _read(cache: Path, cell: Cell) -> dict[str, Any] | None:
    """The cell's results, if they were made by this code."""
    path = _path(cache, cell)
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found if all(found.get(k) == v for k, v in _identity(cell).items()) else None
