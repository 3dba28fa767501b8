"""Intervals and differences: a score without its uncertainty is not shown anywhere.

A score is Σ hits / Σ trials over tasks. Tasks are the independent unit: several samples or instructions of
one task are resampled together.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramerge._types import F64

Z95 = 1.959963984540054
RESAMPLES = 2000
AT_ONCE = 50  # divides RESAMPLES; bounds the memory of a draw


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


def average(columns: Sequence[tuple[str, Estimate]]) -> Estimate:
    """Mean of several scores, each given with the data set that it is a score of.

    The interval follows from the scores' own by MOVER (Zou & Donner 2008), which is sound at 0 and 100 % too.
    Scores of one data set count as fully dependent, those of different ones as independent.
    """
    if not columns:
        return Estimate(math.nan, 0, math.nan, math.nan)
    below: dict[str, float] = defaultdict(float)
    above: dict[str, float] = defaultdict(float)
    sizes: dict[str, int] = {}
    for name, score in columns:
        below[name] += score.mean - score.low
        above[name] += score.high - score.mean
        sizes[name] = score.n
    mean = math.fsum(score.mean for _, score in columns) / len(columns)
    low = mean - math.hypot(*below.values()) / len(columns)
    high = mean + math.hypot(*above.values()) / len(columns)
    return Estimate(mean, sum(sizes.values()), low, high)


@dataclass(frozen=True, slots=True)
class Paired:
    """Two models' (hits, trials) on the same tasks of one data set, in the same order."""

    column: str
    first: Sequence[tuple[float, float]]
    second: Sequence[tuple[float, float]]


def difference(pairs: Sequence[Paired]) -> Estimate:
    """Mean over ``pairs`` of first − second, in points, by paired bootstrap.

    Tasks are resampled within each data set, the same ones for both models and for all scores of the data set.
    """
    points: list[float] = []
    draws = np.zeros(RESAMPLES)
    sizes: dict[str, int] = {}
    for pair in pairs:
        a, b = np.asarray(pair.first, np.float64), np.asarray(pair.second, np.float64)
        if len(a) == 0 or a[:, 1].sum() == 0 or b[:, 1].sum() == 0:
            continue
        points.append(float(a[:, 0].sum() / a[:, 1].sum() - b[:, 0].sum() / b[:, 1].sum()))
        draws += _resampled(a, pair.column) - _resampled(b, pair.column)
        sizes[pair.column] = len(a)
    if not points:
        return Estimate(math.nan, 0, math.nan, math.nan)
    low, high = np.quantile(draws / len(points), (0.025, 0.975))
    mean = math.fsum(points) / len(points)
    return Estimate(100 * mean, sum(sizes.values()), 100 * float(low), 100 * float(high))


def _resampled(table: F64, name: str = "") -> F64:
    """Scores of `RESAMPLES` bootstrap samples of tasks ([n, 2]); n and ``name`` fix the draw."""
    random = np.random.default_rng((20260113, zlib.crc32(name.encode())))
    n = len(table)
    scores = []
    for _ in range(0, RESAMPLES, AT_ONCE):
        hits, trials = table[random.integers(0, n, (AT_ONCE, n))].sum(axis=1).T
        scores.append(np.divide(hits, trials, out=np.zeros(AT_ONCE), where=trials > 0))
    return np.concatenate(scores)
