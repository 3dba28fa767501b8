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
    "livebench": rows.Source("Gen-Verse/LiveBench", None, "test"),
    "livecodebench": rows.Source("Gen-Verse/LiveCodeBench", None, "test"),
    "mbpp": rows.Source("Gen-Verse/MBPP", None, "test"),
    "codecontests": rows.Source("Gen-Verse/CodeContests", None, "test"),
    "codeforces": rows.Source("Gen-Verse/CodeForces", None, "test"),
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
SAMPLING = Sampling(
    temperature=0.8,
    top_p=0.95,
    top_k=40,
    min_p=0.0,
    max_tokens=10_000,
    stop=("</answer>", "User:", "Human:", "Assistant:", "<|im_end|>", "<|endoftext|>"),
)
SYSTEM = ("system", "You are a helpful assistant help user solve problems.")
PROGRAM = (  # raw text: CURE writes its own turns, whatever the model's template
    "<|im_start|>You are a helpful assistant help user solve problems. <|im_end|>\n"
    "<|im_start|>User: You need to think first then write python script. You should use input() to input and print() to "
    "output in your script. Your code should output the results based on the input read in, rather than generating the "
    "given test example.\nThis is the problem:\n{problem} <|im_end|>\n<|im_start|>Assistant: "
)
FUNCTION = (
    "You need to think first, then write the function in one ```python block.\nThis is the problem:\n{problem}\n"
    "Your code is called like this:\n{example}"
)
PROGRAM_TEST = (
    "<|im_start|>You are a helpful assistant help user generate test examples for coding tasks. <|im_end|>\n"
    "<|im_start|>User: Given a coding task, instead of providing the final script, your task is to generate a new test "
    "example (both input, output and explanation).\nThis is the problem:\n{problem}\n\n \n"
    "You need to provide a new test example. A good test example should be completely accurate and conform to the "
    "problem’s format requirements, while also possessing enough discriminative power to distinguish correct code from "
    "incorrect code.\nBefore providing a test example, you must think carefully and reason step by step to derive an "
    "input and output you are very confident are correct. For example, start by designing an input you can reliably "
    "handle, then compute the output step by step. If you're unsure about the output, revise or re-design the input to "
    "ensure accuracy. Directly providing input/output pairs without this process is discouraged, as it often results in "
    "low accuracy.\nFinally, after completing these previous thinking and derivation steps (you should not write the "
    "final test example unless you have gone through these steps very thoroughly), you MUST put your final test example "
    "in the following format:\n\n**Test Input:**\n```input here```\n\n**Test Output:**\n```output here```\n\n"
    "**Explanation:**\n\nexplanation here.\n <|im_end|>\n<|im_start|>Assistant: "
)
FUNCTION_TEST = (
    "Write one new test for the problem below as one assert statement in a ```python block.\n"
    "This is the problem:\n{problem}\nAn example of a test:\n{example}"
)

# What CURE runs a program in: `input` that prints no prompt and ends with the lines, three names of `typing`, output
# that counts after `exit()` too, and a clock that starts with the program and not with the interpreter.
HARNESS = """
import io, os, signal, sys, typing

def late(number, frame):
    os.write(2, b"{late}")
    os._exit(1)

text = sys.stdin.buffer.read().decode("utf-8", "replace")
lines = iter(text.splitlines())

def read(prompt=""):
    try:
        return next(lines)
    except StopIteration:
        raise EOFError("No more input") from None

sys.stdin, sys.stdout = io.StringIO(text), io.StringIO()
printed = sys.stdout
names = dict(__name__="__main__", input=read, List=typing.List, Tuple=typing.Tuple, Optional=typing.Optional)
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, {seconds})
try:
    exec({program}, names)
except SystemExit:
    pass
rest = printed.getvalue().encode("utf-8", "replace")
while rest:
    rest = rest[os.write(1, rest):]
"""
LATE = "the time is up"

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
    if row.get("test_input"):
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
    prompts = [_prompt(t, found, n) for t in texts for n in range(samples)]
    answers = await asyncio.gather(*map(ask, prompts))
    programs = [code(answer.text) for answer in answers[:samples]]
    own = [_generated(answer.text, found) for answer in answers[samples:]]
    written = [check for check in own if check is not None]
    runs = [await _all(p, found, found.checks, slots) for p in programs]
    picks = [await _all(p, found, written, slots) for p in programs]
    flags: list[str] = [
        run.verdict for checks in runs for run in checks if run.verdict in {"timeout", "crash"}
    ]
    flags += ["malformed"] * programs.count(None) + ["truncated"] * sum(
        a.truncated for a in answers[:samples]
    )
    return _score(runs, picks, programs, flags)


def _prompt(text: str, found: Problem, sample: int) -> Prompt:
    if found.functional:
        return Prompt((SYSTEM, ("user", text)), SAMPLING, sample=sample)
    return Prompt(text=text, sampling=SAMPLING, sample=sample)


def _score(
    runs: Sequence[Sequence[Run]],
    picks: Sequence[Sequence[Run]],
    programs: Sequence[str | None],
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
            f"best of {len(programs)}": (float(right[best]), 1.0) if votes[best] else (0.0, 0.0),
            "generated tests": (float(sum(agreed)), float(len(agreed))),
        },
        prediction=programs[best] or "",
        flags=tuple(flags),
    )


async def _all(
    program: str | None, found: Problem, checks: Sequence[Check], slots: asyncio.Semaphore
) -> list[Run]:
    return list(await asyncio.gather(*(_one(program, found, check, slots) for check in checks)))


async def _one(program: str | None, found: Problem, check: Check, slots: asyncio.Semaphore) -> Run:
    """One answer against one test, in the sandbox."""
    if program is None:
        return Run("fail", why="no code")
    async with slots:
        if found.functional:
            return await run_tests(program, f"{found.prelude}\n{check[1]}", found.limits)
        whole = HARNESS.format(program=ascii(program), seconds=found.limits.seconds, late=LATE)
        run = await run_program(whole, check[0], found.limits)
    if run.why == LATE:
        return Run("timeout")
    if run.verdict != "pass":
        return run
    return Run("pass" if run.output.split() == check[1].split() else "fail", run.output)


def code(text: str) -> str | None:
    """The last block that opens with ```python, by CURE's rule; None if there is none."""
    blocks = re.findall(r"```python(.*?)```", text, re.DOTALL)
    return str(blocks[-1]).strip() if blocks else None


def _generated(text: str, found: Problem) -> Check | None:
    """The test in an answer, or None where it cannot be read."""
    if found.functional:
        test = code(text) or ""
        try:
            parse(test)
        except UNPARSABLE:
            return None
        return ("", test) if test.startswith("assert") else None
    given = _part(text, "Test Input", r"(?=\*\*Test Output:\*\*)")
    wanted = _part(text, "Test Output", r"(?=\*\*Explanation:|\*\*Test Input:|$)")
    return None if given is None or wanted is None else (given, wanted)


def _part(text: str, heading: str, end: str) -> str | None:
    """What stands under the last such heading: in a fence, or up to ``end`` where no heading has one."""
    start = rf"\*\*{heading}:\*\*\s*"
    fenced = re.findall(rf"{start}```(.*?)```", text, re.DOTALL)
    bare = re.findall(rf"{start}(.*?){end}", text, re.DOTALL)
    if not fenced and not bare:
        return None
    part = fenced[-1].lstrip("\n") if fenced else bare[-1].strip()
    part = part.replace("plaintext\n", "").replace("\\n", "\n")
    return part if part.endswith("\n") else f"{part}\n"
