"""GRPO: reinforcement learning from verifiable rewards, with the group's mean as the baseline.

A step draws some problems, plays each several times, and makes the samples of one problem compete:
the advantage of a sample is its reward minus the group's mean, over the group's deviation. Each
token's loss is PPO's clipped ratio times the advantage; in a task of several turns all turns of a
sample share its advantage, as in MemAgent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ramerge.lab.environments import Environment
from ramerge.lab.environments.base import problems
from ramerge.lab.model import Shape, Weights, logits
from ramerge.lab.rollout import Turn, play
from ramerge.lab.vocabulary import PAD

# Weights, number of the batch and a source of luck -> turns and the rewards of all samples, those of
# one problem side by side.
Episode = Callable[[Mapping[str, Tensor], int, torch.Generator], tuple[list[Turn], Tensor]]


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run of GRPO is told.

    Attributes:
        steps: rollout batches.
        rate: AdamW's learning rate, constant after a short rise.
        groups: problems a batch.
        samples: samples a problem.
        epochs: optimiser steps a batch; from the second one the clipping is at work.
        clip: the ratio stays within 1 ± clip.
        kl: weight of the KL penalty towards the base (0: none, as in the paper's recipes).
        seed: of the problems and of the sampling.
    """

    steps: int
    rate: float
    groups: int = 16
    samples: int = 12
    epochs: int = 2
    clip: float = 0.2
    kl: float = 0.0
    seed: int = 0


def train(
    base: Mapping[str, Tensor],
    shape: Shape,
    environment: Environment,
    settings: Settings,
    *,
    masks: Mapping[str, Tensor] | None = None,
    after_step: Callable[[Weights], None] | None = None,
) -> tuple[Weights, list[float]]:
    """Train an agent from the base on one task; the rest is as in `optimise`."""

    def episode(
        weights: Mapping[str, Tensor], step: int, generator: torch.Generator
    ) -> tuple[list[Turn], Tensor]:
        drawn = problems(environment, "train", settings.groups, settings.seed * 100_003 + step)
        repeated = [p for p in drawn for _ in range(settings.samples)]
        return play(weights, shape, environment, repeated, generator)

    return optimise(base, shape, episode, settings, masks=masks, after_step=after_step)


def optimise(
    base: Mapping[str, Tensor],
    shape: Shape,
    episode: Episode,
    settings: Settings,
    *,
    masks: Mapping[str, Tensor] | None = None,
    after_step: Callable[[Weights], None] | None = None,
    enough: float = math.inf,
) -> tuple[Weights, list[float]]:
    """GRPO from the base.

    Args:
        base: fp32 weights; not changed.
        shape: sizes.
        episode: plays one batch.
        settings: see there.
        masks: where updates are allowed; None: everywhere.
        after_step: changes the weights in place after each optimiser step (rounding).
        enough: the mean reward that ends training, when two batches in a row have it.

    Returns:
        the agent's fp32 weights, and the mean reward of every batch.
    """
    weights = {n: w.clone().requires_grad_() for n, w in base.items()}
    optimiser = torch.optim.AdamW(weights.values(), settings.rate, (0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator().manual_seed(settings.seed)
    rewards = []
    for step in range(settings.steps):
        optimiser.param_groups[0]["lr"] = settings.rate * min(1.0, (step + 1) / 5)
        turns, reward = episode(weights, step, generator)
        rewards.append(float(reward.mean()))
        if min(rewards[-2:]) >= enough and step:
            break
        advantages = _advantages(reward.view(settings.groups, settings.samples))
        if not bool(advantages.any()):
            continue  # every sample of every group has the same reward: nothing to learn from
        for _ in range(settings.epochs):
            optimiser.zero_grad(set_to_none=True)
            _backward(weights, base, turns, advantages, shape=shape, settings=settings)
            _bound(weights, masks)
            optimiser.step()
            if after_step is not None:
                after_step(weights)
    return {n: w.detach() for n, w in weights.items()}, rewards


def round_to_bf16(weights: Weights) -> None:
    """Round in place to the BF16 grid, to nearest even."""
    with torch.no_grad():
        for w in weights.values():
            w.copy_(w.bfloat16())


def _advantages(rewards: Tensor) -> Tensor:
    """Advantages ``[groups · samples]`` of rewards ``[groups, samples]``; 0 where all agree."""
    centred = rewards - rewards.mean(1, keepdim=True)
    return (centred / (rewards.std(1, keepdim=True) + 1e-4)).flatten()


def _backward(
    weights: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
    turns: list[Turn],
    advantages: Tensor,
    *,
    shape: Shape,
    settings: Settings,
) -> None:
    """Add the gradient of the clipped objective, the mean over sampled tokens, turn by turn."""
    kept = advantages != 0  # the others have no gradient
    if settings.kl > 0:
        kept = torch.ones_like(kept)
    tokens = sum(int((t.answers[kept] != PAD).sum()) for t in turns)
    for turn in turns:
        said = turn.answers[kept]
        spoken = said != PAD
        logprobs = answer_logprobs(weights, shape, turn, kept)
        ratio = (logprobs - turn.logprobs[kept]).exp()
        gain = advantages[kept][:, None]
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        objective = torch.minimum(ratio * gain, clipped * gain)
        if settings.kl > 0:
            with torch.no_grad():
                behind = answer_logprobs(base, shape, turn, kept)
            apart = behind - logprobs
            objective = objective - settings.kl * (apart.exp() - apart - 1)
        (-(objective * spoken).sum() / tokens).backward()


def _bound(weights: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None) -> None:
    """Keep the gradient inside the masks, and its norm within 1."""
    if masks is not None:
        for name, w in weights.items():
            w.grad.mul_(masks[name])
    torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)


def answer_logprobs(
    weights: Mapping[str, Tensor], shape: Shape, turn: Turn, kept: Tensor
) -> Tensor:
    """Log-probabilities ``[kept, A]`` of the sampled answers."""
    said = turn.answers[kept]
    tokens = torch.cat([turn.prompts[kept], said[:, :-1]], 1)
    output = logits(weights, shape, tokens, turn.starts[kept])[:, -said.shape[1] :]
    return output.log_softmax(-1).gather(2, said[..., None])[..., 0]
