"""Does a model hold every tensor that its config.json calls for: layers, experts, embedding, head?

A loader fills what a file lacks with noise and only warns, so a merge of models that share a gap
would look whole. Offline, config.json and the names are all there is to go by: a part is missing
only where the two contradict each other; what cannot be known is left alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError
from ramerge.models.base import Checkpoint
from ramerge.models.facts import (
    block_of,
    in_tower,
    is_tied,
    is_vocabulary_tensor,
    layer_of,
    text_config,
    vocab_size,
)
from ramerge.models.files import shown

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_DECODER_LAYERS = ("decoder_layers", "num_decoder_layers", *_LAYERS)
_ENCODER_LAYERS = ("encoder_layers", *_LAYERS)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_PACKED = re.compile(r"\.experts\.[a-z_0-9]+$")
_EMBEDDING = re.compile(r"(?:^|[._])(?:embed\w*|wte|shared)(?:[._]|$)")
_HEAD = re.compile(
    r"(?:^|\.)(?:\w*head\w*|embed_out|output|output_layer|proj_out|decoder)\.weight$"
)
_LANGUAGE_MODEL = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")


def check_complete(
    who: str, model: Checkpoint, changes: Mapping[str, Any] | None = None
) -> list[MergeError]:
    """Parts that a model's config.json calls for and its files lack.

    Args:
        who: what messages call the model.
        model: an opened model.
        changes: keys of the language model's config that the output gets instead.

    Returns:
        `CorruptInputError` for layers and experts, `IncompatibleError` for a missing embedding or
        head: there the config may be at fault as well.
    """
    if model.config is None or not _known_names(model.names()):
        return []
    config = {**model.config, **text_config(model.config), **(changes or {})}
    problems: list[MergeError] = []
    parts = [
        part
        for stack, (present, count) in _stacks(model.names(), config).items()
        for part in missing_layers(present, count, stack)
    ]
    if parts := parts + _missing_experts(model, config):
        problems.append(
            CorruptInputError(
                f"{who} looks incomplete: it lacks {listing(parts)}, which its config.json calls for",
                hint="export or download the model again; if it has no more than that, correct "
                "the number in config.json",
            )
        )
    return problems + _without_vocabulary(who, model, config)


def _known_names(names: Iterable[str]) -> bool:
    """Whether the names follow the conventions that `models.facts` reads."""
    return any(layer_of(n) is not None or is_vocabulary_tensor(n) for n in names)


def missing_layers(present: Iterable[int], count: int, stack: str = "") -> list[str]:
    """``layer 11 of 28``, ``layers 3 to 5 of 28``: the runs of 0..count - 1 that are not present."""
    absent = sorted(set(range(count)) - set(present))
    runs: list[list[int]] = []
    for layer in absent:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return [
        f"{stack}layer {a} of {count}" if a == b else f"{stack}layers {a} to {b} of {count}"
        for a, b in runs
    ]


def listing(parts: list[str]) -> str:
    """Parts in words: ``layer 11 of 28 and the head``."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _stacks(names: Iterable[str], config: Mapping[str, Any]) -> dict[str, tuple[set[int], int]]:
    """Layers present, and their number by config.json, of each stack of the language model."""
    found: dict[str, set[int]] = defaultdict(set)
    for name in names:
        block = block_of(name)
        if block is not None and not in_tower(name):
            found[block.rpartition(".")[0]].add(int(block.rpartition(".")[2]))
    if config.get("is_encoder_decoder"):
        ends = {"encoder": _ENCODER_LAYERS, "decoder": _DECODER_LAYERS}
        return {
            f"{end} ": (layers, count)
            for path, layers in found.items()
            for end, keys in ends.items()
            if end in path.split(".") and (count := _count(config, keys)) is not None
        }
    count = _count(config, _LAYERS)
    longest = max(found.values(), key=len, default=set())
    return {} if count is None else {"": (longest, count)}


def _count(config: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    counts = (config.get(key) for key in keys)
    return next((n for n in counts if isinstance(n, int) and not isinstance(n, bool)), None)


def _missing_experts(model: Checkpoint, config: Mapping[str, Any]) -> list[str]:
    """Experts that no tensor of a layer belongs to, though its neighbours are there."""
    count = _count(config, _EXPERTS)
    if count is None:
        return []
    layers: dict[str, set[int]] = defaultdict(set)
    parts = []
    for name in model.names():
        block = block_of(name)
        if block is None:
            continue
        if expert := _EXPERT.search(name):
            layers[block].add(int(expert[1]))
        elif _PACKED.search(name) and len(shape := model.spec(name).shape) == 3:
            layers[block] |= set(range(shape[0]))
    for block, present in layers.items():
        if lost := sorted(set(range(count)) - present):
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            parts.append(f"expert {lost[0]}{more} of {count} in {shown(block)}")
    return parts[:1] + ([f"experts of {len(parts) - 1} more layers"] if parts[1:] else [])


def _without_vocabulary(who: str, model: Checkpoint, config: Mapping[str, Any]) -> list[MergeError]:
    """A language model that stores no embedding, or no head though its config unties the two."""
    classes = config.get("architectures")
    if not isinstance(classes, list) or not str(classes[0:1]).rstrip("']").endswith(
        _LANGUAGE_MODEL
    ):
        return []
    outside = [n for n in model.names() if layer_of(n) is None and not in_tower(n)]
    embeddings = [n for n in outside if _EMBEDDING.search(n) and not _HEAD.search(n)]
    rows = {model.spec(n).shape[0] for n in embeddings if is_vocabulary_tensor(n)} | {
        vocab_size(config)
    }
    sized = [n for n in outside if len(s := model.spec(n).shape) == 2 and s[0] in rows]
    if not embeddings and not sized:
        return [
            IncompatibleError(
                f"{who} holds no token embedding: `{classes[0]}` needs one",
                hint="export the model again, whole: a loader would fill the embedding with noise",
            )
        ]
    if is_tied(model.config) is not False or any(_HEAD.search(n) for n in outside):
        return []
    if any(n not in embeddings for n in sized):
        return []
    return [
        IncompatibleError(
            f"{who} holds no output head (`lm_head.weight`), though its "
            "config.json says `tie_word_embeddings: false`",
            hint="a loader would fill it with noise: export the model again with its head, or set "
            "`tie_word_embeddings: true` if head and embedding are one",
        )
    ]
