"""What a merge did, read back from a fixed sample of blocks: effective λ (SPEC 5).

Each tensor contributes at most `MOST` blocks of `BLOCK` elements, evenly spaced, so small tensors are read whole. The
positions depend on the tensor's size alone, never on chunks or threads.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ramerge._types import I64
from ramerge.kernels.codec import JIT, decode
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
    base, base_code, agents, codes, at, k, epsilon, grid, auxiliary, out, out_code, scratch, sums
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
    """
    x, theta, pattern, y = scratch.x, scratch.theta, scratch.pattern, scratch.y
    load(
        base, base_code, agents, codes, at, k, epsilon, grid, auxiliary, x, theta, pattern, scratch.contributors
    )  # fmt: skip
    decode(out, out_code, at, k, y)
    for t in range(sums.shape[1]):
        a, alone = theta[t], np.uint32(1) << np.uint32(t)
        for i in range(k):
            if pattern[i] == alone:
                tau = np.float64(a[i]) - np.float64(x[i])
                sums[0, t] += (np.float64(y[i]) - np.float64(x[i])) * tau
                sums[1, t] += tau * tau
