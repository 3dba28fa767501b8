"""Experiments that could refute RAM: the same step without its partition, or with another.

Each is a few lines of algebra on task vectors; none is offered as a merge method. A RAM-like merge
is a factor for each element times the sum of the masked task vectors: 1 on unique elements, 1/c on
shared ones. The controls change where the factors stand, or what they are, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ramerge.lab.merging import flat, moved, task_vector, unflat
from ramerge.lab.model import Weights

EPSILON = 1e-5


def vectors(base: Weights, agents: Mapping[str, Weights]) -> Tensor:
    """Task vectors ``[N, n]``; changes of at most epsilon are zero."""
    taus = torch.stack([flat(task_vector(base, a)) for a in agents.values()])
    return taus * (taus.abs() > EPSILON)


def random_partition(base: Weights, agents: Mapping[str, Weights], seed: int) -> Weights:
    """RAM with its factors dealt out at random among the changed elements: as many of each."""
    taus = vectors(base, agents)
    contributors = (taus != 0).sum(0)
    changed = contributors > 0
    factors = 1.0 / contributors[changed]
    order = torch.randperm(len(factors), generator=torch.Generator().manual_seed(seed))
    merged = torch.zeros_like(taus[0])
    merged[changed] = factors[order] * taus.sum(0)[changed]
    return moved(base, unflat(merged, base))


def scaled_shared(base: Weights, agents: Mapping[str, Weights], r: float) -> Weights:
    """RAM+ upside down: the bonus goes to the shared elements, the unique ones stay as they are."""
    taus = vectors(base, agents)
    contributors = (taus != 0).sum(0).clamp(min=1)
    factors = torch.where(contributors > 1, (1 + r) / contributors, 1.0)
    return moved(base, unflat(factors * taus.sum(0), base))


def where_unique(
    base: Weights, agents: Mapping[str, Weights], unique: Weights, other: Weights
) -> Weights:
    """``unique`` on the elements that one agent alone changed, ``other`` elsewhere."""
    alone = (vectors(base, agents) != 0).sum(0) == 1
    return unflat(torch.where(alone, flat(unique), flat(other)), base)


def effective_scale(base: Weights, agents: Mapping[str, Weights], merged: Weights) -> float:
    """Mean over agents of ⟨merged, τ⟩ / ⟨τ, τ⟩: how much of its change an agent finds again."""
    vector = flat(task_vector(base, merged))
    taus = [flat(task_vector(base, a)) for a in agents.values()]
    return float(sum((vector @ t) / (t @ t) for t in taus)) / len(taus)
