"""Intervals and differences: a score without its uncertainty is not shown anywhere.

A score is Σ hits / Σ trials over tasks. Tasks are the independent unit: several samples or instructions of
one task are resampled together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramerge._types import F64

Z95 = 1.959963984540054
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score in percent, its number of tasks, and a 95 % interval in percent."""

    mean: float
    n: int
    low: float
    high: float


def estimate(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Score and interval of tasks given as (hits, trials).

    Wilson's interval where a task is one trial, won or lost; else, and with more than one distinct value,
    the percentile bootstrap over tasks.
    """
    if not pairs:
        return Estimate(math.nan, 0, math.nan, math.nan)
    table = np.asarray(pairs, dtype=np.float64)  # [n, 2]
    hits, trials = table.sum(axis=0)
    if trials == 0:
        return Estimate(math.nan, len(pairs), math.nan, math.nan)
    mean = float(hits / trials)
    binary = bool((table[:, 1] == 1).all() and np.isin(table[:, 0], (0, 1)).all())
    if binary or len({float(h / t) for h, t in pairs if t}) == 1:
        low, high = wilson(mean, len(pairs))
    else:
        low, high = np.quantile(_resampled(table), (0.025, 0.975))
    return Estimate(100 * mean, len(pairs), 100 * float(low), 100 * float(high))


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion of ``n``."""
    centre = share + Z95**2 / (2 * n)
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    scale = 1 + Z95**2 / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def difference(
    first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]
) -> Estimate:
    """``first`` − ``second`` in points over the same tasks in the same order, by paired bootstrap."""
    return mean_difference([(first, second)])


def mean_difference(
    columns: Sequence[tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float]]]],
) -> Estimate:
    """Difference of two models' averages over ``columns``; tasks are resampled within each column."""
    points: list[float] = []
    draws = np.zeros(RESAMPLES)
    n = 0
    for stream, (first, second) in enumerate(columns):
        a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
        if len(a) == 0 or a[:, 1].sum() == 0 or b[:, 1].sum() == 0:
            continue
        points.append(float(a[:, 0].sum() / a[:, 1].sum() - b[:, 0].sum() / b[:, 1].sum()))
        draws += _resampled(a, stream) - _resampled(b, stream)  # the same tasks for both: paired
        n += len(a)
    if not points:
        return Estimate(math.nan, 0, math.nan, math.nan)
    low, high = np.quantile(draws / len(points), (0.025, 0.975))
    return Estimate(100 * float(np.mean(points)), n, 100 * float(low), 100 * float(high))


def _resampled(table: F64, stream: int = 0) -> F64:
    """Scores of `RESAMPLES` bootstrap samples of tasks ([n, 2]); n and ``stream`` fix the draw."""
    random = np.random.default_rng((20260113, stream))
    n = len(table)
    scores = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        drawn = table[random.integers(0, n, n)].sum(axis=0)
        scores[index] = drawn[0] / drawn[1] if drawn[1] else 0.0
    return scores
