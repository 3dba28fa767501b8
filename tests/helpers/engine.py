"""The engine on dictionaries of arrays: random sets, one run, equality to the bit."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np

from ramerge.config.job import AgentJob, Job
from ramerge.methods.registry import find
from ramerge.models.memory import MemoryCheckpoint, MemorySink
from ramerge.planning.plan import build
from ramerge.run import engine, threads

DTYPES = [
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(np.float16),
    np.dtype(np.float32),
    np.dtype(np.float64),
]


def run(
    base,
    agents,
    method,
    parameters=None,
    *,
    chunk=131_072,
    workers=1,
    weights=None,
    preset=None,
    **job,
):
    names = [f"a{i}" for i in range(len(agents))]
    jobs = tuple(
        AgentJob(n, n, {} if weights is None else {"weight": float(w)})
        for n, w in zip(names, weights or [1.0] * len(names), strict=True)
    )
    models = {n: MemoryCheckpoint(a, n) for n, a in zip(names, agents, strict=True)}
    job = Job("base", jobs, method, parameters=parameters or {}, preset=preset, **job)
    plan = build(job, find(method)[0], MemoryCheckpoint(base, "base"), models)
    sink = MemorySink(plan.layout.specs())
    outcome = engine.merge(plan, sink, run=partial(threads.run, threads=workers), chunk=chunk)
    return sink.arrays(base), outcome, plan


def bits(array):
    return np.atleast_1d(array).view(np.uint8)


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        assert array.shape == theirs[name].shape
        assert np.array_equal(bits(array), bits(theirs[name])), name


def model_set(seed, count, *, base_dtype, agent_dtypes, sizes, densities):
    """A base and agents whose changes are a few ulps on random elements."""
    rng = np.random.default_rng(seed)
    base = {
        f"t{i}": (rng.standard_normal(s) * 0.05).astype(base_dtype) for i, s in enumerate(sizes)
    }
    agents = []
    for t in range(count):
        agent = {}
        for name, b in base.items():
            x = b.astype(np.float64)
            step = np.maximum(np.abs(x) * 2.0**-7, 2e-5) * rng.integers(1, 4, b.shape)
            hit = rng.random(b.shape) < densities[t % len(densities)]
            agent[name] = np.where(hit, x + step * rng.choice([-1.0, 1.0], b.shape), x).astype(
                agent_dtypes[t]
            )
        agents.append(agent)
    return base, agents
