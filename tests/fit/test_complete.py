"""Models whose files lack what their config.json calls for: named, never merged."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from helpers.reading import model
from ramerge._errors import CorruptInputError, IncompatibleError
from ramerge.api import plan
from ramerge.fit.complete import check_complete
from ramerge.models.open import open_checkpoint

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": False,
    "num_hidden_layers": 4,
    "vocab_size": 6,
}


def values(*names, shape=(3, 2)):
    return {name: np.ones(shape, np.float32) for name in names}


def layers(count, path="model.layers", leaf="mlp.up_proj.weight"):
    return values(*(f"{path}.{i}.{leaf}" for i in range(count)))


def checked(directory, tensors, config, changes=None):
    """What is wrong, as (exit code, message)."""
    opened = open_checkpoint(str(model(directory, tensors, config)))
    return [(p.exit_code, p.message) for p in check_complete("the base", opened, changes)]


@pytest.fixture
def whole():
    return {**layers(4), **values(EMBED, HEAD, shape=(6, 2))}


def test_a_whole_model_passes(tmp_path, whole):
    assert checked(tmp_path, whole, LLAMA) == []


def test_an_untied_model_without_its_head(tmp_path, whole):
    """A loader would fill the head with noise; base and agents alike lack it."""
    del whole[HEAD]
    for name in ("base", "a", "b"):
        model(tmp_path / name, whole, LLAMA)
    agents = [str(tmp_path / name) for name in "ab"]
    with pytest.raises(IncompatibleError) as error:
        plan(base=str(tmp_path / "base"), agents=agents)
    assert "`lm_head.weight`" in error.value.message
    assert "tie_word_embeddings: false" in error.value.message
    assert "tie_word_embeddings: true" in error.value.hint
    assert error.value.exit_code == 4


@pytest.mark.parametrize(
    "head",
    [
        "embed_out.weight",
        "output.weight",
        "transformer.output_layer.weight",
        "language_model.lm_head.weight",
        "cls.predictions.decoder.weight",
        "vocab_projector.weight",
    ],
)
def test_heads_of_other_architectures(tmp_path, whole, head):
    del whole[HEAD]
    whole |= values(head, shape=(6, 2))
    assert checked(tmp_path, whole, LLAMA) == []


@pytest.mark.parametrize(
    "change",
    [
        {"tie_word_embeddings": True},
        {"tie_word_embeddings": None},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": ["BertModel"]},
        {"architectures": None},
    ],
)
def test_a_head_that_nobody_needs(tmp_path, whole, change):
    """Tied, unsaid, or an architecture with another head or none."""
    del whole[HEAD]
    config = {k: v for k, v in {**LLAMA, **change}.items() if v is not None}
    assert checked(tmp_path, whole, config) == []


def test_a_model_without_embedding(tmp_path, whole):
    del whole[EMBED]
    whole[HEAD] = np.ones((5, 2), np.float32)
    ((code, message),) = checked(tmp_path, whole, LLAMA)
    assert code == 4
    assert "no token embedding" in message


def test_layers_are_counted(tmp_path, whole):
    """The number of layers in config.json is the number that a loader builds."""
    config = {**LLAMA, "num_hidden_layers": 8}
    del whole["model.layers.1.mlp.up_proj.weight"]
    ((code, message),) = checked(tmp_path, whole, config)
    assert code == CorruptInputError.exit_code == 3
    assert "lacks layer 1 of 8 and layers 4 to 7 of 8" in message


def test_layers_beyond_the_last_are_no_gap(tmp_path, whole):
    """Multi-token prediction stores layers after the last one."""
    config = {**LLAMA, "num_hidden_layers": 3, "num_nextn_predict_layers": 1}
    assert checked(tmp_path, whole, config) == []


def test_names_that_follow_no_convention(tmp_path):
    """What cannot be known is left alone."""
    assert checked(tmp_path, values("w"), LLAMA) == []


def test_embeddings_alone(tmp_path):
    tensors = values(EMBED, HEAD, shape=(6, 2))
    ((_, message),) = checked(tmp_path, tensors, LLAMA)
    assert "lacks layers 0 to 3 of 4," in message


def test_stacks_of_an_encoder_and_a_decoder(tmp_path):
    config = {"is_encoder_decoder": True, "num_layers": 2, "num_decoder_layers": 3}
    tensors = {**layers(2, "encoder.block"), **layers(2, "decoder.block")}
    ((_, message),) = checked(tmp_path, tensors, config)
    assert "lacks decoder layer 2 of 3," in message


def test_a_vision_tower_has_its_own_number(tmp_path, whole):
    whole |= layers(9, "vision_tower.encoder.layers")
    text = {"num_hidden_layers": 4, "vocab_size": 6}
    config = {"text_config": text, "architectures": ["XForConditionalGeneration"]}
    assert checked(tmp_path, whole, config) == []


def test_slices_change_the_number(tmp_path, whole):
    assert (
        checked(tmp_path, whole, {**LLAMA, "num_hidden_layers": 9}, {"num_hidden_layers": 4}) == []
    )


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_experts_are_counted(tmp_path, whole, key):
    for layer in range(4):
        stem = f"model.layers.{layer}.mlp.experts"
        whole |= values(*(f"{stem}.{i}.up_proj.weight" for i in range(4)))
    assert checked(tmp_path / "whole", whole, {**LLAMA, key: 4}) == []
    del whole["model.layers.2.mlp.experts.1.up_proj.weight"]
    ((code, message),) = checked(tmp_path / "cut", whole, {**LLAMA, key: 4})
    assert code == 3
    assert "lacks expert 1 of 4 in `model.layers.2`" in message


def test_packed_experts_are_counted(tmp_path, whole):
    whole |= values("model.layers.0.mlp.experts.gate_up_proj", shape=(3, 2, 2))
    ((_, message),) = checked(tmp_path, whole, {**LLAMA, "num_local_experts": 4})
    assert "expert 3 of 4 in `model.layers.0`" in message


def test_every_architecture_that_transformers_saves(tmp_path):
    """Nothing is missing from what a library wrote whole, and each layer is missed."""
    pytest.importorskip("transformers")
    from safetensors.numpy import load_file, save_file

    from fit.test_architectures import configs, kind_of

    for name, make in configs().items():
        directory = tmp_path / name
        config = make()
        kind_of(config).from_config(config).save_pretrained(directory)
        opened = open_checkpoint(str(directory))
        assert check_complete("the base", opened) == [], name
        opened.close()
        tensors = load_file(directory / "model.safetensors")
        stacks = defaultdict(list)
        for tensor in tensors:
            if ".1." in tensor and "vis" not in tensor:
                stacks[tensor.partition(".1.")[0]].append(tensor)
        lost = max(stacks.values(), key=len)
        left = {n: t for n, t in tensors.items() if n not in lost}
        save_file(left, directory / "model.safetensors")
        (problem,) = check_complete("the base", open_checkpoint(str(directory)))
        assert "layer 1 of 2" in problem.message, name
