"""Interpolations on a sphere, and Model Stock: coefficients that depend on angles between whole tensors.

Every result lies in the span of the models, so the inner products of a tensor (`probes.gram`) are all that is needed of the
data: the coefficients are worked out in float64 from an ``[N, N]`` matrix, and one streaming pass applies them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from ramerge._signature import Doc, Ge, Gt, Le, PerTensor
from ramerge._types import F64
from ramerge.methods.base import EACH, Context, Rule, Values, Weight, elementwise
from ramerge.probes.gram import GramProbe

TINY = 1e-8
COST = "two reads of the inputs (inner products, merge); memory of the chunk buffers"
VALUES, CHANGES = (partial(GramProbe, changes=False),), (partial(GramProbe, changes=True),)
EITHER = (GramProbe,)  # task vectors where there is a base, values where there is none


class Combination(NamedTuple):
    """``base``: coefficient of the base's values; ``agent`` ``[N]``: of the agents' values; working dtype."""

    base: Any
    agent: Any


def combine(x, theta, pattern, contributors, k, start, coef, out, spare):
    """Base · x + Σ agent[t] · theta[t]."""
    for i in range(k):
        out[i] = coef.base * x[i]
    for t in range(coef.agent.size):
        a, c = theta[t], coef.agent[t]
        for i in range(k):
            out[i] += c * a[i]


def combine_changes(x, theta, pattern, contributors, k, start, coef, out, spare):
    """X + Σ agent[t] · (theta[t] - x)."""
    for i in range(k):
        out[i] = np.float32(0)
    for t in range(coef.agent.size):
        a, c = theta[t], coef.agent[t]
        for i in range(k):
            out[i] += c * (a[i] - x[i])
    for i in range(k):
        out[i] += x[i]


def changes_or_values(values: Values) -> Rule:
    """The rule for methods that work on task vectors where there is a base, and on values where there is none."""
    return combine_changes if values["based"] else combine


def _coefficients(context: Context, agent: Sequence[float] | F64, base: float = 0.0) -> Combination:
    return Combination(context.number(base), context.array(agent))


def _gram(context: Context) -> F64:
    gram: F64 = context.facts["gram"][context.tensor.name]
    return gram


def arc(cosine: float, t: float) -> tuple[float, float]:
    """Coefficients of the two ends at ``t`` of the way along the arc between them; a straight line when nearly parallel."""
    if abs(cosine) > 0.9995:
        return 1.0 - t, t
    angle = math.acos(max(-1.0, min(1.0, cosine)))
    return math.sin((1.0 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def cosine_of(gram: F64, a: int, b: int) -> float:
    """Cosine between two rows of a Gram matrix; 1 where one of them is zero, so that they are mixed linearly."""
    norms = math.sqrt(gram[a, a]) * math.sqrt(gram[b, b])
    return float(gram[a, b] / norms) if norms > TINY * TINY else 1.0


@elementwise(
    rule=combine,
    title="SLERP",
    reference="Shoemake, SIGGRAPH 1985",
    everywhere=True,
    needs=VALUES,
    max_agents=1,
    cost=COST,
)
def slerp(
    context: Context,
    *,
    t: Annotated[
        float, Doc("how far from the base (0) to the agent (1)"), Ge(0), Le(1), PerTensor
    ] = 0.5,
) -> Any:
    """Spherical interpolation between the base and one agent, tensor by tensor as flat vectors.

    sin((1-t)Ω)/sin Ω · θ0 + sin(tΩ)/sin Ω · θ1, Ω the angle between them; a straight line where |cos Ω| > 0.9995.
    """
    start, end = arc(cosine_of(_gram(context), 0, 1), t)
    return _coefficients(context, [end], start)


def sphere_mean(cosines: F64, weight: F64, tolerance: float, most: int, *, by_angle: bool) -> F64:
    """The Riemannian mean of unit vectors, as coefficients over them.

    Args:
        cosines: float64 ``[N, N]``, inner products of the unit vectors.
        weight: float64 ``[N]``, adding up to 1.
        tolerance: stop when the mean moves by less (radians).
        most: steps at most.
        by_angle: tangents as long as the arcs (the Riemannian logarithm); else as they project.

    Returns:
        float64 ``[N]``, of a vector of length 1; zeros where the vectors cancel out.
    """
    mean = weight.copy()
    length = math.sqrt(max(float(mean @ cosines @ mean), 0.0))
    if length < TINY:
        return np.zeros_like(weight)
    mean /= length
    for _ in range(most):
        towards = np.clip(cosines @ mean, -1.0, 1.0)
        angles = np.arccos(towards)
        sines = np.sin(angles)
        arcs = np.where(sines > TINY, angles / np.where(sines > TINY, sines, 1.0), 0.0)
        stretch = arcs * weight if by_angle else weight
        # The tangent Σ w·(angle/sin)·(u - cos·mean), over the unit vectors.
        tangent = stretch - float(stretch @ towards) * mean
        step = math.sqrt(max(float(tangent @ cosines @ tangent), 0.0))
        if step <= tolerance:
            break
        mean = mean * math.cos(step) + tangent * (math.sin(step) / step)
        mean /= math.sqrt(float(mean @ cosines @ mean))
    return mean


def _on_sphere(
    context: Context, weight: Sequence[float], tolerance: float, most: int, *, by_angle: bool
) -> F64:
    """Coefficients of the agents' own (not unit) vectors: the mean direction, at the mean length."""
    gram = _gram(context)[1:, 1:]
    norms = np.sqrt(np.diag(gram))
    share = np.array(weight, np.float64) / math.fsum(weight)
    safe = np.where(norms > TINY, norms, 1.0)
    share = np.where(norms > TINY, share, 0.0)
    if not share.any():
        return share
    mean = sphere_mean(
        gram / np.outer(safe, safe), share / share.sum(), tolerance, most, by_angle=by_angle
    )
    return mean * float(share @ norms) / safe


