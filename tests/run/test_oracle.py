"""The streaming engine against the plain numpy oracle, over random shapes, dtypes, agents and chunkings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import oracle
from helpers.engine import DTYPES, model_set, run, same


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 5),
    base_dtype=st.sampled_from(DTYPES),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=5, max_size=5),
    sizes=st.lists(
        st.lists(st.sampled_from([0, 1, 2, 3, 7, 33, 1024, 1500]), min_size=0, max_size=2),
        min_size=1,
        max_size=4,
    ),
    method=st.sampled_from(["ram", "ram_plus", "ram_soft"]),
    shared=st.sampled_from(["mean", "sum", "power", "elect", "largest"]),
    mask=st.sampled_from(["abs", "exact", "grid"]),
    weights=st.none() | st.lists(st.sampled_from([0.5, 1.0, 2.0, -1.0]), min_size=5, max_size=5),
)
def test_engine_equals_oracle_bit_for_bit(
    seed, count, base_dtype, dtypes, sizes, method, shared, mask, weights
):
    base, agents = model_set(
        seed,
        count,
        base_dtype=base_dtype,
        agent_dtypes=dtypes,
        sizes=[tuple(s) for s in sizes],
        densities=[0.05, 0.5, 0.7],
    )
    weights = weights[:count] if weights else None
    got, _, _ = run(
        base, agents, method, {"shared": shared, "mask": mask}, weights=weights, chunk=1024
    )
    same(got, oracle.merge(base, agents, method, shared=shared, mask=mask, weights=weights))


@pytest.mark.parametrize("count", [1, 2, 8, 13])
def test_counts_are_exact_for_any_number_of_agents(count):
    base, agents = model_set(
        count,
        count,
        base_dtype=DTYPES[0],
        agent_dtypes=[DTYPES[0]] * count,
        sizes=[(70, 65)],
        densities=[0.1, 0.6],
    )
    _, outcome, _ = run(base, agents, "ram_plus", chunk=1024, workers=2)
    overlap = outcome.records["t0"].overlap
    table = oracle.counts(base, agents)
    assert [
        [overlap.changed(t), overlap.unique(t), overlap.shared(t)] for t in range(count)
    ] == table.tolist()
    assert overlap.elements == 70 * 65


@pytest.mark.parametrize("method", ["ram", "ram_plus", "ram_soft"])
@pytest.mark.parametrize("scope", ["model", "layer", "module", "tensor"])
def test_bytes_do_not_depend_on_threads_or_chunks(method, scope):
    base, agents = model_set(
        5,
        3,
        base_dtype=DTYPES[0],
        agent_dtypes=[DTYPES[0]] * 3,
        sizes=[(257, 129), (5000,), (3, 3)],
        densities=[0.03, 0.5, 0.6],
    )
    names = {
        "t0": "model.layers.0.mlp.up_proj.weight",
        "t1": "model.layers.1.mlp.up_proj.weight",
        "t2": "model.norm.weight",
    }
    base, *agents = ({names[k]: v for k, v in m.items()} for m in (base, *agents))
    parameters = {} if method == "ram" else {"scope": scope}
    reference, first, _ = run(base, agents, method, parameters)
    for workers in (1, 2, 4):
        for chunk in (1024, 65_536, 1 << 20):
            again, outcome, _ = run(base, agents, method, parameters, workers=workers, chunk=chunk)
            same(again, reference)
            assert outcome.records == first.records
            assert outcome.lambdas == first.lambdas
            assert outcome.passes == first.passes


def test_figure_of_the_paper():
    """Shared elements averaged, unique ones scaled, the rest kept, on a 3 x 3 example with three agents."""
    zero = np.zeros((3, 3), np.float32)
    c = np.array([[0, 0.3, 0], [0.6, 0.7, 0], [0.1, 0, 0]], np.float32)
    t = np.array([[0, 0.7, 0], [0.5, 0.8, 0.2], [0, 0, 0]], np.float32)
    m = np.array([[0, 0.5, 0], [0.4, 0.9, 0], [0, 0, 0.1]], np.float32)
    got, outcome, _ = run({"w": zero}, [{"w": c}, {"w": t}, {"w": m}], "ram_plus", {"r": 0.1})
    lam = 1.1
    assert outcome.lambdas["model"] == (lam, lam, lam)
    expected = [[0, 0.5, 0], [0.5, 0.8, 0.2 * lam], [0.1 * lam, 0, 0.1 * lam]]
    np.testing.assert_allclose(got["w"], np.array(expected, np.float32), rtol=2e-7)


@pytest.mark.parametrize("method", ["unique_only", "shared_only"])
def test_region_checkpoints(method):
    base, agents = model_set(
        9,
        3,
        base_dtype=DTYPES[2],
        agent_dtypes=[DTYPES[2]] * 3,
        sizes=[(70, 65)],
        densities=[0.3, 0.6],
    )
    got, _, _ = run(base, agents, method, {"agent": 2, "scale": 0.5}, chunk=1024)
    x = base["t0"]
    masks = np.stack([oracle.changed(x, a["t0"]) for a in agents])
    region = masks[1] & ((masks.sum(0) == 1) if method == "unique_only" else (masks.sum(0) > 1))
    expected = np.where(region, x + np.float32(0.5) * (agents[1]["t0"] - x), x)
    assert np.array_equal(got["t0"], expected)
    assert region.any()
