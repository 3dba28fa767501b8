"""Block rules of the task-vector methods: sparsify each agent's task vector, then add the agents up.

``theta`` is scratch, so a row is turned into the agent's sparsified, weighted task vector in place; the second half of
every rule is then the same: `add_up` (sums) or `elect_up` (TIES: the sign of the sum wins).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from ramerge.kernels.random import uniform_bits
from ramerge.kernels.selection import keep_largest, magnitude_bits


class Dense(NamedTuple):
    """``weight`` ``[N]``, ``scale`` of the sum: working dtype; ``normalize`` bool: divide by the weights that agree."""

    weight: Any
    scale: Any
    normalize: Any


class Trimmed(NamedTuple):
    """`Dense`, with the magnitudes that are kept: above ``low`` and not above ``high`` (uint32 ``[N]``).

    ``low_quota``, ``high_quota`` int64 ``[N, 1]``: how many elements equal to a bound count as above it in this chunk.
    """

    weight: Any
    scale: Any
    normalize: Any
    low: Any
    low_quota: Any
    high: Any
    high_quota: Any


class Dropped(NamedTuple):
    """`Dense`, with a random stream per agent: an element stays where its 32 bits are below ``keep`` (uint64 ``[N]``).

    ``key`` uint64 ``[N]``; ``rescale`` ``[N]``: multiplies what stays.
    """

    weight: Any
    scale: Any
    normalize: Any
    key: Any
    keep: Any
    rescale: Any


@register_jitable
def add_up(x, theta, coef, k, out):
    """Out = x + scale · Σ theta[t]."""
    for i in range(k):
        out[i] = np.float32(0)
    for t in range(coef.weight.size):
        delta = theta[t]
        for i in range(k):
            out[i] += delta[i]
    scale = coef.scale
    for i in range(k):
        out[i] = x[i] + scale * out[i]


@register_jitable
def elect_up(x, theta, coef, k, out, spare):
    """TIES: the sign of the sum wins; out = x + scale · Σ of those that agree, over their weights if ``normalize``."""
    sign, present = spare[0], spare[1]
    for i in range(k):
        sign[i] = np.float32(0)
        present[i] = np.float32(0)
        out[i] = np.float32(0)
    for t in range(coef.weight.size):
        delta = theta[t]
        for i in range(k):
            sign[i] += delta[i]
    for i in range(k):
        sign[i] = np.float32(sign[i] > np.float32(0)) - np.float32(sign[i] < np.float32(0))
    for t in range(coef.weight.size):
        delta, weight = theta[t], coef.weight[t]
        for i in range(k):
            agrees = delta[i] * sign[i] > np.float32(0)
            out[i] += delta[i] if agrees else np.float32(0)
            present[i] += weight if agrees else np.float32(0)
    scale = coef.scale
    if not coef.normalize:
        for i in range(k):
            out[i] = x[i] + scale * out[i]
        return
    for i in range(k):
        weight = present[i]
        out[i] = x[i] + scale * (out[i] / (np.float32(1) if weight == np.float32(0) else weight))


@register_jitable
def weigh(x, theta, coef, k):
    """theta[t] becomes weight[t] · (theta[t] - x)."""
    for t in range(coef.weight.size):
        a, weight = theta[t], coef.weight[t]
        for i in range(k):
            a[i] = weight * (a[i] - x[i])


@register_jitable
def trim(x, theta, coef, k):
    """theta[t] becomes the weighted task vector where its magnitude is kept, 0 elsewhere."""
    bits = np.empty(k, np.uint32)
    above_low = np.empty(k, np.bool_)
    above_high = np.empty(k, np.bool_)
    for t in range(coef.weight.size):
        a, weight = theta[t], coef.weight[t]
        for i in range(k):
            a[i] = a[i] - x[i]
            bits[i] = magnitude_bits(a[i])
        keep_largest(bits, coef.low[t], coef.low_quota[t], k, above_low)
        keep_largest(bits, coef.high[t], coef.high_quota[t], k, above_high)
        for i in range(k):
            a[i] = weight * a[i] if above_low[i] and not above_high[i] else np.float32(0)


@register_jitable
def drop(x, theta, coef, k, start):
    """theta[t] becomes the weighted, rescaled task vector where the stream keeps it, 0 elsewhere."""
    for t in range(coef.weight.size):
        a, weight, key, keep, rescale = (
            theta[t],
            coef.weight[t],
            coef.key[t],
            coef.keep[t],
            coef.rescale[t],
        )
        for i in range(k):
            stays = np.uint64(uniform_bits(key, start + i)) < keep
            value = weight * (rescale * (a[i] - x[i]))
            a[i] = value if stays else np.float32(0)


def sum_all(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Task arithmetic: the weighted sum of all task vectors."""
    weigh(x, theta, coef, k)
    add_up(x, theta, coef, k, out)


