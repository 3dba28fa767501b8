"""Programming problems, as CURE evaluates them: N answers a problem, every answer run against the problem's tests.

Two forms of problem: programs from standard input to standard output (LiveBench, LiveCodeBench,
CodeContests, CodeForces, CURE's MBPP), and functions with assertions (MBPP, HumanEval). Metrics:
``accuracy`` is the share of answers that pass all tests, which is Pass@1 averaged over the samples; ``unit
tests`` the share of tests passed; ``best of N`` picks the answer that passes most of N tests which the
model wrote itself; ``generated tests`` is the share of those that every right answer passes.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ramerge._errors import CorruptInputError
from ramerge._types import Json
from ramerge.evaluate import rows
from ramerge.evaluate.foreign import UNPARSABLE, parse
from ramerge.evaluate.records import Ask, Options, Prompt, Sampling, Score, Task
from ramerge.evaluate.sandbox.check import require
from ramerge.evaluate.sandbox.launch import Limits
from ramerge.evaluate.sandbox.programs import Run, run_program, run_tests

DOMAIN = "coding"
SOURCES: dict[str, rows.Source | None] = {
    "livebench": rows.Source("Gen-Verse/LiveBench", None, "train"),
    "livecodebench": rows.Source("Gen-Verse/LiveCodeBench", None, "train"),
    "mbpp": rows.Source("google-research-datasets/mbpp", "full", "test"),
    "codecontests": rows.Source("Gen-Verse/CodeContests", None, "train"),
    "codeforces": rows.Source("Gen-Verse/CodeForces", None, "train"),
    "humaneval": rows.Source("openai/openai_humaneval", None, "test"),
}
COLUMNS = {
    "livebench": "LiveBench",
    "livecodebench": "LiveCodeBench",
    "mbpp": "MBPP",
    "codecontests": "CodeContests",
    "codeforces": "CodeForces",
    "humaneval": "HumanEval",
}
MOST_TESTS = 8
SECONDS = 1.0  # a test, where the row does not say
FUNCTION_SECONDS = 10.0
SAMPLING = Sampling(temperature=0.8, top_p=0.95, top_k=40, max_tokens=10_000)
SYSTEM = ("system", "You are a helpful assistant help user solve problems.")
PROGRAM = (
    "You need to think first then write python script. You should use input() to input and print() to output in your "
    "script. Your code should output the results based on the input read in, rather than generating the given test "
    "example.\nThis is the problem:\n{problem}"
)
FUNCTION = (
    "You need to think first, then write the function in one ```python block.\nThis is the problem:\n{problem}\n"
    "Your code is called like this:\n{example}"
)
PROGRAM_TEST = (
    "Write one new test example for the problem below, with a correct output. Think about the output step by step. "
    "Answer in this form:\n**Test Input:**\n```\n...\n```\n**Test Output:**\n```\n...\n```\n**Explanation:**\n...\n\n"
    "This is the problem:\n{problem}"
)
FUNCTION_TEST = (
    "Write one new test for the problem below as one assert statement in a ```python block.\n"
    "This is the problem:\n{problem}\nAn example of a test:\n{example}"
)

Check = tuple[str, str]  # a test: (standard input, standard output), or ("", assertions)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in either form; ``prelude`` is put before each of a function's tests."""

    text: str
    checks: tuple[Check, ...]
    limits: Limits
    functional: bool
    prelude: str = ""

    @property
    def example(self) -> str:
        """A test to show, which for a function names it and its arguments."""
        return self.checks[0][1].strip().splitlines()[0] if self.functional else ""


def load(options: Options) -> list[Task]:
    """One task a problem.

    Raises:
        SandboxError: there is no working sandbox.
    """
    chosen = [
        (name, rows.load(name, options, SOURCES[name])) for name in rows.chosen(options, SOURCES)
    ]
    problems = [
        (name, row, problem(row, options.memory_mb)) for name, found in chosen for row in found
    ]
    require()
    slots = asyncio.Semaphore(os.cpu_count() or 1)
    return [
        Task(
            column=COLUMNS[name],
            domain=DOMAIN,
            item=str(row.get("task_id", number)),
            requests=2 * options.samples,
            tokens=2 * options.samples * SAMPLING.max_tokens,
            solve=partial(solve, found, options.samples, slots),
        )
        for number, (name, row, found) in enumerate(problems)
    ]


