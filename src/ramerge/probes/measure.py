"""What training did to the weights, in one pass: counts, lengths, angles, sign conflicts, magnitudes, tensor by tensor.

arXiv 2601.13572, section 3. Counts are exact. Sums run in float64 within fixed blocks, and over blocks in order, so that
nothing depends on chunks or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from ramerge._types import F64, I64
from ramerge.kernels.codec import JIT, decode, encode, float_to_bits
from ramerge.kernels.fuse import load
from ramerge.kernels.limits import BLOCK
from ramerge.probes.gram import LANES
from ramerge.probes.overlap import Overlap

EXPONENTS = 256  # binary exponents of float32; entry e counts 2^(e-127) <= |tau| < 2^(e-126)
MASKS = ("abs", "exact", "grid")


@njit(**JIT)
def _count_masks(x, theta, agents, k, epsilon, base_code, room, rounded, found):
    """Changed elements of one block under each of `MASKS`: int64 ``found[N, 3]`` is added to."""
    for t in range(agents):
        a = theta[t]
        encode(a, base_code, 0, k, room)
        decode(room, base_code, 0, k, rounded)
        beyond, different, visible = np.uint32(0), np.uint32(0), np.uint32(0)
        for i in range(k):
            beyond += np.uint32(abs(a[i] - x[i]) > epsilon)
            different += np.uint32(a[i] != x[i])
            visible += np.uint32(rounded[i] != x[i])
        found[t, 0] += beyond
        found[t, 1] += different
        found[t, 2] += visible


@njit(**JIT)
def _largest(row, k):
    """Largest magnitude in float64 ``row[:k]``; by lanes, so that comparisons need not wait for one another."""
    lanes = np.zeros(LANES, np.float64)
    whole = k // LANES * LANES
    for i in range(0, whole, LANES):
        for j in range(LANES):
            size = abs(row[i + j])
            lanes[j] = size if size > lanes[j] else lanes[j]
    for i in range(whole, k):
        lanes[0] = max(lanes[0], abs(row[i]))
    return lanes.max()


@njit(**JIT)
def _products(rows, count, out):
    """Inner products of ``rows[:count]`` (float64 ``[., BLOCK]``) into ``out[count, count]``."""
    lanes = np.empty(LANES, np.float64)
    for p in range(count):
        u = rows[p]
        for q in range(p, count):
            v = rows[q]
            lanes[:] = 0.0
            for i in range(0, BLOCK, LANES):
                for j in range(LANES):
                    lanes[j] += u[i + j] * v[i + j]
            total = 0.0
            for j in range(LANES):
                total += lanes[j]
            out[p, q] = total
            out[q, p] = total


@njit(**JIT)
def measure_block(
    base, base_code, agents, codes, at, k, epsilon, grid, bound, out_code, scratch, rows, room,
    gram, largest, exponents, conflicts, disputed, masks, lost,
):  # fmt: skip
    """Measure one block.

    Args:
        base: raw chunk; the arguments up to ``grid`` are those of `kernels.fuse.load`.
        base_code: dtype of ``base``.
        agents: raw chunks, uint8 ``[N, capacity]``.
        codes: int64 ``[N]``.
        at: first element of the block in the chunk.
        k: its elements.
        epsilon: the mask in force.
        grid: the mask in force.
        bound: epsilon of the `abs` mask, whatever is in force.
        out_code: dtype that a merge would be stored in.
        scratch: a `kernels.fuse.Scratch`.
        rows: float64 ``[1 + N, BLOCK]``.
        room: uint8 ``[8 * BLOCK]``.
        gram: float64 ``[1 + N, 1 + N]``, set: products of the base's values (row 0) and the task vectors.
        largest: float64 ``[N]``: largest magnitudes so far.
        exponents: int64 ``[N, 256]``: see `EXPONENTS`; added to, like all that follow.
        conflicts: int64 ``[N, N]``: elements that both changed, in opposite directions.
        disputed: int64 ``[N]``: shared elements of the agent that some other agent moves the other way.
        masks: int64 ``[N, 3]``: changed elements under each of `MASKS`.
        lost: int64 ``[N]``: changed elements that a cast to ``out_code`` would make equal to the base's.
    """
    x, theta, pattern, contributors = (
        scratch.x,
        scratch.theta,
        scratch.pattern,
        scratch.contributors,
    )
    n = codes.size
    load(base, base_code, agents, codes, at, k, epsilon, grid, 0, x, theta, pattern, contributors)
    for i in range(k):
        rows[0, i] = x[i]
    for t in range(n):
        a, row = theta[t], rows[1 + t]
        for i in range(k):
            row[i] = np.float64(a[i]) - np.float64(x[i])
        largest[t] = max(largest[t], _largest(row, k))
    for row in rows[: 1 + n]:
        for i in range(k, BLOCK):
            row[i] = 0.0
    _products(rows, 1 + n, gram)
    _count_masks(x, theta, n, k, bound, base_code, room, scratch.spare[0], masks)
    stored, ours = scratch.spare[0], scratch.spare[1]
    encode(x, out_code, 0, k, room)
    decode(room, out_code, 0, k, stored)
    for t in range(n):
        row, bit = rows[1 + t], np.uint32(1) << np.uint32(t)
        encode(theta[t], out_code, 0, k, room)
        decode(room, out_code, 0, k, ours)
        gone = np.uint32(0)
        for i in range(k):
            gone += np.uint32(ours[i] == stored[i]) & np.uint32(pattern[i] & bit != 0)
        lost[t] += gone
        counts = exponents[t]
        for i in range(
            k
        ):  # unchanged elements go to entry 0, which no changed one reaches; `measure` clears it
            seen = float_to_bits(np.float32(abs(row[i]))) >> np.uint32(23)
            counts[seen if pattern[i] & bit else np.uint32(0)] += 1
    _count_conflicts(rows, pattern, n, k, scratch.spare[2], scratch.spare[3], conflicts, disputed)


@njit(**JIT)
def _count_conflicts(rows, pattern, n, k, ups, downs, conflicts, disputed):
    """Opposite directions, by pair and by agent; ``ups`` and ``downs`` are scratch ``[BLOCK]``."""
    for i in range(k):
        ups[i] = np.float32(0)
        downs[i] = np.float32(0)
    for t in range(n):
        row, bit = rows[1 + t], np.uint32(1) << np.uint32(t)
        for i in range(k):
            mine = np.float32((pattern[i] & bit) != 0)
            ups[i] += mine * np.float32(row[i] > 0)
            downs[i] += mine * np.float32(row[i] < 0)
    for t in range(n):
        row, bit = rows[1 + t], np.uint32(1) << np.uint32(t)
        against = np.uint32(0)
        for i in range(k):
            opposed = (row[i] > 0) & (downs[i] > 0) | (row[i] < 0) & (ups[i] > 0)
            against += np.uint32(opposed) & np.uint32((pattern[i] & bit) != 0)
        disputed[t] += against
        for u in range(t + 1, n):
            other, both = rows[1 + u], bit | np.uint32(1) << np.uint32(u)
            apart = np.uint32(0)
            for i in range(k):
                opposite = (row[i] > 0) & (other[i] < 0) | (row[i] < 0) & (other[i] > 0)
                apart += np.uint32(opposite) & np.uint32((pattern[i] & both) == both)
            conflicts[t, u] += apart
            conflicts[u, t] += apart


@dataclass(frozen=True, slots=True)
class Measures:
    """Statistics of some elements, usually a tensor's; `total` adds them up.

    Attributes:
        overlap: exact contributor patterns.
        gram: float64 ``[1 + N, 1 + N]``; row 0 the base's values, the rest task vectors.
        largest: float64 ``[N]``: max |τ|.
        exponents: int64 ``[N, 256]``: changed elements by the binary exponent of |τ|.
        conflicts: int64 ``[N, N]``: elements that both agents changed, in opposite directions.
        disputed: int64 ``[N]``: shared elements that some other agent moves the other way.
        masks: int64 ``[N, 3]``: changed elements under each of `MASKS`.
        lost: int64 ``[N]``: changed elements that storing would lose.
    """

    overlap: Overlap
    gram: F64
    largest: F64
    exponents: I64
    conflicts: I64
    disputed: I64
    masks: I64
    lost: I64


@dataclass(frozen=True, slots=True)
class ChunkMeasures:
    """`Measures` of a chunk, with the products of every block apart: float64 ``[blocks, 1 + N, 1 + N]``."""

    whole: Measures
    blocks: F64


def measure(worker: Any, overlap: Overlap, *, bound: float, out_code: int) -> ChunkMeasures:
    """Measure the chunk in a worker's buffers (`chunks.Worker`)."""
    plan, n = worker.plan, len(worker.plan.agents)
    starts = range(0, worker.n, BLOCK)
    grams = np.zeros((len(starts), 1 + n, 1 + n))
    rows, room = np.zeros((1 + n, BLOCK)), np.empty(8 * BLOCK, np.uint8)
    largest, exponents = np.zeros(n), np.zeros((n, EXPONENTS), np.int64)
    conflicts, disputed = np.zeros((n, n), np.int64), np.zeros(n, np.int64)
    masks, lost = np.zeros((n, len(MASKS)), np.int64), np.zeros(n, np.int64)
    for b, at in enumerate(starts):
        measure_block(
            worker.base, worker.base_code, worker.agents, worker.codes, at, min(BLOCK, worker.n - at),
            worker.real(plan.epsilon), plan.grid, worker.real(bound), out_code, worker.scratch, rows, room,
            grams[b], largest, exponents, conflicts, disputed, masks, lost,
        )  # fmt: skip
    exponents[:, 0] = 0
    empty = np.zeros((1 + n, 1 + n))
    return ChunkMeasures(
        Measures(overlap, empty, largest, exponents, conflicts, disputed, masks, lost), grams
    )