@elementwise(
    rule=changes_or_values,
    chooses=True,
    title="NuSLERP",
    reference="mergekit's nuslerp",
    everywhere=True,
    needs=EITHER,
    min_agents=2,
    max_agents=2,
    base="optional",
    cost=COST,
)
def nuslerp(context: Context, *, weight: Weight = EACH) -> Any:
    """Spherical interpolation between two agents by their weights: t = w₂ / (w₁ + w₂), tensor by tensor as flat vectors.

    With a base between their task vectors, put on the base; without, between the values themselves.
    """
    start, end = arc(cosine_of(_gram(context), 1, 2), weight[1] / math.fsum(weight))
    return _coefficients(context, [start, end])


@elementwise(
    rule=changes_or_values,
    chooses=True,
    title="Multi-SLERP",
    reference="mergekit's multislerp",
    everywhere=True,
    needs=EITHER,
    min_agents=2,
    base="optional",
    cost=COST,
)
def multislerp(context: Context, *, weight: Weight = EACH) -> Any:
    """A weighted mean on the sphere: the mean direction, corrected once in its tangent plane, at the mean length.

    With a base of the task vectors, put on the base; without, of the values themselves.
    """
    return _coefficients(context, _on_sphere(context, weight, 0.0, 1, by_angle=False))


@elementwise(
    rule=combine,
    title="Karcher mean",
    reference="Karcher, CPAM 30 (1977)",
    everywhere=True,
    needs=VALUES,
    min_agents=2,
    base="member",
    cost=COST,
)
def karcher(
    context: Context,
    *,
    max_iter: Annotated[int, Doc("steps at most"), Ge(1)] = 10,
    tol: Annotated[float, Doc("stop when a step is shorter, in radians"), Gt(0)] = 1e-5,
    weight: Weight = EACH,
) -> Any:
    """The Riemannian mean of the models' directions on the sphere, at their mean length; tensors as flat vectors."""
    return _coefficients(context, _on_sphere(context, weight, tol, max_iter, by_angle=True))


@elementwise(
    rule=combine_changes,
    title="Model Stock",
    reference="arXiv 2403.19522",
    everywhere=True,
    needs=CHANGES,
    min_agents=2,
    cost=COST,
)
def model_stock(context: Context) -> Any:
    """The agents' average, pulled towards the base by how far apart their task vectors point.

    t = N·cos / (1 + (N-1)·cos), cos the mean over pairs; θ0 + t · (mean of τ). RL agents' task vectors are nearly
    orthogonal, so this gives back almost the base: a negative control.
    """
    n, gram = context.agents, _gram(context)
    pairs = [(a, b) for a in range(1, n + 1) for b in range(a + 1, n + 1)]
    cosine = math.fsum(
        cosine_of(gram, a, b) if gram[a, a] and gram[b, b] else 0.0 for a, b in pairs
    ) / len(pairs)
    ratio = n * cosine / (1.0 + (n - 1) * cosine)
    return _coefficients(context, [ratio / n] * n)
