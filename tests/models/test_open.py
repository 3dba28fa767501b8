"""What the user wrote, to a model or to a refusal that names the format and the way out."""

from __future__ import annotations

import json
import os

import ml_dtypes
import numpy as np
import pytest

from helpers.reading import model, save
from ramerge._errors import CorruptInputError, HubError, IncompatibleError, SecurityError
from ramerge.models import hub
from ramerge.models.hub import parse_hub_id
from ramerge.models.open import open_checkpoint

A = np.ones((2, 2), np.float32)


def fails(source, match, error, code):
    with pytest.raises(error, match=match) as caught:
        open_checkpoint(str(source))
    assert caught.value.exit_code == code
    assert caught.value.hint
    return caught.value


FOLDERS = {
    "gguf": (["model.q4.gguf"], "GGUF", IncompatibleError, 4),
    "verl_34": (["model_world_size_8_rank_0.pt"], "raw verl FSDP", SecurityError, 8),
    "dcp": ([".metadata", "__0_0.distcp"], "distributed checkpoint", SecurityError, 8),
    "deepspeed": (["zero_to_fp32.py", "latest"], "DeepSpeed", IncompatibleError, 4),
    "megatron": (["latest_checkpointed_iteration.txt"], "Megatron", IncompatibleError, 4),
    "pickle": (["pytorch_model.bin"], "Python pickles", SecurityError, 8),
    "flax": (["flax_model.msgpack"], "another framework", IncompatibleError, 4),
    "no_index": (["model-00001-of-00002.safetensors"], "shards but no", CorruptInputError, 3),
    "mistral": (["consolidated.safetensors"], "consolidated layout", IncompatibleError, 4),
    "odd_name": (["weights.safetensors"], "but neither", CorruptInputError, 3),
    "config_only": (["config.json"], "holds no model.safetensors", CorruptInputError, 3),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_that_are_not_read_are_named(tmp_path, case):
    """Each look-alike by its name."""
    names, match, error, code = FOLDERS[case]
    for name in names:
        (tmp_path / name).write_text("{}")
    fails(tmp_path, match, error, code)


def test_trainer_folder_names_the_checkpoints_inside(tmp_path):
    model(tmp_path / "checkpoint-10", {"a": A})
    model(tmp_path / "checkpoint-20", {"a": A})
    error = fails(tmp_path, "`checkpoint-10`, `checkpoint-20` inside it", IncompatibleError, 4)
    assert "checkpoint-20" in error.hint


def test_adapter_given_as_model(tmp_path):
    save(tmp_path / "adapter_model.safetensors", {"x": A})
    (tmp_path / "adapter_config.json").write_text("{}")
    fails(tmp_path, "adapter", IncompatibleError, 4)


@pytest.mark.parametrize(
    ("tensor", "dtype", "scheme"),
    [
        ("model.layers.0.q_proj.weight", ml_dtypes.float8_e4m3fn, "FP8"),
        ("model.layers.0.q_proj.weight_scale_inv", np.float32, "FP8"),
        ("model.layers.0.q_proj.qweight", np.int32, "GPTQ or AWQ"),
        ("model.layers.0.q_proj.weight.absmax", np.float32, "bitsandbytes"),
        ("model.layers.0.q_proj.weight_packed", np.int32, "compressed-tensors"),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", np.uint8, "MXFP4"),
    ],
)
def test_quantised_weights_are_refused(tmp_path, tensor, dtype, scheme):
    """FP8 and 4-bit inputs, by dtype or by their siblings."""
    model(tmp_path / "m", {tensor: np.ones((2, 2), dtype)})
    error = fails(tmp_path / "m", f"{scheme}-quantised", IncompatibleError, 4)
    assert tensor in error.message


def test_quantisation_said_by_the_config(tmp_path):
    """Quantization_config over plain tensors."""
    config = {"quantization_config": {"quant_method": "gptq"}}
    model(tmp_path / "m", {"a": A}, config)
    fails(tmp_path / "m", "gptq", IncompatibleError, 4)


def test_bare_files(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"PK\3\4")
    fails(tmp_path / "x.bin", "pickle", SecurityError, 8)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    fails(tmp_path / "x.gguf", "GGUF", IncompatibleError, 4)
    (tmp_path / "y.safetensors").write_bytes(b"<html>not found</html>")
    fails(tmp_path / "y.safetensors", "HTML page", CorruptInputError, 3)


def test_missing_path_names_the_nearest_sibling(tmp_path):
    model(tmp_path / "agent-coder", {"a": A})
    error = fails(tmp_path / "agent-codre", "does not exist", CorruptInputError, 3)
    assert "agent-coder`?" in error.hint
    fails(tmp_path / "no" / "such", "nor does", CorruptInputError, 3)
    fails("http://user:secret@host/x", "URLs are not read", CorruptInputError, 3)


def test_relative_local_path_beside_existing_things_is_not_sent_to_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "models" / "coder", {"a": A})
    monkeypatch.setattr(hub, "download", lambda *a, **k: pytest.fail("asked the Hub"))
    error = fails("models/codre", "does not exist", CorruptInputError, 3)
    assert "hf:models/codre" in error.hint
    assert open_checkpoint("models/coder").names() == ("a",)


def test_broken_config(tmp_path):
    model(tmp_path / "m", {"a": A})
    (tmp_path / "m" / "config.json").write_text('{"a": 1,}')
    with pytest.raises(CorruptInputError, match=r"`config.json` is not valid JSON.*line 1"):
        open_checkpoint(str(tmp_path / "m"))


# --- Hub -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("org/name", ("org/name", None)),
        ("hf:org/name@v1.0", ("org/name", "v1.0")),
        ("Qwen/Qwen2.5-0.5B@refs/pr/1", ("Qwen/Qwen2.5-0.5B", "refs/pr/1")),
        ("name", None),
        ("a/b/c", None),
        ("../x", None),
        ("org/name@", None),
    ],
)
def test_hub_ids(text, parts):
    assert parse_hub_id(text) == parts


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A Hub cache with one model of revision `main`, offline."""
    root = tmp_path / "cache"
    repo = root / "models--org--name"
    snapshot = repo / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    (repo / "blobs").mkdir()
    save(repo / "blobs" / "w", {"a": A})
    (repo / "blobs" / "c").write_text(json.dumps({"model_type": "x"}))
    os.symlink("../../blobs/w", snapshot / "model.safetensors")
    os.symlink("../../blobs/c", snapshot / "config.json")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return root


def test_hub_id_from_the_cache_offline(cache):
    for source in ("org/name", "hf:org/name", "org/name@" + "a" * 40):
        checkpoint = open_checkpoint(source)
        assert checkpoint.names() == ("a",)
        assert checkpoint.revision == "a" * 40
        assert checkpoint.config == {"model_type": "x"}
        assert checkpoint.source == source


def test_hub_model_not_in_the_cache(cache):
    error = fails("org/absent", "not .*in the local cache", HubError, 9)
    assert "./" in error.hint
    fails("org/name@" + "b" * 40, "not .*in the local cache", HubError, 9)


def test_hub_errors_carry_no_secret(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    import huggingface_hub

    def fail(*args, **kwargs):
        raise RuntimeError("401 for https://user:pw@host with header Bearer hf_abcdefghijklmnop")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    error = fails("org/name", "could not be fetched from the Hub .RuntimeError.", HubError, 9)
    assert "hf_abc" not in str(error)
    assert "pw@" not in str(error)


def test_source_is_shown_without_credentials(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "hf_abcdefghijklmnop", {"a": A})
    assert "hf_abc" not in open_checkpoint("hf_abcdefghijklmnop").source
