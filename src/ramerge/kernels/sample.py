"""What a merge did, read back from a fixed sample of blocks: effective λ, and changes lost to rounding (SPEC 5).

Each tensor contributes at most `MOST` blocks of `BLOCK` elements, evenly spaced, so small tensors are read whole. The
positions depend on the tensor's size alone, never on chunks or threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ramerge._types import I64
from ramerge.kernels.codec import JIT, decode, encode
from ramerge.kernels.fuse import load
from ramerge.kernels.limits import BLOCK

MOST = 16


def blocks(elements: int, most: int = MOST) -> I64:
    """First elements of the sampled blocks of a tensor, ascending; all of them where there are at most ``most``."""
    total = -(-elements // BLOCK)
    if total <= most:
        return np.arange(total, dtype=np.int64) * BLOCK
    return (np.arange(most, dtype=np.int64) * total // most) * BLOCK


@njit(**JIT)
def diagnose(
    base, base_code, agents, codes, at, k, epsilon, grid, auxiliary, out, out_code, scratch, sums, tallies
):  # fmt: skip
    """Add one sampled block of a merged chunk to its records.

    Args:
        base: raw chunk, uint8; the arguments up to ``auxiliary`` are those of `kernels.fuse.load`.
        base_code: dtype of ``base``.
        agents: raw chunks, uint8 ``[N, capacity]``.
        codes: their dtypes, int64 ``[N]``.
        at: first element of the block within the chunk.
        k: elements in the block.
        epsilon: mask.
        grid: mask.
        auxiliary: streams at the end that are no agents.
        out: raw merged chunk, uint8.
        out_code: its dtype.
        scratch: a `kernels.fuse.Scratch`.
        sums: float64 ``[2, N]``: over t's unique elements, ⟨merged - base, τ⟩ and ⟨τ, τ⟩ are added.
        tallies: int64 ``[1 + N, 2]``: changed elements, and those that came out as the base although they do not
            cancel; row 0 of any agent, row 1 + t of agent t.
    """
    x, theta, pattern = scratch.x, scratch.theta, scratch.pattern
    y, stored = scratch.y, scratch.spare[0]
    load(
        base, base_code, agents, codes, at, k, epsilon, grid, auxiliary, x, theta, pattern, scratch.contributors
    )  # fmt: skip
    decode(out, out_code, at, k, y)
    room = np.empty(8 * k, np.uint8)
    encode(x, out_code, 0, k, room)
    decode(room, out_code, 0, k, stored)
    for i in range(k):
        if pattern[i] != np.uint32(0):
            moved = 0.0
            for t in range(sums.shape[1]):
                if pattern[i] >> np.uint32(t) & np.uint32(1):
                    moved += np.float64(theta[t, i]) - np.float64(x[i])
            lost = np.int64(y[i] == stored[i] and moved != 0.0)  # changes that cancel are not lost
            tallies[0, 0] += 1
            tallies[0, 1] += lost
            for t in range(sums.shape[1]):
                if pattern[i] >> np.uint32(t) & np.uint32(1):
                    tallies[1 + t, 0] += 1
                    tallies[1 + t, 1] += lost
                if pattern[i] == np.uint32(1) << np.uint32(t):
                    tau = np.float64(theta[t, i]) - np.float64(x[i])
                    sums[0, t] += (np.float64(y[i]) - np.float64(x[i])) * tau
                    sums[1, t] += tau * tau
