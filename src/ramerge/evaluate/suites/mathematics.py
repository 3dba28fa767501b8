"""GSM8K and MATH500: a boxed answer, compared by math-verify.

Greedy, zero-shot. A number that reads the same as the gold is right without asking sympy; everything else
is decided by math-verify in a worker process with a time limit, as an answer such as ``9^{9^{9}}`` would
otherwise keep the evaluation busy for ever.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.util import find_spec

from ramerge._errors import ConfigError, CorruptInputError
from ramerge._types import Json
from ramerge.evaluate import rows
from ramerge.evaluate.records import Ask, Options, Prompt, Sampling, Score, Task

DOMAIN = "math"
SOURCES: dict[str, rows.Source | None] = {
    "gsm8k": rows.Source("openai/gsm8k", "main", "test"),
    "math500": rows.Source("HuggingFaceH4/MATH-500", None, "test"),
}
COLUMNS = {"gsm8k": "GSM8K", "math500": "MATH500"}
SAMPLING = Sampling(max_tokens=4096)
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
VERIFY_S = 20.0


def load(options: Options) -> list[Task]:
    """One task a problem."""
    if find_spec("math_verify") is None:
        raise ConfigError("suite `math` needs math-verify", hint="pip install 'ramerge[eval]'")
    verifier = Verifier()
    return [
        Task(
            column=COLUMNS[name],
            domain=DOMAIN,
            item=str(number),
            requests=1,
            tokens=SAMPLING.max_tokens,
            solve=partial(solve, row, gold(row), verifier),
        )
        for name in rows.chosen(options, SOURCES)
        for number, row in enumerate(rows.load(name, options, SOURCES[name]))
    ]


async def solve(row: Json, wanted: str, verifier: Verifier, ask: Ask) -> Score:
    """Ask, take the boxed answer, compare."""
    question = row.get("question") or row["problem"]
    answer = await ask(Prompt((("user", f"{question}\n{INSTRUCTION}"),), SAMPLING))
    box = boxed(answer.final)
    right = box is not None and (_plain(box) == _plain(wanted) or await verifier.equal(wanted, box))
    flags = ("truncated",) * answer.truncated + ("malformed",) * (box is None)
    return Score({"accuracy": (float(right), 1.0)}, prediction=box or "", flags=flags)


def gold(row: Json) -> str:
    """The gold answer of a GSM8K row (after ####) or of a MATH row (its own field, or the last box).

    Raises:
        CorruptInputError: the row has neither.
    """
    text = str(row.get("answer") or "")
    if "####" in text:
        return text.rpartition("####")[2].strip()
    found = text or boxed(str(row.get("solution") or ""))
    if not found:
        raise CorruptInputError(f"a math row has no answer: {str(row)[:80]!r}")
    return found


def boxed(text: str) -> str | None:
    r"""What stands in the last ``\boxed{...}`` (or ``\fbox``, or ``\boxed 5``), braces matched; None if nothing does."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    rest = text[start:].split("ox", 1)[1].removeprefix("ed").lstrip()
    if not rest.startswith("{"):
        return (rest.split() or [""])[0].strip("$.") or None
    depth = 0
    for position, letter in enumerate(rest):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return rest[1:position].strip()
    return None


def _plain(text: str) -> str:
    return text.replace(",", "").replace("\\!", "").replace("$", "").replace(" ", "").rstrip(".")


class Verifier:
    """math-verify in a process of its own, ended and replaced when it takes too long."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._turn = asyncio.Lock()

    async def equal(self, wanted: str, given: str) -> bool:
        """Whether two LaTeX expressions are equal; what cannot be decided in `VERIFY_S` is not."""
        async with self._turn:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(1, mp_context=context)
            pending = asyncio.get_running_loop().run_in_executor(self._pool, _equal, wanted, given)
            try:
                return await asyncio.wait_for(pending, VERIFY_S)
            except (TimeoutError, BrokenProcessPool):
                for process in list((self._pool._processes or {}).values()):
                    process.kill()  # nothing public ends a busy worker before Python 3.14
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
                return False


def _equal(wanted: str, given: str) -> bool:
    from math_verify import parse, verify

    sides = [parse(f"\\boxed{{{side}}}", parsing_timeout=5) for side in (wanted, given)]
    return bool(verify(*sides, timeout_seconds=5))
