"""Methods that need a whole tensor at once, in the shape of the fused kernels; one tensor of every model in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge._types import I64, Bytes
from ramerge.kernels import codec, fuse
from ramerge.methods.base import Context, Method, keywords
from ramerge.planning.plan import TensorPlan


def whole_tensor_kernel(method: Method, tensor: TensorPlan) -> Callable[..., Any]:
    """A numpy method in the shape of a fused kernel; its chunk is the whole tensor."""

    def kernel(
        base: Bytes, base_code: int, agents: Any, codes: I64, n: int, start: int, epsilon: Any, grid: Any,
        auxiliary: int, context: Context, out: Bytes, out_code: int, scratch: Any, counts: I64, patterns: Any,
        lost: I64,
    ) -> int:  # fmt: skip
        assert start == 0 and n == tensor.output.elements, "whole-tensor methods see whole tensors"
        flags = fuse.count(
            base, base_code, agents, codes, n, epsilon, grid, auxiliary, scratch, counts, patterns
        )
        if n == 0:
            return 0
        values = np.empty((1 + codes.size, n), context.real)
        fuse.decode_whole(base, base_code, n, values[0])
        for t in range(codes.size):
            fuse.decode_whole(agents[t], codes[t], n, values[1 + t])
        shaped = values.reshape(len(values), *tensor.output.shape)
        merged = method.function(
            shaped[0], shaped[1:], tensor.name, **keywords(method.function, tensor.values)
        )
        y = np.ascontiguousarray(merged, dtype=context.real).reshape(-1)
        y = np.where(y == values[0], values[0], y)
        flags |= fuse.encode_whole(y, out_code, n, out)
        lost += _lost(values, y, out, out_code)
        return int(flags)

    return kernel


def _lost(values: NDArray[Any], y: NDArray[Any], out: Bytes, code: int) -> I64:
    """What `fuse.count_lost` counts: ``[1 + N]`` from the models' values ``[1 + N, n]`` and the merged ones ``[n]``."""
    n = y.size
    raw, stored, kept = np.empty(8 * n, np.uint8), np.empty_like(y), np.empty_like(y)
    fuse.decode_whole(out, code, n, stored)
    codec.encode(values[0], code, 0, n, raw)
    fuse.decode_whole(raw, code, n, kept)
    changed = values[1:] != values[0]
    gone = (stored == kept) & (y != values[0])
    return np.array([(gone & changed.any(axis=0)).sum(), *(gone & changed).sum(axis=1)], np.int64)
