"""What every method in the registry must keep; a new one joins by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.engine import model_set, run, same
from ramerge.methods.registry import METHODS

F32 = np.dtype(np.float32)
NAMES = {
    "t0": "model.layers.0.mlp.up_proj.weight",
    "t1": "model.norm.weight",
    "t2": "model.embed_tokens.weight",
    "t3": "x.scalar",
    "t4": "y.empty",
}
METHOD_NAMES = [n for n in sorted(METHODS) if METHODS[n].auxiliary is None]
# Methods whose result depends on the order of the agents by definition, or by the rounding of sums only.
ORDERED = {
    "dare_linear",
    "dare_ties",
    "della",
    "della_linear",
    "slerp",
    "nearswap",
    "arcee_fusion",
    "passthrough",
    "nuslerp",
    "unique_only",
    "shared_only",
}
FIXED = {"largest": "ties go to the first agent"}
REQUIRED = {"nearswap": {"t": 0.001}}
# One agent at weight 1 gives that agent (up to what its parameters drop), by definition.
IDENTITY = {
    "ram": {"mask": "exact"}, "ram_plus": {"mask": "exact"}, "ram_soft": {"mask": "exact"}, "linear": {}, "passthrough": {},
    "task_arithmetic": {}, "ties": {"density": 1.0}, "dare_linear": {"density": 1.0}, "dare_ties": {"density": 1.0},
    "breadcrumbs": {"density": 1.0, "gamma": 0.0}, "breadcrumbs_ties": {"density": 1.0, "gamma": 0.0, "normalize": True},
    "della": {"density": 1.0}, "della_linear": {"density": 1.0}, "sce": {}, "localize_stitch": {"density": 1.0},
    "slerp": {"t": 1.0}, "norm_matched": {"mask": "exact"},
}  # fmt: skip


def models(count=3, seed=21, dtype=F32):
    base, agents = model_set(
        seed, count, base_dtype=dtype, agent_dtypes=[dtype] * count,
        sizes=[(40, 36), (1500,), (9, 40), (), (0, 3)], densities=[0.1, 0.5, 0.7],
    )  # fmt: skip
    return {NAMES[k]: v for k, v in base.items()}, [
        {NAMES[k]: v for k, v in a.items()} for a in agents
    ]


def agents_for(method, agents):
    m = METHODS[method]
    return agents[: m.max_agents or len(agents)]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_chunks_and_threads_change_nothing(method):
    base, agents = models()
    agents = agents_for(method, agents)
    parameters = REQUIRED.get(method, {})
    reference, first, _ = run(base, agents, method, parameters)
    for workers, chunk in ((1, 1024), (2, 1024), (4, 2048), (2, 1 << 20)):
        got, outcome, _ = run(base, agents, method, parameters, workers=workers, chunk=chunk)
        same(got, reference)
        assert outcome.records == first.records


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_agents_equal_to_the_base_give_its_bytes(method):
    base, agents = models()
    copies = agents_for(method, [base] * len(agents))
    got, _, _ = run(base, copies, method, REQUIRED.get(method, {}))
    exact = not METHODS[method].everywhere or method in {
        "passthrough",
        "model_stock",
        "nuslerp",
        "multislerp",
    }
    for name, array in got.items():
        if exact:
            assert np.array_equal(array.view(np.uint32), base[name].view(np.uint32)), name
        else:  # averages of equal numbers, where a weight such as 1/3 has been rounded
            np.testing.assert_allclose(array, base[name], rtol=3e-7, atol=0)


@pytest.mark.parametrize("method", sorted(IDENTITY))
def test_one_agent_at_weight_one_is_taken_whole(method):
    base, agents = models(count=1)
    got, _, _ = run(base, agents, method, IDENTITY[method])
    for name, array in got.items():
        np.testing.assert_allclose(array, agents[0][name], rtol=0, atol=2e-8)


@pytest.mark.parametrize("method", [m for m in METHOD_NAMES if m not in ORDERED])
def test_the_order_of_agents_only_rounds(method):
    base, agents = models()
    forward, _, _ = run(base, agents, method)
    backward, _, _ = run(base, agents[::-1], method)
    scale = max(np.abs(forward[n] - base[n]).max(initial=0) for n in base)
    for name in base:
        assert np.abs(forward[name] - backward[name]).max(initial=0) <= 1e-5 * scale + 1e-8, name


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_finite_in_finite_out_shapes_kept(method):
    base, agents = models()
    got, _, _ = run(base, agents_for(method, agents), method, REQUIRED.get(method, {}))
    for name, array in got.items():
        assert array.shape == base[name].shape
        assert np.isfinite(array).all(), name


WITH_DENSITY = [m for m in METHOD_NAMES if "density" in METHODS[m].signature]


@pytest.mark.parametrize("method", WITH_DENSITY)
def test_density_zero_keeps_the_base(method):
    base, agents = models()
    parameters = {"density": 0.0} | ({"gamma": 0.0} if "gamma" in METHODS[method].signature else {})
    parameters |= {"epsilon": 0.0} if "epsilon" in METHODS[method].signature else {}
    got, _, _ = run(base, agents, method, parameters)
    same(got, base)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_parameter_is_documented(method):
    m = METHODS[method]
    assert m.summary and m.title and m.reference and m.cost
    for parameter in m.signature.values():
        assert parameter.meaning, parameter.name
        if parameter.default is not None and not parameter.required:
            parameter.fit(parameter.default)


def test_norm_matched_has_the_length_of_ram():
    base, agents = models()
    control, _, _ = run(base, agents, "norm_matched")
    ram, _, _ = run(base, agents, "ram")
    lengths = [
        math.sqrt(sum(((m[n].astype(float) - base[n]) ** 2).sum() for n in base))
        for m in (control, ram)
    ]
    assert math.isclose(*lengths, rel_tol=1e-4)


def test_fisher_weighs_elements_by_their_information():
    from functools import partial

    from ramerge.config.job import AgentJob, Job
    from ramerge.methods.registry import find
    from ramerge.models.memory import MemoryCheckpoint, MemorySink
    from ramerge.planning.plan import build
    from ramerge.run import engine, threads

    base, agents = models(count=2)
    rng = np.random.default_rng(0)
    information = [
        {n: rng.random(t.shape).astype(np.float32) for n, t in base.items()} for _ in agents
    ]
    information[0]["model.norm.weight"][:] = 0
    names = ["a", "b"]
    job = Job("base", tuple(AgentJob(n, n, {"fisher": n}) for n in names), "fisher")
    opened = {n: MemoryCheckpoint(a, n) for n, a in zip(names, agents, strict=True)}
    extra = {n: MemoryCheckpoint(f, n) for n, f in zip(names, information, strict=True)}
    plan = build(job, find("fisher")[0], MemoryCheckpoint(base, "base"), opened, extra)
    sink = MemorySink(plan.layout.specs())
    engine.merge(plan, sink, run=partial(threads.run, threads=2), chunk=1024)
    for name, array in sink.arrays(base).items():
        f = [np.maximum(i[name], np.float32(1e-6)) for i in information]
        total = f[0] * agents[0][name] + f[1] * agents[1][name]
        np.testing.assert_allclose(array, total / (f[0] + f[1]), rtol=1e-6, atol=1e-12)
