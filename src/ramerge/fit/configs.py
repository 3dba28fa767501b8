"""Does config.json fit the tensors, and do the models' configs fit each other?

The output gets the base's config. It must describe the base's tensors, and an agent that was
trained with another architecture, head or hyperparameter is not an agent of this base, however
well its shapes fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramerge._errors import IncompatibleError, MergeError
from ramerge.models.base import Checkpoint, Notice
from ramerge.models.facts import is_vocabulary_tensor, text_config, vocab_size
from ramerge.models.files import shown

# Values that change what the same weights compute.
_HYPERPARAMETERS = (
    "hidden_act",
    "hidden_activation",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "num_experts_per_tok",
    "norm_topk_prob",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with the models of a merge, and what is worth a word."""

    problems: tuple[MergeError, ...]
    notices: tuple[Notice, ...]


def check_configs(base: Checkpoint, agents: Mapping[str, Checkpoint]) -> Findings:
    """Compare config.json with the base's tensors and with the agents' configs.

    Args:
        base: the opened base.
        agents: opened agents by name. One without a config is taken to have the base's.

    Returns:
        Problems: a config that does not describe the base's tensors, or another architecture.
        Notices: hyperparameters that differ.
    """
    problems = _wrong_rows(base)
    notices: list[Notice] = []
    for name, agent in agents.items():
        if base.config is None or agent.config is None:
            continue
        problems += _other_architecture(name, base.config, agent.config)
        notices += _other_hyperparameters(name, base.config, agent.config)
    return Findings(tuple(problems), tuple(notices))


def _wrong_rows(base: Checkpoint) -> list[MergeError]:
    """The base's ``vocab_size`` against the rows of its embedding."""
    said = vocab_size(base.config)
    table = next((n for n in base.names() if is_vocabulary_tensor(n) and base.spec(n).shape), None)
    if said is None or table is None or base.spec(table).shape[0] == said:
        return []
    return [
        IncompatibleError(
            f"config.json of the base gives a vocab_size of {said}, but {shown(table)} has "
            f"{base.spec(table).shape[0]} rows",
            hint="the config belongs to another model, or the embedding was resized without it",
        )
    ]


def _other_architecture(
    agent: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> list[MergeError]:
    """A different model type, or a different head on the same model."""
    pairs = [
        ("model_type", ours.get("model_type"), theirs.get("model_type")),
        ("architectures", _head(ours), _head(theirs)),
    ]
    return [
        IncompatibleError(
            f"{key} is {shown(there)} in agent {shown(agent)} but {shown(here)} in the base",
            hint="agents must be trained from the base; export the model without its reward or "
            "value head",
        )
        for key, here, there in pairs
        if here is not None and there is not None and here != there
    ]


def _head(config: Mapping[str, Any]) -> str | None:
    """What the model is for (``ForCausalLM``): class names differ between library versions."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or "For" not in str(names[0]):
        return None
    return "For" + str(names[0]).split("For", 1)[1]


def _other_hyperparameters(
    agent: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> list[Notice]:
    here, there = text_config(ours), text_config(theirs)
    differ = [k for k in _HYPERPARAMETERS if k in here and k in there and here[k] != there[k]]
    if not differ:
        return []
    some = ", ".join(f"{shown(k)} is {shown(there[k])} not {shown(here[k])}" for k in differ)
    text = f"agent {shown(agent)} was trained with other settings than the base's: {some}"
    return [Notice("config-differs", text)]
