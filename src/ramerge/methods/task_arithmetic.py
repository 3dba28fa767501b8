"""Methods that add sparsified task vectors up: task arithmetic, TIES, DARE, Model Breadcrumbs, Localize-and-Stitch, Consensus.

They differ in what of a task vector is kept (everything; the largest; a random part; all but outliers) and in how what is
kept is added up (a plain sum; the sign that wins).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from ramerge._signature import Doc, Ge, Gt, Le, PerAgent, PerTensor
from ramerge.kernels.random import stream_key, threshold
from ramerge.methods import sparse_rules as rules
from ramerge.methods.base import EACH, Context, Weight, elementwise
from ramerge.probes.trim import Cut, trim

Lambda = Annotated[float, Doc("scale of the merged task vector"), PerTensor]
Normalize = Annotated[bool, Doc("divide by the sum of the weights")]
Agreeing = Annotated[
    bool, Doc("divide by the sum of the weights that agree, so that the kept are averaged")
]
Density = Annotated[
    tuple[float, ...], Doc("share of a task vector that is kept"), Ge(0), Le(1), PerAgent, PerTensor
]
Trim = Annotated[
    Literal["model", "tensor"],
    Doc("over what the largest are chosen: the whole model (the paper), or each tensor"),
]
Seed = Annotated[int, Doc("seed of the random streams"), Ge(0)]
THREE_PASSES = (
    "four reads of the inputs (upper bits, lower bits, ties, merge); memory of the chunk buffers"
)


def _scale(lam: float, weight: Sequence[float], *, normalize: bool) -> float:
    total = math.fsum(weight)
    return lam / total if normalize and abs(total) > 1e-8 else lam


def _kept(values: Mapping[str, Any], agent: int) -> tuple[float, ...]:
    return (values["density"][agent],)


def _bounds(context: Context, cut: int) -> tuple[Any, Any]:
    """Threshold bits and quotas of one cut of every agent, for the chunk of ``context``."""
    cuts: list[Cut] = [agent[cut] for agent in context.facts["cuts"][context.tensor.name]]
    bits = np.array([c.bits for c in cuts], np.uint32)
    return bits, np.array([[c.quota.get(context.start, 0)] for c in cuts], np.int64)


def _nothing(context: Context) -> tuple[Any, Any]:
    """The cut above which there is nothing."""
    return np.full(context.agents, 0xFFFFFFFF, np.uint32), np.zeros((context.agents, 1), np.int64)


def _trimmed(
    context: Context, weight: Sequence[float], scale: float, *, normalize: bool, band: bool = False
) -> Any:
    low, high = _bounds(context, 0), _bounds(context, 1) if band else _nothing(context)
    return rules.Trimmed(context.array(weight), context.number(scale), normalize, *low, *high)


@elementwise(
    rule=rules.sum_all,
    title="Task arithmetic",
    reference="arXiv 2212.04089",
)
def task_arithmetic(
    context: Context, *, lambda_: Lambda = 1.0, weight: Weight = EACH, normalize: Normalize = False
) -> Any:
    """The scaled sum of the task vectors: θ0 + λ Σ w_t τt.

    λ = 1/N is the arm that the RAM paper compares with.
    """
    return rules.Dense(
        context.array(weight),
        context.number(_scale(lambda_, weight, normalize=normalize)),
        normalize=False,
    )


@elementwise(
    rule=rules.trim_elect,
    title="TIES",
    reference="arXiv 2306.01708",
    needs=trim(_kept),
    cost=THREE_PASSES,
)
def ties(
    context: Context,
    *,
    density: Density = 0.2,  # type: ignore[assignment]
    lambda_: Lambda = 1.0,
    weight: Weight = EACH,
    normalize: Agreeing = True,
    trim: Trim = "model",
) -> Any:
    """Trim, elect sign, merge: the largest changes are kept, the sign of their sum wins, and those that agree averaged.

    θ0 + λ · mean. Kept are max(1, ⌊density·n⌋) elements; of equal magnitudes the one that comes first; a zero never.
    """
    del density, trim
    return _trimmed(context, weight, lambda_, normalize=normalize)


def _dropped(
    context: Context,
    density: Sequence[float],
    weight: Sequence[float],
    scale: float,
    seed: int,
    *,
    normalize: bool,
    rescale: bool,
) -> Any:
    keys = [stream_key(seed, t, context.tensor.name) for t in range(context.agents)]
    return rules.Dropped(
        context.array(weight),
        context.number(scale),
        normalize,
        np.array(keys, np.uint64),
        np.array([threshold(d) for d in density], np.uint64),
        context.array((1 / d if d and rescale else 1.0) for d in density),
    )


Rescale = Annotated[bool, Doc("divide what is kept by the density, so that the expectation stays")]


@elementwise(rule=rules.drop_sum, title="DARE with task arithmetic", reference="arXiv 2311.03099")
def dare_linear(
    context: Context,
    *,
    density: Density = 0.8,  # type: ignore[assignment]
    lambda_: Lambda = 1.0,
    weight: Weight = EACH,
    normalize: Normalize = False,
    rescale: Rescale = True,
    seed: Seed = 0,
) -> Any:
    """Drop and rescale, then the sum: each change is kept with probability ``density`` and divided by it.

    Which are kept depends on seed, agent, tensor and element alone.
    """
    scale = _scale(lambda_, weight, normalize=normalize)
    return _dropped(context, density, weight, scale, seed, normalize=False, rescale=rescale)


@elementwise(rule=rules.drop_elect, title="DARE with TIES", reference="arXiv 2311.03099")
def dare_ties(
    context: Context,
    *,
    density: Density = 0.8,  # type: ignore[assignment]
    lambda_: Lambda = 1.0,
    weight: Weight = EACH,
    normalize: Agreeing = True,
    rescale: Rescale = True,
    seed: Seed = 0,
) -> Any:
    """Drop and rescale as in `dare_linear`, then elect signs and average as in `ties`, without its trimming."""
    return _dropped(context, density, weight, lambda_, seed, normalize=normalize, rescale=rescale)


Gamma = Annotated[
    tuple[float, ...],
    Doc("share of the largest changes that are dropped as outliers"),
    Ge(0),
    Le(1),
    PerAgent,
    PerTensor,
]


def _band(values: Mapping[str, Any], agent: int) -> tuple[float, ...]:
    top = values["gamma"][agent]
    return (min(values["density"][agent] + top, 1.0), top)


@elementwise(
    rule=rules.trim_sum,
    title="Model Breadcrumbs",
    reference="arXiv 2312.06795",
    needs=trim(_band),
    cost=THREE_PASSES,
)
def breadcrumbs(
    context: Context,
    *,
    density: Density = 0.9,  # type: ignore[assignment]
    gamma: Gamma = 0.01,  # type: ignore[assignment]
    lambda_: Lambda = 1.0,
    weight: Weight = EACH,
    normalize: Normalize = False,
    trim: Trim = "tensor",
) -> Any:
    """The sum of task vectors without their largest (outliers) and smallest (noise) changes.

    Of n elements by magnitude the top gamma·n are dropped, and of the rest the largest density·n kept.
    """
    del density, gamma, trim
    return _trimmed(
        context, weight, _scale(lambda_, weight, normalize=normalize), normalize=False, band=True
    )


@elementwise(
    rule=rules.trim_elect,
    title="Model Breadcrumbs with TIES",
    reference="arXiv 2312.06795",
    needs=trim(_band),
    cost=THREE_PASSES,
)
def breadcrumbs_ties(
    context: Context,
    *,
    density: Density = 0.9,  # type: ignore[assignment]
    gamma: Gamma = 0.01,  # type: ignore[assignment]
    lambda_: Lambda = 1.0,
    weight: Weight = EACH,
    normalize: Agreeing = False,
    trim: Trim = "tensor",
) -> Any:
    """`breadcrumbs`, with the signs elected as in `ties`."""
    del density, gamma, trim
    return _trimmed(context, weight, lambda_, normalize=normalize, band=True)


@elementwise(
    rule=rules.trim_mean,
    title="Localize-and-Stitch (data-free)",
    reference="arXiv 2408.13656",
    needs=trim(_kept),
    cost=THREE_PASSES,
)
def localize_stitch(
    context: Context,
    *,
    density: Density = 0.05,  # type: ignore[assignment]
    weight: Weight = EACH,
    trim: Trim = "model",
) -> Any:
    """Each agent's largest changes are stitched onto the base; where several agents' regions meet, their average.

    RAM's closest relative: RAM's regions are what changed at all, these are the top ``density``.
    """
    del density, trim
    return _trimmed(context, weight, 1.0, normalize=False)


@elementwise(rule=rules.consensus_sum, title="Consensus merging", reference="arXiv 2405.07813")
def consensus(
    context: Context,
    *,
    lambda_: Lambda = 0.3,
    tall: Annotated[
        tuple[float, ...],
        Doc("how much of the others' sum a change must reach to want its element"),
        Gt(0),
        PerAgent,
    ] = 0.4,  # type: ignore[assignment]
    k: Annotated[int, Doc("agents that must want an element"), Ge(1)] = 2,
    weight: Weight = EACH,
) -> Any:
    """The sum of the task vectors, only where at least ``k`` agents want the element.

    RAM's opposite: what one agent alone learned is dropped. Agent t wants it where |τt| ≥ tall · |Στ - τt| (the
    TALL mask). θ0 + λ Σ w_t τt there, θ0 elsewhere.
    """
    return rules.Votes(context.array(weight), context.array(tall), context.number(lambda_), k)
