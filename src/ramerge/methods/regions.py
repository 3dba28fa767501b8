"""Region checkpoints: what does an agent's unique, or its shared, region do by itself?

Not merges but experiments (arXiv 2601.13572, section 3.3): the base plus one agent's task vector on one region,
scaled. Regions are counted among all
agents given.
"""

from __future__ import annotations

from typing import Annotated, Any

from ramerge._signature import Doc, Ge
from ramerge.methods import rules
from ramerge.methods.base import Context, Epsilon, Mask, elementwise

Position = Annotated[int, Doc("which agent, by position in config order, counted from 1"), Ge(1)]
Scale = Annotated[
    float, Doc("multiplies the task vector on the region; 1 takes the agent's own values")
]


def _region(context: Context, agent: int, scale: float, *, shared: bool) -> Any:
    index = min(agent, context.agents) - 1
    return rules.Region(index, context.number(scale), shared)


@elementwise(
    rule=rules.region,
    title="Unique region only",
    reference="arXiv 2601.13572, section 3.3",
    masked=True,
)
def unique_only(
    context: Context,
    *,
    agent: Position = 1,
    scale: Scale = 1.0,
    epsilon: Epsilon = 1e-5,
    mask: Mask = "abs",
) -> Any:
    """The base plus scale·τt on the elements that only agent t changed."""
    del epsilon, mask
    return _region(context, agent, scale, shared=False)


@elementwise(
    rule=rules.region,
    title="Shared region only",
    reference="arXiv 2601.13572, section 3.3",
    masked=True,
)
def shared_only(
    context: Context,
    *,
    agent: Position = 1,
    scale: Scale = 1.0,
    epsilon: Epsilon = 1e-5,
    mask: Mask = "abs",
) -> Any:
    """The base plus scale·τt on the elements that agent t and at least one other changed."""
    del epsilon, mask
    return _region(context, agent, scale, shared=True)
