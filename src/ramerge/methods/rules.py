"""Block rules of the RAM family: what becomes of an element that none, one or several agents changed.

SPEC 3 and arXiv 2601.13572, section 4. The rules differ only in how *shared* elements are combined; a *unique*
element takes its agent's value, moved away from the base by ``unique[t]`` times its task vector. Sums run in
config order. `kernels.fuse` says what the arguments are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable


class Scales(NamedTuple):
    """Coefficients of the RAM family, all in the working dtype.

    ``weight`` ``[N]``: multiplies agent t's task vector. ``unique`` ``[N]``: what multiplies it on unique
    elements (λ·weight). ``divisor`` ``[N + 1]``: what a sum over c contributors is divided by; empty for c itself.
    """

    weight: Any
    unique: Any
    divisor: Any


@register_jitable
def take_own(x, a, pattern, bit, scale, k, own):
    """Put ``x + scale * (a - x)`` into ``own`` where ``bit`` is set; for scale 1 the agent's value itself."""
    if scale == np.float32(1):
        for i in range(k):
            taken, kept = a[i], own[i]
            own[i] = taken if pattern[i] & bit else kept
    else:
        for i in range(k):
            moved, kept = x[i] + scale * (a[i] - x[i]), own[i]
            own[i] = moved if pattern[i] & bit else kept


@register_jitable
def add_changed(x, a, pattern, bit, weight, k, total):
    """Add ``weight * (a - x)`` to ``total`` where ``bit`` is set."""
    for i in range(k):
        tau = weight * (a[i] - x[i])
        total[i] += tau if pattern[i] & bit else np.float32(0)


def average(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Shared elements: the sum over those that changed them, divided by ``divisor[c]`` (c is the paper's mean)."""
    own = spare[0]
    for i in range(k):
        out[i] = np.float32(0)
    for t in range(coef.weight.size):
        bit = np.uint32(1) << np.uint32(t)
        add_changed(x, theta[t], pattern, bit, coef.weight[t], k, out)
        take_own(x, theta[t], pattern, bit, coef.unique[t], k, own)
    if coef.divisor.size == 0:  # the mean: dividing by c itself is much faster than looking c up
        for i in range(k):
            c = contributors[i]
            shared = x[i] + out[i] / np.float32(max(c, np.uint32(1)))
            out[i] = own[i] if c == np.uint32(1) else shared
    else:
        for i in range(k):
            c = contributors[i]
            shared = x[i] + out[i] / coef.divisor[c]
            out[i] = own[i] if c == np.uint32(1) else shared


def elect(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Shared elements: the sign of the sum wins; the mean of those that agree with it. No winner, no change."""
    own, agreeing, voters = spare[0], spare[1], spare[2]
    for i in range(k):
        out[i] = np.float32(0)
        agreeing[i] = np.float32(0)
        voters[i] = np.float32(0)
    for t in range(coef.weight.size):
        bit = np.uint32(1) << np.uint32(t)
        add_changed(x, theta[t], pattern, bit, coef.weight[t], k, out)
        take_own(x, theta[t], pattern, bit, coef.unique[t], k, own)
    for t in range(coef.weight.size):
        a = theta[t]
        bit = np.uint32(1) << np.uint32(t)
        weight = coef.weight[t]
        for i in range(k):
            tau = weight * (a[i] - x[i])
            same_sign = (tau > np.float32(0)) == (out[i] > np.float32(0))
            agrees = (
                (pattern[i] & bit) != 0
                and same_sign
                and tau != np.float32(0)
                and out[i] != np.float32(0)
            )
            agreeing[i] += tau if agrees else np.float32(0)
            voters[i] += np.float32(1) if agrees else np.float32(0)
    for i in range(k):
        shared = x[i] + agreeing[i] / max(voters[i], np.float32(1))
        out[i] = own[i] if contributors[i] == np.uint32(1) else shared


def largest(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Shared elements: the largest change wins whole; among equals the first agent's."""
    own, best, winner = spare[0], spare[1], spare[2]
    for i in range(k):
        best[i] = np.float32(0)
        winner[i] = x[i]
    for t in range(coef.weight.size):
        a = theta[t]
        bit = np.uint32(1) << np.uint32(t)
        weight = coef.weight[t]
        whole = weight == np.float32(1)
        for i in range(k):
            tau = weight * (a[i] - x[i])
            size = abs(tau) if pattern[i] & bit else np.float32(0)
            record, holder, taken, moved = best[i], winner[i], a[i], x[i] + tau
            value = taken if whole else moved
            best[i] = max(size, record)
            winner[i] = value if size > record else holder
        take_own(x, a, pattern, bit, coef.unique[t], k, own)
    for i in range(k):
        out[i] = own[i] if contributors[i] == np.uint32(1) else winner[i]


class Region(NamedTuple):
    """Coefficients of the region checkpoints: which agent, and the scale of its task vector there."""

    agent: Any  # int
    scale: Any  # working dtype
    shared: Any  # bool: shared elements instead of unique ones


def region(x, theta, pattern, contributors, k, start, coef, out, spare):
    """The base, plus one agent's scaled task vector on its unique (or shared) elements only."""
    own = spare[0]
    bit = np.uint32(1) << np.uint32(coef.agent)
    for i in range(k):
        own[i] = x[i]
    take_own(x, theta[coef.agent], pattern, bit, coef.scale, k, own)
    for i in range(k):
        alone = contributors[i] == np.uint32(1)
        out[i] = own[i] if alone != coef.shared else x[i]


def keep(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Excluded tensors: the base's values."""
    for i in range(k):
        out[i] = x[i]
