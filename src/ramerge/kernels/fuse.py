"""The one hot loop: decode, compare, count, merge by a rule, encode; block by block, in the first-level cache.

`fuse` turns a *block rule*, a plain Python function over one block of at most `BLOCK` elements, into a compiled
kernel over raw buffers of any mix of dtypes. The rule sees numbers and never bytes:

    def rule(x, theta, pattern, contributors, k, start, coef, out, spare): ...

* ``x``             float ``[BLOCK]``, the base's values
* ``theta``         float ``[N, BLOCK]``, the agents' values (take ``theta[t]`` first, then index it)
* ``pattern``       uint32 ``[BLOCK]``, bit t set where agent t changed the element (N <= 32; all ones' bits else)
* ``contributors``  uint32 ``[BLOCK]``, how many did
* ``k``             elements in this block
* ``start``         index of the first one within its tensor (for random streams)
* ``coef``          the method's coefficients: a NamedTuple of arrays, in the working dtype where they are numbers
* ``out``           float ``[BLOCK]``, to be filled; read only where the rule is in force
* ``spare``         float ``[4, BLOCK]``, free for the rule's own use (an array made inside costs vectorisation)

Where no agent changed an element the base's own bits are kept, unless the rule is registered with
``everywhere=True`` (averages of absolute values, interpolations).

The working dtype is float32, or float64 when an F64 tensor is involved; a rule is compiled for both from the
same source, so its literals are written ``np.float32(...)``.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable

from ramerge.kernels.codec import (
    BF16,
    F16,
    F32,
    JIT,
    bf16_to_float,
    decode,
    encode,
    f16_to_float,
    float_to_bf16,
    float_to_f16,
    limit,
    narrow,
    unbounded,
)
from ramerge.kernels.limits import BLOCK

BASE_NONFINITE, OUT_NONFINITE = np.uint64(1), np.uint64(2)
AGENT_SHIFT = 2  # agent t's flag is bit AGENT_SHIFT + t


class Scratch(NamedTuple):
    """Working arrays of one thread. Made by the caller: arrays made inside a kernel keep its loops scalar."""

    theta: Any  # float [N, BLOCK]
    x: Any  # float [BLOCK]
    y: Any  # float [BLOCK]
    spare: Any  # float [4, BLOCK]
    pattern: Any  # uint32 [BLOCK]
    contributors: Any  # uint32 [BLOCK]
    recoded: Any  # uint8 [8 * BLOCK]


def scratch(agents: int, *, wide: bool) -> Scratch:
    """Working arrays for ``agents`` agents, in float64 where ``wide``."""
    real = np.float64 if wide else np.float32
    return Scratch(
        theta=np.empty((agents, BLOCK), real),
        x=np.empty(BLOCK, real),
        y=np.empty(BLOCK, real),
        spare=np.empty((4, BLOCK), real),
        pattern=np.empty(BLOCK, np.uint32),
        contributors=np.empty(BLOCK, np.uint32),
        recoded=np.empty(8 * BLOCK, np.uint8),
    )


@njit(inline="always", **JIT)
def compare(x, a, k, epsilon, grid, code, bit, pattern, contributors):
    """Add one agent's changed elements to ``pattern`` and ``contributors`` (SPEC 2)."""
    if grid and code == BF16:
        for i in range(k):
            changed = np.uint32(bf16_to_float(float_to_bf16(narrow(a[i]))) != x[i])
            pattern[i] |= changed * bit
            contributors[i] += changed
    elif grid and code == F16:
        for i in range(k):
            changed = np.uint32(f16_to_float(float_to_f16(narrow(a[i]))) != x[i])
            pattern[i] |= changed * bit
            contributors[i] += changed
    elif grid:
        for i in range(k):
            changed = np.uint32(np.float32(a[i]) != x[i]) if code != 3 else np.uint32(a[i] != x[i])
            pattern[i] |= changed * bit
            contributors[i] += changed
    else:
        for i in range(k):
            # "not <=" counts a NaN as changed; it is reported before anything is made of it.
            beyond = not (abs(a[i] - x[i]) <= epsilon)
            pattern[i] |= bit if beyond else np.uint32(0)
            contributors[i] += np.uint32(beyond)


