"""Sampling: play problems turn by turn, with noise that is fixed in advance.

A token is the largest of logit + Gumbel noise, which is a draw from the softmax. The noise depends
on the task, the turn, the problem and the position, never on the model: two models compared on one
problem meet the same luck, so their difference is paired twice, by prompt and by sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ramerge.lab.environments import Environment, Problem
from ramerge.lab.model import Cache, Shape, logits
from ramerge.lab.vocabulary import EOS, PAD, decode, encode, left_padded


@dataclass(frozen=True, slots=True)
class Turn:
    """What the models saw and said in one turn of B problems.

    Attributes:
        prompts: ids ``[B, P]``, padded in front.
        starts: ``[B]`` first column that is not padding.
        answers: ids ``[B, A]``, padded behind after the end of the sequence.
        logprobs: ``[B, A]`` of the sampled tokens, under the model that sampled them.
    """

    prompts: Tensor
    starts: Tensor
    answers: Tensor
    logprobs: Tensor


def gumbel(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard Gumbel noise."""
    return -torch.empty(size).exponential_(generator=generator).log()


@torch.no_grad()
def sample(
    weights: Mapping[str, Tensor],
    shape: Shape,
    prompts: Sequence[Sequence[int]],
    noise: Tensor,
    end: int = EOS,
) -> Turn:
    """Sample an answer to each prompt of ids, up to the token ``end``.

    ``noise`` is ``[B, max_new, V]`` (zeros: greedy).
    """
    padded, begin = left_padded(prompts)
    tokens, starts = torch.tensor(padded), torch.tensor(begin)
    cache = Cache()
    step = logits(weights, shape, tokens, starts, cache)[:, -1]
    done = torch.zeros(len(prompts), dtype=torch.bool)
    said, logprobs = [], []
    for at in range(noise.shape[1]):
        token = (step + noise[:, at]).argmax(-1)
        logprob = step.log_softmax(-1).gather(1, token[:, None])[:, 0]
        said.append(token.masked_fill(done, PAD))
        logprobs.append(logprob.masked_fill(done, 0.0))
        done = done | (token == end)
        if at + 1 == noise.shape[1] or bool(done.all()):
            break
        step = logits(weights, shape, token[:, None], starts, cache)[:, -1]
    return Turn(tokens, starts, torch.stack(said, 1), torch.stack(logprobs, 1))


def answer(
    weights: Mapping[str, Tensor], shape: Shape, prompts: Sequence[str], noise: Tensor
) -> tuple[Turn, list[str]]:
    """Sample an answer to each prompt, and read it."""
    turn = sample(weights, shape, [encode(p) for p in prompts], noise)
    return turn, [decode(row) for row in turn.answers.tolist()]


def play(
    weights: Mapping[str, Tensor],
    shape: Shape,
    environment: Environment,
    problems: Sequence[Problem],
    generator: torch.Generator,
) -> tuple[list[Turn], Tensor]:
    """Play each problem to its end; return the turns and the rewards ``[B]``."""
    turns, answers = [], [""] * len(problems)
    for number in range(len(problems[0].prompts)):
        prompts = [p.prompts[number].format(a) for p, a in zip(problems, answers, strict=True)]
        noise = gumbel((len(problems), environment.max_new, shape.vocabulary), generator)
        turn, answers = answer(weights, shape, prompts, noise)
        answers = [a[: environment.max_new] for a in answers]
        turns.append(turn)
    rewards = [environment.reward(p, a) for p, a in zip(problems, answers, strict=True)]
    return turns, torch.tensor(rewards)


def score(
    weights: Mapping[str, Tensor],
    shape: Shape,
    environment: Environment,
    problems: Sequence[Problem],
    seed: int,
) -> Tensor:
    """Rewards ``[B]`` at temperature 1, with luck that is the same for every model."""
    return play(weights, shape, environment, problems, torch.Generator().manual_seed(seed))[1]