def trim_sum(x, theta, pattern, contributors, k, start, coef, out, spare):
    """The weighted sum of trimmed task vectors."""
    trim(x, theta, coef, k)
    add_up(x, theta, coef, k, out)


def trim_elect(x, theta, pattern, contributors, k, start, coef, out, spare):
    """TIES: trimmed task vectors, signs elected."""
    trim(x, theta, coef, k)
    elect_up(x, theta, coef, k, out, spare)


def drop_sum(x, theta, pattern, contributors, k, start, coef, out, spare):
    """DARE with task arithmetic."""
    drop(x, theta, coef, k, start)
    add_up(x, theta, coef, k, out)


def drop_elect(x, theta, pattern, contributors, k, start, coef, out, spare):
    """DARE with TIES."""
    drop(x, theta, coef, k, start)
    elect_up(x, theta, coef, k, out, spare)


class Average(NamedTuple):
    """``weight`` ``[N]``, adding up to what they shall add up to."""

    weight: Any


def average_values(x, theta, pattern, contributors, k, start, coef, out, spare):
    """The weighted sum of the agents' values themselves."""
    for i in range(k):
        out[i] = np.float32(0)
    for t in range(coef.weight.size):
        a, weight = theta[t], coef.weight[t]
        for i in range(k):
            out[i] += weight * a[i]


class Fisher(NamedTuple):
    """``scale`` ``[N]``: multiplies agent t's Fisher weights; ``floor``: the least weight."""

    scale: Any
    floor: Any


def fisher_average(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Σ F θ / Σ F; rows N.. of ``theta`` are the Fisher weights."""
    agents = coef.scale.size
    total = spare[0]
    for i in range(k):
        out[i] = np.float32(0)
        total[i] = np.float32(0)
    for t in range(agents):
        a, f, scale = theta[t], theta[agents + t], coef.scale[t]
        for i in range(k):
            weight = max(scale * f[i], coef.floor)
            out[i] += weight * a[i]
            total[i] += weight
    for i in range(k):
        out[i] = out[i] / total[i]


class Votes(NamedTuple):
    """``weight`` ``[N]``, ``tall`` ``[N]``, ``scale``: working dtype; ``least`` int: votes that an element needs."""

    weight: Any
    tall: Any
    scale: Any
    least: Any


def consensus_sum(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Consensus: the sum of all task vectors where enough agents' own masks want it."""
    total, votes = spare[0], spare[1]
    weigh(x, theta, coef, k)
    for i in range(k):
        total[i] = np.float32(0)
        votes[i] = np.float32(0)
    for t in range(coef.weight.size):
        delta = theta[t]
        for i in range(k):
            total[i] += delta[i]
    for t in range(coef.weight.size):
        delta, tall = theta[t], coef.tall[t]
        for i in range(k):
            wants = abs(delta[i]) >= tall * abs(total[i] - delta[i])
            votes[i] += np.float32(1) if wants else np.float32(0)
    scale, least = coef.scale, np.float32(coef.least)
    for i in range(k):
        moved = x[i] + scale * total[i]
        out[i] = moved if votes[i] >= least else x[i]


def trim_mean(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Localize-and-Stitch: an element kept by one agent is taken whole, by several averaged over them."""
    own, votes, mean = spare[0], spare[1], spare[2]
    for i in range(k):
        votes[i] = np.float32(0)
        mean[i] = np.float32(0)
        own[i] = x[i]
    bits = np.empty(k, np.uint32)
    kept = np.empty(k, np.bool_)
    for t in range(coef.weight.size):
        a, weight = theta[t], coef.weight[t]
        for i in range(k):
            bits[i] = magnitude_bits(a[i] - x[i])
        keep_largest(bits, coef.low[t], coef.low_quota[t], k, kept)
        whole = weight == np.float32(1)
        for i in range(k):
            tau, taken, before = weight * (a[i] - x[i]), a[i], own[i]
            value = taken if whole else x[i] + tau
            own[i] = value if kept[i] else before
            mean[i] += tau if kept[i] else np.float32(0)
            votes[i] += np.float32(1) if kept[i] else np.float32(0)
    for i in range(k):
        shared = x[i] + mean[i] / max(votes[i], np.float32(1))
        out[i] = own[i] if votes[i] == np.float32(1) else shared
