"""BM25 over a corpus in memory: the retriever of the search suite, without a service to run.

Okapi BM25 with k1 = 0.9, b = 0.4 (the defaults of Pyserini, which Search-R1's BM25 uses); words are runs of
letters and digits in lower case, without stemming. Ties go to the earlier passage.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from ramerge._types import F64, I64

K1, B = 0.9, 0.4
WORD = re.compile(r"\w+")


class Index:
    """Passages and where each word stands."""

    def __init__(self, passages: Sequence[str]) -> None:
        self._passages = list(passages)
        postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths = np.zeros(len(self._passages))
        for number, passage in enumerate(self._passages):
            counts = Counter(WORD.findall(passage.lower()))
            lengths[number] = counts.total()
            for word, count in counts.items():
                postings[word].append((number, count))
        self._norm: F64 = K1 * (
            1 - B + B * lengths / max(1e-9, lengths.mean() if len(lengths) else 1.0)
        )
        self._postings: dict[str, I64] = {
            w: np.array(p, np.int64).T for w, p in postings.items()
        }  # [2, n]

    def search(self, query: str, count: int) -> list[str]:
        """The ``count`` best passages, best first; fewer where fewer share a word with the query."""
        scores = np.zeros(len(self._passages))
        for word in WORD.findall(query.lower()):
            if word in self._postings:
                numbers, counts = self._postings[word]
                rarity = math.log(
                    1 + (len(self._passages) - len(numbers) + 0.5) / (len(numbers) + 0.5)
                )
                scores[numbers] += rarity * counts * (K1 + 1) / (counts + self._norm[numbers])
        best = np.argsort(-scores, kind="stable")[:count]
        return [self._passages[i] for i in best if scores[i] > 0]
