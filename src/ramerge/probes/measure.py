"""What training did to the weights, in one pass: counts, lengths, angles, sign conflicts, magnitudes, tensor by tensor.

arXiv 2601.13572, section 3. Counts are exact. Sums run in float64 within fixed blocks, and over blocks in order, so that
nothing depends on chunks or threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ramerge._types import F64, I64
from ramerge.kernels.codec import JIT, decode, encode, float_to_bits
from ramerge.kernels.fuse import load, tally
from ramerge.kernels.limits import BLOCK
from ramerge.probes.overlap import Overlap

EXPONENTS = 256  # binary exponents of float32; entry e counts 2^(e-127) <= |tau| < 2^(e-126)
MASKS = ("abs", "exact", "grid")
QUARTER = BLOCK // 4
TABLES = 4  # histograms filled in turn: an element need not wait until the one before it is counted


class Room(NamedTuple):
    """Working arrays of one thread, beside a `kernels.fuse.Scratch`."""

    rows: Any  # float64 [1 + N, BLOCK]: the base's values, then the task vectors; zero beyond the block's end
    partial: Any  # float64 [QUARTER]
    recoded: Any  # uint8 [8 * BLOCK]
    up: Any  # uint32 [BLOCK]: bit t where agent t changed the element, upwards
    down: Any  # uint32 [BLOCK]
    exponent: Any  # uint32 [BLOCK]
    tables: Any  # uint32 [N, TABLES, EXPONENTS]


class Sums(NamedTuple):
    """What the kernel adds to: the fields of `Measures` that go by these names."""

    largest: Any
    exponents: Any
    conflicts: Any
    disputed: Any
    masks: Any
    lost: Any


def _room(n: int) -> Room:
    return Room(
        rows=np.empty((1 + n, BLOCK)),
        partial=np.empty(QUARTER),
        recoded=np.empty(8 * BLOCK, np.uint8),
        up=np.empty(BLOCK, np.uint32),
        down=np.empty(BLOCK, np.uint32),
        exponent=np.empty(BLOCK, np.uint32),
        tables=np.zeros((n, TABLES, EXPONENTS), np.uint32),
    )


def _sums(n: int) -> Sums:
    return Sums(
        largest=np.zeros(n),
        exponents=np.zeros((n, EXPONENTS), np.int64),
        conflicts=np.zeros((n, n), np.int64),
        disputed=np.zeros(n, np.int64),
        masks=np.zeros((n, len(MASKS)), np.int64),
        lost=np.zeros(n, np.int64),
    )


@njit(inline="always", **JIT)
def _count_masks(x, a, t, k, epsilon, same_dtype, base_code, recoded, rounded, masks):
    """Agent t's changed elements of one block under each of `MASKS`."""
    beyond, different = np.uint32(0), np.uint32(0)
    for i in range(k):
        beyond += np.uint32(abs(a[i] - x[i]) > epsilon)
        different += np.uint32(a[i] != x[i])
    visible = different
    if not same_dtype:
        encode(a, base_code, 0, k, recoded)
        decode(recoded, base_code, 0, k, rounded)
        visible = np.uint32(0)
        for i in range(k):
            visible += np.uint32(rounded[i] != x[i])
    masks[t, 0] += beyond
    masks[t, 1] += different
    masks[t, 2] += visible


@njit(inline="always", **JIT)
def _count_lost(x, a, k, bit, pattern, out_code, recoded, stored, ours):
    """Changed elements of one block that storing both models would make equal."""
    encode(x, out_code, 0, k, recoded)
    decode(recoded, out_code, 0, k, stored)
    encode(a, out_code, 0, k, recoded)
    decode(recoded, out_code, 0, k, ours)
    gone = np.uint32(0)
    for i in range(k):
        gone += np.uint32(ours[i] == stored[i]) & np.uint32(pattern[i] & bit != 0)
    return gone


@njit(inline="always", **JIT)
def _differences(x, a, k, row, partial):
    """Task vector of one block into ``row``, in float64; returns its largest magnitude."""
    for i in range(k):
        row[i] = np.float64(a[i]) - np.float64(x[i])
    for i in range(k, BLOCK):
        row[i] = 0.0
    q0, q1, q2, q3 = (
        row[:QUARTER],
        row[QUARTER : 2 * QUARTER],
        row[2 * QUARTER : 3 * QUARTER],
        row[3 * QUARTER :],
    )
    for i in range(
        QUARTER
    ):  # halving, here and in `_product`: comparisons in a row would wait for one another
        upper = max(abs(q0[i]), abs(q1[i]))
        lower = max(abs(q2[i]), abs(q3[i]))
        partial[i] = max(upper, lower)
    largest = 0.0
    for i in range(QUARTER):
        largest = max(largest, partial[i])
    return largest


