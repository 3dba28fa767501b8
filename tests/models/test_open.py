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


# The tensors of one layer in each scheme, by the sibling that is reported.
SCHEMES = {
    "MLX": ("weight", {"weight": np.uint32, "scales": np.float16, "biases": np.float16}),
    "integer": ("weight", {"weight": np.uint32, "scales": np.float16}),
    "AWQ": ("scales", {"scales": np.float16}),
    "HQQ": ("W_q", {"W_q": np.float16, "scale": np.float16, "zero": np.float16}),
    "HQQ with meta": ("W_q", {"W_q": np.uint8, "meta": np.uint8}),
    "torchao": ("_weight_qdata", {"_weight_qdata": np.int8, "_weight_scale": np.float32}),
    "bitsandbytes": ("weight.nested_quant_map", {"weight.nested_quant_map": np.float32}),
    "bitsandbytes 8": ("weight_format", {"weight": np.int8, "weight_format": np.uint8}),
    "compressed-tensors": ("weight_g_idx", {"weight_g_idx": np.int32}),
    "compressed-tensors FP4": ("weight_global_scale", {"weight_global_scale": np.float32}),
    "compressed-tensors inputs": ("input_zero_point", {"input_zero_point": np.int8}),
    "quanto": ("weight._data", {"weight._data": np.int8, "weight._scale": np.float16}),
    "AQLM": ("codes", {"codes": np.int8, "codebooks": np.float16, "scales": np.float16}),
    "VPTQ": ("indices", {"indices": np.int16, "centroids.weight": np.float16}),
    "Marlin": ("B", {"B": np.int32, "s": np.float16}),
    "QuIP#": ("Qidxs", {"Qidxs": np.int64, "SU": np.float16, "SV": np.float16}),
    "EXL2": ("q_weight", {"q_weight": np.int32, "q_scale": np.int32, "q_groups": np.int16}),
}


@pytest.mark.parametrize("case", SCHEMES)
def test_each_scheme_is_told_by_the_tensors_of_a_layer(tmp_path, case):
    reported, leaves = SCHEMES[case]
    layer = "model.layers.0.self_attn.q_proj"
    model(tmp_path / "m", {f"{layer}.{leaf}": np.ones((2, 2), d) for leaf, d in leaves.items()})
    scheme = case.split(" ")[0].split("#")[0]
    error = fails(tmp_path / "m", rf"{scheme}\S*( or \w+)?-quantised", IncompatibleError, 4)
    assert f"`{layer}.{reported}`" in error.message
    assert "remove" not in error.hint


PLAIN = {
    "scales of a norm": {"norm.weight": np.float32, "norm.scales": np.float32},
    "scales without weight": {"mixer.scales": np.float32, "mixer.bias": np.float32},
    "scale and zero": {"norm.scale": np.float32, "norm.zero": np.float32},
    "letters": {"ssm.A": np.float32, "ssm.B": np.float32, "ssm.C": np.float32},
    "query by name": {"attn.W_q": np.float32, "attn.W_k": np.float32, "attn.q_weight": np.float32},
    "data": {"store._data": np.float32, "codec.codes": np.int64, "pool.indices": np.int64},
    "blocks": {"rel_pos_blocks": np.float32, "temperature_scales": np.float32},
    "counts": {"norm.weight": np.float32, "norm.num_batches_tracked": np.int64},
    "integers alone": {"table.weight": np.int64},
}


@pytest.mark.parametrize("case", PLAIN)
def test_a_plain_model_with_one_such_name_is_not_quantised(tmp_path, case):
    model(tmp_path / "m", {name: np.ones((2, 2), dtype) for name, dtype in PLAIN[case].items()})
    open_checkpoint(str(tmp_path / "m")).close()


CONFIGS = {
    "gptq": {"quantization_config": {"quant_method": "gptq"}},
    "4 bits": {"quantization": {"group_size": 64, "bits": 4}},
    "mxfp4": {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
    "pack-quantized": {"compression_config": {"format": "pack-quantized"}},
    "of an unnamed kind": {"text_config": {"quantization_config": {"hidden": 1}}},
}


@pytest.mark.parametrize("method", CONFIGS)
def test_quantisation_said_by_the_config(tmp_path, method):
    """Tensors of unknown names are never called plain."""
    model(tmp_path / "m", {"a": A}, CONFIGS[method])
    error = fails(tmp_path / "m", f"is quantised: .*\\({method}\\)", IncompatibleError, 4)
    assert "dequantise" in error.hint
    assert "remove" not in error.hint


@pytest.mark.parametrize("said", [None, False, "none", {"aware": True}])
def test_a_config_that_says_nothing_of_bits_is_not_quantised(tmp_path, said):
    model(tmp_path / "m", {"a": A}, {"quantization": said})
    open_checkpoint(str(tmp_path / "m")).close()


@pytest.mark.parametrize(
    ("tensors", "plain"),
    [
        ({"lm_head.weight": (8, 4), "model.layers.0.self_attn.o_proj.weight": (4, 6)}, True),
        ({"lm_head.weight": (8, 4), "model.layers.0.self_attn.o_proj.weight": (6, 4)}, False),
        ({"lm_head.weight": (8, 1)}, False),
        ({"lm_head.weight": (8, 4), "lm_head.spare": (8, 4)}, False),
        ({"norm.weight": (4,)}, False),
    ],
)
def test_only_plain_weights_of_the_right_width_may_lose_their_quantization_config(
    tmp_path, tensors, plain
):
    """Floats of the model's width are plain; a packed width or a name without a role is not."""
    config = {"hidden_size": 4, "quantization_config": {"quant_method": "gptq"}}
    model(tmp_path / "m", {n: np.ones(s, np.float32) for n, s in tensors.items()}, config)
    error = fails(tmp_path / "m", "gptq", IncompatibleError, 4)
    assert ("remove `quantization_config`" in error.hint) is plain


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
