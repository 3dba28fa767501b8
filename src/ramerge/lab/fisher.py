"""Diagonal Fisher information of an agent: how much its own answers depend on each weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ramerge.lab.environments import Environment
from ramerge.lab.environments.base import problems
from ramerge.lab.grpo import answer_logprobs
from ramerge.lab.model import Shape, Weights
from ramerge.lab.rollout import Turn, play
from ramerge.lab.vocabulary import PAD

SAMPLES = 64


def information(
    weights: Mapping[str, Tensor], shape: Shape, environment: Environment, seed: int
) -> Weights:
    """Mean squared gradient of the log-probability of the agent's own answers."""
    drawn = problems(environment, "train", SAMPLES, seed)
    turns, _ = play(weights, shape, environment, drawn, torch.Generator().manual_seed(seed))
    return of_answers(weights, shape, turns)


def of_answers(weights: Mapping[str, Tensor], shape: Shape, turns: Sequence[Turn]) -> Weights:
    """Mean over samples of the squared gradient of all of a sample's turns."""
    live = {n: w.clone().requires_grad_() for n, w in weights.items()}
    total = {n: torch.zeros_like(w) for n, w in weights.items()}
    samples = len(turns[0].answers)
    for index in range(samples):
        only = torch.arange(samples) == index
        logprob = torch.zeros(())
        for turn in turns:
            spoken = turn.answers[only] != PAD
            logprob = logprob + (answer_logprobs(live, shape, turn, only) * spoken).sum()
        for name, gradient in zip(
            live, torch.autograd.grad(logprob, list(live.values())), strict=True
        ):
            total[name] += gradient.square() / samples
    return total


def write(information: Weights, path: Path) -> Path:
    """Save as the engine's `fisher` method reads it."""
    from safetensors.torch import save_file

    save_file(information, path, metadata={"format": "pt"})
    return path
