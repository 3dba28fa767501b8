"""What a task is: problems, prompts, a check of answers, weak demonstrations to pre-train on."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Literal, Protocol

Split = Literal["train", "validation", "test"]
_SPLITS: tuple[Split, ...] = (
    "validation",
    "test",
    "train",
    "train",
    "train",
    "train",
    "train",
    "train",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        key: all of the problem as text; decides its split.
        prompts: what the model sees, a turn each; ``{}`` stands for its answer of the turn before.
        solution: what the check compares with.
    """

    key: str
    prompts: tuple[str, ...]
    solution: str


class Environment(Protocol):
    """A verifiable task; a new one joins by one line in `environments.environments`."""

    @property
    def name(self) -> str:
        """As in tables."""
        ...

    @property
    def max_new(self) -> int:
        """Tokens of an answer, the end of the sequence included."""
        ...

    def draw(self, rng: random.Random) -> Problem:
        """A problem of any split."""
        ...

    def reward(self, problem: Problem, answer: str) -> float:
        """1.0 if the last turn's answer is right, else 0.0; any text is a legal answer."""
        ...

    def demonstrate(self, problem: Problem, rng: random.Random) -> tuple[str, str]:
        """A prompt and the answer of a mediocre expert, for pre-training."""
        ...


def split_of(key: str) -> Split:
    """Where a problem belongs: a hash of all of it, so no problem is in two splits."""
    return _SPLITS[zlib.crc32(key.encode()) % len(_SPLITS)]


def problems(environment: Environment, split: Split, count: int, seed: int) -> list[Problem]:
    """``count`` problems of one split, fixed by the seed; no repetition outside training."""
    rng = random.Random(f"{environment.name}/{split}/{seed}")  # noqa: S311
    seen: set[str] = set()
    found: list[Problem] = []
    while len(found) < count:
        problem = environment.draw(rng)
        if split_of(problem.key) == split and (split == "train" or problem.key not in seen):
            seen.add(problem.key)
            found.append(problem)
    return found
