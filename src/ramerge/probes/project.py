"""Projections of a merge on the agents' task vectors, region by region."""

from __future__ import annotations

import numpy as np
from numba import njit

from ramerge.kernels.codec import JIT


@njit(**JIT)
def project(x, y, taus, epsilon, out):
    """Add one piece to ``out`` float64 ``[N, 2, 3]``: per agent and region (unique, shared) m·τ, τ·τ and m·m.

    ``x`` base and ``y`` merged values ``[n]``, ``taus`` task vectors ``[N, n]``; changed means |τ| > epsilon.
    """
    n = taus.shape[0]
    for i in range(x.size):
        c = 0
        for t in range(n):
            c += abs(taus[t, i]) > epsilon
        if c == 0:
            continue
        region = 0 if c == 1 else 1
        moved = np.float64(y[i]) - np.float64(x[i])
        for t in range(n):
            tau = np.float64(taus[t, i])
            if abs(taus[t, i]) > epsilon:
                out[t, region, 0] += moved * tau
                out[t, region, 1] += tau * tau
                out[t, region, 2] += moved * moved
