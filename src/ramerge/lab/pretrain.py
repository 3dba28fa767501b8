"""The base: next-token training on a mediocre expert's demonstrations, and on retention."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ramerge.lab.environments import Environment, environments
from ramerge.lab.environments.base import split_of
from ramerge.lab.model import Shape, Weights, initialise, logits
from ramerge.lab.vocabulary import encode, encode_answer, left_padded

SHARE = {"memory": 3}  # looking a key up takes the most examples, and they are short
IGNORED = -100  # target of the tokens that are not learned: prompts and padding


@dataclass(frozen=True, slots=True)
class Pretraining:
    """Settings of the base's training."""

    steps: int = 1500
    batch: int = 32  # of each task
    rate: float = 3e-3
    warmup: int = 100


def pretrain(shape: Shape, seed: int, settings: Pretraining) -> tuple[Weights, list[float]]:
    """Train a base from fresh weights.

    Returns:
        weights, rounded to BF16 (base and agents lie on one grid) and held in fp32; loss a step.
    """
    rng = random.Random(f"pretrain/{seed}")  # noqa: S311
    tasks = list(environments().values())
    weights = initialise(shape, seed)
    for w in weights.values():
        w.requires_grad_()
    optimiser = torch.optim.AdamW(
        weights.values(), lr=settings.rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    losses = []
    for step in range(settings.steps):
        rise = min(1.0, (step + 1) / settings.warmup)
        fall = 0.02 + 0.98 * (1 - step / settings.steps)
        optimiser.param_groups[0]["lr"] = settings.rate * rise * fall
        optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for task in tasks:  # a task at a time: sequences of one task have nearly one length
            tokens, starts, targets = _batch(task, settings.batch * SHARE.get(task.name, 1), rng)
            output = logits(weights, shape, tokens, starts)
            loss = F.cross_entropy(output.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
            loss.backward()
            total += float(loss.detach()) / len(tasks)
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        losses.append(total)
    return {n: w.detach().bfloat16().float() for n, w in weights.items()}, losses


def _batch(task: Environment, size: int, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs ``[B, T]``, starts ``[B]`` and targets ``[B, T]`` of one task."""
    rows, targets = [], []
    for _ in range(size):
        while split_of((problem := task.draw(rng)).key) != "train":
            pass
        prompt, answer = task.demonstrate(problem, rng)
        before, after = encode(prompt), encode_answer(answer)
        rows.append(before + after[:-1])
        targets.append([IGNORED] * (len(before) - 1) + after)
    padded, starts = left_padded(rows)
    width = len(padded[0])
    wanted = [[IGNORED] * (width - len(t)) + t for t in targets]
    return torch.tensor(padded), torch.tensor(starts), torch.tensor(wanted)
