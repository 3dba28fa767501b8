"""Values that are not numbers, or hardly: wherever they stand, at chunks' edges, by policy."""

from __future__ import annotations

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
from harness import AGENTS, clear, load, model_set, save

NAME = "model.embed_tokens.weight"  # 2048 elements: two chunks of 1024
EDGES = (0, 1023, 1024, 2047)
VALUES = {"NaN": np.nan, "+Inf": np.inf, "-Inf": -np.inf}
PLACES = {"base": ("base",), "one agent": ("tools",), "all": ("base", *AGENTS)}
POLICIES = ("error", "keep_base", "propagate")


def argv(root, out, *more):
    agents = [f"--agent={n}={root / n}" for n in AGENTS]
    return ["merge", f"--base={root / 'base'}", *agents, "--method=ram", f"--out={out}", "--quiet",
            "--threads=1", "--memory=10240B", *more]  # fmt: skip


def put(root, model, element, value):
    """Set one element of one model."""
    path = root / model / "model.safetensors"
    tensors = {n: a.copy() for n, a in load(path).items()}
    tensors[NAME].reshape(-1)[element] = value
    save(path, tensors)


def bits(array):
    return array.reshape(-1).view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize("value", VALUES)
def test_what_is_not_finite(server, tmp_path, size, value, record):
    root = model_set(tmp_path / "models")
    out = tmp_path / "out"
    assert server.run(argv(root, out)).code == 0
    reference = load(out / "model.safetensors")
    clear(out)
    clean = {m: (root / m / "model.safetensors").read_bytes() for m in ("base", *AGENTS)}
    grid = list(itertools.product(PLACES, EDGES, POLICIES))
    for place, element, policy in grid if size == "full" else grid[::5]:
        for model in PLACES[place]:
            put(root, model, element, VALUES[value])
        base = load(root / "base/model.safetensors")
        result = server.run(argv(root, out, f"--nonfinite={policy}"))
        for model in PLACES[place]:
            (root / model / "model.safetensors").write_bytes(clean[model])
        if policy == "error":
            assert result.code == 5, result
            who = "agent `tools`" if place == "one agent" else "the base"
            assert f"`{NAME}` of {who} holds 1 values" in result.text, result
            assert re.search(rf"element {element} ", result.text), result
            assert not out.exists()
            continue
        assert result.code == 0, result
        merged = load(out / "model.safetensors")
        clear(out)
        others = np.arange(2048) != element
        for name, array in merged.items():
            keep = others if name == NAME else slice(None)
            assert (bits(array)[keep] == bits(reference[name])[keep]).all(), (name, place, policy)
        if policy == "keep_base":
            assert bits(merged[NAME])[element] == bits(base[NAME])[element]
        else:
            assert not np.isfinite(merged[NAME].reshape(-1)[element].astype(np.float32))
    if size == "full":
        record("5 numbers", f"{value} × base, one agent, all × first, last of chunk × 3 policies",
               f"{len(grid)}", "as the policy says; no other element touched")  # fmt: skip


def pair(root, base, *agents, dtype):
    """A base and agents of one tensor each."""
    for name, values in (("base", base), *((f"a{i}", v) for i, v in enumerate(agents))):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text('{"model_type": "llama"}')
        save(root / name / "model.safetensors", {"w": np.array(values, dtype)})
    return [
        f"--base={root / 'base'}",
        *(f"--agent=a{i}={root / f'a{i}'}" for i in range(len(agents))),
    ]


def merged(server, models, out, *more):
    result = server.run(["merge", *models, "--method=ram", f"--out={out}", "--quiet", *more])
    return result, load(out / "model.safetensors")["w"] if result.code == 0 else None


