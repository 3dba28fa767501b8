"""Exact top-k by magnitude without sorting: histograms over the bits of |x|, which order non-negative floats.

Two streaming passes find the k-th largest magnitude over a tensor or a whole model in bounded memory: first a histogram of
the upper 16 of the 32 bits, then of the lower 16 inside the bin where the k-th lies. Elements above that value are kept;
of those equal to it, the first in order of tensors and elements until k are kept. A zero is never kept.

float64 task vectors are ordered by their float32 rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from ramerge._types import I64
from ramerge.kernels.codec import JIT, decode, float_to_bits
from ramerge.kernels.limits import BLOCK

HALF = 1 << 16


@register_jitable
def magnitude_bits(value):
    """Bits of |value| as float32: ordered like the magnitudes themselves."""
    return float_to_bits(np.float32(abs(value)))


@njit(**JIT)
def high_histogram(base, base_code, agent, code, n, x, a, histogram):
    """Add the upper 16 magnitude bits of one agent's task vector in a chunk.

    Args:
        base: raw chunk, uint8.
        base_code: its dtype.
        agent: raw chunk, uint8.
        code: its dtype.
        n: elements.
        x: scratch ``[BLOCK]`` in the working dtype.
        a: the same.
        histogram: int64 ``[65536]``, added to.
    """
    for o in range(0, n, BLOCK):
        k = min(BLOCK, n - o)
        decode(base, base_code, o, k, x)
        decode(agent, code, o, k, a)
        for i in range(k):
            histogram[magnitude_bits(a[i] - x[i]) >> np.uint32(16)] += 1


@njit(**JIT)
def low_histogram(base, base_code, agent, code, n, x, a, high, histogram):
    """Add the lower 16 magnitude bits of the elements whose upper ones are ``high``; the rest as above."""
    for o in range(0, n, BLOCK):
        k = min(BLOCK, n - o)
        decode(base, base_code, o, k, x)
        decode(agent, code, o, k, a)
        for i in range(k):
            bits = magnitude_bits(a[i] - x[i])
            if bits >> np.uint32(16) == np.uint32(high):
                histogram[bits & np.uint32(0xFFFF)] += 1


@njit(**JIT)
def count_equal(base, base_code, agent, code, n, x, a, bits):
    """How many elements of a chunk have exactly the magnitude ``bits``; the rest as above."""
    seen = np.int64(0)
    for o in range(0, n, BLOCK):
        k = min(BLOCK, n - o)
        decode(base, base_code, o, k, x)
        decode(agent, code, o, k, a)
        for i in range(k):
            seen += np.int64(magnitude_bits(a[i] - x[i]) == np.uint32(bits))
    return seen


def find_bin(histogram: I64, k: int) -> tuple[int, int]:
    """The bin that holds the k-th largest entry, and how many entries of that bin belong to the top k.

    Args:
        histogram: counts by ascending magnitude.
        k: at least 1 and at most the number of entries.
    """
    from_top = np.cumsum(histogram[::-1])
    position = int(np.searchsorted(from_top, k))
    above = int(from_top[position - 1]) if position else 0
    return histogram.size - 1 - position, k - above


@register_jitable
def keep_largest(bits, threshold, quota, k, kept):
    """Mark the elements of a block that belong to the top k.

    Args:
        bits: uint32 ``[k]``, magnitudes.
        threshold: the k-th largest magnitude's bits.
        quota: int64 ``[1]``: how many equal ones may still be kept in this chunk; counted down.
        k: elements.
        kept: bool ``[k]``, filled.
    """
    equal = np.uint32(0)
    for i in range(k):
        kept[i] = bits[i] > threshold
        equal += np.uint32(bits[i] == threshold)
    if equal == np.uint32(0) or threshold == np.uint32(0):
        return
    if np.int64(equal) <= quota[0]:
        for i in range(k):
            kept[i] = bits[i] >= threshold
        quota[0] -= np.int64(equal)
        return
    for i in range(k):
        if bits[i] == threshold and quota[0] > 0:
            kept[i] = True
            quota[0] -= 1


def worker_rows(worker: Any) -> tuple[Any, Any]:
    """Two scratch rows of a worker in its working dtype, for the functions above."""
    scratch = worker.scratch
    return scratch.x, scratch.y