@njit(inline="always", **JIT)
def tally(pattern, k, agents, counts):
    """Count contributor patterns: ``counts[p] += `` how often p occurs in ``pattern[:k]``."""
    if agents <= 3:  # comparing with each of 8 patterns vectorises; a table would wait for itself
        for p in range(1 << agents):
            seen = np.uint32(0)
            for i in range(k):
                seen += np.uint32(pattern[i] == np.uint32(p))
            counts[p] += seen
    else:
        for i in range(k):
            counts[pattern[i]] += 1


@njit(inline="always", **JIT)
def load(
    base, base_code, agents, codes, o, k, epsilon, grid, auxiliary, x, theta, pattern, contributors
):
    """Decode and compare one block; returns the flags of non-finite inputs."""
    decode(base, base_code, o, k, x)
    flags = BASE_NONFINITE if unbounded(x, k, np.inf) else np.uint64(0)
    for i in range(k):
        pattern[i] = np.uint32(0)
        contributors[i] = np.uint32(0)
    for t in range(agents.shape[0]):
        a = theta[t]
        decode(agents[t], codes[t], o, k, a)
        if unbounded(a, k, np.inf):
            flags |= np.uint64(1) << np.uint64(AGENT_SHIFT + t)
        if t < agents.shape[0] - auxiliary:
            bit = np.uint32(1) << np.uint32(t)
            compare(x, a, k, epsilon, grid, base_code, bit, pattern, contributors)
    return flags


@njit(**JIT)
def decode_whole(raw, code, n, out):
    """Elements [0, n) of ``raw`` as numbers."""
    decode(raw, code, 0, n, out)


@njit(**JIT)
def encode_whole(values, code, n, out):
    """Round ``values[:n]`` into ``out``; returns `OUT_NONFINITE` where one is not finite or overflows."""
    encode(values, code, 0, n, out)
    return (
        OUT_NONFINITE if unbounded(values, n, limit(code, values.itemsize == 8)) else np.uint64(0)
    )


@njit(**JIT)
def count(base, base_code, agents, codes, n, epsilon, grid, auxiliary, scratch, counts, patterns):
    """Contributor patterns of one chunk, without merging. Arguments as in the kernels of `fuse`."""
    theta, x = scratch.theta, scratch.x
    pattern, contributors = scratch.pattern, scratch.contributors
    flags = np.uint64(0)
    for o in range(0, n, BLOCK):
        k = min(BLOCK, n - o)
        flags |= load(
            base, base_code, agents, codes, o, k, epsilon, grid, auxiliary, x, theta, pattern, contributors
        )  # fmt: skip
        if patterns.size:
            patterns[o : o + k] = pattern[:k]
        else:
            tally(pattern, k, agents.shape[0] - auxiliary, counts)
    return flags


@njit(**JIT)
def count_lost(x, y, k, base_code, out, out_code, o, agents, scratch, lost):
    """Count changes that rounding took: merged values ``y`` that are not the base's, but are stored as the base's.

    Args:
        x: the base's values.
        y: merged values of one block, not yet rounded.
        k: elements in the block.
        base_code: dtype of the base.
        out: the stored chunk.
        out_code: its dtype.
        o: first element of the block in ``out``.
        agents: N.
        scratch: whose ``pattern`` says who changed what; ``contributors`` and ``spare`` are overwritten.
        lost: int64 ``[1 + N]``, added to: elements that any agent changed, and those of each.
    """
    stored, kept, gone = scratch.spare[0], scratch.spare[1], scratch.contributors
    decode(out, out_code, o, k, stored)
    if out_code == base_code:
        for i in range(k):
            kept[i] = x[i]
    else:
        encode(x, out_code, 0, k, scratch.recoded)
        decode(scratch.recoded, out_code, 0, k, kept)
    pattern = scratch.pattern
    total = np.uint32(0)
    for i in range(k):
        taken = stored[i] == kept[i] and y[i] != x[i]
        gone[i] = pattern[i] if taken else np.uint32(0)
        total += np.uint32(gone[i] != np.uint32(0))
    if total == np.uint32(0):
        return
    lost[0] += total
    for t in range(agents):
        shift, mine = np.uint32(t), np.uint32(0)
        for i in range(k):
            mine += (gone[i] >> shift) & np.uint32(1)
        lost[1 + t] += mine


