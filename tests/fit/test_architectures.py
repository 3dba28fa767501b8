"""A second reader: transformers opens merged models of every architecture, no key missing or unexpected.

Issue of many merge tools: names and tensors follow a list of known architectures, and what is not
on it is dropped. Here names come from the files, so any model that transformers saves must merge.
"""

from __future__ import annotations

import copy

import pytest

import ramerge
from ramerge.models.facts import layer_of, module_of
from ramerge.models.open import open_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
VISION = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "patch_size": 4}


def configs():
    t = transformers
    return {
        "qwen2": lambda: t.Qwen2Config(**SMALL, tie_word_embeddings=False),
        "qwen2_tied": lambda: t.Qwen2Config(**SMALL, tie_word_embeddings=True),
        "qwen3": lambda: t.Qwen3Config(**SMALL, tie_word_embeddings=False),
        "llama": lambda: t.LlamaConfig(**SMALL),
        "gemma3": lambda: t.Gemma3Config(
            text_config={**SMALL, "sliding_window": 16},
            vision_config={**VISION, "num_hidden_layers": 1, "image_size": 8},
            mm_tokens_per_image=4,
            image_token_index=5,
        ),
        "mixtral": lambda: t.MixtralConfig(**SMALL, num_local_experts=4),
        "qwen3_moe": lambda: t.Qwen3MoeConfig(**SMALL, **EXPERTS),
        "qwen2_5_vl": lambda: t.Qwen2_5_VLConfig(
            text_config={
                **SMALL,
                "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]},
            },
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_heads": 2,
                "patch_size": 4,
                "depth": 1,
                "out_hidden_size": 32,
                "fullatt_block_indexes": [0],
            },
            image_token_id=5,
            video_token_id=6,
            vision_start_token_id=7,
            vision_end_token_id=8,
        ),
        "gpt2": lambda: t.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2),
        "bert": lambda: t.BertConfig(**{**SMALL, "max_position_embeddings": 16}),
    }


def kind_of(config):
    if config.model_type == "bert":
        return transformers.AutoModelForMaskedLM
    if config.model_type in {"gemma3", "qwen2_5_vl"}:
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


def perturbed(model, seed: int):
    """The model after a sparse change, as reinforcement learning leaves it."""
    changed = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in changed.parameters():
            if parameter.is_floating_point():
                hit = torch.rand_like(parameter, dtype=torch.float32) < 0.3
                parameter.add_((torch.randn_like(parameter) * 0.05 * hit).to(parameter.dtype))
    return changed


@pytest.mark.parametrize("name", configs())
def test_transformers_loads_the_merged_model(tmp_path, name):
    config = configs()[name]()
    kind = kind_of(config)
    torch.manual_seed(0)
    model = kind.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "base")
    for i in range(2):
        perturbed(model, i + 1).save_pretrained(tmp_path / f"agent{i}")
    agents = [str(tmp_path / f"agent{i}") for i in range(2)]
    report = ramerge.merge(
        base=str(tmp_path / "base"), agents=agents, method="ram_plus", out=tmp_path / "out"
    )
    assert report is not None
    loaded, info = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info.get(problem), (problem, info[problem])
    assert type(loaded) is type(model)
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert loaded.dtype == torch.bfloat16
    changed = [k for k in before if not torch.equal(before[k].float(), after[k].float())]
    assert len(changed) > len(before) // 2
    assert all(torch.isfinite(v.float()).all() for v in after.values())


@pytest.mark.parametrize("name", configs())
def test_layers_and_roles_of_real_names(tmp_path, name):
    """Every block tensor has a layer, and a role that all layers share."""
    config = configs()[name]()
    model = kind_of(config).from_config(config)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    layers: dict[int | None, set[str]] = {}
    for tensor in checkpoint.names():
        if "vis" not in tensor:
            layers.setdefault(layer_of(tensor), set()).add(module_of(tensor))
    assert layers[0] == layers[1]
    assert not any(part.isdigit() for role in layers[0] for part in role.split("."))
