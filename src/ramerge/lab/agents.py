"""Bases and agents on disk: trained once from fixed seeds, found again by their settings.

    CACHE/base-0/                     an ordinary Hugging Face directory
    CACHE/base-0/natural/seed-3/coder.bf16/   coder.fp32/   ...
    CACHE/base-0/natural/seed-3/provenance.json

``provenance.json`` holds the settings and the curves; a directory whose settings differ is trained
again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ramerge.lab.environments import AGENTS, TASKS, environments
from ramerge.lab.environments.base import problems
from ramerge.lab.grpo import Settings, round_to_bf16, train
from ramerge.lab.model import Shape, Weights, load, save
from ramerge.lab.pretrain import Pretraining, pretrain
from ramerge.lab.regimes import DENSITIES, SCHEDULES, Regime, masks
from ramerge.lab.rollout import score

Stored = Literal["bf16", "fp32"]
Log = Callable[[str], None]
PROVENANCE = "provenance.json"
VERSION = 1  # raised when a change of the code would train other weights
PROBLEMS = 256  # drawn once for each task; all models meet the same ones
LUCK = 2601_13572  # seed of the sampling noise in evaluations


@dataclass(frozen=True, slots=True)
class Cell:
    """One base and one triple of agents: the unit that the study repeats."""

    regime: Regime
    base_seed: int
    agent_seed: int

    @property
    def name(self) -> str:
        """For logs and tables."""
        return f"{self.regime}/base {self.base_seed}/seed {self.agent_seed}"


def deterministic() -> None:
    """One thread and deterministic kernels: the same numbers on every run of this machine."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)


def base_directory(cache: Path, seed: int) -> Path:
    """Where the base of that seed is kept."""
    return cache / f"base-{seed}"


def get_base(
    cache: Path, seed: int, settings: Pretraining | None = None, log: Log = lambda _: None
) -> Weights:
    """The base of that seed, trained if it is not there."""
    settings = settings or Pretraining()
    directory = base_directory(cache, seed)
    wanted = {
        "version": VERSION,
        "seed": seed,
        "shape": asdict(Shape()),
        "pretraining": asdict(settings),
    }
    if matches(directory, wanted):
        return load(directory)
    log(f"training base {seed}: {settings.steps} steps")
    weights, losses = pretrain(Shape(), seed, settings)
    save(weights, Shape(), directory, torch.bfloat16)
    write_provenance(
        directory, {**wanted, "loss": curve(losses), "test": accuracies(weights, "test")}
    )
    return load(
        directory
    )  # as every later run has it: the order of the names decides sums and masks


def get_agents(
    cache: Path, cell: Cell, base: Weights, stored: Stored = "bf16", log: Log = lambda _: None
) -> dict[str, Weights]:
    """The cell's three agents by name, read from their BF16 or fp32 files; trained if not there."""
    directory = base_directory(cache, cell.base_seed) / cell.regime / f"seed-{cell.agent_seed}"
    wanted = {"version": VERSION, **asdict(cell), "schedules": _schedules(cell.regime)}
    if not matches(directory, wanted):
        curves, tests = {}, {}
        for name, task in zip(AGENTS, TASKS, strict=False):
            log(f"training {name} of {cell.name}")
            weights, rewards = train_agent(cell, base, task)
            save(weights, Shape(), directory / f"{name}.fp32", torch.float32)
            save(weights, Shape(), directory / f"{name}.bf16", torch.bfloat16)
            curves[name] = curve(rewards)
            tests[name] = accuracies(load(directory / f"{name}.bf16"), "test")
        write_provenance(directory, {**wanted, "reward": curves, "test": tests})
    return {name: load(directory / f"{name}.{stored}") for name in AGENTS}


def train_agent(cell: Cell, base: Weights, task: str) -> tuple[Weights, list[float]]:
    """GRPO on one task in the cell's regime; weights and the mean reward of every batch."""
    schedule = SCHEDULES[cell.regime][task]
    seed = 1000 * cell.agent_seed + TASKS.index(task)
    settings = Settings(steps=schedule.steps, rate=schedule.rate, seed=seed)
    confined = masks(base, DENSITIES[task], seed) if cell.regime == "geometry" else None
    rounding = round_to_bf16 if cell.regime == "bf16" else None
    return train(base, Shape(), environments()[task], settings, masks=confined, after_step=rounding)


def accuracies(weights: Weights, split: Literal["validation", "test"]) -> dict[str, float]:
    """Mean reward of every task on the study's problems of one split."""
    found = {}
    for name, environment in environments().items():
        drawn = problems(environment, split, PROBLEMS, 0)
        found[name] = round(float(score(weights, Shape(), environment, drawn, LUCK).mean()), 6)
    return found


def _schedules(regime: Regime) -> dict[str, Any]:
    fixed = {
        k: v
        for k, v in asdict(Settings(steps=0, rate=0.0)).items()
        if k not in {"steps", "rate", "seed"}
    }
    return {"grpo": fixed, **{task: asdict(s) for task, s in SCHEDULES[regime].items()}}


def curve(values: list[float]) -> list[float]:
    """At most twenty means of consecutive values."""
    step = max(1, len(values) // 20)
    parts = [values[at : at + step] for at in range(0, len(values), step)]
    return [round(sum(p) / len(p), 4) for p in parts]


def matches(directory: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the directory was trained with these settings."""
    path = directory / PROVENANCE
    if not path.is_file():
        return False
    found = json.loads(path.read_text("utf-8"))
    return all(found.get(key) == value for key, value in wanted.items())


def write_provenance(directory: Path, value: Mapping[str, Any]) -> None:
    """Provenance is written last: a directory without it is trained again."""
    (directory / PROVENANCE).write_text(json.dumps(value, indent=1) + "\n", "utf-8")
