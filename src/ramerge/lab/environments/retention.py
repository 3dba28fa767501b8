"""Retention: reverse five digits, ``R|48213|`` -> ``31284``; no agent is trained on it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ramerge.lab.environments.base import Problem


@dataclass(frozen=True, slots=True)
class Retention:
    """Reward = exact match; the demonstrations are right."""

    name: str = "retention"
    max_new: int = 6

    def draw(self, rng: random.Random) -> Problem:
        """Five digits."""
        digits = f"{rng.randrange(100000):05d}"
        return Problem(digits, (f"R|{digits}|",), digits[::-1])

    def reward(self, problem: Problem, answer: str) -> float:
        """Exact match."""
        return float(answer == problem.solution)

    def demonstrate(self, problem: Problem, rng: random.Random) -> tuple[str, str]:
        """The right answer."""
        del rng
        return problem.prompts[0], problem.solution