def join(agents: int, chunks: Sequence[ChunkMeasures]) -> Measures:
    """The record of a tensor from its chunks, in order."""
    blocks = (
        np.concatenate([c.blocks for c in chunks])
        if chunks
        else np.zeros((0, 1 + agents, 1 + agents))
    )
    gram = (
        np.add.accumulate(blocks, axis=0)[-1] if len(blocks) else np.zeros((1 + agents, 1 + agents))
    )
    return _sum(agents, [c.whole for c in chunks], gram)


def total(agents: int, parts: Sequence[Measures]) -> Measures:
    """The record of all elements of ``parts``, added in order."""
    gram = np.zeros((1 + agents, 1 + agents))
    for part in parts:
        gram = gram + part.gram
    return _sum(agents, parts, gram)


def _sum(n: int, parts: Sequence[Measures], gram: F64) -> Measures:
    def added(name: str, shape: tuple[int, ...]) -> I64:
        return sum((getattr(p, name) for p in parts), np.zeros(shape, np.int64))

    return Measures(
        overlap=Overlap.total(n, (p.overlap for p in parts)),
        gram=gram,
        largest=np.max([np.zeros(n), *(p.largest for p in parts)], axis=0),
        exponents=added("exponents", (n, EXPONENTS)),
        conflicts=added("conflicts", (n, n)),
        disputed=added("disputed", (n,)),
        masks=added("masks", (n, len(MASKS))),
        lost=added("lost", (n,)),
    )
