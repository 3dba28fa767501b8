"""Score models of one cell: which arm, in which variant, got which prompts right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ramerge._types import F64
from ramerge.lab.agents import LUCK, PROBLEMS
from ramerge.lab.arms import NORMS, Arm, Case, Make, resized, total_norm
from ramerge.lab.environments import Problem, environments
from ramerge.lab.environments.base import problems
from ramerge.lab.merging import norm, task_vector
from ramerge.lab.model import Shape, Weights
from ramerge.lab.rollout import score

Variant = Literal["published", "tuned", "scaled"]
Bits = NDArray[np.bool_]  # [K, P]
Rewards = Bits | F64  # right or wrong, or anything between 0 and 1
VALIDATION_PROBLEMS = 128


@dataclass(frozen=True, slots=True)
class Score:
    """One model on the test problems.

    Attributes:
        arm: its name.
        variant: see `arms`.
        setting: what tuning chose, in words; empty for the published variant.
        validation: mean accuracy over all tasks on validation; NaN where nobody looked.
        length: norm of the merged task vector, as a share of `arms.total_norm`.
        right: rewards on the test problems ``[K, P]``.
    """

    arm: str
    variant: Variant
    setting: str
    validation: float
    length: float
    right: Rewards


class Judge(Protocol):
    """What scores models: the study's tasks (`Bench`), or stories."""

    def validate(self, weights: Weights) -> float:
        """Mean reward over all tasks on validation: what tuning maximises."""
        ...

    def examine(self, weights: Weights) -> Rewards:
        """Rewards on the test problems ``[K, P]``."""
        ...


@dataclass(frozen=True, slots=True)
class Bench:
    """The problems that every model meets, by task."""

    validation: Mapping[str, Sequence[Problem]]
    test: Mapping[str, Sequence[Problem]]

    @classmethod
    def draw(cls) -> Bench:
        """The study's problems; the validation and test splits are disjoint by construction."""
        tasks = environments().items()
        return cls(
            {n: problems(e, "validation", VALIDATION_PROBLEMS, 0) for n, e in tasks},
            {n: problems(e, "test", PROBLEMS, 0) for n, e in tasks},
        )

    def validate(self, weights: Weights) -> float:
        """What tuning maximises: the mean accuracy over all tasks, retention included."""
        return float(_right(weights, self.validation).mean())

    def examine(self, weights: Weights) -> Bits:
        """Right answers to the test problems ``[K, P]``."""
        return _right(weights, self.test)


def _right(weights: Weights, drawn: Mapping[str, Sequence[Problem]]) -> Bits:
    tasks = environments()
    rewards = [score(weights, Shape(), tasks[name], ps, LUCK).numpy() for name, ps in drawn.items()]
    return np.stack(rewards) > 0.5


def score_arm(arm: Arm, case: Case, bench: Judge) -> Iterator[Score]:
    """The arm in all its variants."""
    merged = arm.make(case)
    whole = total_norm(case)
    length = norm(task_vector(case.base, merged)) / whole if whole else 0.0
    looked = bench.validate(merged) if arm.kind in {"baseline", "ram", "lead"} else float("nan")
    yield Score(arm.name, "published", "", looked, length, bench.examine(merged))
    if arm.grid:
        yield _best(arm, "tuned", arm.grid, case, bench)
    if arm.scaled and length > 0:
        grid = [(f"norm {g:g}", _stretched(merged, g)) for g in NORMS]
        yield _best(arm, "scaled", grid, case, bench)


def _stretched(merged: Weights, share: float) -> Make:
    return lambda case: resized(case.base, merged, share * total_norm(case))


def _best(
    arm: Arm, variant: Variant, grid: Sequence[tuple[str, Make]], case: Case, bench: Judge
) -> Score:
    """The variant with the best validation score (the first of equals), on the test problems."""
    tried = [(label, make(case)) for label, make in grid]
    looks = [bench.validate(weights) for _, weights in tried]
    best = int(np.argmax(looks))
    label, weights = tried[best]
    length = norm(task_vector(case.base, weights)) / total_norm(case)
    return Score(arm.name, variant, label, looks[best], length, bench.examine(weights))