@cache
def fuse(rule: Callable[..., None], *, everywhere: bool = False) -> Callable[..., int]:
    """Compile ``rule`` into a kernel over raw chunks.

    Returns:
        ``kernel(base, base_code, agents, codes, n, start, epsilon, grid, auxiliary, coef, out,
        out_code, scratch, counts, patterns, lost) -> flags`` where

        * ``base`` uint8, ``agents`` uint8 ``[N, capacity]``, ``codes`` int64 ``[N]``: raw inputs and their dtypes
        * ``n`` elements in the chunk, ``start`` the first one's index in its tensor
        * ``epsilon`` in the working dtype, ``grid`` bool: the mask
        * ``auxiliary``: that many of the last streams are not agents (Fisher weights) and are never compared
        * ``out`` uint8, may not overlap an input
        * ``scratch``: a `Scratch`, one per thread; its dtype is the working dtype
        * ``counts`` int64 ``[2^N]`` is added to; or ``patterns`` uint32 ``[n]`` is filled where its size is not 0
        * ``lost`` int64 ``[1 + N]`` is added to, see `count_lost`
        * ``flags`` uint64: bit 0 base, bit 1 output, bit 2 + t agent t held something not finite
    """
    body = register_jitable(rule)
    # numba's disk cache keys a closure by its cells: the digest makes an edited rule a new kernel.
    sources = [
        inspect.getsourcefile(rule) or "",
        *sorted(map(str, Path(__file__).parent.glob("*.py"))),
    ]
    digest = hashlib.sha256(b"".join(Path(s).read_bytes() for s in sources)).hexdigest()

    @njit(**JIT)
    def kernel(
        base, base_code, agents, codes, n, start, epsilon, grid, auxiliary, coef, out, out_code,
        scratch, counts, patterns, lost,
    ):  # fmt: skip
        _ = digest
        theta, x, y, spare = scratch.theta, scratch.x, scratch.y, scratch.spare
        pattern, contributors = scratch.pattern, scratch.contributors
        bound = limit(out_code, x.itemsize == 8)
        flags = np.uint64(0)
        for o in range(0, n, BLOCK):
            k = min(BLOCK, n - o)
            flags |= load(
                base, base_code, agents, codes, o, k, epsilon, grid, auxiliary, x, theta, pattern, contributors
            )  # fmt: skip
            if patterns.size:
                patterns[o : o + k] = pattern[:k]
            else:
                tally(pattern, k, agents.shape[0] - auxiliary, counts)
            body(x, theta, pattern, contributors, k, start + o, coef, y, spare)
            # Where nothing changed, or the change came out as zero, the base's own bits stay (-0.0 included).
            for i in range(k):
                keep = y[i] == x[i] or (not everywhere and contributors[i] == np.uint32(0))
                y[i] = x[i] if keep else y[i]
            if unbounded(y, k, bound):
                flags |= OUT_NONFINITE
            encode(y, out_code, o, k, out)
            if out_code < F32 or x.itemsize == 8:  # storing rounds
                count_lost(x, y, k, base_code, out, out_code, o, lost.size - 1, scratch, lost)
        return flags

    return kernel
