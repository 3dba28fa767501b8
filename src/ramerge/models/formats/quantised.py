"""Quantised weights are refused: an average of packed or scaled codes is not a model.

Three witnesses: the dtype of a tensor, the names of its siblings (scales, packed weights), and
config.json. Names that plain models may have too, such as ``.scales``, count only beside the sibling
that makes them a scheme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ramerge._errors import IncompatibleError
from ramerge._types import TensorSpec
from ramerge.models.base import Checkpoint
from ramerge.models.facts import is_buffer, text_config
from ramerge.models.files import shown

_HINT = "merge the unquantised models, then quantise the result"
_DEQUANTISE = "dequantise the model to bfloat16, or merge the unquantised models"
# Names that no plain model has.
_NAMES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\.(qweight|qzeros|g_idx)$"), "GPTQ or AWQ"),
    (
        re.compile(
            r"\.weight\.(absmax|quant_map|quant_state\.[\w.]+|nested_absmax|nested_quant_map"
            r"|nested_offset)$|\.SCB$|\.weight_format$"
        ),
        "bitsandbytes",
    ),
    (
        re.compile(
            r"\.(weight_packed|weight_shape|weight_zero_point|weight_g_idx|weight_global_scale"
            r"|scale_packed|(input|output)_(global_scale|zero_point))$"
        ),
        "compressed-tensors",
    ),
    (re.compile(r"\._weight_(qdata|scale|zero_point|data|plain)$|\.weight:\w+$"), "torchao"),
    (re.compile(r"\.weight\._(data|scale|shift|zeropoint)(\._\w+)?$"), "quanto"),
    (re.compile(r"\.(weight_scale(_inv|_2)?|(input|activation)_scale)$"), "FP8"),
    (re.compile(r"\.Qidxs(_\d+)?$"), "QuIP#"),
)
# Endings of names, of which plain models may have one but not all: the first is what is reported.
_TOGETHER: tuple[tuple[tuple[str, ...], str], ...] = (
    (("_blocks", "_scales"), "MXFP4"),
    ((".weight", ".scales", ".biases"), "MLX"),
    ((".W_q", ".scale", ".zero"), "HQQ"),
    ((".W_q", ".meta"), "HQQ"),
    (("._data", "._scale"), "quanto"),
    ((".codes", ".codebooks"), "AQLM"),
    ((".indices", ".centroids"), "VPTQ"),
    ((".indices", ".centroids.weight"), "VPTQ"),
    ((".B", ".s"), "Marlin"),
    ((".SU", ".SV"), "QuIP#"),
    ((".q_weight", ".q_scale"), "EXL2"),
    ((".q_weight", ".q_groups"), "EXL2"),
    ((".trellis", ".suh"), "EXL3"),
    ((".trellis", ".SU"), "QTIP"),
    ((".dense_weights", ".row_offsets"), "SpQR"),
)
# What makes integers codes: `X.weight` or `X` with one of these behind X, after a dot or underscore.
_CODED_BY = (
    "scale",
    "scales",
    "scale_inv",
    "biases",
    "zero",
    "zeros",
    "zero_point",
    "zero_points",
    "weight_scale",
    "weight_scales",
    "absmax",
)
_KEYS = ("quantization_config", "quantization", "compression_config")
_METHODS = ("quant_method", "quant_algo", "quant_type", "mode", "format")
# Projections by the side that is as wide as the model, for want of a sibling.
_READ = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj|embed_tokens|lm_head|wte)\.weight$")
_WRITE = re.compile(r"\.(o_proj|down_proj)\.weight$")
_PROJECTION = re.compile(r"_proj\.scales$")


def refuse_quantised(checkpoint: Checkpoint) -> None:
    """Raise unless the weights are plain numbers.

    Raises:
        IncompatibleError: names the scheme and the tensor, or the key of config.json.
    """
    model = shown(checkpoint.source)
    specs = {name: checkpoint.spec(name) for name in checkpoint.names()}
    for spec in specs.values():
        scheme = _scheme(spec, specs)
        if scheme is not None:
            how, what, hint = scheme
            raise IncompatibleError(f"{model} is {how}-quantised: {what}", hint=hint)
        if str(spec.dtype.value[2]) == "complex":
            raise IncompatibleError(
                f"{model} has complex numbers: {shown(spec.name)} is {spec.dtype.name}"
            )
    said = _said_by(checkpoint.config)
    if said is None:
        return
    key, method = said
    if _plain(specs, checkpoint.config):
        raise IncompatibleError(
            f"config.json of {model} says they are quantised ({method}), but they are not",
            hint=f"remove `{key}` from config.json if the weights really are plain",
        )
    raise IncompatibleError(
        f"{model} is quantised: config.json has {shown(key)} ({method})", hint=_DEQUANTISE
    )


def _scheme(spec: TensorSpec, specs: Mapping[str, TensorSpec]) -> tuple[str, str, str] | None:
    """The scheme that a tensor gives away, in what way, and the hint; None for a plain tensor."""
    name, dtype = spec.name, spec.dtype
    if str(dtype.value[2]) == "packed":
        scheme = {8: "FP8", 4: "MXFP4 or FP4", 6: "FP6"}[dtype.bits]
        return scheme, f"{shown(name)} is {dtype.name}", _HINT
    for pattern, scheme in _NAMES:
        if pattern.search(name):
            return scheme, f"it has {shown(name)}", _HINT
    for endings, scheme in _TOGETHER:
        stem = name.removesuffix(endings[0])
        if stem != name and all(stem + ending in specs for ending in endings[1:]):
            return scheme, f"it has {shown(name)} and {shown(stem + endings[1])}", _DEQUANTISE
    return _codes(spec, specs)


def _codes(spec: TensorSpec, specs: Mapping[str, TensorSpec]) -> tuple[str, str, str] | None:
    """The same for tensors that only their dtype, or the lack of a sibling, gives away."""
    name, dtype = spec.name, spec.dtype
    if dtype.is_discrete and (by := _coded_by(name, specs)) is not None:
        return "integer", f"{shown(name)} is {dtype.name}, with {shown(by)} beside it", _DEQUANTISE
    if dtype.is_discrete and name.endswith("_blocks"):
        return "MXFP4", f"{shown(name)} is {dtype.name}", _HINT
    if _PROJECTION.search(name) and name.removesuffix("scales") + "weight" not in specs:
        return "AWQ", f"it has {shown(name)}, but no weights beside it", _DEQUANTISE
    return None


def _coded_by(name: str, specs: Mapping[str, TensorSpec]) -> str | None:
    """The scales or zero points that belong to a tensor of integers."""
    stems = {name, name.removesuffix(".weight")}
    found = (f"{s}{dot}{end}" for s in sorted(stems) for dot in "._" for end in _CODED_BY)
    return next((other for other in found if other in specs and other != name), None)


def _said_by(config: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """The key of config.json that speaks of quantisation, and the method that it names; or None."""
    if config is None:
        return None
    for part in (config, text_config(config)):
        for key in _KEYS:
            said = part.get(key)
            if isinstance(said, Mapping) and (key != "quantization" or _counts_bits(said)):
                return key, _method(said)
    return None


def _counts_bits(said: Mapping[str, Any]) -> bool:
    """Whether a ``quantization`` is MLX's, for the whole model or for single layers."""
    parts = [said, *(part for part in said.values() if isinstance(part, Mapping))]
    return any(key in part for part in parts for key in ("bits", "group_size", *_METHODS))


def _method(said: Mapping[str, Any]) -> str:
    named = next((said[key] for key in _METHODS if isinstance(said.get(key), str)), None)
    if named is not None:
        return str(named)
    return f"{said['bits']} bits" if "bits" in said else "of an unnamed kind"


def _plain(specs: Mapping[str, TensorSpec], config: Mapping[str, Any] | None) -> bool:
    """Whether every tensor is a plain weight, and some show by their width that nothing is packed."""
    width = None if config is None else text_config(config).get("hidden_size")
    known = 0
    for name, spec in specs.items():
        if is_buffer(spec):
            continue
        if not spec.dtype.is_float or not name.endswith((".weight", ".bias")):
            return False
        side = 1 if _READ.search("." + name) else 0 if _WRITE.search("." + name) else None
        if side is None:
            continue
        if len(spec.shape) != 2 or spec.shape[side] != width:
            return False
        known += 1
    return known > 0
