"""Merges of whole matrices: singular values and Gram matrices instead of single elements.

For the 2-D weights of attention and MLP; embeddings, heads, norms and other shapes take the plain mean of the task vectors
unless a method says otherwise. A tensor is held whole, in fp32, with its decompositions by LAPACK: memory and time are
those of the largest tensor, and the last bits depend on the LAPACK at hand.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ramerge._signature import Doc, Ge, Gt, Le, PerTensor
from ramerge.methods.base import whole_tensor

Array = NDArray[Any]
COST = "one read of the inputs; holds the largest tensor of every model in fp32, and its decompositions"
Scale = Annotated[float, Doc("scale of the merged task vector"), PerTensor]


def is_projection(name: str, base: Array) -> bool:
    """Whether a tensor is a 2-D weight of attention or MLP."""
    outside = ("embed", "wte", "wpe", "lm_head", "embed_out", "score", "classifier")
    return base.ndim == 2 and min(base.shape) > 1 and not any(part in name for part in outside)


def _mean(taus: Array) -> Array:
    return sum(taus[1:], taus[0]) / taus.dtype.type(len(taus))


@whole_tensor(title="Iso-C", reference="arXiv 2502.04959", cost=COST)
def iso_c(base: Array, agents: Array, name: str, *, alpha: Scale = 1.0) -> Array:
    """The summed task vector with all its singular values set to their mean.

    Σ τt = U diag(σ) Vᵀ; θ0 + α · mean(σ) · U Vᵀ.
    """
    taus = agents - base
    if not is_projection(name, base):
        return base + _mean(taus)
    u, s, vt = np.linalg.svd(sum(taus[1:], taus[0]), full_matrices=False)
    return base + base.dtype.type(alpha) * s.mean() * (u @ vt)


@whole_tensor(title="TSV-M", reference="arXiv 2412.00081", cost=COST)
def tsv_m(base: Array, agents: Array, name: str, *, alpha: Scale = 1.0) -> Array:
    """Task singular vectors: each agent's leading 1/N of its singular triples, decorrelated between agents and added.

    U and V of all agents side by side are replaced by their nearest orthonormal matrices; θ0 + α · U⊥ diag(σ) V⊥ᵀ.
    """
    taus = agents - base
    if not is_projection(name, base):
        return base + _mean(taus)
    parts = [np.linalg.svd(tau, full_matrices=False) for tau in taus]
    k = max(1, min(base.shape) // len(taus))
    u = np.concatenate([p[0][:, :k] for p in parts], axis=1)
    s = np.concatenate([p[1][:k] for p in parts])
    v = np.concatenate([p[2][:k].T for p in parts], axis=1)
    return base + base.dtype.type(alpha) * (_polar(u) * s) @ _polar(v).T


def _polar(matrix: Array) -> Array:
    """The nearest matrix with orthonormal columns."""
    p, _, qt = np.linalg.svd(matrix, full_matrices=False)
    return p @ qt


@whole_tensor(title="ResMerge", reference="arXiv 2606.02252", cost=COST)
def res_merge(
    base: Array,
    agents: Array,
    name: str,
    *,
    beta_min: Annotated[
        float, Doc("exponent of coherence where the residuals agree most"), Ge(0)
    ] = 0.7,
    beta_max: Annotated[float, Doc("exponent of coherence where they agree least"), Ge(0)] = 1.0,
    head: Annotated[
        float, Doc("weight of the correction by the agents' leading directions"), Ge(0)
    ] = 0.2,
) -> Array:
    """Residuals averaged by direction and shrunk by how well they agree, plus a correction along the leading directions.

    Head Ht = leading rank-1 part of τt, Rt = τt - Ht. A = c^β · mean‖Rt‖ · q where the residual directions are coherent
    (c > 1/√N), the mean of Rt else; C = head · S · ‖A‖ · mean(H)/‖mean(H)‖; θ0 + A + C.
    """
    taus = agents - base
    if base.ndim != 2 or min(base.shape) <= 1:
        return base + _mean(taus)
    heads = np.stack([_leading(tau) for tau in taus])
    backbone = _backbone(taus - heads, beta_min, beta_max, family=is_projection(name, base))
    mean_head = _mean(heads)
    norm = np.linalg.norm(mean_head)
    agreement = float(
        np.mean([max(0.0, _cosine(heads[a], heads[b])) for a, b in _pairs(len(heads))] or [0.0])
    )
    correction = 0.0 if norm == 0 else head * agreement * np.linalg.norm(backbone) / norm
    return base + backbone + base.dtype.type(correction) * mean_head


def _leading(tau: Array) -> Array:
    u, s, vt = np.linalg.svd(tau, full_matrices=False)
    return s[0] * np.outer(u[:, 0], vt[0])


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(n) for b in range(a + 1, n)]


def _cosine(a: Array, b: Array) -> float:
    norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    return float(np.vdot(a, b)) / norms if norms else 0.0


def _backbone(rest: Array, beta_min: float, beta_max: float, *, family: bool) -> Array:
    norms = np.array([np.linalg.norm(r) for r in rest])
    directions = [r / n if n else r for r, n in zip(rest, norms, strict=True)]
    total = sum(directions[1:], directions[0])
    length = np.linalg.norm(total)
    if length <= 1e-12:
        return _mean(rest)
    q = total / length
    coherence = float(np.mean([np.vdot(d, q) for d in directions]))
    if coherence <= 1 / np.sqrt(len(rest)):
        return _mean(rest)
    similarity = float(
        np.mean([_cosine(directions[a], directions[b]) for a, b in _pairs(len(rest))] or [1.0])
    )
    score = ((similarity + 1) / 2 + (coherence + 1) / 2) / 2 if family else 0.0
    beta = beta_max - (beta_max - beta_min) * score
    return rest.dtype.type(coherence**beta * norms.mean()) * q


@whole_tensor(
    title="Gram merge",
    reference="this project's study (docs/evidence/lab.md); a relative of arXiv 2212.09849",
    cost=COST,
)
def gram(
    base: Array,
    agents: Array,
    name: str,
    *,
    scale: Scale = 1.0,
    ridge: Annotated[float, Doc("pull towards the base"), Gt(0)] = 0.3,
    kappa: Annotated[
        float, Doc("how far agents' lengths are evened out: 1 fully, 0 not at all"), Ge(0), Le(1)
    ] = 0.5,
    sides: Annotated[
        Literal["both", "small"], Doc("Gram matrices of both sides, or of the smaller alone")
    ] = "both",
) -> Array:
    """Each agent's task vector says by its own Gram matrix in which directions it cares; a precision-weighted mean of them.

    A_t = n · T Tᵀ/‖T‖² · (‖T‖²/mean‖T‖²)^(1-κ); V = (Σ A_t + ridge·N·I)⁻¹ Σ A_t T_t, the same for the input side, and
    their mean; embeddings and heads weigh token rows by their energy; other shapes take Σ τ / (N(1 + ridge)).
    θ0 + scale · V.
    """
    taus = agents - base
    energy = np.array([float(np.vdot(t, t)) for t in taus])
    if not energy.any():
        return base
    if base.ndim != 2 or min(base.shape) <= 1:
        merged = _mean(taus) / base.dtype.type(1 + ridge)
    elif not is_projection(name, base):
        merged = _by_rows(taus, energy, ridge, kappa)
    else:
        rows, columns = base.shape
        small = sides == "small"
        use_out, use_in = not small or rows <= columns, not small or columns < rows
        found = []
        if use_out:
            found.append(_one_side(taus, energy, ridge, kappa))
        if use_in:
            found.append(_one_side(taus.transpose(0, 2, 1), energy, ridge, kappa).T)
        merged = sum(found[1:], found[0]) / base.dtype.type(len(found))
    return base + base.dtype.type(scale) * merged


def _precision(energy: Array, kappa: float, size: int) -> Array:
    """What multiplies each agent's T Tᵀ."""
    safe = np.where(energy > 0, energy, 1.0)
    factors: Array = np.where(energy > 0, size / safe * (safe / energy.mean()) ** (1 - kappa), 0.0)
    return factors


def _one_side(taus: Array, energy: Array, ridge: float, kappa: float) -> Array:
    """The merged matrix by the Gram matrices of the rows."""
    size = taus.shape[1]
    total = np.zeros((size, size))
    weighted = np.zeros(taus.shape[1:])
    for tau, factor in zip(taus.astype(np.float64), _precision(energy, kappa, size), strict=True):
        own = factor * (tau @ tau.T)
        total += own
        weighted += own @ tau
    total[np.diag_indices(size)] += ridge * len(taus)
    return np.linalg.solve(total, weighted).astype(taus.dtype)


def _by_rows(taus: Array, energy: Array, ridge: float, kappa: float) -> Array:
    """The diagonal form: every row (token) weighed by its own energy."""
    own = np.einsum("tij,tij->ti", taus.astype(np.float64), taus.astype(np.float64))
    own *= _precision(energy, kappa, taus.shape[1])[:, None]
    weighted = np.einsum("ti,tij->ij", own, taus)
    merged: Array = (weighted / (own.sum(axis=0) + ridge * len(taus))[:, None]).astype(taus.dtype)
    return merged
