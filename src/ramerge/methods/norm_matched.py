"""The control that every RAM result is held against: task arithmetic with as long a step as RAM's.

Much of what a merge gains comes from how far it moves, not from where; this has RAM's length and plain addition's direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numba import njit

from ramerge.kernels.codec import JIT
from ramerge.kernels.fuse import load
from ramerge.kernels.limits import BLOCK
from ramerge.methods import sparse_rules as rules
from ramerge.methods.base import EACH, Context, Epsilon, Mask, Weight, elementwise


@njit(**JIT)
def _block_norms(base, base_code, agents, codes, at, k, epsilon, grid, scratch, weight, out):
    """Squared lengths of RAM's and of the summed task vector in one block, into float64 ``out[2]``."""
    x, theta, pattern, contributors = (
        scratch.x,
        scratch.theta,
        scratch.pattern,
        scratch.contributors,
    )
    load(base, base_code, agents, codes, at, k, epsilon, grid, 0, x, theta, pattern, contributors)
    ram, summed = 0.0, 0.0
    for i in range(k):
        kept, whole = 0.0, 0.0
        for t in range(weight.size):
            tau = weight[t] * (np.float64(theta[t, i]) - np.float64(x[i]))
            whole += tau
            if pattern[i] >> np.uint32(t) & np.uint32(1):
                kept += tau
        ram += (kept / max(contributors[i], np.uint32(1))) ** 2
        summed += whole**2
    out[0], out[1] = ram, summed


class _Norms:
    """``context.facts["norms"]``: (‖τ_RAM‖, ‖Σ τ‖) over the whole model, in float64."""

    name = "norms"

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._weight = np.array(values["weight"], np.float64)

    def visit(self, worker: Any, task: Any, facts: Mapping[str, Any]) -> Any:
        """Squared lengths of every block of a chunk: float64 ``[blocks, 2]``."""
        del task, facts
        w, plan = worker, worker.plan
        starts = range(0, w.n, BLOCK)
        out = np.zeros((len(starts), 2))
        for b, at in enumerate(starts):
            _block_norms(
                w.base, w.base_code, w.agents, w.codes, at, min(BLOCK, w.n - at), w.real(plan.epsilon), plan.grid,
                w.scratch, self._weight, out[b],
            )  # fmt: skip
        return out

    def fold(
        self, records: Iterable[tuple[Any, int, Any]], facts: Mapping[str, Any]
    ) -> tuple[float, float]:
        """Lengths over all tensors, exactly rounded sums."""
        del facts
        blocks = [record for _, _, record in records]
        stacked = np.concatenate(blocks) if blocks else np.zeros((0, 2))
        return math.sqrt(math.fsum(stacked[:, 0])), math.sqrt(math.fsum(stacked[:, 1]))


@elementwise(
    rule=rules.sum_all,
    title="Norm-matched task arithmetic",
    reference="the control of docs/evidence/lab.md",
    masked=True,
    needs=(_Norms,),
    cost="two reads of the inputs (lengths, merge); memory of the chunk buffers",
)
def norm_matched(
    context: Context, *, epsilon: Epsilon = 1e-5, mask: Mask = "abs", weight: Weight = EACH
) -> Any:
    """Task arithmetic with λ = ‖τ_RAM‖ / ‖Σ τ‖ over the whole model: RAM's step length, plain addition's direction."""
    del epsilon, mask
    ram, summed = context.facts["norms"]
    return rules.Dense(
        context.array(weight), context.number(ram / summed if summed else 0.0), normalize=False
    )
