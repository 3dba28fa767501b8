"""Inner products between models, tensor by tensor: all that interpolations on a sphere need to know of the data.

Sums run in float64 over fixed blocks and are then added exactly, so they depend on neither chunks nor threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numba import njit

from ramerge._types import F64
from ramerge.kernels.codec import JIT, decode
from ramerge.kernels.limits import BLOCK

LANES = 8  # partial sums per product, so that the additions need not wait for one another


@njit(**JIT)
def block_products(base, base_code, agents, codes, count, at, k, changes, rows, out):
    """Inner products within one block.

    Args:
        base: raw chunk, uint8.
        base_code: its dtype.
        agents: raw chunks, uint8 ``[>= count, capacity]``.
        codes: their dtypes, int64.
        count: N.
        at: first element of the block in the chunk.
        k: its elements.
        changes: task vectors instead of values; the base's own row is zero then.
        rows: scratch float64 ``[1 + N, BLOCK]``.
        out: float64 ``[1 + N, 1 + N]``, filled; row 0 is the base.
    """
    decode(base, base_code, at, k, rows[0])
    for t in range(count):
        decode(agents[t], codes[t], at, k, rows[1 + t])
    if changes:
        x = rows[0]
        for t in range(count):
            a = rows[1 + t]
            for i in range(k):
                a[i] -= x[i]
        for i in range(k):
            x[i] = 0.0
    for row in rows[: 1 + count]:
        for i in range(k, BLOCK):
            row[i] = 0.0
    lanes = np.empty(LANES, np.float64)
    for p in range(1 + count):
        u = rows[p]
        for q in range(p, 1 + count):
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


class GramProbe:
    """``context.facts["gram"][tensor]``: float64 ``[1 + N, 1 + N]``, the base in row 0 (zeros with ``changes``)."""

    name = "gram"

    def __init__(self, values: Mapping[str, Any], *, changes: bool | None = None) -> None:
        """Args: parameter values; whether to use task vectors, by default wherever a base is given."""
        self._changes = bool(values["based"]) if changes is None else changes

    def visit(self, worker: Any, task: Any, facts: Mapping[str, Any]) -> F64:
        """Products of every block of a chunk: float64 ``[blocks, 1 + N, 1 + N]``."""
        del task, facts
        count = len(worker.plan.agents)
        rows = np.zeros((1 + count, BLOCK))
        starts = range(0, worker.n, BLOCK)
        out = np.zeros((len(starts), 1 + count, 1 + count))
        for b, at in enumerate(starts):
            block_products(
                worker.base, worker.base_code, worker.agents, worker.codes, count, at,
                min(BLOCK, worker.n - at), self._changes, rows, out[b],
            )  # fmt: skip
        return out

    def fold(
        self, records: Iterable[tuple[Any, int, Any]], facts: Mapping[str, Any]
    ) -> dict[str, F64]:
        """Tensor -> sum over its blocks, exactly rounded."""
        del facts
        found: dict[str, F64] = {}
        blocks: list[F64] = []
        for tensor, start, record in records:
            blocks.append(record)
            if start + record.shape[0] * BLOCK >= tensor.output.elements:
                stacked = np.concatenate(blocks)
                blocks = []
                shape = stacked.shape[1:]
                sums = [
                    math.fsum(column)
                    for column in stacked.reshape(len(stacked), shape[0] * shape[1]).T
                ]
                found[tensor.name] = np.array(sums).reshape(shape)
        return found
