"""Tool use: turn a request into function calls; compared as syntax trees.

``T|get a7 b2;put c5|`` asks for ``get(a=7,b=2);put(c=5)``. The order of calls and of arguments is
free, as in the parallel categories of the Berkeley function-calling leaderboard. Mistakes in the
demonstrations: positional arguments, and only the first of two parallel calls.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass

from ramerge.lab.environments.base import Problem
from ramerge.lab.interpreter import parse

FUNCTIONS = ("get", "put", "run", "fix")
ARGUMENTS = "abcdef"
Call = tuple[str, frozenset[tuple[str, object]]]


@dataclass(frozen=True, slots=True)
class Tools:
    """One or two calls with one or two arguments each; reward = the same set of calls."""

    name: str = "tools"
    max_new: int = 27
    right: float = 0.35

    def draw(self, rng: random.Random) -> Problem:
        """Two calls in seven of ten problems."""
        requests, calls = [], []
        for function in rng.sample(FUNCTIONS, 2 if rng.random() < 0.7 else 1):
            names = sorted(rng.sample(ARGUMENTS, rng.choice((1, 2))))
            given = [(n, str(rng.randrange(10))) for n in names]
            requests.append(f"{function} " + " ".join(n + v for n, v in given))
            calls.append(f"{function}(" + ",".join(f"{n}={v}" for n, v in given) + ")")
        request = ";".join(requests)
        return Problem(request, (f"T|{request}|",), ";".join(calls))

    def reward(self, problem: Problem, answer: str) -> float:
        """Compare as multisets of (function, set of named arguments)."""
        calls = parse_calls(answer)
        return float(calls is not None and calls == parse_calls(problem.solution))

    def demonstrate(self, problem: Problem, rng: random.Random) -> tuple[str, str]:
        """Right, positional, or only the first call."""
        draw = rng.random()
        answer = problem.solution
        if draw > self.right + 0.3:
            answer = "".join(c for i, c in enumerate(answer) if not _in_name(answer, i))
        elif draw > self.right:
            answer = answer.split(";")[0]
        return problem.prompts[0], answer


def parse_calls(text: str) -> list[Call] | None:
    """Calls of ``f(a=1);g(b=2)`` in one fixed order; None when the text is anything else."""
    statements = parse(text)
    if statements is None:
        return None
    calls: list[Call] = []
    for statement in statements:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=[], keywords=keywords)):
                given = [
                    (k.arg, k.value.value)
                    for k in keywords
                    if k.arg and isinstance(k.value, ast.Constant)
                ]
                if len(given) != len(keywords):
                    return None
                calls.append((name, frozenset(given)))
            case _:
                return None
    return sorted(calls, key=lambda call: (call[0], sorted(map(repr, call[1]))))


def _in_name(text: str, at: int) -> bool:
    """Whether the character belongs to an argument's name and its ``=``."""
    return text[at] == "=" or text[at + 1 : at + 2] == "="
