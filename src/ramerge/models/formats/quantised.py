"""Quantised weights are refused: an average of packed or scaled codes is not a model.

Three witnesses: the dtype of a tensor, the names of its siblings (scales, packed weights), and
config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ramerge._errors import IncompatibleError
from ramerge.models.base import Checkpoint
from ramerge.models.files import shown

_HINT = "merge the unquantised models, then quantise the result"
_NAMES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\.(qweight|qzeros|g_idx)$"), "GPTQ or AWQ"),
    (
        re.compile(r"\.weight\.(absmax|quant_map|quant_state\.[\w.]+|nested_absmax)$|\.SCB$"),
        "bitsandbytes",
    ),
    (re.compile(r"\.(weight_scale_inv|weight_scale|input_scale|activation_scale)$"), "FP8"),
    (re.compile(r"\.weight_packed$|\.weight_shape$|\.weight_zero_point$"), "compressed-tensors"),
    (re.compile(r"_(blocks|scales)$"), "MXFP4"),
)


def refuse_quantised(checkpoint: Checkpoint) -> None:
    """Raise unless the weights are plain numbers.

    Raises:
        IncompatibleError: names the scheme and the tensor, or the key of config.json.
    """
    model = shown(checkpoint.source)
    for name in checkpoint.names():
        dtype = checkpoint.spec(name).dtype
        kind = str(dtype.value[2])
        if kind == "packed":
            scheme = {8: "FP8", 4: "MXFP4 or FP4", 6: "FP6"}[dtype.bits]
            raise IncompatibleError(
                f"{model} is {scheme}-quantised: {shown(name)} is {dtype.name}", hint=_HINT
            )
        for pattern, scheme in _NAMES:
            if pattern.search(name):
                raise IncompatibleError(
                    f"{model} is {scheme}-quantised: it has {shown(name)}", hint=_HINT
                )
        if kind == "complex":
            raise IncompatibleError(f"{model} has complex numbers: {shown(name)} is {dtype.name}")
    method = _said_by(checkpoint.config)
    if method is not None:
        raise IncompatibleError(
            f"config.json of {model} says they are quantised ({method}), but they are not",
            hint="remove `quantization_config` from config.json if the weights really are plain",
        )


def _said_by(config: Mapping[str, Any] | None) -> str | None:
    """The quantisation method that config.json names, or None."""
    said = None if config is None else config.get("quantization_config")
    if not isinstance(said, Mapping):
        return None
    return str(said.get("quant_method", "of an unnamed kind"))
