"""Signal dilution: how much of what each agent learned survives a merge?

arXiv 2601.13572, figure 3 and appendix D. For each agent and region (its unique and its shared elements): the
projection ⟨merged - base, τ⟩ / ⟨τ, τ⟩, which is 1 where
the agent's change is kept whole, 1/N where it is averaged away, and the ratio of lengths. Measured on the merge's own
output before it would be written, over all elements; regions are those of the probe's mask.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from ramerge._types import F64, Bytes, Json
from ramerge.planning.plan import Plan
from ramerge.probes.project import project
from ramerge.run import engine
from ramerge.run.chunks import Executor, Progress

EPSILON = 1e-5


class _Projector:
    """A sink that keeps sums instead of bytes: it reads the inputs of every piece again and compares."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tensors = {t.name: t for t in plan.tensors}
        self._sums: dict[tuple[str, int], F64] = {}
        self._lock = threading.Lock()

    def write(self, name: str, start: int, data: Bytes) -> None:
        """Project a merged piece."""
        from ramerge.run.nonfinite import numbers

        tensor, plan = self._tensors[name], self._plan
        if tensor.action != "merge":
            return
        y = numbers(data, tensor.output.dtype)
        stop = start + y.size
        x = self._values(plan.base, tensor.base, start, stop)
        taus = np.stack(
            [
                self._values(c, s, start, stop) - x if s is not None else np.zeros_like(x)
                for c, s in zip(plan.agents, tensor.agents, strict=True)
            ]
        )
        sums = np.zeros((len(taus), 2, 3))
        project(x, y.astype(x.dtype), taus, x.dtype.type(EPSILON), sums)
        with self._lock:
            self._sums[name, start] = sums

    @staticmethod
    def _values(checkpoint: Any, spec: Any, start: int, stop: int) -> Any:
        from ramerge.run.nonfinite import numbers

        raw = np.empty((stop - start) * spec.dtype.itemsize, np.uint8)
        checkpoint.read(spec.name, start, stop, raw)
        return numbers(raw, spec.dtype)

    def finish(self, name: str, record: Json) -> None:
        """Nothing to remember."""

    @property
    def finished(self) -> Mapping[str, Json]:
        """Always empty."""
        return {}

    def total(self) -> F64:
        """Sums over all pieces, in order: float64 ``[N, 2, 3]``."""
        pieces = [self._sums[key] for key in sorted(self._sums)]
        empty = np.zeros((len(self._plan.agents), 2, 3))
        whole: F64 = np.add.reduce([empty, *pieces])
        return whole


def dilute(plan: Plan, *, run: Executor, progress: Progress | None = None) -> Json:
    """Merge without writing, and measure what survives: one row of the report's dilution table."""
    sink = _Projector(plan)
    engine.merge(plan, sink, run=run, progress=progress)
    agents = [
        {"name": name, "unique": _row(sums[0]), "shared": _row(sums[1])}
        for name, sums in zip(plan.agent_names, sink.total(), strict=True)
    ]
    return {"method": plan.method.name, "agents": agents}


def _row(sums: F64) -> Json:
    """Projection and ratio of lengths of one region; None where the agent changed nothing there."""
    dot, own, merged = (float(s) for s in sums)
    if own == 0:
        return {"projection": None, "norm_ratio": None}
    return {"projection": dot / own, "norm_ratio": math.sqrt(merged / own)}
