"""Coding: write an expression that does the steps in order; hidden tests run it.

``C|+3*2-4|`` asks for a program that adds 3, doubles, subtracts 4: ``((x+3)*2)-4``, or anything
that computes the same. Every problem multiplies after adding or subtracting, so forgetting the
brackets fails the tests; that, and doing two steps in the wrong order, are the mistakes in the
demonstrations.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ramerge.lab.environments.base import Problem
from ramerge.lab.interpreter import evaluate

HIDDEN_INPUTS = (-7, -2, 0, 1, 3, 10)
STEPS = 3


@dataclass(frozen=True, slots=True)
class Coding:
    """Programs of three steps; reward = all hidden tests pass."""

    name: str = "coding"
    max_new: int = 15
    right: float = 0.35  # share of right demonstrations

    def draw(self, rng: random.Random) -> Problem:
        """Three steps, at least one multiplication after an addition or subtraction."""
        while True:
            steps = [rng.choice("+-*") + rng.choice("23456789") for _ in range(STEPS)]
            operators = "".join(s[0] for s in steps)
            if "*" in operators.lstrip("*"):
                spec = "".join(steps)
                return Problem(spec, (f"C|{spec}|",), _program(spec))

    def reward(self, problem: Problem, answer: str) -> float:
        """Run the answer and the solution on the hidden inputs."""
        wanted = [evaluate(problem.solution, x) for x in HIDDEN_INPUTS]
        return float([evaluate(answer, x) for x in HIDDEN_INPUTS] == wanted)

    def demonstrate(self, problem: Problem, rng: random.Random) -> tuple[str, str]:
        """Right, without brackets, or with two steps exchanged."""
        spec = problem.key
        draw = rng.random()
        if draw < self.right:
            answer = problem.solution
        elif draw < self.right + 0.4:
            answer = f"x{spec}"
        else:
            answer = _program(spec[2:4] + spec[:2] + spec[4:])
        return problem.prompts[0], answer


def _program(spec: str) -> str:
    """``+3*2-4`` -> ``((x+3)*2)-4``."""
    program = "x"
    for at in range(0, len(spec), 2):
        program = f"({program}{spec[at : at + 2]})"
    return program[1:-1]
