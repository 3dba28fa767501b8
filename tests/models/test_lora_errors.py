"""Adapters that are refused: no effect, no counterpart, not understood; each with both names."""

from __future__ import annotations

import numpy as np
import pytest

from helpers import lora as helpers_lora
from helpers.lora import adapt, agent, assert_parity, renamed, rewritten
from helpers.reading import model
from ramerge._errors import CorruptInputError, IncompatibleError, SecurityError
from ramerge.models.open import open_checkpoint

bases = helpers_lora.bases  # a fixture


def refused(bases, directory, match, error=IncompatibleError, code=4, base="qwen"):
    with pytest.raises(error, match=match) as caught:
        agent(bases, directory, base)
    assert caught.value.exit_code == code
    return caught.value


def test_alpha_zero(bases, tmp_path):
    """verl wrote lora_alpha 0, and the merge was exactly the base."""
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, lora_alpha=0)
    refused(bases, directory, "no effect: its `lora_alpha` is 0")


def test_untrained_adapter_has_no_effect(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, lambda t: {k: v * ("lora_A" in k) for k, v in t.items()})
    refused(bases, directory, "no effect: a factor of every product is 0")


def test_foreign_prefix_is_not_dropped(bases, tmp_path):
    """Keys with a foreign prefix leave random LoRA weights under PEFT."""
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, renamed("base_model.model.model.", "base_model.model.actor."))
    error = refused(bases, directory, "changes `actor.layers.0.mlp.down_proj.weight`, which")
    assert "model.layers.0.mlp.down_proj.weight" in error.hint


def test_target_modules_narrower_than_the_file(bases, tmp_path):
    """PEFT drops such tensors."""
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, target_modules=["q_proj"])
    refused(bases, directory, "`model.layers.0.mlp.down_proj`, which its configuration does not")


def test_layers_to_transform_narrower_than_the_file(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, layers_to_transform=[0])
    refused(bases, directory, "model.layers.1.mlp.down_proj`, which its configuration does not")


def test_missing_factor(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path)
    gone = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    rewritten(directory, lambda t: {k: v for k, v in t.items() if k != gone})
    refused(bases, directory, "q_proj.lora_B.weight` without its other", CorruptInputError, 3)


def test_factors_that_were_not_gathered(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, lambda t: {k: v.ravel()[:0] for k, v in t.items()})
    error = refused(bases, directory, "where a matrix is expected", CorruptInputError, 3)
    assert "gathering" in error.hint


def test_dora_without_magnitude_and_the_reverse(bases, tmp_path):
    """A missing magnitude vector is an error, not plain LoRA."""
    directory, _ = adapt(bases, tmp_path, use_dora=True)
    rewritten(directory, use_dora=False)
    refused(bases, directory, "use_dora: false.*with a magnitude vector")
    rewritten(
        directory, lambda t: {k: v for k, v in t.items() if "magnitude" not in k}, use_dora=True
    )
    refused(bases, directory, "use_dora: true.*without a magnitude vector")


def test_rank_that_differs_from_the_configuration(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, r=8)
    refused(bases, directory, "has rank 4, the configuration of .* says 8")


def test_adapter_of_another_base(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path)
    rewritten(
        directory,
        lambda t: {k: np.repeat(v, 2, 1) if "lora_A" in k else v for k, v in t.items()},
    )
    refused(bases, directory, r"\[4, 96\] does not fit `model.layers.0.mlp.down_proj.weight` \[32")


def test_several_adapters_in_one_file(bases, tmp_path):
    directory, _ = adapt(bases, tmp_path)

    def change(tensors):
        both = {
            k.replace("_A.", "_A.one.").replace("_B.", "_B.one."): v for k, v in tensors.items()
        }
        return both | {k.replace(".one.", ".two."): v for k, v in both.items()}

    rewritten(directory, change)
    refused(bases, directory, "several adapters: `one`, `two`")


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"peft_type": "LOHA"}, "type `LOHA`"),
        ({"use_qalora": True}, "use_qalora"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"init_lora_weights": "olora"}, "olora"),
    ],
)
def test_variants_are_refused_by_name(bases, tmp_path, config, match):
    """Variants merge silently wrong elsewhere."""
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, **config)
    refused(bases, directory, match)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"r": 0}, "`r` in adapter_config.json is `0`"),
        ({"lora_alpha": "16"}, "`lora_alpha`"),
        ({"lora_alpha": True}, "`lora_alpha`"),
        ({"alpha_pattern": [1]}, "alpha_pattern"),
        ({"alpha_pattern": {"(": 1}}, "regular expression"),
        ({"target_modules": [1]}, "target_modules"),
    ],
)
def test_broken_configuration(bases, tmp_path, config, match):
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, **config)
    refused(bases, directory, match, CorruptInputError, 3)


def test_pickled_or_missing_adapter_weights(bases, tmp_path):
    import torch
    from safetensors.torch import load_file

    directory, merged = adapt(bases, tmp_path)
    weights = directory / "adapter_model.safetensors"
    torch.save(load_file(weights), directory / "adapter_model.bin")
    weights.unlink()
    refused(bases, directory, "pickle", SecurityError, 8)
    source = f"{bases['qwen'][1]}+{directory}"
    assert_parity(open_checkpoint(source, allow_pickle=True), merged, at_least=4)
    (directory / "adapter_model.bin").unlink()
    refused(bases, directory, "has no adapter_model.safetensors", CorruptInputError, 3)


def test_unmerged_adapter_inside_a_model(bases, tmp_path):
    """`huggingface/` holds base_layer and lora_A keys."""
    tensors = {
        "base_model.model.x.q_proj.base_layer.weight": np.ones((2, 2), np.float32),
        "base_model.model.x.q_proj.lora_A.default.weight": np.ones((1, 2), np.float32),
    }
    model(tmp_path / "m", tensors)
    with pytest.raises(IncompatibleError, match="adapter that was not merged"):
        open_checkpoint(str(tmp_path / "m"))


def test_model_where_an_adapter_is_expected(bases, tmp_path):
    with pytest.raises(IncompatibleError, match="is not an adapter"):
        open_checkpoint(f"{bases['qwen'][1]}+{bases['gpt2'][1]}")


def test_base_of_another_name_is_a_notice(bases, tmp_path):
    """Which base was it trained on?"""
    directory, _ = adapt(bases, tmp_path)
    rewritten(directory, base_model_name_or_path="org/Other-7B")
    notices = {n.code: n.message for n in agent(bases, directory).notices}
    assert "`org/Other-7B`" in notices["adapter-base"]
    rewritten(directory, base_model_name_or_path="/somewhere/else/qwen")
    assert "adapter-base" not in {n.code for n in agent(bases, directory).notices}
