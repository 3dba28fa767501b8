"""Exact and substring match after the usual normalisation of question answering (SQuAD's)."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space."""
    bare = re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(PUNCTUATION))
    return " ".join(bare.split())


def exact(text: str, gold: Sequence[str]) -> bool:
    """Whether ``text`` equals any gold answer."""
    return normalised(text) in {normalised(answer) for answer in gold}


def substring_published(text: str, gold: Sequence[str]) -> bool:
    """As MemAgent's code scores: the first gold answer in the text, or the text in it; also one of punctuation only."""
    given, wanted = normalised(text), normalised(gold[0])
    return wanted in given or given in wanted


def substring_strict(text: str, gold: Sequence[str]) -> bool:
    """Whether any gold answer stands in the text, as whole words."""
    padded = f" {normalised(text)} "
    return any(f" {normalised(answer)} " in padded for answer in gold if normalised(answer))


def answers(row: dict[str, object]) -> list[str]:
    """Gold answers of a row, however its data set spells them."""
    for name in ("golden_answers", "answers", "answer", "outputs"):
        found = row.get(name)
        if isinstance(found, dict):
            found = found.get("text")
        if isinstance(found, str):
            return [found]
        if isinstance(found, list) and found:
            return [str(answer) for answer in found]
    return []
