"""The miniature set: deterministic, with the paper's overlaps, never written over anything else."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import pytest

from ramerge._errors import OutputBusyError
from ramerge.demo import AGENTS, DENSITIES, UNIQUE_SHARES, overlap_classes, write_demo_set


def values(directory):
    """All elements of a BF16 safetensors file that has no padding between tensors, as float32."""
    raw = (directory / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    return np.frombuffer(raw[start:], ml_dtypes.bfloat16).astype(np.float32)


def test_classes_are_probabilities_with_the_given_margins():
    classes = overlap_classes(DENSITIES, UNIQUE_SHARES, 0.0142)
    assert classes.sum() == pytest.approx(1)
    for t in range(3):
        changed = sum(p for mask, p in enumerate(classes) if mask >> t & 1)
        assert changed == pytest.approx(DENSITIES[t])
        assert classes[1 << t] == pytest.approx(DENSITIES[t] * UNIQUE_SHARES[t])


def test_agents_change_what_the_paper_s_agents_change(tmp_path):
    base, agents = write_demo_set(tmp_path / "demo")
    assert tuple(agents) == AGENTS
    origin = values(base)
    changed = np.stack([np.abs(values(path) - origin) > 1e-5 for path in agents.values()])
    assert origin.size == 205_376
    np.testing.assert_allclose(changed.mean(axis=1), DENSITIES, rtol=0.03)
    alone = changed & (changed.sum(axis=0) == 1)
    np.testing.assert_allclose(alone.sum(axis=1) / changed.sum(axis=1), UNIQUE_SHARES, rtol=0.06)


def test_the_same_bytes_every_time(tmp_path):
    def digest(directory):
        base, agents = write_demo_set(directory)
        files = [path / "model.safetensors" for path in (base, *agents.values())]
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]

    assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_a_demo_replaces_a_demo_only_when_told_and_nothing_else_ever(tmp_path):
    write_demo_set(tmp_path / "demo")
    with pytest.raises(OutputBusyError, match="holds an earlier demo"):
        write_demo_set(tmp_path / "demo")
    write_demo_set(tmp_path / "demo", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(OutputBusyError, match="not an earlier demo"):
        write_demo_set(tmp_path / "mine", overwrite=True)


def test_transformers_loads_the_base(tmp_path):
    transformers = pytest.importorskip("transformers")
    base, _ = write_demo_set(tmp_path / "demo")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(base, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert sum(p.numel() for p in model.parameters()) == 205_376


def test_the_shipped_agents_merge_to_the_same_bytes_everywhere(tmp_path):
    """Golden digest of the demo's output: changes only with a change of results, which the changelog names."""
    import hashlib

    import ramerge
    from ramerge.demo import copy_trained_set

    base, agents, accuracies = copy_trained_set(tmp_path / "demo")
    ramerge.merge(base=base, agents=agents, method="ram_plus", out=tmp_path / "merged")
    digest = hashlib.sha256((tmp_path / "merged" / "model.safetensors").read_bytes()).hexdigest()
    assert digest == "f620e5fc697968ffb393118a633535698a319c7fddaca16955be6275d3fd5666"
    for agent, task in {"coder": "coding", "tools": "tools", "memory": "memory"}.items():
        assert accuracies[agent][task] >= accuracies["base"][task] + 0.2
