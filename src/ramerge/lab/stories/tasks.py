"""Openings of stories, and the properties of a text that agents are rewarded for.

All tasks ask about the same continuations, so agents pull one text in three directions: a merge has
to write a story with a dog, in many sentences, with somebody speaking. Every check is exact.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import product

from ramerge.lab.environments.base import Split, split_of

NEW = 48  # tokens of a continuation: three or four sentences of the base
SENTENCES = 4

_OPENINGS = (
    "Once upon a time, there was a {0} {1} named {2}.",
    "One day, a {0} {1} named {2} went to the park.",
    "{2} was a {0} {1}.",
    "There once was a {0} {1}. The {1} was called {2}.",
)
_KINDS = ("little", "big", "happy", "sad", "kind", "small", "nice", "brave")
_BEINGS = ("girl", "boy", "cat", "bird", "bear", "bunny", "mouse", "frog")
_NAMES = ("Lily", "Tom", "Max", "Sue", "Ben", "Mia", "Tim", "Amy", "Sam", "Anna", "Jack", "Bob")


def dog(text: str) -> bool:
    """A dog appears."""
    return re.search(r"\bdogs?\b", text) is not None


def sentences(text: str) -> bool:
    """Many sentences end."""
    return len(re.findall(r"[.!?]", text)) >= SENTENCES


def dialogue(text: str) -> bool:
    """Somebody says something, from quotation mark to quotation mark."""
    return re.search(r'"[^"]*[a-z][^"]*"', text) is not None


PROPERTIES: dict[str, Callable[[str], bool]] = {
    "dog": dog,
    "sentences": sentences,
    "dialogue": dialogue,
}
RETENTION = "retention"
TASKS = (*PROPERTIES, RETENTION)


def openings(split: Split, count: int, seed: int) -> list[str]:
    """``count`` openings of one split, without repetition; which, is fixed by the seed."""
    every = [
        text
        for form, *words in product(_OPENINGS, _KINDS, _BEINGS, _NAMES)
        if split_of(text := form.format(*words)) == split
    ]
    return random.Random(f"stories/{split}/{seed}").sample(every, count)  # noqa: S311
