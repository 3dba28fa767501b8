"""The miniature language model: a Llama of 0.1 M parameters as pure functions of its weights.

Names and arithmetic are those of transformers' ``LlamaForCausalLM`` (a test compares the logits),
because the study evaluates thousands of merged state dictionaries: here a merged dictionary *is* a
model, and a decoding step costs a third of a millisecond. Shapes: B sequences, T positions, H
hidden units, V tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ramerge.lab.vocabulary import BOS, EOS, PAD, TOKENS, write_tokenizer

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model; the defaults are the study's."""

    vocabulary: int = len(TOKENS)
    hidden: int = 64
    inner: int = 192
    layers: int = 2
    heads: int = 4
    groups: int = 2  # key and value heads
    positions: int = 256
    theta: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight; the output head is tied to the embedding."""
        keys = self.groups * self.head
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden)
        }
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            shapes |= {
                prefix + "input_layernorm.weight": (self.hidden,),
                prefix + "self_attn.q_proj.weight": (self.hidden, self.hidden),
                prefix + "self_attn.k_proj.weight": (keys, self.hidden),
                prefix + "self_attn.v_proj.weight": (keys, self.hidden),
                prefix + "self_attn.o_proj.weight": (self.hidden, self.hidden),
                prefix + "post_attention_layernorm.weight": (self.hidden,),
                prefix + "mlp.gate_proj.weight": (self.inner, self.hidden),
                prefix + "mlp.up_proj.weight": (self.inner, self.hidden),
                prefix + "mlp.down_proj.weight": (self.hidden, self.inner),
            }
        return {**shapes, "model.norm.weight": (self.hidden,)}

    def config(self, dtype: str) -> dict[str, Any]:
        """The model's ``config.json``."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.groups,
            "head_dim": self.head,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.theta,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": dtype,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
        }


@dataclass(slots=True)
class Cache:
    """Keys and values of the positions already read, a layer each, and their number."""

    keys: list[Tensor] = field(default_factory=list)  # [B, groups, T, head]
    values: list[Tensor] = field(default_factory=list)
    length: int = 0


def initialise(shape: Shape, seed: int) -> Weights:
    """Fresh weights: norms one, matrices normal with 1/sqrt(fan-in), the embedding with 0.05."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in shape.tensors().items():
        if len(size) == 1:
            weights[name] = torch.ones(size)
        else:
            deviation = 0.05 if "embed" in name else size[-1] ** -0.5
            weights[name] = torch.randn(size, generator=generator) * deviation
    return weights


def logits(
    weights: Mapping[str, Tensor],
    shape: Shape,
    tokens: Tensor,
    starts: Tensor,
    cache: Cache | None = None,
) -> Tensor:
    """Next-token logits ``[B, T, V]``.

    Args:
        weights: as `Shape.tensors` lists them, fp32.
        shape: sizes.
        tokens: ids ``[B, T]``; with a cache, those that follow what it holds.
        starts: first column ``[B]`` that is not padding.
        cache: keys and values so far; extended in place.
    """
    read = 0 if cache is None else cache.length
    total = read + tokens.shape[1]
    rotation = _rotation(shape, read, total)
    seen = torch.arange(total)[None, :] <= torch.arange(read, total)[:, None]  # [T, total]
    real = torch.arange(total)[None, :] >= starts[:, None]  # [B, total]
    diagonal = torch.eye(total, dtype=torch.bool)[read:]  # padding sees itself: no empty softmax
    mask = ((seen[None] & real[:, None]) | diagonal)[:, None]  # [B, 1, T, total]
    x = F.embedding(tokens, weights["model.embed_tokens.weight"])
    for layer in range(shape.layers):

        def weight(name: str, prefix: str = f"model.layers.{layer}.") -> Tensor:
            return weights[f"{prefix}{name}.weight"]

        h = _norm(x, weight("input_layernorm"), shape)
        x = x + _attention(
            weight, h, shape=shape, rotation=rotation, mask=mask, cache=cache, layer=layer
        )
        h = _norm(x, weight("post_attention_layernorm"), shape)
        gated = F.silu(h @ weight("mlp.gate_proj").T) * (h @ weight("mlp.up_proj").T)
        x = x + gated @ weight("mlp.down_proj").T
    if cache is not None:
        cache.length = total
    x = _norm(x, weights["model.norm.weight"], shape)
    return x @ weights["model.embed_tokens.weight"].T


def _attention(
    weight: Callable[[str], Tensor],
    x: Tensor,
    *,
    shape: Shape,
    rotation: tuple[Tensor, Tensor],
    mask: Tensor,
    cache: Cache | None,
    layer: int,
) -> Tensor:
    """Grouped-query attention of one layer, ``[B, T, H]`` -> ``[B, T, H]``."""
    b, t, _ = x.shape
    q = (x @ weight("self_attn.q_proj").T).view(b, t, shape.heads, shape.head).transpose(1, 2)
    k = (x @ weight("self_attn.k_proj").T).view(b, t, shape.groups, shape.head).transpose(1, 2)
    v = (x @ weight("self_attn.v_proj").T).view(b, t, shape.groups, shape.head).transpose(1, 2)
    q, k = _rotate(q, rotation), _rotate(k, rotation)
    if cache is not None:
        if len(cache.keys) > layer:
            k = torch.cat([cache.keys[layer], k], dim=2)
            v = torch.cat([cache.values[layer], v], dim=2)
            cache.keys[layer], cache.values[layer] = k, v
        else:
            cache.keys.append(k)
            cache.values.append(v)
    repeat = shape.heads // shape.groups
    q = q.reshape(
        b, shape.groups, repeat * t, shape.head
    )  # the heads of a group read the same keys
    scores = (q @ k.transpose(2, 3)) * shape.head**-0.5  # [B, groups, repeat·T, total]
    scores = scores.view(b, shape.heads, t, -1).masked_fill(~mask, -torch.inf)
    out = scores.softmax(-1).view(b, shape.groups, repeat * t, -1) @ v
    out = out.view(b, shape.heads, t, shape.head).transpose(1, 2).reshape(b, t, shape.hidden)
    return out @ weight("self_attn.o_proj").T


def _norm(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + shape.epsilon))


def _rotation(shape: Shape, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[end - begin, head]`` of the rotary position code."""
    powers = torch.arange(0, shape.head, 2, dtype=torch.float32) / shape.head
    angles = torch.arange(begin, end, dtype=torch.float32)[:, None] * shape.theta**-powers
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * rotation[0] + torch.cat([-second, first], dim=-1) * rotation[1]


def save(
    weights: Mapping[str, Tensor],
    shape: Shape,
    directory: Path,
    dtype: torch.dtype,
    tokenizer: Callable[[Path], None] = write_tokenizer,
) -> None:
    """Write an ordinary Hugging Face model directory: weights, config, tokenizer."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    stored = {n: w.detach().to(dtype).contiguous() for n, w in sorted(weights.items())}
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    name = str(dtype).removeprefix("torch.")
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    for file, value in {
        "config.json": shape.config(name),
        "generation_config.json": generation,
    }.items():
        (directory / file).write_text(json.dumps(value, indent=2) + "\n", "utf-8")
    tokenizer(directory)


def load(directory: Path) -> Weights:
    """Weights of a directory written by `save`, widened to fp32."""
    from safetensors.torch import load_file

    return {n: w.float() for n, w in load_file(directory / "model.safetensors").items()}
