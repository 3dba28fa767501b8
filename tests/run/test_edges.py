"""The corners of SPEC 3 and 5: degenerate agents, empty tensors, weights of zero, and everything that is not finite."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from helpers import oracle
from helpers.engine import DTYPES, bits, model_set, run, same
from ramerge._errors import ConfigError, IncompatibleError, NumericError
from ramerge._types import DType

BF16 = np.dtype(ml_dtypes.bfloat16)
METHODS = ["ram", "ram_plus", "ram_soft"]


def three(dtype=BF16, seed=3):
    return model_set(
        seed,
        3,
        base_dtype=dtype,
        agent_dtypes=[dtype] * 3,
        sizes=[(40, 50), (7,)],
        densities=[0.05, 0.5, 0.6],
    )


@pytest.mark.parametrize("method", METHODS)
def test_an_agent_equal_to_the_base_changes_nothing(method):
    base, agents = three()
    with_copy, _, _ = run(base, [agents[0], base, agents[2]], method)
    without, _, _ = run(base, [agents[0], agents[2]], method)
    same(with_copy, without)


@pytest.mark.parametrize("method", METHODS)
def test_only_copies_of_the_base_give_the_base(method):
    base, _ = three()
    got, outcome, _ = run(base, [base, base], method)
    same(got, base)
    assert outcome.lambdas["model"] == (1.0, 1.0)


@pytest.mark.parametrize("method", METHODS)
def test_one_agent_is_taken_whole(method):
    base, agents = three()
    got, outcome, _ = run(base, agents[:1], method)
    assert outcome.lambdas["model"] == (1.0,)  # nothing shared: ρ = 0
    kept = {n: np.where(oracle.changed(b, agents[0][n]), agents[0][n], b) for n, b in base.items()}
    same(got, kept)


def test_the_same_agent_twice_has_no_unique_element():
    base, agents = three()
    got, outcome, _ = run(base, [agents[1], agents[1]], "ram_plus", {"r": 0.1, "alpha": 0.5})
    assert outcome.lambdas["model"] == (1.05, 1.05)  # ρ = ∞ clips to alpha
    once = {n: np.where(oracle.changed(b, agents[1][n]), agents[1][n], b) for n, b in base.items()}
    same(got, once)


def test_soft_lambda_of_an_agent_without_unique_elements():
    base, agents = three()
    _, outcome, _ = run(base, [agents[1], agents[1]], "ram_soft", {"r": 0.2})
    assert outcome.lambdas["model"] == (1.2, 1.2)


def test_infinite_alpha_never_clips_but_needs_a_unique_element():
    base, agents = three()
    _, outcome, _ = run(base, agents, "ram_plus", {"r": 0.1, "alpha": math.inf})
    rhos = [oracle.rho(u, s) for _, u, s in oracle.counts(base, agents)]
    assert outcome.lambdas["model"] == tuple(1 + 0.1 * r for r in rhos)
    assert outcome.passes == 2


def test_weight_zero_leaves_an_agent_out_of_the_counts_too():
    base, agents = three()
    got, _, plan = run(base, agents, "ram_plus", weights=[1, 0, 1])
    without, _, _ = run(base, [agents[0], agents[2]], "ram_plus")
    same(got, without)
    assert any("weight 0" in d for d in plan.decisions)


def test_all_weights_zero_is_an_error():
    base, agents = three()
    with pytest.raises(ConfigError, match="every agent has weight 0"):
        run(base, agents, "ram", weights=[0, 0, 0])


def test_a_sampled_guess_that_is_wrong_costs_a_pass_and_nothing_else():
    """Uniques hide where the sample does not look, so the guess clips and the exact ρ does not."""
    n = 1024 * 4000
    base = {"w": np.zeros(n, np.float32)}
    block = np.arange(n) // 1024
    looked = np.isin(block, np.arange(40) * 4000 // 40)
    first = np.where(looked | (block % 2 == 0), np.float32(0.5), np.float32(0))
    second = np.where(looked, np.float32(0.25), np.float32(0))
    agents = [{"w": first}, {"w": second}]
    got, outcome, _ = run(base, agents, "ram_plus", {"alpha": 1.0}, workers=2)
    assert outcome.passes == 2
    same(got, oracle.merge(base, agents, "ram_plus"))


def test_negative_zero_of_the_base_survives_a_change_of_nothing():
    base = {"w": np.array([-0.0, -0.0, 1.0], np.float32)}
    agents = [
        {"w": np.array([0.0, 1e-7, 1.0], np.float32)},
        {"w": np.array([-0.0, -0.0, 2.0], np.float32)},
    ]
    got, _, _ = run(base, agents, "ram", {"mask": "abs"})
    assert bits(got["w"][:2]).tolist() == bits(base["w"][:2]).tolist()
    assert got["w"][2] == 2.0


def test_changes_that_cancel_keep_the_bits_of_the_base():
    base = {"w": np.array([-0.0], np.float32)}
    got, _, _ = run(
        base, [{"w": np.array([1.0], np.float32)}, {"w": np.array([-1.0], np.float32)}], "ram"
    )
    assert bits(got["w"]).tolist() == bits(base["w"]).tolist()


def test_zero_dimensional_and_empty_tensors():
    base = {
        "a": np.array(1.5, np.float32),
        "b": np.zeros((0, 4), np.float32),
        "c": np.ones(3, np.float32),
    }
    agent = {
        "a": np.array(2.5, np.float32),
        "b": np.zeros((0, 4), np.float32),
        "c": np.ones(3, np.float32),
    }
    got, _, _ = run(base, [agent], "ram_plus")
    assert got["a"].shape == () and got["a"] == 2.5
    assert got["b"].shape == (0, 4)


def test_integers_are_copied_when_equal_and_refused_when_not():
    base = {"w": np.ones(3, np.float32), "ids": np.arange(5)}
    same(run(base, [base], "ram")[0], base)
    other = {"w": np.ones(3, np.float32), "ids": np.arange(5) + 1}
    with pytest.raises(
        IncompatibleError, match=r"`ids` .I64. differs between the base and agent `a0`"
    ):
        run(base, [other], "ram")


def test_f64_keeps_its_digits():
    base = {"w": np.array([1.0], np.float64)}
    agents = [
        {"w": np.array([1.0 + 2e-5 + 1e-15], np.float64)},
        {"w": np.array([1.0 + 4e-5], np.float64)},
    ]
    got, _, _ = run(base, agents, "ram")
    assert got["w"][0] == 1.0 + ((agents[0]["w"][0] - 1.0) + (agents[1]["w"][0] - 1.0)) / 2


@pytest.mark.parametrize("where", ["base", "agent"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 1023, 1024, 1999])
def test_values_that_are_not_finite_are_named(where, value, at):
    base, agents = three()
    victim = base if where == "base" else agents[1]
    victim["t0"].reshape(-1)[at] = value
    with pytest.raises(NumericError) as caught:
        run(base, agents, "ram_plus", chunk=1024, workers=2)
    who = "the base" if where == "base" else "agent `a1`"
    row, column = divmod(at, 50)
    assert f"`t0` of {who} holds 1 values that are not finite" in str(caught.value)
    assert f"element {at} ([{row}, {column}])" in str(caught.value)
    assert "nonfinite: keep_base" in str(caught.value)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("where", ["base", "agent"])
def test_keep_base_keeps_the_bits_of_the_base_and_merges_the_rest(where):
    base, agents = three()
    clean, _, _ = run(base, agents, "ram", chunk=1024)
    victim = base if where == "base" else agents[1]
    victim["t0"].reshape(-1)[1500] = math.nan
    got, _, _ = run(base, agents, "ram", chunk=1024, nonfinite="keep_base")
    expected = clean["t0"].copy()
    expected.reshape(-1)[1500] = base["t0"].reshape(-1)[1500]
    assert np.array_equal(bits(got["t0"]), bits(expected))


def test_propagate_writes_what_the_arithmetic_gives():
    base, agents = three()
    agents[1]["t0"].reshape(-1)[1500] = math.inf
    got, _, _ = run(base, agents, "ram", nonfinite="propagate")
    assert not np.isfinite(got["t0"].astype(np.float32).reshape(-1)[1500])
    assert np.isfinite(got["t0"].astype(np.float32)).sum() == got["t0"].size - 1


def test_overflow_of_the_output_type_is_an_error_or_keeps_the_base():
    base = {"w": np.array([1.0, 60000.0], np.float32)}
    agent = {"w": np.array([2.0, 70000.0], np.float32)}
    from ramerge._types import DType

    with pytest.raises(
        NumericError, match=r"`w` overflows F16 in the merge: 1 values .* element 1"
    ):
        run(base, [agent], "ram", out_dtype=DType.F16)
    names = {"w": np.zeros(2, np.float16)}
    got = run_f16(base, agent)
    assert got.dtype == names["w"].dtype
    assert got.tolist() == [2.0, 60000.0]


def run_f16(base, agent):
    from functools import partial

    from ramerge._types import DType
    from ramerge.config.job import AgentJob, Job
    from ramerge.methods.registry import find
    from ramerge.models.memory import MemoryCheckpoint, MemorySink
    from ramerge.planning.plan import build
    from ramerge.run import engine, threads

    job = Job("base", (AgentJob("a", "a"),), "ram", out_dtype=DType.F16, nonfinite="keep_base")
    plan = build(
        job, find("ram")[0], MemoryCheckpoint(base, "base"), {"a": MemoryCheckpoint(agent, "a")}
    )
    sink = MemorySink(plan.layout.specs())
    engine.merge(plan, sink, run=partial(threads.run, threads=1))
    return sink.arrays(base)["w"]


def test_largest_bf16_sums_do_not_overflow_on_the_way():
    big = 3.0e38
    base = {"w": np.array([0.0], BF16)}
    agents = [{"w": np.array([big], BF16)}, {"w": np.array([big], BF16)}]
    with pytest.raises(NumericError, match="overflows BF16"):
        run(
            base, agents, "ram"
        )  # the fp32 sum of both is infinite, and says so instead of writing it
    same(run(base, agents[:1], "ram")[0], agents[0])


def test_shapes_and_names_must_fit_and_all_problems_come_at_once():
    base = {
        "a": np.zeros((4, 6), np.float32),
        "b": np.zeros(3, np.float32),
        "c": np.zeros(2, np.float32),
    }
    agent = {
        "a": np.zeros((4, 5), np.float32),
        "b": np.zeros(3, np.float32),
        "x": np.zeros(1, np.float32),
    }
    with pytest.raises(IncompatibleError) as caught:
        run(base, [{**base, "a": agent["a"]}], "ram")
    assert "tensor `a` is [4, 5] in agent `a0` but [4, 6] in the base" in str(caught.value)
    from ramerge._errors import ProblemsError

    with pytest.raises(ProblemsError) as many:
        run(base, [agent, {**base, "x": agent["x"]}], "ram")
    assert many.value.exit_code == 4
    assert "lacks 1 of the base's 3 tensors: `c`" in str(many.value)
    assert "agent `a1` has 1 tensors that the base lacks: `x`" in str(many.value)


def test_a_stopped_run_raises_the_earliest_error():
    base, agents = model_set(
        1, 2, base_dtype=BF16, agent_dtypes=[BF16] * 2, sizes=[(300, 300)], densities=[0.5]
    )
    for at in (80_000, 1_100, 40_000):
        agents[0]["t0"].reshape(-1)[at] = math.nan
    for _ in range(5):
        with pytest.raises(
            NumericError, match=r"holds 3 values that are not finite, the first at element 1100"
        ):
            run(base, agents, "ram", chunk=1024, workers=4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_effective_lambda_and_losses_are_measured_after_rounding(dtype):
    base, agents = three(dtype=dtype)
    _, outcome, _ = run(base, agents, "ram_plus", {"r": 0.1})
    merged = run(base, agents, "ram_plus", {"r": 0.1})[0]
    for t in range(3):
        top = bottom = 0.0
        for name, b in base.items():
            x, y, a = (v[name].astype(np.float64) for v in (base, merged, agents[t]))
            masks = np.stack([oracle.changed(b, other[name]) for other in agents])
            unique = masks[t] & (masks.sum(0) == 1)
            top += ((y - x) * (a - x))[unique].sum()
            bottom += ((a - x) ** 2)[unique].sum()
        records = outcome.records.values()
        assert math.isclose(math.fsum(r.moved[t] for r in records), top, rel_tol=1e-12)
        assert math.isclose(math.fsum(r.squared[t] for r in records), bottom, rel_tol=1e-12)


def test_float64_is_rounded_to_bf16_once_not_by_way_of_float32():
    """A value just below the midpoint of two BF16 numbers, which float32 would round onto the midpoint."""
    low, high = 4.696846008300781e-05, 4.7206878662109375e-05
    below = (low + high) / 2 - 1e-13
    assert np.float32(below).astype(np.float64) == (low + high) / 2
    base, agent = {"w": np.array([0.0], BF16)}, {"w": np.array([below], np.float64)}
    got, _, _ = run(base, [agent], "ram")
    assert float(got["w"][0]) == low


def test_fisher_in_memory_is_refused_by_name():
    import ramerge

    base, agents = three()
    with pytest.raises(ConfigError, match="`fisher` reads files beside the agents"):
        ramerge.merge_state_dicts(
            base, agents, method="fisher", parameters={"fisher": "x.safetensors"}
        )


def test_changes_that_cancel_are_not_lost_to_rounding():
    base = {"w": np.zeros(4, np.float32)}
    up, down = np.array([1, 1, 0, 0], np.float32), np.array([-1, 0, 0, 0], np.float32)
    _, outcome, _ = run(base, [{"w": up}, {"w": down}], "ram", out_dtype=DType.BF16)
    assert outcome.records["w"].lost == (0, 0, 0)


@pytest.mark.parametrize(("method", "parameters"), [("ram", {}), ("ram_plus", {"r": 0.0})])
def test_no_sample_is_read_where_lambda_cannot_vary(method, parameters, monkeypatch):
    def refuse(self):
        raise AssertionError("sampled")

    monkeypatch.setattr("ramerge.run.engine.Loop._sampled_overlap", refuse)
    base, agents = three()
    _, outcome, _ = run(base, agents, method, parameters)
    assert outcome.lambdas["model"] == (1.0, 1.0, 1.0)
    with pytest.raises(AssertionError, match="sampled"):
        run(base, agents, "ram_plus", {"r": 0.1})


@pytest.mark.parametrize("chunk", [1024, 131_072])
@pytest.mark.parametrize("base_dtype", [BF16, np.dtype(np.float32), np.dtype(np.float64)])
@pytest.mark.parametrize("method", ["ram_plus", "task_arithmetic", "ties", "dare_ties", "iso_c"])
def test_what_rounding_takes_is_counted_exactly_and_dropping_is_not_rounding(
    method, base_dtype, chunk
):
    if method == "iso_c" and base_dtype.itemsize == 8:
        pytest.skip("float32 outputs say nothing of float64 arithmetic's last digits")
    base, agents = model_set(
        5, 3, base_dtype=base_dtype, agent_dtypes=[base_dtype] * 3, sizes=[(40, 50), (7,)],
        densities=[0.05, 0.5, 0.6],
    )  # fmt: skip
    parameters = {"lambda": 0.01} if method == "task_arithmetic" else {}
    exact, whole, _ = run(base, agents, method, parameters, out_dtype=DType.F64, chunk=chunk)
    assert all(r.lost == (0, 0, 0, 0) for r in whole.records.values()), "nothing is rounded"
    _, outcome, _ = run(base, agents, method, parameters, out_dtype=DType.BF16, chunk=chunk)
    for name, tensor in base.items():
        x, y = tensor.astype(exact[name].dtype), exact[name]
        taken = (y != x) & (y.astype(BF16) == x.astype(BF16))
        epsilon = 1e-5 if method == "ram_plus" else 0.0
        by = [np.abs(a[name].astype(x.dtype) - x) > x.dtype.type(epsilon) for a in agents]
        expected = [int((taken & np.any(by, axis=0)).sum()), *(int((taken & c).sum()) for c in by)]
        assert list(outcome.records[name].lost) == expected, name
    assert method != "task_arithmetic" or sum(r.lost[0] for r in outcome.records.values()) > 0
