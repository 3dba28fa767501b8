"""LoRA agents: parity with PEFT's own merge in fp32, chunk-independent bits, nothing dropped."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from helpers import lora as helpers_lora
from helpers.lora import adapt, agent, assert_parity, renamed, rewritten, values
from helpers.reading import model, read_all, save
from ramerge.models.open import open_checkpoint

bases = helpers_lora.bases  # a fixture

OPTIONS = {
    "alpha_over_r": ({}, 4),
    "rslora": ({"use_rslora": True}, 4),
    "patterns": (
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.down_proj": 64}},
        4,
    ),
    "rslora_with_patterns": (
        {"use_rslora": True, "rank_pattern": {"^model.layers.0.self_attn.q_proj": 6}},
        4,
    ),
    "dora": ({"use_dora": True}, 4),
    "dora_rslora": ({"use_dora": True, "use_rslora": True}, 4),
    "modules_to_save": ({"modules_to_save": ["lm_head", "norm"]}, 6),
    "one_layer": ({"layers_to_transform": [1]}, 2),
    "all_linear": ({"target_modules": "all-linear"}, 14),
    "regex": ({"target_modules": r".*layers\.0\.self_attn\.(k|v)_proj"}, 2),
    "bias_all": ({"bias": "all"}, 10),
    "bias_lora_only": ({"bias": "lora_only"}, 6),
    "lora_bias": ({"lora_bias": True, "target_modules": ["q_proj", "k_proj"]}, 8),
    "rank_above_unroll": ({"r": 7}, 4),
    "embedding": ({"target_modules": ["embed_tokens", "q_proj"]}, 3),
    "embedding_dora": ({"target_modules": ["embed_tokens"], "use_dora": True}, 1),
    "head": ({"target_modules": ["lm_head"]}, 1),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_parity_with_peft(bases, tmp_path, case):
    """Alpha is never r here."""
    options, at_least = OPTIONS[case]
    directory, merged = adapt(bases, tmp_path, **options)
    checkpoint = agent(bases, directory)
    assert_parity(checkpoint, merged, at_least=at_least)
    assert checkpoint.config["model_type"] == "qwen2"
    checkpoint.close()


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"fan_in_fan_out": True}])
def test_parity_on_transposed_layers(bases, tmp_path, options):
    """GPT-2 stores its matrices transposed (Conv1D); c_proj of attention is square."""
    targets = ["c_attn", "c_proj"]
    directory, merged = adapt(bases, tmp_path, "gpt2", target_modules=targets, **options)
    assert_parity(agent(bases, directory, "gpt2"), merged, at_least=6)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}])
def test_bits_do_not_depend_on_the_piece(bases, tmp_path, options):
    directory, _ = adapt(bases, tmp_path, **options)
    checkpoint = agent(bases, directory)
    name = "model.layers.0.mlp.down_proj.weight"
    whole = read_all(checkpoint, name).view(np.float32)
    for size in (1, 7, 48, 100, 1535):
        again = agent(bases, directory)
        parts = []
        for start in range(0, whole.size, size):
            out = np.empty(4 * (min(start + size, whole.size) - start), np.uint8)
            again.read(name, start, start + out.size // 4, out)
            parts.append(out.view(np.float32))
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_unaligned_output_buffer(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path)
    checkpoint = agent(bases, directory)
    name = "model.layers.0.self_attn.q_proj.weight"
    expected = read_all(checkpoint, name)
    room = np.zeros(expected.size + 1, np.uint8)
    checkpoint.read(name, 0, expected.size // 4, room[1:])
    assert room[1:].tobytes() == expected.tobytes()


def test_delta_is_not_rounded_to_bf16(bases, tmp_path):
    """Base 1.0 in bf16 and a delta of 0.003, which bf16 rounds away."""
    import ml_dtypes

    base = model(tmp_path / "base", {"x.proj.weight": np.ones((2, 2), ml_dtypes.bfloat16)}, {})
    directory = tmp_path / "adapter"
    save(
        directory / "adapter_model.safetensors",
        {
            "base_model.model.x.proj.lora_A.weight": np.ones((1, 2), np.float32),
            "base_model.model.x.proj.lora_B.weight": np.full((2, 1), 0.003, np.float32),
        },
    )
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    got = values(open_checkpoint(f"{base}+{directory}"), "x.proj.weight")
    assert got.tolist() == np.full((2, 2), np.float32(1) + np.float32(0.003)).tolist()


# --- tied heads --------------------------------------------------------------------------------


def test_adapter_on_the_embedding_of_a_tied_base_unties_it(bases, tmp_path):
    """The head of a tied base keeps the base's values when only lookups were adapted."""
    directory, _ = adapt(bases, tmp_path, "qwen-tied", target_modules=["embed_tokens"])
    checkpoint = agent(bases, directory, "qwen-tied")
    base = open_checkpoint(str(bases["qwen-tied"][1]))
    embed = values(base, "model.embed_tokens.weight")
    assert "lm_head.weight" not in base.names()
    assert np.array_equal(values(checkpoint, "lm_head.weight"), embed)
    assert not np.array_equal(values(checkpoint, "model.embed_tokens.weight"), embed)
    assert "tied-head-split" in {n.code for n in checkpoint.notices}


def test_adapter_on_the_head_of_a_tied_base(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path, "qwen-tied", target_modules=["lm_head", "q_proj"])
    checkpoint = agent(bases, directory, "qwen-tied")
    base = open_checkpoint(str(bases["qwen-tied"][1]))
    embed = values(base, "model.embed_tokens.weight")
    assert np.array_equal(values(checkpoint, "model.embed_tokens.weight"), embed)
    assert not np.array_equal(values(checkpoint, "lm_head.weight"), embed)


