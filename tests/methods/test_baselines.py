"""Baselines against plain numpy, whole model in memory; selection against a stable argsort."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine import model_set, run, same
from ramerge.kernels.random import stream_key, threshold

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def models(dtype=F32, seed=11, count=3):
    return model_set(
        seed, count, base_dtype=dtype, agent_dtypes=[dtype] * count,
        sizes=[(61, 50), (2100,), (3, 3)], densities=[0.1, 0.6, 0.9],
    )  # fmt: skip


def taus(base, agents, name):
    x = base[name].astype(np.float32)
    return x, [a[name].astype(np.float32) - x for a in agents]


def top(tau, k):
    """Boolean mask of the k largest magnitudes, first index first among equals, zeros never."""
    flat = np.abs(tau).reshape(-1)
    kept = np.zeros(flat.size, bool)
    kept[np.argsort(-flat, kind="stable")[:k]] = True
    return (kept & (flat > 0)).reshape(tau.shape)


def top_of_model(base, agents, t, fraction):
    """The same over all tensors in name order."""
    names = sorted(base)
    pieces = [np.abs(taus(base, agents, n)[1][t]).reshape(-1) for n in names]
    whole = np.concatenate(pieces)
    mask = top(whole, max(1, int(fraction * whole.size)))
    parts = np.split(mask, np.cumsum([p.size for p in pieces])[:-1])
    return {n: p.reshape(base[n].shape) for n, p in zip(names, parts, strict=True)}


def elected(deltas, weights, normalize):
    total = np.zeros_like(deltas[0])
    for d in deltas:
        total = total + d
    agree = [((d > 0) & (total > 0)) | ((d < 0) & (total < 0)) for d in deltas]
    out, present = np.zeros_like(total), np.zeros_like(total)
    for d, a, w in zip(deltas, agree, weights, strict=True):
        out = out + np.where(a, d, np.float32(0))
        present = present + np.where(a, np.float32(w), np.float32(0))
    return out / np.where((present != 0) & normalize, present, np.float32(1))


def placed(base, name, delta, lam=1.0):
    x = base[name].astype(np.float32)
    y = (x + np.float32(lam) * delta).astype(np.float32)
    return np.where(y == x, x, y).astype(base[name].dtype)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("scope", ["model", "tensor"])
@pytest.mark.parametrize("density", [0.001, 0.2, 0.7, 1.0])
def test_ties_is_trim_elect_mean(dtype, scope, density):
    base, agents = models(dtype)
    got, outcome, _ = run(
        base,
        agents,
        "ties",
        {"density": density, "trim": scope, "lambda": 0.7},
        chunk=1024,
        workers=2,
    )
    assert outcome.passes == 4
    expected = {}
    masks = [top_of_model(base, agents, t, density) for t in range(3)]
    for name in base:
        _, deltas = taus(base, agents, name)
        by_tensor = [top(d, max(1, int(density * d.size))) for d in deltas]
        kept = by_tensor if scope == "tensor" else [m[name] for m in masks]
        sparse = [np.where(m, d, np.float32(0)) for m, d in zip(kept, deltas, strict=True)]
        expected[name] = placed(base, name, elected(sparse, [1, 1, 1], True), 0.7)
    same(got, expected)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_breadcrumbs_drops_both_ends(dtype):
    base, agents = models(dtype)
    got, _, _ = run(base, agents, "breadcrumbs", {"density": 0.3, "gamma": 0.05}, chunk=1024)
    expected = {}
    for name in base:
        _, deltas = taus(base, agents, name)
        total = np.zeros_like(deltas[0])
        for d in deltas:
            band = top(d, max(1, int((0.3 + 0.05) * d.size))) & ~top(d, max(1, int(0.05 * d.size)))
            total = total + np.where(band, d, np.float32(0))
        expected[name] = placed(base, name, total)
    same(got, expected)


def test_localize_stitch_takes_lone_elements_whole_and_averages_meetings():
    base, agents = models()
    got, _, _ = run(base, agents, "localize_stitch", {"density": 0.3, "trim": "tensor"}, chunk=1024)
    for name in base:
        x, deltas = taus(base, agents, name)
        kept = np.stack([top(d, max(1, int(0.3 * d.size))) for d in deltas])
        votes = kept.sum(0)
        total = np.zeros_like(x)
        for m, d in zip(kept, deltas, strict=True):
            total = total + np.where(m, d, np.float32(0))
        expected = x + total / np.maximum(votes, 1).astype(np.float32)
        for m, a in zip(kept, agents, strict=True):
            expected = np.where(m & (votes == 1), a[name], expected)
        assert np.array_equal(got[name], expected)


def kept_by_stream(seed, t, name, shape, density):
    """The reference stream: splitmix64 in plain integers."""
    key, mask = stream_key(seed, t, name), (1 << 64) - 1
    keep = []
    for i in range(int(np.prod(shape))):
        z = (key + (i + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        keep.append(((z ^ (z >> 31)) >> 32) < threshold(density))
    return np.array(keep).reshape(shape)


@pytest.mark.parametrize("method", ["dare_linear", "dare_ties"])
def test_dare_drops_by_the_stream_and_rescales(method):
    base, agents = models()
    got, _, _ = run(base, agents, method, {"density": 0.4, "seed": 7}, chunk=1024, workers=2)
    expected = {}
    for name in base:
        _, deltas = taus(base, agents, name)
        sparse = [
            np.where(
                kept_by_stream(7, t, name, d.shape, 0.4), np.float32(1 / 0.4) * d, np.float32(0)
            )
            for t, d in enumerate(deltas)
        ]
        if method == "dare_linear":
            delta = np.zeros_like(sparse[0])
            for d in sparse:
                delta = delta + d
        else:
            delta = elected(sparse, [1, 1, 1], True)
        expected[name] = placed(base, name, delta)
    same(got, expected)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dare_keeps_the_right_share_and_the_expectation(p):
    """Kept share within 4 sigma of 1 - p for every tensor and agent; the mean change is preserved."""
    n = 200_000
    base = {"a": np.zeros(n, np.float32), "b": np.zeros(n, np.float32)}
    for seed in range(3):
        got, _, _ = run(
            base,
            [{k: np.ones(n, np.float32) for k in base}],
            "dare_linear",
            {"density": 1 - p, "seed": seed},
        )
        for name in base:
            kept = np.count_nonzero(got[name])
            assert abs(kept - n * (1 - p)) < 4 * np.sqrt(n * p * (1 - p))
            assert abs(got[name].mean() - 1) < 4 * np.sqrt(p / (1 - p) / n)


def test_streams_differ_between_agents_tensors_and_seeds():
    shape = (20_000,)
    one = kept_by_stream(0, 0, "w", shape, 0.5)
    for other in (
        kept_by_stream(0, 1, "w", shape, 0.5),
        kept_by_stream(0, 0, "v", shape, 0.5),
        kept_by_stream(1, 0, "w", shape, 0.5),
    ):
        assert abs(np.mean(one == other) - 0.5) < 4 * 0.5 / np.sqrt(shape[0])


def test_task_arithmetic_and_linear():
    base, agents = models()
    got, _, _ = run(base, agents, "task_arithmetic", {"lambda": 0.5}, weights=[1.0, 2.0, -1.0])
    for name in base:
        _, deltas = taus(base, agents, name)
        total = np.zeros_like(deltas[0])
        for w, d in zip([1.0, 2.0, -1.0], deltas, strict=True):
            total = total + np.float32(w) * d
        assert np.array_equal(got[name], placed(base, name, total, 0.5))
    got, _, _ = run(base, agents, "linear", weights=[1.0, 2.0, 1.0])
    for name in base:
        total = np.zeros_like(base[name])
        for w, a in zip([0.25, 0.5, 0.25], agents, strict=True):
            total = total + np.float32(w) * a[name]
        assert np.array_equal(got[name], total)


def test_consensus_keeps_only_what_enough_agents_want():
    base, agents = models()
    got, _, _ = run(base, agents, "consensus", {"lambda": 0.3, "tall": 0.4, "k": 2})
    for name in base:
        x, deltas = taus(base, agents, name)
        total = (deltas[0] + deltas[1]) + deltas[2]
        votes = sum((np.abs(d) >= np.float32(0.4) * np.abs(total - d)).astype(int) for d in deltas)
        expected = np.where(votes >= 2, x + np.float32(0.3) * total, x)
        assert np.array_equal(got[name], np.where(expected == x, x, expected))


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 1e-30]), min_size=1, max_size=3000
    ),
    density=st.floats(0, 1),
    workers=st.sampled_from([1, 2]),
)
def test_trimming_keeps_exactly_k_and_the_first_of_equals(values, density, workers):
    tau = np.array(values, np.float32)
    base = {"w": np.zeros_like(tau)}
    got, _, _ = run(
        base,
        [{"w": tau}],
        "ties",
        {"density": density, "trim": "tensor"},
        chunk=1024,
        workers=workers,
    )
    k = max(1, int(density * tau.size)) if density > 0 else 0
    assert np.array_equal(got["w"], np.where(top(tau, k), tau, np.float32(0)))
