"""Intervals and tests for scores that are paired by agents and by prompts.

What varies is resampled at both levels: agent seeds (within each base, so that every replicate has
all bases) and test prompts (the same draw for every model). With two bases, the variation *between*
bases cannot be estimated; the report shows the bases side by side instead.
Shapes: C cells, K tasks, P prompts, B bootstrap replicates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ramerge._types import F64

Metric = Callable[[F64], F64]  # accuracies [..., K] -> [...]
REPLICATES = 2000
BLOCK = 100  # replicates at a time, to bound memory


@dataclass(frozen=True, slots=True)
class Draws:
    """Bootstrap weights, shared by every comparison so that replicates are paired.

    Attributes:
        cells: ``[B, C]`` how much each cell counts; rows sum to 1.
        prompts: ``[B, K, P]`` how often each prompt is drawn, over P.
    """

    cells: F64
    prompts: F64


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval and, for differences, a two-sided bootstrap p-value."""

    value: float
    low: float
    high: float
    p: float


def draw(
    bases: Sequence[int],
    tasks: int,
    prompts: int,
    *,
    seed: int = 0,
    replicates: int = REPLICATES,
    common: bool = False,
) -> Draws:
    """Draw the bootstrap.

    Args:
        bases: the base of every cell ``[C]``; seeds are resampled within one base.
        tasks: K; prompts are resampled for each task on its own.
        prompts: P.
        seed: of the resampling.
        replicates: B.
        common: all tasks have the same prompts, which are drawn once for all.
    """
    rng = np.random.default_rng(seed)
    cells = np.zeros((replicates, len(bases)))
    for base in sorted(set(bases)):
        members = np.flatnonzero(np.equal(bases, base))
        share = np.full(len(members), 1 / len(members))
        cells[:, members] = rng.multinomial(len(members), share, size=replicates)
    size = (replicates, 1 if common else tasks)
    weights = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=size)
    return Draws(cells / len(bases), np.repeat(weights / prompts, tasks // size[1], axis=1))


def replicate(rewards: F64, draws: Draws, metric: Metric) -> F64:
    """The metric's mean over cells in every replicate ``[B]``, from rewards ``[C, K, P]``."""
    means = []
    for at in range(0, len(draws.cells), BLOCK):
        accuracy = np.einsum("ckp,bkp->bck", rewards, draws.prompts[at : at + BLOCK], optimize=True)
        means.append((metric(accuracy) * draws.cells[at : at + BLOCK]).sum(1))
    return np.concatenate(means)


def estimate(rewards: F64, draws: Draws, metric: Metric) -> Estimate:
    """The metric's mean over cells with its interval."""
    value = float(metric(rewards.mean(2)).mean())
    return _estimate(value, replicate(rewards, draws, metric))


def contrast(first: F64, second: F64, draws: Draws, metric: Metric) -> Estimate:
    """Paired difference first − second of the metric's means."""
    value = float((metric(first.mean(2)) - metric(second.mean(2))).mean())
    return _estimate(value, replicate(first, draws, metric) - replicate(second, draws, metric))


def _estimate(value: float, replicates: F64) -> Estimate:
    low, high = np.quantile(replicates, [0.025, 0.975])
    count = len(replicates)
    tail = min(int((replicates <= 0).sum()), int((replicates >= 0).sum()))
    return Estimate(value, float(low), float(high), min(1.0, 2 * (tail + 1) / (count + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the given order."""
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def task_mean(accuracy: F64) -> F64:
    """Mean of the agents' tasks (all but the last, retention)."""
    return accuracy[..., :-1].mean(-1)


def all_mean(accuracy: F64) -> F64:
    """Mean of the agents' tasks and retention."""
    return accuracy.mean(-1)


def retention(accuracy: F64) -> F64:
    """Accuracy on the task that no agent was trained on."""
    return accuracy[..., -1]


def minimum(accuracy: F64) -> F64:
    """The worst of the agents' tasks."""
    return accuracy[..., :-1].min(-1)


def composite(experts: F64) -> Metric:
    """Geometric mean of accuracies over those of the tasks' own agents ``[C, K - 1]``."""

    def relative(accuracy: F64) -> F64:
        ratio = np.maximum(accuracy[..., :-1], 1e-3) / np.maximum(experts, 1e-3)
        return np.exp(np.log(ratio).mean(-1))

    return relative
