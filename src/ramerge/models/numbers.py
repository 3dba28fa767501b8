"""Tensor elements as numpy numbers, for readers that compute values instead of copying bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ramerge._errors import IncompatibleError
from ramerge.models.base import Checkpoint
from ramerge.models.files import shown


def read_numbers(
    checkpoint: Checkpoint, name: str, start: int, stop: int, out: NDArray[Any]
) -> None:
    """Fill ``out`` with elements [start, stop) of a float tensor.

    Args:
        checkpoint: where from.
        name: a tensor of dtype BF16, F16, F32 or F64.
        start: first element.
        stop: one past the last.
        out: float32 or float64 ``[stop - start]``; F64 into float32 rounds.

    Raises:
        IncompatibleError: the tensor holds no floating-point numbers.
    """
    from ramerge.kernels.codec import CODES

    dtype = checkpoint.spec(name).dtype
    if dtype not in CODES:
        raise IncompatibleError(f"tensor {shown(name)} is {dtype.name}, not floating-point")
    if out.itemsize == dtype.itemsize:
        checkpoint.read(name, start, stop, out.view(np.uint8))
        return
    raw = np.empty((stop - start) * dtype.itemsize, np.uint8)
    checkpoint.read(name, start, stop, raw)
    if dtype.name == "BF16":
        wide = out if out.dtype == np.float32 else np.empty(out.size, np.float32)
        np.left_shift(raw.view(np.uint16), 16, out=wide.view(np.uint32), dtype=np.uint32)
        if wide is not out:
            out[:] = wide
    else:
        out[:] = raw.view({"F16": np.float16, "F32": np.float32, "F64": np.float64}[dtype.name])


def numbers(checkpoint: Checkpoint, name: str, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """All elements of a float tensor, flat, as ``dtype`` (float32 or float64)."""
    n = checkpoint.spec(name).elements
    out = np.empty(n, dtype)
    read_numbers(checkpoint, name, 0, n, out)
    return out