@njit(**JIT)
def _product(u, v, partial):
    """Inner product of float64 ``[BLOCK]`` rows, added as a tree of fixed shape: the same bits on every processor."""
    u0, u1, u2, u3 = (
        u[:QUARTER],
        u[QUARTER : 2 * QUARTER],
        u[2 * QUARTER : 3 * QUARTER],
        u[3 * QUARTER :],
    )
    v0, v1, v2, v3 = (
        v[:QUARTER],
        v[QUARTER : 2 * QUARTER],
        v[2 * QUARTER : 3 * QUARTER],
        v[3 * QUARTER :],
    )
    for i in range(QUARTER):
        partial[i] = (u0[i] * v0[i] + u1[i] * v1[i]) + (u2[i] * v2[i] + u3[i] * v3[i])
    half = QUARTER // 2
    while half:
        upper = partial[half : 2 * half]
        for i in range(half):
            partial[i] += upper[i]
        half //= 2
    return partial[0]


@njit(inline="always", **JIT)
def _count_exponents(x, a, k, bit, pattern, exponent, tables):
    """Binary exponents of one block's changes. Unchanged elements go to entry 0, which is cleared in the end."""
    for i in range(k):
        seen = float_to_bits(np.float32(abs(a[i] - x[i]))) >> np.uint32(23)
        exponent[i] = seen if pattern[i] & bit else np.uint32(0)
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    whole = k // TABLES * TABLES
    for i in range(0, whole, TABLES):
        four = exponent[i : i + TABLES]
        t0[four[0]] += np.uint32(1)
        t1[four[1]] += np.uint32(1)
        t2[four[2]] += np.uint32(1)
        t3[four[3]] += np.uint32(1)
    for i in range(whole, k):
        t0[exponent[i]] += np.uint32(1)


@njit(**JIT)
def _count_conflicts(up, down, n, k, conflicts, disputed):
    """Opposite directions in one block, by pair and by agent."""
    for t in range(n):
        mine = np.uint32(t)
        against = np.uint32(0)
        for i in range(k):
            rises, falls = (up[i] >> mine) & np.uint32(1), (down[i] >> mine) & np.uint32(1)
            against += rises & np.uint32(down[i] != 0) | falls & np.uint32(up[i] != 0)
        disputed[t] += against
        for u in range(t + 1, n):
            other = np.uint32(u)
            apart = np.uint32(0)
            for i in range(k):
                opposed = (up[i] >> mine) & (down[i] >> other) | (down[i] >> mine) & (
                    up[i] >> other
                )
                apart += opposed & np.uint32(1)
            conflicts[t, u] += apart
            conflicts[u, t] += apart


@njit(**JIT)
def _measure_agents(base_code, codes, k, bound, out_code, scratch, room, sums):
    """All that concerns one agent at a time, of one block; sets ``room.rows[1:]``, ``room.up`` and ``room.down``."""
    x, pattern, up, down = scratch.x, scratch.pattern, room.up, room.down
    stored, ours = scratch.spare[0], scratch.spare[1]
    for i in range(k):
        up[i] = np.uint32(0)
        down[i] = np.uint32(0)
    for t in range(codes.size):
        a, bit, same = scratch.theta[t], np.uint32(1) << np.uint32(t), codes[t] == base_code
        largest = _differences(x, a, k, room.rows[1 + t], room.partial)
        sums.largest[t] = max(sums.largest[t], largest)
        _count_masks(x, a, t, k, bound, same, base_code, room.recoded, ours, sums.masks)
        if not same or out_code != base_code:  # what is stored as it is loses nothing
            sums.lost[t] += _count_lost(x, a, k, bit, pattern, out_code, room.recoded, stored, ours)
        _count_exponents(x, a, k, bit, pattern, room.exponent, room.tables[t])
        for i in range(k):
            mine = pattern[i] & bit
            up[i] |= mine if a[i] > x[i] else np.uint32(0)
            down[i] |= mine if a[i] < x[i] else np.uint32(0)


@njit(**JIT)
def _multiply(x, k, streams, rows, partial, out):
    """Products of the base's values, which become row 0, and of all task vectors of one block."""
    first = rows[0]
    for i in range(k):
        first[i] = x[i]
    for i in range(k, BLOCK):
        first[i] = 0.0
    for p in range(1 + streams):
        u = rows[p]
        for q in range(p, 1 + streams):
            out[p, q] = out[q, p] = _product(u, rows[q], partial)


