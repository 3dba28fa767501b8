"""The published score of the memory suite against an oracle of MemAgent's rule, over generated replies."""

import asyncio
import random
import re
import string

import pytest

from ramerge.evaluate.records import Answer
from ramerge.evaluate.suites import memory

GOLD = ("Paris", "the North Tower", "a 1,200 m bridge", "yes", "O'Neill", "42", "The Beatles", "A")


def plain(text):
    """Lower case, no punctuation, no articles, single spaces."""
    letters = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(w for w in re.split(r"\s+", re.sub(r"\b(?:a|an|the)\b", " ", letters)) if w)


def oracle(reply, gold):
    """MemAgent's rule, from its description: 1 or 0."""
    reply = reply.strip()
    shown = reply.split("</think>")[-1].strip() if "</think>" in reply else reply
    words = (shown if shown else reply).replace("*", "")
    if "the answer is" not in words:
        return 0
    answer = words.split("the answer is")[-1]
    for token in ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"):
        answer = "".join(answer.split(token))
    answer = answer.strip()
    answer = re.sub(r"^\.+|\.+$", "", answer).strip()
    if answer == "":
        return 0
    mine, wanted = plain(answer), plain(gold)
    return int(mine.find(wanted) >= 0 or wanted.find(mine) >= 0)


def replies(luck, gold, count):
    """Right, wrong, near and badly formatted ones."""
    leads = [
        "Therefore, the answer is ", "the answer is", "The answer is ", "Therefore, **the answer is** ",
        "the ans*wer is ", "THE ANSWER IS ", "So it must be ", "", "the answer is: ", "the answer is\n",
    ]  # fmt: skip
    thoughts = [
        "",
        "",
        "<think>hm</think>",
        "<think>the answer is Oslo</think>",
        "<think>never ends ",
        "</think>",
    ]
    tails = [
        "",
        ".",
        "...",
        "*",
        "**.",
        "<｜end▁of▁sentence｜>",
        "<｜Assistant｜>.",
        " . ",
        "\n\nthe answer is ",
        "</think>",
    ]
    words = ["Oslo", "not known", "", "?", ".", "the", "no", gold[: len(gold) // 2]]
    near = [
        gold,
        gold.upper(),
        f"({gold})",
        f"{gold} of old",
        gold[1:],
        gold[::-1],
        f"{gold}, the answer is {luck.choice(words)}",
    ]
    for _ in range(count):
        body = luck.choice(near + words)
        yield luck.choice(thoughts) + luck.choice(leads) + body + luck.choice(tails)


def scored(reply, gold):
    async def ask(prompt):
        return Answer(reply)

    return asyncio.run(memory.solve("q?", [gold, "never looked at"], [], ask)).metrics["published"][
        0
    ]


def test_the_published_score_is_memagent_s_on_every_reply():
    luck, seen = random.Random(16), []
    for gold in GOLD:
        for reply in replies(luck, gold, 250):
            verdict = oracle(reply, gold)
            assert scored(reply, gold) == verdict, (reply, gold)
            seen.append(verdict)
    assert len(seen) == 2000
    assert 0.2 < sum(seen) / len(seen) < 0.8  # both verdicts are common


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("The answer is Paris", 0),
        ("Paris", 0),
        ("Therefore, the answer is", 0),
        ("Therefore, **the answer is** Paris", 1),
        ("the answer is ?", 1),
        ("", 0),
    ],
)
def test_the_smallest_cases(reply, score):
    assert scored(reply, "Paris") == score


def test_the_memory_is_the_reply_behind_its_reasoning_and_nothing_else():
    asked = []

    async def ask(prompt):
        asked.append(prompt.messages[0][1])
        return Answer(["<think>x</think> kept ", "", "the answer is kept"][len(asked) - 1])

    asyncio.run(memory.solve("q?", ["kept"], ["one", "two"], ask))
    between = [text.split("<memory>\n")[1].split("\n</memory>")[0] for text in asked]
    assert between == ["No previous memory", "kept", ""]
    assert all("<problem> \nq?\n</problem>" in text for text in asked)
    assert "format your response as follows" in asked[2]
