"""Long context: answer from a text longer than the window, read chunk by chunk into a small memory.

As in MemAgent (arXiv 2507.02259): the model never sees the whole text. Turn by turn it gets the
question, its own memory and the next chunk, and writes the new memory; at last it answers from the
memory alone. ``M|b|3|a5d1|`` asks for key b and remembers 3 for it; the chunk says nothing about b,
so the new memory is ``3``. A later value replaces an earlier one; ``-`` is nothing. The mistakes in
the demonstrations: forgetting what the chunk does not mention, and keeping an old value.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ramerge.lab.environments.base import Problem

KEYS = "abcd"
CHUNKS, PAIRS = 4, 2
UNKNOWN = "-"  # one sign for each key that is asked for


@dataclass(frozen=True, slots=True)
class Memory:
    """One key to report after four chunks of two pairs; reward = its latest value."""

    name: str = "memory"
    max_new: int = 2
    right: float = 0.3  # of each memory update: errors compound over the chunks

    def draw(self, rng: random.Random) -> Problem:
        """Chunks of distinct keys; the question is answered somewhere."""
        chunks = [
            "".join(k + str(rng.randrange(10)) for k in rng.sample(KEYS, PAIRS))
            for _ in range(CHUNKS)
        ]
        keys = "".join(rng.sample(sorted(set("".join(chunks)) & set(KEYS)), len(UNKNOWN)))
        memory = UNKNOWN
        for chunk in chunks:
            memory = update(memory, keys, chunk)
        prompts = (
            f"M|{keys}|{UNKNOWN}|{chunks[0]}|",
            *(f"M|{keys}|{{}}|{chunk}|" for chunk in chunks[1:]),
            f"A|{keys}|{{}}|",
        )
        return Problem("|".join([keys, *chunks]), prompts, memory)

    def reward(self, problem: Problem, answer: str) -> float:
        """Exact match."""
        return float(answer == problem.solution)

    def demonstrate(self, problem: Problem, rng: random.Random) -> tuple[str, str]:
        """One turn, from a memory as it may stand there."""
        turn = rng.randrange(len(problem.prompts))
        keys, *chunks = problem.key.split("|")
        memory = UNKNOWN
        for chunk in chunks[:turn]:
            memory = update(memory, keys, chunk)
        prompt = problem.prompts[turn].format(memory)
        if turn == len(chunks):
            return prompt, memory
        return prompt, self._careless(memory, keys, chunks[turn], rng)

    def _careless(self, memory: str, keys: str, chunk: str, rng: random.Random) -> str:
        draw = rng.random()
        if draw < self.right:
            return update(memory, keys, chunk)
        if draw < self.right + 0.55:
            return update(UNKNOWN, keys, chunk)  # forgets
        fresh = update(UNKNOWN, keys, chunk)
        return "".join(new if old == "-" else old for old, new in zip(memory, fresh, strict=True))


def update(memory: str, keys: str, chunk: str) -> str:
    """The memory after a chunk: for each key its value there, or else what was remembered."""
    values = dict(zip(chunk[::2], chunk[1::2], strict=True))
    return "".join(values.get(key, old) for key, old in zip(keys, memory, strict=True))
