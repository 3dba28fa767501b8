"""Averages of the values themselves: the plainest merges, and Fisher-weighted ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

from ramerge._signature import Doc, Gt, PerAgent, PerTensor
from ramerge.methods import sparse_rules as rules
from ramerge.methods.base import EACH, Context, Weight, elementwise

Normalize = Annotated[bool, Doc("divide by the sum of the weights")]


@elementwise(
    rule=rules.average_values,
    title="Linear (model soup)",
    reference="arXiv 2203.05482",
    everywhere=True,
    base="member",
    aliases={"average": None, "model_soup": None},
)
def linear(context: Context, *, weight: Weight = EACH, normalize: Normalize = True) -> Any:
    """The weighted average of the agents' values: Σ w_t θt / Σ w_t.

    Needs no base; a base listed among the models is one of them.
    """
    total = math.fsum(weight) if normalize else 1.0
    return rules.Average(context.array(w / total for w in weight))


@elementwise(
    rule=rules.fisher_average,
    title="Fisher-weighted average",
    reference="arXiv 2111.09832",
    everywhere=True,
    auxiliary="fisher",
    base="member",
    cost="one read of the agents and of their Fisher weights; memory of the chunk buffers",
)
def fisher(
    context: Context,
    *,
    fisher: Annotated[
        tuple[Path, ...],
        Doc("safetensors file of the agent's diagonal Fisher information"),
        PerAgent,
    ],
    weight: Weight = EACH,
    floor: Annotated[float, Doc("the least Fisher weight of an element"), Gt(0)] = 1e-6,
) -> Any:
    """Every element averaged by how sure each agent is of it: Σ F_t θt / Σ F_t, F the diagonal Fisher information.

    ``weight`` multiplies an agent's F. Tensors of F have the names and shapes of the model's; `ramerge fisher` makes them.
    """
    del fisher
    return rules.Fisher(context.array(weight), context.number(floor))


@elementwise(
    rule=rules.average_values,
    title="Passthrough",
    reference="mergekit's passthrough",
    everywhere=True,
    base="member",
    max_agents=1,
)
def passthrough(
    context: Context, *, scale: Annotated[float, Doc("multiplies every value"), PerTensor] = 1.0
) -> Any:
    """The one model as it is, perhaps scaled; for stacking layers with slices and for casting."""
    return rules.Average(context.array([scale]))
