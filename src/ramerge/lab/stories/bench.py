"""Writing and judging stories: what an agent is rewarded for, and how a model is scored.

A model continues openings that no agent was trained on, at temperature 1, with sampling noise that
is fixed for every opening and position. One continuation is judged on all properties. Retention is
measured on texts that the base wrote itself: its perplexity over the model's, opening by opening,
so that 100 % is the base and 50 % is twice its perplexity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramerge._types import F64
from ramerge.lab.environments.base import Split
from ramerge.lab.grpo import Episode, Settings, answer_logprobs
from ramerge.lab.model import Shape, Weights
from ramerge.lab.rollout import Turn, gumbel, sample
from ramerge.lab.stories.tasks import NEW, PROPERTIES, openings
from ramerge.lab.vocabulary import BOS, PAD

LUCK = 2601_13573  # seed of the sampling noise in evaluations
VALIDATION, TEST = 64, 256  # openings; each is judged on all tasks


@dataclass(frozen=True, slots=True)
class Author:
    """The base's shape and tokenizer: all that is needed to write with a model's weights."""

    shape: Shape
    tokenizer: Any  # tokenizers.Tokenizer

    @classmethod
    def of(cls, base: Path, shape: Shape) -> Author:
        """The author with the tokenizer of a converted base."""
        from tokenizers import Tokenizer

        return cls(shape, Tokenizer.from_file(str(base / "tokenizer.json")))

    def write(
        self, weights: Mapping[str, Tensor], begun: Sequence[str], noise: Tensor
    ) -> tuple[Turn, list[str]]:
        """Continue each opening up to the beginning of another story; ``noise`` as in `sample`."""
        ids = [self.tokenizer.encode(text).ids for text in begun]
        turn = sample(weights, self.shape, ids, noise, end=BOS)
        return turn, self.tokenizer.decode_batch(turn.answers.tolist())

    def noise(self, count: int, generator: torch.Generator) -> Tensor:
        """Sampling noise for ``count`` continuations."""
        return gumbel((count, NEW, self.shape.vocabulary), generator)

    def episode(self, task: str, settings: Settings) -> Episode:
        """Batches of GRPO on one property."""

        def play(
            weights: Mapping[str, Tensor], step: int, generator: torch.Generator
        ) -> tuple[list[Turn], Tensor]:
            drawn = openings("train", settings.groups, settings.seed * 100_003 + step)
            begun = [text for text in drawn for _ in range(settings.samples)]
            turn, texts = self.write(weights, begun, self.noise(len(begun), generator))
            return [turn], torch.tensor([float(PROPERTIES[task](text)) for text in texts])

        return play


@dataclass(frozen=True, slots=True)
class Examination:
    """Openings of one split, the luck they are met with, and the base's own continuations.

    Attributes:
        begun: openings ``[P]``.
        noise: ``[P, NEW, V]``.
        written: the base's continuations, with its log-probabilities.
        cost: mean negative log-probability a token of ``written`` under the base ``[P]``.
    """

    begun: Sequence[str]
    noise: Tensor
    written: Turn
    cost: Tensor


@dataclass(frozen=True, slots=True)
class StoryBench:
    """What every model is scored on; validation and test openings are disjoint."""

    author: Author
    validation: Examination
    test: Examination

    @classmethod
    def draw(cls, author: Author, base: Weights) -> StoryBench:
        """The study's openings, and what the base makes of them with other luck."""
        return cls(
            author,
            _examination(author, base, "validation", VALIDATION, LUCK),
            _examination(author, base, "test", TEST, LUCK + 1),
        )

    def validate(self, weights: Weights) -> float:
        """What tuning maximises: the mean over all tasks, retention included."""
        return float(self._rewards(weights, self.validation).mean())

    def examine(self, weights: Weights) -> F64:
        """Rewards on the test openings ``[K, P]``, retention last."""
        return self._rewards(weights, self.test)

    def _rewards(self, weights: Weights, asked: Examination) -> F64:
        _, texts = self.author.write(weights, asked.begun, asked.noise)
        judged = [[float(has(text)) for text in texts] for has in PROPERTIES.values()]
        kept = (asked.cost - _cost(weights, self.author.shape, asked.written)).exp()
        return np.array([*judged, kept.tolist()])


def _examination(author: Author, base: Weights, split: Split, count: int, luck: int) -> Examination:
    generator = torch.Generator().manual_seed(luck)
    begun = openings(split, count, 0)
    noise = author.noise(count, generator)
    written, _ = author.write(base, begun, author.noise(count, generator))
    return Examination(begun, noise, written, _cost(base, author.shape, written))


@torch.no_grad()
def _cost(weights: Weights, shape: Shape, written: Turn) -> Tensor:
    """Mean negative log-probability a token of each text ``[P]``."""
    everyone = torch.ones(len(written.answers), dtype=torch.bool)
    spoken = written.answers != PAD
    logprobs = answer_logprobs(weights, shape, written, everyone)
    return -(logprobs * spoken).sum(1) / spoken.sum(1)
