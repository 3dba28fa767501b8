"""How an agent's weights are stored while it learns, which decides where its task vector is sparse.

- ``natural``: fp32 master weights and AdamW, as in the usual recipe; rounded to BF16 only when
  saved. A model this small moves almost every weight, so its task vectors are dense: the paper's
  sparsity does *not* arise by itself.
- ``bf16``: the weights are rounded to BF16 after every step, so a step below half a unit in the
  last place is lost. Real sparsity, on supports that overlap far more than the paper's.
- ``geometry``: updates confined to fixed random masks of the densities that the paper reports (3.2,
  46.2, 54.3 %). The paper's geometry by construction; nothing natural is claimed for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Regime = Literal["natural", "bf16", "geometry"]
REGIMES: dict[Regime, str] = {
    "natural": "fp32 master weights, rounded to BF16 when saved",
    "bf16": "weights rounded to BF16 after every step",
    "geometry": "updates confined to random masks of the paper's densities",
}
DENSITIES = {"coding": 0.032, "tools": 0.462, "memory": 0.543}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Length and size of the reinforcement learning of one agent."""

    steps: int
    rate: float


SCHEDULES: dict[Regime, dict[str, Schedule]] = {
    "natural": {
        "coding": Schedule(40, 3e-4),
        "tools": Schedule(40, 3e-4),
        "memory": Schedule(40, 3e-4),
    },
    "bf16": {
        "coding": Schedule(40, 2e-4),
        "tools": Schedule(40, 2e-4),
        "memory": Schedule(40, 3e-4),
    },
    "geometry": {
        "coding": Schedule(80, 2e-3),
        "tools": Schedule(40, 5e-4),
        "memory": Schedule(40, 5e-4),
    },
}


def masks(weights: Mapping[str, Tensor], density: float, seed: int) -> dict[str, Tensor]:
    """A random boolean mask for each weight, true with probability ``density``."""
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.rand(w.shape, generator=generator) < density for n, w in weights.items()}
