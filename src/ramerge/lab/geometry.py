"""Where agents changed the base: the paper's figures 2 and 3 (left) in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ramerge.lab.controls import vectors
from ramerge.lab.merging import flat, task_vector
from ramerge.lab.model import Weights


def measure(base: Weights, agents: Mapping[str, Weights]) -> dict[str, dict[str, Any]]:
    """Density, unique share, ρ, norm and cosines of every agent, by the paper's mask."""
    taus = vectors(base, agents)
    changed = taus != 0
    contributors = changed.sum(0)
    whole = torch.stack([flat(task_vector(base, a)) for a in agents.values()])
    lengths = whole.norm(dim=1)
    cosines = (whole @ whole.T) / (lengths[:, None] * lengths[None, :])
    found = {}
    for at, name in enumerate(agents):
        unique = int((changed[at] & (contributors == 1)).sum())
        mine = int(changed[at].sum())
        found[name] = {
            "density": mine / changed.shape[1],
            "unique": unique / max(mine, 1),
            "rho": (mine - unique) / unique if unique else None,
            "norm": float(lengths[at]),
            "cosine_to": {
                other: float(cosines[at, to]) for to, other in enumerate(agents) if to != at
            },
        }
    return found
