"""Layer, role, buffers and tied heads from names, shapes and config."""

from __future__ import annotations

import pytest

from ramerge._types import DType, TensorSpec
from ramerge.models.facts import (
    TiedHead,
    block_of,
    is_buffer,
    is_tied,
    is_vocabulary_tensor,
    layer_of,
    module_of,
    tied_head,
    vocab_size,
)


@pytest.mark.parametrize(
    ("name", "layer", "module"),
    [
        ("model.layers.7.self_attn.q_proj.weight", 7, "self_attn.q_proj"),
        ("model.layers.7.self_attn.q_proj.bias", 7, "self_attn.q_proj"),
        ("model.layers.0.mlp.experts.12.down_proj.weight", 0, "mlp.experts.down_proj"),
        ("model.layers.0.mlp.experts.gate_up_proj", 0, "mlp.experts.gate_up_proj"),
        ("model.layers.3.block_sparse_moe.experts.1.w1.weight", 3, "block_sparse_moe.experts.w1"),
        ("model.layers.3.mlp.gate.weight", 3, "mlp.gate"),
        ("model.layers.11.input_layernorm.weight", 11, "input_layernorm"),
        ("transformer.h.2.attn.c_attn.weight", 2, "attn.c_attn"),
        ("h.2.mlp.c_proj.bias", 2, "mlp.c_proj"),
        ("encoder.layer.5.attention.self.query.weight", 5, "attention.self.query"),
        ("bert.encoder.layer.5.output.LayerNorm.weight", 5, "output.LayerNorm"),
        ("gpt_neox.layers.1.attention.dense.weight", 1, "attention.dense"),
        ("visual.blocks.3.attn.qkv.weight", 3, "visual.attn.qkv"),
        ("model.visual.blocks.3.attn.qkv.weight", 3, "visual.attn.qkv"),
        (
            "vision_tower.vision_model.encoder.layers.4.mlp.fc1.weight",
            4,
            "vision_tower.mlp.fc1",
        ),
        ("language_model.model.layers.9.mlp.up_proj.weight", 9, "mlp.up_proj"),
        ("model.language_model.layers.9.mlp.up_proj.weight", 9, "mlp.up_proj"),
        ("model.embed_tokens.weight", None, "embed_tokens"),
        ("model.language_model.embed_tokens.weight", None, "embed_tokens"),
        ("transformer.wte.weight", None, "wte"),
        ("lm_head.weight", None, "lm_head"),
        ("model.norm.weight", None, "norm"),
        ("embeddings.word_embeddings.weight", None, "embeddings.word_embeddings"),
        ("visual.merger.mlp.0.weight", None, "visual.merger.mlp"),
        ("weight", None, "weight"),
        ("x", None, "x"),
    ],
)
def test_layer_and_module(name, layer, module):
    assert layer_of(name) == layer
    assert module_of(name) == module


def test_blocks_of_two_towers_are_told_apart():
    assert block_of("model.visual.blocks.3.attn.qkv.weight") == "model.visual.blocks.3"
    assert block_of("model.layers.3.mlp.up_proj.weight") == "model.layers.3"
    assert block_of("lm_head.weight") is None


@pytest.mark.parametrize(
    ("name", "shape", "buffer"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (8,), True),
        ("model.rotary_emb.inv_freq", (8,), True),
        ("embeddings.position_ids", (1, 512), True),
        ("h.0.attn.bias", (1, 1, 8, 8), True),
        ("transformer.h.0.attn.masked_bias", (), True),
        ("gpt_neox.layers.0.attention.bias", (1, 1, 8, 8), True),
        ("layers.0.attn.bias", (8,), False),
        ("h.0.attn.c_attn.bias", (8,), False),
        ("visual.blocks.0.attn.qkv.bias", (8,), False),
        ("embeddings.position_embeddings.weight", (8, 2), False),
        ("freqs_cis", (8,), True),
    ],
)
def test_buffers(name, shape, buffer):
    """Rotary frequencies and masks in checkpoints."""
    assert is_buffer(TensorSpec(name, DType.F32, shape)) is buffer


@pytest.mark.parametrize(
    ("names", "config", "expected"),
    [
        (
            ["model.embed_tokens.weight", "lm_head.weight"],
            {"tie_word_embeddings": False},
            TiedHead("model.embed_tokens.weight", "lm_head.weight", False),
        ),
        (
            ["model.embed_tokens.weight"],
            {"tie_word_embeddings": True},
            TiedHead("model.embed_tokens.weight", "lm_head.weight", True),
        ),
        (["wte.weight"], {}, TiedHead("wte.weight", "lm_head.weight", True)),
        (
            ["model.language_model.embed_tokens.weight", "model.visual.patch_embed.proj.weight"],
            {"text_config": {"tie_word_embeddings": True}},
            TiedHead("model.language_model.embed_tokens.weight", "lm_head.weight", True),
        ),
        (
            ["language_model.model.embed_tokens.weight"],
            {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}},
            TiedHead(
                "language_model.model.embed_tokens.weight", "language_model.lm_head.weight", False
            ),
        ),
        (
            ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"],
            {},
            TiedHead(
                "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", True
            ),
        ),
        (
            ["gpt_neox.embed_in.weight", "embed_out.weight"],
            {"tie_word_embeddings": False},
            TiedHead("gpt_neox.embed_in.weight", "embed_out.weight", False),
        ),
        (
            ["model.embed_tokens.weight", "lm_head.weight"],
            None,
            TiedHead("model.embed_tokens.weight", "lm_head.weight", False),
        ),
        (["a"], {}, None),
    ],
)
def test_tied_head(names, config, expected):
    assert tied_head(names, config) == expected


def test_vocabulary():
    assert vocab_size({"vocab_size": 7}) == 7
    assert vocab_size({"vocab_size": 5, "text_config": {"vocab_size": 9}}) == 9
    assert vocab_size({}) is None
    assert vocab_size(None) is None
    assert is_tied(None) is None
    assert is_vocabulary_tensor("model.embed_tokens.weight")
    assert is_vocabulary_tensor("lm_head.weight")
    assert not is_vocabulary_tensor("model.norm.weight")
