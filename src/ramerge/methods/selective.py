"""Methods that rank the elements of a whole tensor: SCE, DELLA and Arcee Fusion.

SCE ranks by variance between agents, DELLA by magnitude within a row, Arcee Fusion by importance against its quartiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ramerge._signature import Doc, Ge, Gt, Le, PerAgent, PerTensor
from ramerge.kernels.random import stream_key, uniform
from ramerge.methods.base import EACH, Weight, whole_tensor
from ramerge.methods.task_arithmetic import Agreeing, Density, Lambda, Normalize, Rescale, Seed

Array = NDArray[Any]
COST = "one read of the inputs; holds the largest tensor of every model in fp32"


def top(values: Array, k: int) -> NDArray[np.bool_]:
    """Mask of the k largest of non-negative ``values``; of equal ones the first in order; zeros never."""
    flat = values.reshape(-1)
    kept = np.zeros(flat.size, np.bool_)
    if k > 0:
        threshold = (
            np.partition(flat, flat.size - k)[flat.size - k] if k < flat.size else flat.min()
        )
        kept |= flat > threshold
        equal = np.flatnonzero(flat == threshold)[: k - int(kept.sum())]
        kept[equal] = True
        kept &= flat > 0
    return kept.reshape(values.shape)


def elect(deltas: Sequence[Array]) -> list[Array]:
    """TIES: what agrees in sign with the sum; zero elsewhere."""
    total = np.sign(sum(deltas[1:], deltas[0]))
    return [np.where(d * total > 0, d, d.dtype.type(0)) for d in deltas]


@whole_tensor(title="SCE", reference="arXiv 2408.07990", cost=COST)
def sce(
    base: Array,
    agents: Array,
    name: str,
    *,
    select_topk: Annotated[
        float,
        Doc("share kept of the elements that vary between agents: those that vary most"),
        Gt(0),
        Le(1),
        PerTensor,
    ] = 1.0,
) -> Array:
    """Select, calculate, erase: what varies most between agents is kept, weighed by energy, and what disagrees erased.

    θ0 + Σ w_t τt / Σ w_t over the agents that agree, w_t = mean τt² over the selected.
    """
    del name
    taus = agents - base
    if select_topk < 1 and base.size:
        variance = taus.astype(np.float64).var(axis=0)
        kept = top(variance, max(1, int(select_topk * np.count_nonzero(variance))))
        taus = np.where(kept, taus, taus.dtype.type(0))
    energy = np.array(
        [float(np.mean(np.square(t, dtype=np.float64))) if t.size else 0.0 for t in taus]
    )
    share = energy / energy.sum() if energy.sum() else np.full(len(taus), 1 / len(taus))
    weights = share.astype(taus.dtype)
    agreeing = elect(list(taus))
    present = sum(
        np.where(d != 0, w, taus.dtype.type(0)) for d, w in zip(agreeing, weights, strict=True)
    )
    total = sum(w * d for d, w in zip(agreeing, weights, strict=True))
    return base + total / np.where(present == 0, taus.dtype.type(1), present)


Epsilon = Annotated[
    tuple[float, ...],
    Doc("half the spread of the keep probabilities around the density"),
    Ge(0),
    Le(1),
    PerAgent,
    PerTensor,
]


def _magprune(
    tau: Array, density: float, epsilon: float, seed: int, agent: int, name: str, *, rescale: bool
) -> Array:
    """Drop each change with a probability that falls with its rank in its row; divide the kept by theirs."""
    if density >= 1 or tau.size == 0:
        return tau
    rows = np.abs(tau).reshape(-1, tau.shape[-1] if tau.ndim > 1 else tau.size)
    ranks = np.argsort(np.argsort(rows, axis=1, kind="stable"), axis=1, kind="stable")
    spread = ranks / max(rows.shape[1] - 1, 1) * 2 * epsilon - epsilon
    keep = np.clip(density + spread, 0.0, 1.0).reshape(tau.shape)
    draws = np.empty(tau.size)
    uniform(np.uint64(stream_key(seed, agent, name)), draws)
    stays = draws.reshape(tau.shape) < keep
    scaled = tau / np.where(keep > 0, keep, 1.0).astype(tau.dtype) if rescale else tau
    return np.where(stays, scaled, tau.dtype.type(0))


def _pruned(
    base: Array, agents: Array, name: str, density: Sequence[float], epsilon: Sequence[float],
    weight: Sequence[float], seed: int, *, rescale: bool,
) -> list[Array]:  # fmt: skip
    return [
        a.dtype.type(w) * _magprune(a - base, d, e, seed, t, name, rescale=rescale)
        for t, (a, d, e, w) in enumerate(zip(agents, density, epsilon, weight, strict=True))
    ]


@whole_tensor(title="DELLA with task arithmetic", reference="arXiv 2406.11617", cost=COST)
def della_linear(
    base: Array,
    agents: Array,
    name: str,
    *,
    density: Density = 0.8,  # type: ignore[assignment]
    epsilon: Epsilon = 0.15,  # type: ignore[assignment]
    lambda_: Lambda = 1.0,
    weight: Weight = EACH,
    normalize: Normalize = False,
    rescale: Rescale = True,
    seed: Seed = 0,
) -> Array:
    """`della` without electing signs: the scaled sum of what is kept."""
    deltas = _pruned(base, agents, name, density, epsilon, weight, seed, rescale=rescale)
    scale = lambda_ / math.fsum(weight) if normalize else lambda_
    return base + base.dtype.type(scale) * sum(deltas[1:], deltas[0])


@whole_tensor(title="DELLA", reference="arXiv 2406.11617", cost=COST)
def della(
    base: Array,
    agents: Array,
    name: str,
    *,
    density: Density = 0.8,  # type: ignore[assignment]
    epsilon: Epsilon = 0.15,  # type: ignore[assignment]
    lambda_: Lambda = 1.0,
    weight: Weight = EACH,
    normalize: Agreeing = True,
    rescale: Rescale = True,
    seed: Seed = 0,
) -> Array:
    """Drop by magnitude, elect, fuse: within each row small changes are dropped more often than large ones.

    The keep probability rises linearly with the rank from density - epsilon to density + epsilon; the kept are divided by
    theirs; then signs are elected and the agreeing averaged as in `ties`.
    """
    deltas = elect(_pruned(base, agents, name, density, epsilon, weight, seed, rescale=rescale))
    total = sum(deltas[1:], deltas[0])
    if normalize:
        present = sum(
            np.where(d != 0, base.dtype.type(w), base.dtype.type(0))
            for d, w in zip(deltas, weight, strict=True)
        )
        total = total / np.where(present == 0, base.dtype.type(1), present)
    return base + base.dtype.type(lambda_) * total


@whole_tensor(title="Arcee Fusion", reference="mergekit's arcee_fusion", max_agents=1, cost=COST)
def arcee_fusion(base: Array, agents: Array, name: str) -> Array:
    """Takes the agent's value only where it matters: importance is |τ| times how far the softmax over the last axis moves.

    The threshold is the median importance plus 1.5 interquartile ranges, tensor by tensor, as publicly described for
    mergekit's method of that name; everything else stays the base's.
    """
    del name
    agent = agents[0]
    if base.size == 0:
        return base
    importance = np.abs(agent - base).astype(np.float64) * _divergence(agent, base)
    q1, median, q3 = np.quantile(importance, [0.25, 0.5, 0.75])
    return np.where(importance > median + 1.5 * (q3 - q1), agent, base)


def _divergence(p: Array, q: Array) -> Array:
    """KL divergence of the softmaxes over the last axis, one value a row, spread over the row."""
    a, b = (np.atleast_1d(v.astype(np.float64)) for v in (p, q))
    la, lb = (v - v.max(-1, keepdims=True) for v in (a, b))
    la, lb = (v - np.log(np.exp(v).sum(-1, keepdims=True)) for v in (la, lb))
    rows = (np.exp(la) * (la - lb)).sum(-1, keepdims=True)
    return np.broadcast_to(rows, a.shape).reshape(p.shape)
