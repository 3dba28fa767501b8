"""Plain numpy, whole model in memory, one line per formula of SPEC 2-3: what every fast path is held against."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)


def working(*arrays):
    """float64 where any array is, float32 otherwise."""
    return np.float64 if any(a.dtype == np.float64 for a in arrays) else np.float32


def cast(values, dtype):
    """One rounding to nearest even; ml_dtypes rounds float64 to BF16 by way of float32, which is two."""
    with np.errstate(over="ignore"):
        if values.dtype != np.float64 or dtype != BF16:
            return values.astype(dtype)
        near = values.astype(np.float32)
    bits = np.atleast_1d(near).view(np.uint32).copy()
    wide, exact = (
        np.atleast_1d(values),
        np.atleast_1d(near).astype(np.float64) == np.atleast_1d(values),
    )
    bits -= (np.abs(np.atleast_1d(near).astype(np.float64)) > np.abs(wide)).astype(np.uint32)
    odd = np.where(exact, np.atleast_1d(near).view(np.uint32), bits | np.uint32(1))
    return odd.view(np.float32).astype(BF16).reshape(values.shape)


def changed(base, agent, epsilon=1e-5, mask="abs"):
    real = working(base, agent)
    if mask == "grid":
        return cast(agent, base.dtype).astype(real) != base.astype(real)
    bound = real(epsilon if mask == "abs" else 0)
    return np.abs(agent.astype(real) - base.astype(real)) > bound


def counts(base, agents, **mask):
    """Per agent over a dict of arrays: changed, unique, shared."""
    table = np.zeros((len(agents), 3), np.int64)
    for name, b in base.items():
        m = np.stack([changed(b, a[name], **mask) for a in agents])
        c = m.sum(axis=0)
        for t in range(len(agents)):
            table[t] += [m[t].sum(), (m[t] & (c == 1)).sum(), (m[t] & (c > 1)).sum()]
    return table


def rho(unique, shared):
    if unique == 0:
        return math.inf if shared else 0.0
    return shared / unique


def lambdas(method, table, r=0.1, alpha=1.0):
    if method == "ram":
        return [1.0] * len(table)
    if method == "ram_plus":
        return [1.0 + r * min(rho(u, s), alpha) for _, u, s in table]
    return [1.0 + r * (s / n if n else 0.0) for n, _, s in table]


def merge_tensor(base, agents, lams, *, weights=None, shared="mean", gamma=0.5, out=None, **mask):
    """One tensor; the sum runs over contributors in order, in fp32 (fp64 with F64), rounded once."""
    real = working(base, *agents)
    weights = [real(w) for w in (weights or [1.0] * len(agents))]
    x = base.astype(real)
    thetas = [a.astype(real) for a in agents]
    masks = [changed(base, a, **mask) for a in agents]
    taus = [
        np.where(m, w * (t - x), real(0)).astype(real)
        for m, w, t in zip(masks, weights, thetas, strict=True)
    ]
    c = np.sum(masks, axis=0)
    total = np.zeros_like(x)
    for tau in taus:
        total = (total + tau).astype(real)
    if shared == "elect":
        agree = [(np.sign(t) == np.sign(total)) & (t != 0) for t in taus]
        kept = np.zeros_like(x)
        for tau, a in zip(taus, agree, strict=True):
            kept = kept + np.where(a, tau, real(0))
        delta = kept / np.maximum(np.sum(agree, axis=0), 1).astype(real)
    elif shared == "largest":
        delta = np.zeros_like(x)
        for tau in taus:
            delta = np.where(np.abs(tau) > np.abs(delta), tau, delta)
    else:
        power = {"mean": 1.0, "sum": 0.0, "power": gamma}[shared]
        divisor = (np.maximum(c, 1).astype(np.float64) ** power).astype(real)
        delta = total / divisor
    y = (x + delta).astype(real)
    if shared == "largest":  # the winner's own value where its weight is 1
        best = np.zeros_like(x)
        for t, m, w, tau in zip(thetas, masks, weights, taus, strict=True):
            wins = m & (np.abs(tau) > best)
            y = np.where(wins, t if w == 1 else (x + tau).astype(real), y)
            best = np.where(wins, np.abs(tau), best)
    for t, m, w, lam in zip(thetas, masks, weights, lams, strict=True):
        scale = real(lam * float(w))
        own = t if scale == 1 else (x + scale * (t - x)).astype(real)
        y = np.where(m & (c == 1), own, y)
    y = np.where((c == 0) | (y == x), x, y)
    return cast(y, out or base.dtype)


def merge(
    base,
    agents,
    method="ram_plus",
    *,
    r=0.1,
    alpha=1.0,
    weights=None,
    shared="mean",
    gamma=0.5,
    **mask,
):
    lams = lambdas(method, counts(base, agents, **mask), r, alpha)
    return {
        name: merge_tensor(
            b, [a[name] for a in agents], lams, weights=weights, shared=shared, gamma=gamma, **mask
        )
        for name, b in base.items()
    }