def test_retrained_embedding_and_head_of_a_tied_base(tmp_path, bases):
    """modules_to_save=[embed_tokens, lm_head] with different values, base tied."""
    tensors = {
        f"base_model.model.{name}": np.full((64, 32), value, np.float32)
        for name, value in (("model.embed_tokens.weight", 1), ("lm_head.weight", 2))
    }
    save(tmp_path / "a" / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "modules_to_save": ["embed_tokens", "lm_head"]}
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config))
    checkpoint = agent(bases, tmp_path / "a", "qwen-tied")
    assert values(checkpoint, "model.embed_tokens.weight")[0, 0] == 1
    assert values(checkpoint, "lm_head.weight")[0, 0] == 2


# --- how adapters are given --------------------------------------------------------------------


def test_adapter_directory_on_a_given_base(bases, tmp_path):
    directory, merged = adapt(bases, tmp_path)
    base = open_checkpoint(str(bases["qwen"][1]))
    checkpoint = open_checkpoint(str(directory), base=base)
    assert_parity(checkpoint, merged, at_least=4)
    names = ["adapter/adapter_config.json", "adapter/adapter_model.safetensors"]
    assert [f.name for f in checkpoint.files()] == names
    assert checkpoint.directory == directory
    checkpoint.close()
    assert read_all(base, "model.norm.weight").size  # the base is the caller's


def test_two_adapters_on_one_model(bases, tmp_path):
    first, one = adapt(bases, tmp_path / "1")
    second, two = adapt(bases, tmp_path / "2", target_modules=["o_proj", "q_proj"], lora_alpha=2)
    checkpoint = open_checkpoint(f"{bases['qwen'][1]}+{first}+{second}")
    base = {k: v.numpy() for k, v in bases["qwen"][0].state_dict().items()}
    for name in checkpoint.names():
        expected = base[name] + (one[name] - base[name]) + (two[name] - base[name])
        np.testing.assert_allclose(values(checkpoint, name), expected, atol=1e-6)
    assert {f.name.split("/")[0] for f in checkpoint.files()} == {
        "adapter",
        "adapter2",
        "model.safetensors",
    }
    assert checkpoint.directory == bases["qwen"][1]


def test_plus_sign_inside_a_path(bases, tmp_path):
    directory, merged = adapt(bases, tmp_path / "a+b")
    shutil.copytree(bases["qwen"][1], tmp_path / "c+d")
    checkpoint = open_checkpoint(f"{tmp_path / 'c+d'}+{directory}")
    assert_parity(checkpoint, merged, at_least=4)


def test_names_with_adapter_name_and_wrappers(bases, tmp_path):
    """verl and raw state dicts: lora_A.default.weight, FSDP and compile wrappers in front."""
    directory, merged = adapt(bases, tmp_path, modules_to_save=["lm_head"])

    def change(tensors):
        tensors = renamed("lora_A.", "lora_A.default.")(tensors)
        tensors = renamed("lora_B.", "lora_B.default.")(tensors)
        tensors = renamed("lm_head.weight", "lm_head.modules_to_save.default.weight")(tensors)
        return renamed("base_model.", "_fsdp_wrapped_module.base_model.")(tensors)

    rewritten(directory, change)
    assert_parity(agent(bases, directory), merged, at_least=5)


def test_enlarged_vocabulary_in_an_adapter(bases, tmp_path):
    """modules_to_save with more rows than the base goes need the vocabulary policy."""
    from ramerge.fit.harmonise import harmonise

    directory, _ = adapt(bases, tmp_path, modules_to_save=["embed_tokens"])
    name = "base_model.model.model.embed_tokens.weight"
    rewritten(directory, lambda t: {**t, name: np.ones((70, 32), np.float32)})
    base = open_checkpoint(str(bases["qwen"][1]))
    agent_ = open_checkpoint(str(directory), base=base)
    (problem,) = harmonise(base, {"x": agent_}).problems
    assert "64 in the base, 70 in agent `x`" in problem.message
    harmony = harmonise(base, {"x": agent_}, vocabulary="base")
    assert harmony.problems == []
    assert values(harmony.agents["x"], "model.embed_tokens.weight").tolist() == [[1.0] * 32] * 64


def test_nothing_is_cached_on_disk(bases, tmp_path):
    """An adapter that was retrained in place is read anew, nothing is left."""
    directory, _ = adapt(bases, tmp_path)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    name = "model.layers.0.self_attn.q_proj.weight"
    first = values(agent(bases, directory), name)
    rewritten(directory, lambda t: {k: v * 2 if "lora_B" in k else v for k, v in t.items()})
    assert not np.array_equal(values(agent(bases, directory), name), first)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("old", ["model.layers", "language_model.model.layers"])
def test_base_saved_under_the_names_of_another_version(bases, tmp_path, old):
    """Adapters of multimodal models name `model.language_model.layers`; older bases do not."""
    from safetensors.numpy import load_file

    directory, merged = adapt(bases, tmp_path)
    rewritten(directory, renamed("model.model.layers", "model.model.language_model.layers"))
    tensors = load_file(bases["qwen"][1] / "model.safetensors")
    moved = {k.replace("model.layers", old): v for k, v in tensors.items()}
    base = model(tmp_path / "base", moved, {"model_type": "qwen2_vl"})
    checkpoint = open_checkpoint(f"{base}+{directory}")
    assert "names-matched" in {n.code for n in checkpoint.notices}
    expected = {k.replace("model.layers", old): v for k, v in merged.items()}
    assert_parity(checkpoint, expected, at_least=4)