def problem(row: Json, memory_mb: int) -> Problem:
    """A problem from a row of any of the data sets.

    Raises:
        CorruptInputError: the row has no tests that this suite knows.
    """
    text = str(row.get("question") or row.get("prompt") or row.get("text") or "")
    limits = Limits(FUNCTION_SECONDS, memory_mb)
    if "test_input" in row:
        pairs = list(zip(row["test_input"], row["test_output"], strict=True))[:MOST_TESTS]
        limits = Limits(float(row.get("test_time_limit") or SECONDS), memory_mb)
        return Problem(text, tuple((str(i), str(o)) for i, o in pairs), limits, functional=False)
    if "entry_point" in row:
        check = _sound(f"{row['test']}\ncheck({row['entry_point']})")
        return Problem(text, (("", check),), limits, functional=True)
    tests = row.get("test_list") or row.get("test")
    if isinstance(tests, list) and tests:
        setup = _sound(str(row.get("test_setup_code") or ""))
        checks = tuple(("", _sound(str(test))) for test in tests)
        return Problem(text, checks, limits, functional=True, prelude=setup)
    raise CorruptInputError(f"a coding row has no tests: {str(row)[:80]!r}")


def _sound(test: str) -> str:
    """``test``, if it is Python."""
    try:
        parse(test)
    except UNPARSABLE as error:
        raise CorruptInputError(f"a test is not Python: {test[:80]!r}") from error
    return test


async def solve(found: Problem, samples: int, slots: asyncio.Semaphore, ask: Ask) -> Score:
    """Ask for answers and tests at once, run every answer against every test."""
    ways = (FUNCTION, FUNCTION_TEST) if found.functional else (PROGRAM, PROGRAM_TEST)
    texts = [way.format(problem=found.text, example=found.example) for way in ways]
    prompts = [
        Prompt((SYSTEM, ("user", t)), SAMPLING, sample=n) for t in texts for n in range(samples)
    ]
    answers = await asyncio.gather(*map(ask, prompts))
    programs = [code(answer.final) for answer in answers[:samples]]
    own = [_generated(answer.final, found) for answer in answers[samples:]]
    written = [check for check in own if check is not None]
    runs = [await _all(p, found, found.checks, slots) for p in programs]
    picks = [await _all(p, found, written, slots) for p in programs]
    flags: list[str] = [
        run.verdict for checks in runs for run in checks if run.verdict in {"timeout", "crash"}
    ]
    flags += ["malformed"] * programs.count("") + ["truncated"] * sum(
        a.truncated for a in answers[:samples]
    )
    return _score(runs, picks, programs, flags)


def _score(
    runs: Sequence[Sequence[Run]],
    picks: Sequence[Sequence[Run]],
    programs: Sequence[str],
    flags: Sequence[str],
) -> Score:
    passed = [[run.verdict == "pass" for run in checks] for checks in runs]
    right = [all(checks) for checks in passed]
    votes = [[run.verdict == "pass" for run in checks] for checks in picks]
    best = max(range(len(programs)), key=lambda n: sum(votes[n]))  # the first of equals
    judges = [vote for vote, good in zip(votes, right, strict=True) if good]
    agreed = [all(column) for column in zip(*judges, strict=True)]  # without a judge, no judgement
    return Score(
        {
            "accuracy": (float(sum(right)), float(len(right))),
            "unit tests": (float(sum(map(sum, passed))), float(sum(map(len, passed)))),
            f"best of {len(programs)}": (float(right[best]), 1.0),
            "generated tests": (float(sum(agreed)), float(len(agreed))),
        },
        prediction=programs[best],
        flags=tuple(flags),
    )


async def _all(
    program: str, found: Problem, checks: Sequence[Check], slots: asyncio.Semaphore
) -> list[Run]:
    return list(await asyncio.gather(*(_one(program, found, check, slots) for check in checks)))


async def _one(program: str, found: Problem, check: Check, slots: asyncio.Semaphore) -> Run:
    """One answer against one test, in the sandbox."""
    if not program:
        return Run("fail", why="no code")
    async with slots:
        if found.functional:
            return await run_tests(program, f"{found.prelude}\n{check[1]}", found.limits)
        run = await run_program(program, check[0], found.limits)
    if run.verdict != "pass":
        return run
    return Run("pass" if run.output.split() == check[1].split() else "fail", run.output)


def code(text: str) -> str:
    """The last ```python block; an unmarked block if there is none; "" if there is no block."""
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)```", text, re.S)
    marked = re.findall(r"```(?:python|py)[ \t]*\n(.*?)```", text, re.S)
    return str((marked or blocks or [""])[-1])


def _generated(text: str, found: Problem) -> Check | None:
    """The test in an answer, or None where it cannot be read."""
    if found.functional:
        test = code(text).strip()
        try:
            parse(test)
        except UNPARSABLE:
            return None
        return ("", test) if test.startswith("assert") else None
    halves = re.search(
        r"\*\*Test Input:?\*\*:?(.*?)\*\*Test Output:?\*\*:?(.*?)(?:\*\*Explanation|$)", text, re.S
    )
    if halves is None:
        return None
    given, wanted = (
        re.sub(r"^\s*```\w*\n?|\n?```\s*$", "", part.strip()) for part in halves.groups()
    )
    return (f"{given}\n", wanted) if wanted.strip() else None
