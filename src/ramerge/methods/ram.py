"""RAM, RAM+ and RAM-soft: Reinforced Agent Merging (arXiv 2601.13572, sections 4.1-4.3 and appendix E).

On-policy RL changes few weights, and each agent changes different ones. Elements that several agents changed are
averaged over those that did (never over all N); what one agent alone changed is kept whole, and in RAM+ scaled up by
λ, the more so the more of that agent's other changes were averaged away. ρ and λ are counted over the whole model
unless `scope` says otherwise; the authors' script does so, and per-tensor tools do not.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np

from ramerge._signature import Doc, Ge, Le
from ramerge.methods import rules
from ramerge.methods.base import (
    EACH,
    Context,
    Epsilon,
    Gamma,
    Mask,
    Rule,
    Scope,
    Shared,
    Values,
    Weight,
    elementwise,
)
from ramerge.probes.overlap import Overlap

Bonus = Annotated[float, Doc("how much of ρ is added to 1 as the scale of unique elements"), Ge(0)]
Alpha = Annotated[float, Doc("upper end at which ρ is clipped"), Ge(0), Le(math.inf)]

PRESETS = MappingProxyType(
    {
        "paper": {"r": 0.10, "alpha": 1.0, "scope": "model"},
        "authors-readme": {"r": 0.20, "alpha": 1.0, "scope": "model"},
        "mergekit": {"r": 0.10, "alpha": 0.2, "scope": "tensor"},
    }
)


def shared_rule(values: Values) -> Rule:
    """The block rule for a `shared` setting."""
    return {"elect": rules.elect, "largest": rules.largest}.get(values["shared"], rules.average)


def scales(context: Context, shared: str, gamma: float, weight: tuple[float, ...]) -> rules.Scales:
    """Coefficients of the block rules: λ·weight on unique elements, a divisor per number of contributors."""
    exponent = {"sum": 0.0, "power": gamma}.get(shared)
    counts = np.arange(1, context.agents + 1, dtype=np.float64)
    divisor = [] if exponent is None else [1.0, *(counts**exponent)]
    unique = [lam * w for lam, w in zip(context.lambdas, weight, strict=True)]
    return rules.Scales(context.array(weight), context.array(unique), context.array(divisor))


def one(overlap: Overlap, values: Values) -> tuple[float, ...]:
    """RAM: λ = 1."""
    del values
    return (1.0,) * overlap.agents


def clipped(overlap: Overlap, values: Values) -> tuple[float, ...]:
    """RAM+: λt = 1 + r·clip(ρt, 0, alpha)."""
    r, alpha = values["r"], values["alpha"]
    return tuple(1.0 + r * min(overlap.rho(t), alpha) for t in range(overlap.agents))


def soft(overlap: Overlap, values: Values) -> tuple[float, ...]:
    """RAM-soft: λt = 1 + r·ρt/(1 + ρt), the share of agent t's changed elements that others changed too."""

    def share(t: int) -> float:
        changed = overlap.changed(t)
        return overlap.shared(t) / changed if changed else 0.0

    return tuple(1.0 + values["r"] * share(t) for t in range(overlap.agents))


@elementwise(
    rule=shared_rule,
    chooses=True,
    title="RAM",
    reference="arXiv 2601.13572, section 4.2",
    masked=True,
    lambdas=one,
    aliases=MappingProxyType({"ram_tl": None}),
)
def ram(
    context: Context,
    *,
    epsilon: Epsilon = 1e-5,
    mask: Mask = "abs",
    shared: Shared = "mean",
    gamma: Gamma = 0.5,
    weight: Weight = EACH,
) -> Any:
    """Shared elements averaged over the agents that changed them, unique elements kept whole.

    θ0 + (Σ over contributors τt)/c where c agents changed the element; the agent's own value where c = 1; the base
    where none did.
    """
    del epsilon, mask
    return scales(context, shared, gamma, weight)


@elementwise(
    rule=shared_rule,
    chooses=True,
    title="RAM+",
    reference="arXiv 2601.13572, section 4.3",
    masked=True,
    lambdas=clipped,
    presets=PRESETS,
    aliases=MappingProxyType({"ramplus_tl": "mergekit", "ramplus": None}),
    cost="one read of the inputs where the guessed λ proves right, two where not; memory of the chunk buffers",
)
def ram_plus(
    context: Context,
    *,
    r: Bonus = 0.1,
    alpha: Alpha = 1.0,
    epsilon: Epsilon = 1e-5,
    mask: Mask = "abs",
    scope: Scope = "model",
    shared: Shared = "mean",
    gamma: Gamma = 0.5,
    weight: Weight = EACH,
) -> Any:
    """RAM with unique elements scaled by λt = 1 + r·clip(ρt, 0, alpha), ρt = shared/unique counted exactly.

    No unique element: ρ = ∞ and λ = 1 + r·alpha. Nothing changed at all: ρ = 0 and λ = 1.
    """
    del r, alpha, epsilon, mask, scope
    return scales(context, shared, gamma, weight)


@elementwise(
    rule=shared_rule,
    chooses=True,
    title="RAM-soft",
    reference="arXiv 2601.13572, appendix E",
    masked=True,
    lambdas=soft,
    cost="two reads of the inputs (λ depends on every count); memory of the chunk buffers",
)
def ram_soft(
    context: Context,
    *,
    r: Bonus = 0.1,
    epsilon: Epsilon = 1e-5,
    mask: Mask = "abs",
    scope: Scope = "model",
    shared: Shared = "mean",
    gamma: Gamma = 0.5,
    weight: Weight = EACH,
) -> Any:
    """RAM with unique elements scaled smoothly: λt = 1 + r·shared/(shared + unique), without a clip."""
    del r, epsilon, mask, scope
    return scales(context, shared, gamma, weight)
