"""NearSwap: take the other model's value where it is close, stay where it is far."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from ramerge._signature import Doc, Gt, PerTensor
from ramerge.methods.base import Context, elementwise


class Near(NamedTuple):
    """``t``: the distance up to which the agent's value is taken whole; working dtype."""

    t: Any


def near(x, theta, pattern, contributors, k, start, coef, out, spare):
    """X + min(t / |a - x|, 1) · (a - x)."""
    a = theta[0]
    for i in range(k):
        tau = a[i] - x[i]
        distance = abs(tau)
        share = coef.t / max(distance, np.float32(1e-30))
        moved = x[i] + share * tau
        out[i] = a[i] if distance <= coef.t else moved


@elementwise(rule=near, title="NearSwap", reference="mergekit's nearswap", max_agents=1)
def nearswap(
    context: Context,
    *,
    t: Annotated[
        float,
        Doc("up to this distance from the base the agent's value is taken whole"),
        Gt(0),
        PerTensor,
    ],
) -> Any:
    """The base, moved by at most ``t`` towards the agent: θ0 + min(t/|τ|, 1)·τ, element by element."""
    return Near(context.number(t))