def test_negative_zero_is_no_change(server, tmp_path, size, record):
    models = pair(tmp_path, [0.0, -0.0, 1.0], [-0.0, 0.0, 2.0], dtype=np.float32)
    for mask in ("abs", "exact", "grid"):
        out = tmp_path / mask
        _, w = merged(server, models, out, f"--set=mask={mask}")
        assert bits(w).tolist() == bits(np.array([0.0, -0.0, 2.0], np.float32)).tolist()
    if size == "full":
        record("5 numbers", "-0.0 against 0.0, three masks", "3", "the base's bits are kept")


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32", "F64"])
def test_subnormals_survive(server, tmp_path, size, kind, record):
    """Unique ones bit for bit, shared ones rounded once; nothing is flushed to zero."""
    if size == "quick" and kind != "BF16":
        pytest.skip("in the full bench: each type is compiled anew")
    dtype = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}[
        kind
    ]
    width = np.dtype(dtype).itemsize
    tiny = np.arange(1, 33, dtype=f"u{width}").view(dtype)
    zero = np.zeros(32, dtype)
    models = pair(tmp_path, zero, tiny, dtype=dtype)
    _, w = merged(server, models, tmp_path / "unique", "--set=mask=exact")
    assert bits(w).tolist() == bits(tiny).tolist()
    models = pair(tmp_path / "two", zero, tiny, tiny, dtype=dtype)
    _, w = merged(server, models, tmp_path / "shared", "--set=mask=exact")
    assert bits(w).tolist() == bits(tiny).tolist()
    if size == "full":
        record("5 numbers", f"32 smallest subnormals of {kind}, unique and shared", "2", "exact")


def test_overflow_on_the_cast_to_fp16(server, tmp_path, size, record):
    """Never an infinity that no input had: an error, or the base where the base fits."""
    models = pair(tmp_path, [60000, 1, 2], [70000, 1, 3], dtype=np.float32)
    fits = tmp_path / "fits"
    result, _ = merged(server, models, fits, "--out-dtype=float16")
    assert (result.code, "overflows F16" in result.text) == (5, True), result
    result, w = merged(server, models, fits, "--out-dtype=float16", "--nonfinite=keep_base")
    assert w.tolist() == [60000, 1, 3], result
    models = pair(tmp_path / "too", [70000, 1], [70000, 2], dtype=np.float32)
    result, w = merged(
        server, models, tmp_path / "no", "--out-dtype=float16", "--nonfinite=keep_base"
    )
    assert result.code == 5, (result, w)
    result, w = merged(
        server, models, tmp_path / "yes", "--out-dtype=float16", "--nonfinite=propagate"
    )
    assert np.isinf(w[0]), result
    if size == "full":
        record("5 numbers", "overflow on the cast to fp16, three policies", "4",
               "exit 5, or the base's value where it fits")  # fmt: skip


@pytest.mark.parametrize("agents", [2, 3, 8])
def test_the_largest_sums(server, tmp_path, size, agents, record):
    """The mean of values near the largest BF16 is right or an error, never silently infinite."""
    top = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    cases = [([0.0, 0.0], [top, -top]), ([-top, top], [top, -top]), ([top / 2, 0], [top, top])]
    for i, (base, agent) in enumerate(cases):
        models = pair(tmp_path / str(i), base, *[agent] * agents, dtype=ml_dtypes.bfloat16)
        result, w = merged(server, models, tmp_path / f"out{i}")
        assert result.code in {0, 5}, result
        if result.code == 0:
            assert w.astype(float).tolist() == agent, (result, w)
    if size == "full":
        record("5 numbers", f"largest BF16 values, {agents} agents", "3", "exact, or exit 5")


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e400", "true", "text", "[1]", "null"])
def test_parameters_are_numbers(server, models, tmp_path, size, text, record):
    out = tmp_path / "out"
    more = [f"--agent={n}={models / n}" for n in AGENTS]
    for name in ("epsilon", "r"):
        result = server.run(["merge", f"--base={models / 'base'}", *more, f"--out={out}", "--quiet",
                             f"--set={name}={text}"])  # fmt: skip
        assert result.code == 2, (name, result)
        assert name in result.text
        assert not out.exists()
    if size == "full":
        record("5 numbers", f"`epsilon` and `r` set to {text}", "2", "exit 2 naming the parameter")