@njit(**JIT)
def _collect(tables, exponents):
    """Add up and clear the histograms; entry 0, where unchanged elements went, counts nothing."""
    for t in range(tables.shape[0]):
        for table in tables[t]:
            for e in range(1, EXPONENTS):
                exponents[t, e] += table[e]
            table[:] = 0


@njit(**JIT)
def measure_chunk(
    base, base_code, agents, codes, n, epsilon, grid, bound, out_code, scratch, room, sums, products, counts, patterns,
):  # fmt: skip
    """Measure one chunk, block by block.

    Args:
        base: raw chunk; the arguments up to ``grid`` are those of `kernels.fuse.count`.
        base_code: dtype of ``base``.
        agents: raw chunks, uint8 ``[N, capacity]``.
        codes: int64 ``[N]``.
        n: elements in the chunk.
        epsilon: the mask in force.
        grid: the mask in force.
        bound: epsilon of the `abs` mask, whatever is in force.
        out_code: dtype that a merge would be stored in.
        scratch: a `kernels.fuse.Scratch`.
        room: a `Room`.
        sums: a `Sums`, added to.
        products: float64 ``[blocks, 1 + N, 1 + N]``, set: products of the base's values (row 0) and the task vectors.
        counts: int64 ``[2^N]``, added to; or
        patterns: uint32 ``[n]``, filled where its size is not 0, as in `kernels.fuse.count`.

    Returns:
        Flags of non-finite inputs, as `kernels.fuse.load` gives them.
    """
    streams = codes.size
    flags = np.uint64(0)
    for b in range(products.shape[0]):
        at = b * BLOCK
        k = min(BLOCK, n - at)
        flags |= load(
            base, base_code, agents, codes, at, k, epsilon, grid, 0,
            scratch.x, scratch.theta, scratch.pattern, scratch.contributors,
        )  # fmt: skip
        if patterns.size:
            patterns[at : at + k] = scratch.pattern[:k]
        else:
            tally(scratch.pattern, k, streams, counts)
        _measure_agents(base_code, codes, k, bound, out_code, scratch, room, sums)
        _multiply(scratch.x, k, streams, room.rows, room.partial, products[b])
        if streams > 1:
            _count_conflicts(room.up, room.down, streams, k, sums.conflicts, sums.disputed)
    _collect(room.tables, sums.exponents)
    return flags


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

    def __add__(self, other: Measures) -> Measures:
        return Measures(
            overlap=self.overlap + other.overlap,
            gram=self.gram + other.gram,
            largest=np.maximum(self.largest, other.largest),
            exponents=self.exponents + other.exponents,
            conflicts=self.conflicts + other.conflicts,
            disputed=self.disputed + other.disputed,
            masks=self.masks + other.masks,
            lost=self.lost + other.lost,
        )


@dataclass(frozen=True, slots=True)
class ChunkMeasures:
    """What the kernel found in a chunk; ``products`` by block: float64 ``[blocks, 1 + N, 1 + N]``."""

    overlap: Overlap
    sums: Sums
    products: F64


def measure(worker: Any, counts: I64, *, bound: float, out_code: int) -> tuple[int, Sums, F64]:
    """Measure the chunk in a worker's buffers (`chunks.Worker`).

    Args:
        worker: whose ``patterns`` are filled where they have room.
        counts: int64 ``[2^N]``, added to; or empty.
        bound: epsilon of the `abs` mask.
        out_code: dtype that a merge would be stored in.

    Returns:
        Flags of non-finite inputs, sums, and products by block.
    """
    w, n = worker, len(worker.plan.agents)
    sums = _sums(n)
    products = np.zeros((-(-w.n // BLOCK), 1 + n, 1 + n))
    flags = measure_chunk(
        w.base, w.base_code, w.agents, w.codes, w.n, w.real(w.plan.epsilon), w.plan.grid, w.real(bound),
        out_code, w.scratch, _room(n), sums, products, counts, w.patterns[: w.n],
    )  # fmt: skip
    return flags, sums, products


def nothing(agents: int) -> Measures:
    """The record of no elements."""
    return Measures(Overlap(agents), np.zeros((1 + agents, 1 + agents)), *_sums(agents))


def extend(record: Measures, chunk: ChunkMeasures) -> Measures:
    """A tensor's record with its next chunk; products are added block by block, so that chunks leave no trace."""
    gram = np.add.accumulate(np.concatenate([record.gram[None], chunk.products]))[-1]
    added = record + Measures(chunk.overlap, record.gram, *chunk.sums)
    return replace(added, gram=gram)


def total(agents: int, parts: Iterable[Measures]) -> Measures:
    """The record of all elements of ``parts``, added in order."""
    return sum(parts, start=nothing(agents))
