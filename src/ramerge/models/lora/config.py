"""adapter_config.json of PEFT: which scale belongs to which module, and what cannot be merged.

Rules follow PEFT's documented behaviour. A key of ``rank_pattern`` or ``alpha_pattern`` matches a
module whose dotted name ends in it (the key is a regular expression). Everything that would change
the result in a way we do not reproduce is refused by name.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ramerge._errors import CorruptInputError, IncompatibleError
from ramerge._types import Json
from ramerge.models.facts import layer_of
from ramerge.models.files import shown

CONFIG = "adapter_config.json"
# Options under which base + scale * B A is not what the adapter computes.
_REFUSED: Mapping[str, str] = {
    "use_qalora": "QALoRA pools the input",
    "use_bdlora": "block-diagonal LoRA has another layout",
    "kasa_config": "KaSA changes the base's singular values",
    "alora_invocation_tokens": "an activated LoRA acts on some positions only",
    "arrow_config": "Arrow chooses between adapters at run time",
    "monteclora_config": "MonteCLoRA is random at run time",
    "layer_replication": "it repeats layers, so the agent has more layers than the base",
    "target_parameters": "it adapts packed parameters",
    "trainable_token_indices": "it retrains single token rows",
}
# Initialisations that also change the base's own weights.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_MOST_REPEATS = 6  # in a pattern: matching takes that power of a name's length
_MAX = sys.float_info.max  # JSON has larger integers; NaN is never <= it


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """What of adapter_config.json decides the numbers."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    rslora: bool
    dora: bool
    fan_in_fan_out: bool
    saved_modules: tuple[str, ...]
    target_modules: tuple[str, ...] | str | None
    layers: frozenset[int] | None
    base: str | None
    ties_weights: bool

    def rank_of(self, module: str) -> int:
        """Rank of the adapter on ``module`` (dotted name in the base model)."""
        return self.rank_pattern.get(_matching(self.rank_pattern, module), self.rank)

    def scale_of(self, module: str) -> float:
        """The factor on B A: alpha / r, or alpha / sqrt(r) for rsLoRA."""
        alpha = self.alpha_pattern.get(_matching(self.alpha_pattern, module), self.alpha)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def targets(self, module: str) -> bool:
        """Whether PEFT would put an adapter on ``module``."""
        layer = layer_of(module + ".")
        if self.layers is not None and layer is not None and layer not in self.layers:
            return False
        if self.target_modules is None or self.target_modules == "all-linear":
            return True
        if isinstance(self.target_modules, str):
            return re.fullmatch(self.target_modules, module) is not None
        return any(module == t or module.endswith("." + t) for t in self.target_modules)


def _matching(patterns: Mapping[str, Any], module: str) -> str:
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), module)


def parse_lora_config(config: Json, name: str) -> LoraConfig:
    """The parsed adapter_config.json, checked.

    Args:
        config: its content.
        name: what messages call the adapter.

    Raises:
        IncompatibleError: not a LoRA, or a variant that is not reproduced; alpha is 0.
        CorruptInputError: a value has the wrong type.
    """
    _refuse_variants(config, name)
    layers = config.get("layers_to_transform")
    target = config.get("target_modules")
    saved = _strings(config, "modules_to_save")
    parsed = LoraConfig(
        rank=_positive(config, "r", 8),
        alpha=_number(config, "lora_alpha", 8),
        rank_pattern=_pattern(config, "rank_pattern", _positive),
        alpha_pattern=_pattern(config, "alpha_pattern", _number),
        rslora=bool(config.get("use_rslora")),
        dora=bool(config.get("use_dora")),
        fan_in_fan_out=bool(config.get("fan_in_fan_out")),
        saved_modules=saved,
        target_modules=_expression("target_modules", target)
        if isinstance(target, str)
        else _strings(config, "target_modules") or None,
        layers=None if layers is None else _indices("layers_to_transform", layers),
        base=_text(config, "base_model_name_or_path"),
        ties_weights=bool(config.get("ensure_weight_tying")),
    )
    if parsed.alpha == 0 and not parsed.alpha_pattern and not saved:
        raise IncompatibleError(
            f"adapter {shown(name)} has no effect: its `lora_alpha` is 0",
            hint=f"set the training run's own alpha in {CONFIG}; some trainers have written 0",
        )
    return parsed


def _refuse_variants(config: Json, name: str) -> None:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise IncompatibleError(
            f"adapter {shown(name)} is of the type {shown(kind)}; only LORA is read",
            hint="merge it into its base with PEFT's `merge_and_unload`, and give the result",
        )
    for key, why in _REFUSED.items():
        if config.get(key):
            raise IncompatibleError(
                f"adapter {shown(name)} uses {shown(key)}: {why}",
                hint="merge it into its base with PEFT's `merge_and_unload`, and give the result",
            )
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_CHANGES_BASE):
        raise IncompatibleError(
            f"adapter {shown(name)} was initialised with {shown(init)}, which changes its base",
            hint="convert it: PEFT's save_pretrained, `path_initial_model_for_weight_conversion`",
        )


def _number(config: Json, key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX:
        raise _bad(key, value, "a number")
    return float(value)


def _positive(config: Json, key: str, default: int) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise _bad(key, value, "a whole number from 1 on")
    return value


def _pattern(config: Json, key: str, number: Callable[[Json, str, int], Any]) -> dict[str, Any]:
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise _bad(key, value, "a map from module names to numbers")
    for pattern in value:
        number(value, pattern, 1)
        _expression(key, pattern)
    return value


def _expression(key: str, pattern: str) -> str:
    """A regular expression that a stranger wrote, if it is one and cannot run for ever."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _bad(key, pattern, f"a regular expression ({error})") from None
    if re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{]", pattern)) > _MOST_REPEATS:
        raise _bad(key, pattern, "an expression without nested or many repetitions")
    return pattern


def _indices(key: str, value: Any) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise _bad(key, value, "a list of layers")
    return frozenset(values)


def _strings(config: Json, key: str) -> tuple[str, ...]:
    value = config.get(key) or ()
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        if isinstance(value, str):
            return (value,)
        raise _bad(key, value, "a list of names")
    return tuple(value)


def _text(config: Json, key: str) -> str | None:
    value = config.get(key)
    return value if isinstance(value, str) and value else None


def _bad(key: str, value: object, wanted: str) -> CorruptInputError:
    return CorruptInputError(
        f"{shown(key)} in {CONFIG} is {shown(value)} where {wanted} is expected"
    )
