"""What the coding suite reads and runs against an oracle of CURE's rules, over generated answers."""

import asyncio
import random
import re

import pytest

from helpers.sandbox import missing
from ramerge.evaluate.sandbox.launch import Limits
from ramerge.evaluate.suites import coding

PROBLEM = coding.Problem("t", (("1", "1"),), Limits(seconds=5.0), functional=False)


def between(text, opening, closing):
    """Every stretch between an opening and the next closing, from left to right."""
    parts = []
    while opening in text:
        text = text.split(opening, 1)[1]
        if closing not in text:
            break
        part, text = text.split(closing, 1)
        parts.append(part)
    return parts


def program(text):
    blocks = between(text, "```python", "```")
    return blocks[-1].strip() if blocks else None


def part(text, heading, ends):
    """The oracle of a generated test's half: fenced ones win, the last of them; else plain text up to an end."""
    fenced, plain, rest = [], [], text
    while heading in rest:
        rest = rest.split(heading, 1)[1]
        inner = rest.lstrip()
        if inner.startswith("```") and "```" in inner[3:]:
            block, rest = inner[3:].split(
                "```", 1
            )  # what a fence holds is not looked through again
            fenced.append(block)
    rest = text
    while heading in rest:
        body = rest.split(heading, 1)[1].lstrip()
        stops = [body.find(end) for end in ends if end in body]
        if not stops and heading == "**Test Input:**":
            break
        plain.append(body[: min(stops)] if stops else body)
        rest = body[min(stops) :] if stops else ""
    if not fenced and not plain:
        return None
    found = fenced[-1].lstrip("\n") if fenced else plain[-1].strip()
    found = "\n".join("".join(found.split("plaintext\n")).split("\\n"))
    return found if found[-1:] == "\n" else found + "\n"


def written_test(text):
    given = part(text, "**Test Input:**", ["**Test Output:**"])
    wanted = part(text, "**Test Output:**", ["**Explanation:", "**Test Input:"])
    return None if given is None or wanted is None else (given, wanted)


CODE = ["print(1)", "x = 1\r\nprint(x)", "", "\n\nprint('```'[0])\n", "import os"]
OPENINGS = [
    "```python\n",
    "```python ",
    "```py\n",
    "```\n",
    "```python3\n",
    "```Python\n",
    "```python\r\n",
]
INPUTS = ["3 4", "\n5\n", "plaintext\n7\n", "1\\n2", "", "text\n1", " 9 "]


def test_the_program_is_cure_s_on_every_answer():
    luck = random.Random(3)
    answers = []
    for _ in range(1000):
        blocks = [
            luck.choice(OPENINGS) + luck.choice(CODE) + luck.choice(["```", "\n```", "\n```\n", ""])
            for _ in range(luck.randrange(4))
        ]
        answers.append(
            "Think. " + luck.choice(["", "So:\n"]).join(blocks) + luck.choice(["", "Done"])
        )
    assert [coding.code(a) for a in answers] == [program(a) for a in answers]
    assert 100 < sum(program(a) is None for a in answers) < 900


def test_the_written_test_is_cure_s_on_every_answer():
    luck, seen = random.Random(4), []
    heads = [
        "**Test Input:**",
        "**Test Output:**",
        "**Explanation:**",
        "**Test input:**",
        "Test Output:",
    ]
    for _ in range(2000):
        pieces = []
        for _ in range(luck.choice([1, 1, 2])):
            for head in luck.choice([heads[:3], heads[:2], heads[1::-1], heads[2:], heads[:1]]):
                body = luck.choice(INPUTS)
                fence = luck.choice(
                    ["```{}```", "```\n{}\n```", "{}", "```{}", "```\n{}```\nwhich is right"]
                )
                pieces.append(
                    f"{head}{luck.choice(['', ' ', chr(10), chr(10) * 2])}{fence.format(body)}\n"
                )
        text = luck.choice(["", "Step by step.\n"]) + "".join(pieces).rstrip(
            luck.choice(["", "\n"])
        )
        seen.append(written_test(text))
        assert coding._generated(text, PROBLEM) == seen[-1], text
    assert 200 < seen.count(None) < 1800


RUNS = [
    ("print(int(input('n? ')) * 2)", "4", "8", True),  # a prompt is no output
    ("def f(x: List[int]) -> Optional[int]: return x[0]\nprint(f([3]))", "", "3", True),
    ("print(5)\nexit()\nprint(6)", "", "5", True),
    ("print(5)\nraise SystemExit(3)", "", "5", True),
    ("print(5)\n1/0", "", "5", False),
    ("import sys\nprint(sys.stdin.read().split()[1], input())", "a b", "b a b", True),
    ("print(input())\nprint(input())", "1", "1", False),  # no second line
    ("if __name__ == '__main__': print('x')", "", " x\n\n", True),
    ("import time\ntime.sleep(9)", "", "", False),
    ("", "1", "", True),
    ("print('é', '😀')", "", "é 😀", True),
    ("print(1", "", "1", False),
]


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_programs_run_by_cure_s_rules():
    async def verdict(source, given, wanted):
        problem = coding.Problem("t", (), Limits(seconds=1.0), functional=False)
        run = await coding._one(source, problem, (given, wanted), asyncio.Semaphore(2))
        return run.verdict

    async def everything():
        return [await verdict(*case[:3]) for case in RUNS]

    verdicts = asyncio.run(everything())
    assert [v == "pass" for v in verdicts] == [case[3] for case in RUNS]
    assert verdicts[8] == "timeout"


def test_the_prompts_are_raw_text_with_cure_s_turns():
    prompt = coding._prompt(coding.PROGRAM.format(problem="P"), PROBLEM, 1)
    assert not prompt.messages and prompt.text.endswith("P <|im_end|>\n<|im_start|>Assistant: ")
    assert "</answer>" in prompt.sampling.stop and prompt.sampling.min_p == 0.0
    assert re.search(r"\*\*Test Input:\*\*\n```input here```", coding.PROGRAM_TEST)
