"""What each method costs: seconds and working memory on task vectors drawn at random.

Seconds are those of the processor, in a process of one thread: on a busy machine the clock on the
wall measures the other programs.
"""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import torch

from ramerge.lab.arms import Arm, Case, leads, methods
from ramerge.lab.model import Weights
from ramerge.lab.processes import apart
from ramerge.lab.regimes import DENSITIES

TENSORS, ROWS, COLUMNS = 8, 256, 512  # 1 M parameters


def drawn_case() -> Case:
    """A base and three agents with the paper's densities, drawn at random."""
    generator = torch.Generator().manual_seed(0)

    def matrices(scale: float, density: float) -> Weights:
        made = {}
        for index in range(TENSORS):
            values = torch.randn(ROWS, COLUMNS, generator=generator) * scale
            keep = torch.rand(ROWS, COLUMNS, generator=generator) < density
            made[f"model.layers.{index}.mlp.up_proj.weight"] = values * keep
        return made

    base = matrices(0.02, 1.0)
    agents = {}
    for name, density in DENSITIES.items():
        change = matrices(1e-3, density)
        agents[name] = {n: w + change[n] for n, w in base.items()}
    return Case(base, agents, {}, {}, seed=0)


def measure() -> list[dict[str, Any]]:
    """Best processor seconds of two; peak of numpy's and Python's memory over the model's."""
    return apart(_measure)


def _measure() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    case = drawn_case()
    size = sum(w.numel() * w.element_size() for w in case.base.values())
    rows = []
    for arm in [*methods(len(case.agents)), *leads()]:
        if not _measurable(arm):
            continue
        arm.make(case)  # compiles the kernels
        best = float("inf")
        for _ in range(2):
            started = time.process_time()
            arm.make(case)
            best = min(best, time.process_time() - started)
        tracemalloc.start()
        arm.make(case)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rows.append({"arm": arm.name, "seconds": round(best, 4), "memory": round(peak / size, 2)})
    return rows


def _measurable(arm: Arm) -> bool:
    """Fisher goes through files, and the unscaled leads are the same merges as the scaled ones."""
    return arm.name != "fisher" and (arm.kind != "lead" or arm.scaled)
