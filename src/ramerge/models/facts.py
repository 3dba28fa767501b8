"""What a tensor is, read off its name, its shape and config.json: layer, role, buffer, tied head.

No list of architectures: names follow conventions that have been stable for years, and everything
here degrades to "not known" (None, False, the name itself) where a model breaks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ramerge._types import TensorSpec

CONFIG = "config.json"

# `layers` Llama, Qwen, Gemma · `h` GPT-2 · `block(s)` T5, vision towers · `layer` BERT, ViT
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer|resblocks)\.(\d+)(?=\.)")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
_LEAF = re.compile(r"\.(?:weight|bias)$")
_WRAPPERS = (
    "base_model.",
    "model.",
    "language_model.",
    "transformer.",
    "backbone.",
    "bert.",
    "roberta.",
    "gpt_neox.",
)
_TOWER = re.compile(
    r"(?:^|\.)(visual|vision_tower|vision_model|audio_tower|audio_model|multi_modal_projector)\."
)
_BUFFER = re.compile(
    r"(?:^|\.)(?:inv_freq|original_inv_freq|position_ids|freqs_cis|rope\.freqs|num_batches_tracked|"
    r"running_mean|running_var)$"
)
_MASK = re.compile(
    r"\.(?:attn|attention|self_attn)\.(?:bias|masked_bias)$"
)  # GPT-2, GPT-NeoX, GPT-J
_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
    "shared.weight",
)
_HEADS = (
    "lm_head.weight",
    "embed_out.weight",
    "cls.predictions.decoder.weight",
    "lm_head.decoder.weight",
)


def layer_of(name: str) -> int | None:
    """Index of the block a tensor belongs to, or None (embeddings, final norm, heads)."""
    match = _LAYER.search(name)
    return None if match is None else int(match[1])


def block_of(name: str) -> str | None:
    """Like `layer_of`, with the path: ``model.visual.blocks.3`` is not ``model.layers.3``."""
    match = _LAYER.search(name)
    return None if match is None else name[: match.end()]


def module_of(name: str) -> str:
    """Role of a tensor, the same in every layer.

    ``model.layers.7.self_attn.q_proj.weight`` is ``self_attn.q_proj``; experts are one role
    (``mlp.experts.down_proj``); tensors of a vision or audio tower carry its name first.
    """
    tower = _TOWER.search(name)
    match = _LAYER.search(name)
    tail = name[match.end() + 1 :] if match else _unwrapped(name)
    if tower and not tail.startswith(tower[1]):
        tail = f"{tower[1]}.{tail}"
    return _LEAF.sub("", _NUMBER.sub("", tail))


def _unwrapped(name: str) -> str:
    while wrapper := next(
        (w for w in _WRAPPERS if name.startswith(w) and len(name) > len(w)), None
    ):
        name = name[len(wrapper) :]
    return name


def in_tower(name: str) -> bool:
    """Whether a tensor belongs to a vision or audio tower, not to the language model."""
    return _TOWER.search(name) is not None


def is_buffer(spec: TensorSpec) -> bool:
    """Whether a tensor is state, not a parameter: copied from the base, left out of statistics.

    A causal mask saved as ``attn.bias`` is told from a bias vector by its rank.
    """
    return bool(_BUFFER.search(spec.name)) or (
        bool(_MASK.search(spec.name)) and len(spec.shape) in {0, 4}
    )


@dataclass(frozen=True, slots=True)
class TiedHead:
    """An input embedding and the output head that shares its values when ``tied``.

    ``head`` is a name that may be absent from the files: a tied head is usually not saved.
    """

    embed: str
    head: str
    tied: bool


def is_tied(config: Mapping[str, Any] | None) -> bool | None:
    """What config.json says about tied embeddings; absent means tied, the default.

    Returns:
        None where there is no config.
    """
    if config is None:
        return None
    for part in (config, text_config(config)):
        if isinstance(part.get("tie_word_embeddings"), bool):
            return bool(part["tie_word_embeddings"])
    return True


def tied_head(names: Iterable[str], config: Mapping[str, Any] | None) -> TiedHead | None:
    """The token embedding of a model with its output head; None where there is none."""
    present = set(names)
    embed = _first(sorted(present), _EMBEDDINGS)
    if embed is None:
        return None
    tied = is_tied(config)
    head = _first(sorted(present), _HEADS)
    return TiedHead(embed, head or _head_for(embed), (head is None) if tied is None else tied)


def _first(names: list[str], endings: tuple[str, ...]) -> str | None:
    """The shortest name with one of ``endings``, outside vision and audio towers."""
    hits = [n for n in names if n.endswith(endings) and not _TOWER.search(n)]
    exact = [n for n in hits if any(n == e or n.endswith("." + e) for e in endings)]
    return min(exact, key=lambda n: (len(n), n), default=None)


def _head_for(embed: str) -> str:
    """Name under which transformers would save the head that belongs to ``embed``."""
    if embed.startswith("language_model.model."):
        return "language_model.lm_head.weight"
    if "word_embeddings" in embed and "embeddings." in embed:
        return "cls.predictions.decoder.weight"
    return "embed_out.weight" if "embed_in" in embed else "lm_head.weight"


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config: ``text_config``, or the config itself."""
    for key in ("text_config", "llm_config", "language_config"):
        part = config.get(key)
        if isinstance(part, Mapping):
            return part
    return config


def layer_counts(config: Mapping[str, Any] | None) -> tuple[int | None, int]:
    """Layers of the language model, and layers for multi-token prediction after them (DeepSeek, GLM, MiMo)."""
    part = text_config(config) if config is not None else {}
    layers, beyond = part.get("num_hidden_layers"), part.get("num_nextn_predict_layers")
    return (
        layers if isinstance(layers, int) else None,
        beyond if isinstance(beyond, int) else 0,
    )


def vocab_size(config: Mapping[str, Any] | None) -> int | None:
    """``vocab_size`` of the language model, or None."""
    if config is None:
        return None
    for part in (text_config(config), config):
        if isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return None


def is_vocabulary_tensor(name: str) -> bool:
    """Whether the first dimension of a tensor counts tokens (embedding, head and its bias)."""
    endings = (
        *_EMBEDDINGS,
        *_HEADS,
        "lm_head.bias",
        "cls.predictions.bias",
        "cls.predictions.decoder.bias",
    )
    return not _TOWER.search(name) and any(name == e or name.endswith("." + e) for e in endings)
