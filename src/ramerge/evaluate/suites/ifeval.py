"""IFEval: instructions that a program can check, strict and loose, per prompt and per instruction.

Zero-shot, greedy. The rules are in `ifeval_rules`. Loose also accepts the answer without its first line,
its last line, both, and each of these without asterisks: models like to add "Sure, here it is".
"""

from __future__ import annotations

from functools import partial

from ramerge._types import Json
from ramerge.evaluate import rows
from ramerge.evaluate.records import Ask, Options, Prompt, Sampling, Score, Task
from ramerge.evaluate.suites.ifeval_rules import check_known, follows

DOMAIN = "instructions"
SOURCES: dict[str, rows.Source | None] = {"ifeval": rows.Source("google/IFEval", None, "train")}
SAMPLING = Sampling(max_tokens=2048)


def load(options: Options) -> list[Task]:
    """One task a prompt."""
    found = rows.load("ifeval", options, SOURCES["ifeval"])
    check_known({name for row in found for name in row["instruction_id_list"]})
    return [
        Task(
            column="IFEval",
            domain=DOMAIN,
            item=str(row.get("key", number)),
            requests=1,
            tokens=SAMPLING.max_tokens,
            solve=partial(solve, row),
        )
        for number, row in enumerate(found)
    ]


async def solve(row: Json, ask: Ask) -> Score:
    """Ask and check every instruction."""
    answer = await ask(Prompt((("user", row["prompt"]),), SAMPLING))
    return score(row, answer.final, truncated=answer.truncated)


def score(row: Json, text: str, *, truncated: bool = False) -> Score:
    """Four metrics; the main one is prompt-level strict."""
    rules = list(zip(row["instruction_id_list"], row["kwargs"], strict=True))
    strict = [_holds(rule, text) for rule in rules]
    loose = [any(_holds(rule, variant) for variant in variants(text)) for rule in rules]
    return Score(
        {
            "prompt strict": (float(all(strict)), 1.0),
            "prompt loose": (float(all(loose)), 1.0),
            "instruction strict": (float(sum(strict)), float(len(rules))),
            "instruction loose": (float(sum(loose)), float(len(rules))),
        },
        prediction=text,
        flags=("truncated",) if truncated else (),
    )


def variants(text: str) -> list[str]:
    """The eight readings of the loose score."""
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(reading.replace("*", "") for reading in cut)]


def _holds(rule: tuple[str, Json], text: str) -> bool:
    name, arguments = rule
    given = {key: value for key, value in arguments.items() if value is not None}
    return bool(text.strip()) and follows(name, text, given)
