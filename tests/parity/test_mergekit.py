"""mergekit from PyPI on the same fp32 models and files: where methods mean the same, the numbers must agree.

`make parity` builds an environment for mergekit (it pins other versions of our dependencies) and runs this;
RAMERGE_MERGEKIT_PYTHON names its interpreter.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ramerge
from helpers.models import read_tensors, write_tensors

PYTHON = os.environ.get("RAMERGE_MERGEKIT_PYTHON")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not PYTHON, reason="RAMERGE_MERGEKIT_PYTHON is not set"),
]

HEAD = "merge_method: {method}\ndtype: float32\n"
BASED = "base_model: {base}\nmodels:\n- model: {a}\n{pa}- model: {b}\n{pb}- model: {c}\n{pc}"
THREE = "models:\n- model: {a}\n{pa}- model: {b}\n{pb}- model: {c}\n{pc}"
TWO = "models:\n- model: {a}\n{pa}- model: {b}\n{pb}"
ONE = "base_model: {base}\nmodels:\n- model: {base}\n- model: {a}\n"

# name: (method, body, weights or None, parameters, tolerance)
CASES = {
    "linear": ("linear", THREE, [0.5, 1.0, 0.3], {}),
    "task_arithmetic": ("task_arithmetic", BASED, [0.5, 1.0, 0.3], {"lambda": 0.7}),
    "ties": ("ties", BASED, [0.5, 1.0, 0.3], {"density": 0.4, "lambda": 0.9}),
    "slerp": ("slerp", ONE, None, {"t": 0.3}),
    "nuslerp": ("nuslerp", TWO, [0.4, 0.8], {}),
    "nuslerp_base": ("nuslerp", "base_model: {base}\n" + TWO, [0.4, 0.8], {}),
    "multislerp": ("multislerp", THREE, [0.5, 1.0, 0.3], {}),
    "multislerp_base": ("multislerp", BASED, [0.5, 1.0, 0.3], {}),
    "model_stock": ("model_stock", BASED, None, {}),
    "karcher": ("karcher", THREE, None, {}),
    "sce": ("sce", BASED, None, {"select_topk": 0.5}),
    "sce_all": ("sce", BASED, None, {}),
    "breadcrumbs": ("breadcrumbs", BASED, [0.5, 1.0, 0.3], {"density": 0.6, "gamma": 0.1}),
    "nearswap": ("nearswap", ONE, None, {"t": 0.001}),
    "passthrough": ("passthrough", "models:\n- model: {a}\n", None, {}),
    "ram": ("ram", BASED, None, {}),
    "ramplus_tl": ("ramplus_tl", BASED, None, {}),
    "arcee_fusion": ("arcee_fusion", ONE, None, {}),
}

# Where we differ, why, and by how much: (largest relative difference, share of elements beyond 1e-5).
DEVIATIONS = {
    "nuslerp": (
        2e-5,
        0.2,
    ),  # theirs takes the angle of nearly parallel tensors in fp32, ours in fp64
    "breadcrumbs": (
        1.0,
        0.005,
    ),  # theirs rounds what is cut, ours what is kept: one element a tensor and agent
    "arcee_fusion": (
        1.0,
        0.01,
    ),  # theirs computes divergences in fp32, where small ones come out as 0 or below
}


def config(case, models):
    method, body, weights, parameters = CASES[case]
    blocks = {"pa": "", "pb": "", "pc": ""}
    for key, weight in zip(blocks, weights or [], strict=False):
        blocks[key] = f"  parameters:\n    weight: {weight}\n"
    text = (HEAD + body).format(method=method, **models, **blocks)
    if parameters:
        text += "parameters:\n" + "".join(f"  {k}: {v}\n" for k, v in parameters.items())
    return text


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A small Llama and three agents with distinct magnitudes, some elements of each unchanged."""
    import shutil

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("parity")
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(settings).float().save_pretrained(root / "base")
    rng = np.random.default_rng(0)
    base = read_tensors(root / "base")
    for name, density in {"a": 0.2, "b": 0.5, "c": 0.7}.items():
        agent = {
            n: np.where(rng.random(t.shape) < density, t + rng.normal(0, 0.01, t.shape), t).astype(
                np.float32
            )
            for n, t in base.items()
        }
        write_tensors(root / name, agent)
        shutil.copy(root / "base" / "config.json", root / name / "config.json")
    return {name: str(root / name) for name in ("base", "a", "b", "c")}


@pytest.fixture(scope="module")
def theirs(models, tmp_path_factory):
    """Everything merged by mergekit, in one process."""
    root = tmp_path_factory.mktemp("mergekit")
    for case in CASES:
        (root / f"{case}.yml").write_text(config(case, models))
    runner = Path(__file__).parents[1] / "programs" / "mergekit_runner.py"
    subprocess.run([PYTHON, runner, root], check=True, capture_output=True)
    return root


@pytest.mark.parametrize("case", CASES)
def test_same_numbers_as_mergekit(case, models, theirs, tmp_path):
    failed = theirs / f"{case}.failed"
    assert not failed.exists(), failed.read_text()
    text = config(case, models)
    if case == "ties":
        text += "  trim: tensor\n"  # theirs; ours is the whole model, as in the paper
    (tmp_path / "merge.yml").write_text(text)
    ramerge.merge(tmp_path / "merge.yml", out=tmp_path / "m")
    ours, other = read_tensors(tmp_path / "m"), read_tensors(theirs / case)
    assert ours.keys() == other.keys()
    base = read_tensors(models["base"])
    for name, array in ours.items():
        difference = np.abs(array - other[name]) / np.abs(other[name]).max()
        most, share = DEVIATIONS.get(case, (1e-5, 0.0))
        assert difference.max() <= most, (name, difference.max())
        if (difference > 1e-5).sum() > 3:  # small tensors may hold one element an agent
            assert (difference > 1e-5).mean() <= share or case == "nuslerp", name
    if case != "passthrough":
        assert any(not np.array_equal(ours[n], base[n]) for n in base), "nothing was merged"
