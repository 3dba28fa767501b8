"""Between raw element bytes and numbers: BF16, F16, F32 and F64, exact in, one rounding (to nearest even) out.

Everything works on 1-D ``uint8`` buffers and block scratch arrays, so that the loops vectorise. A slice of a
2-D array is not provably contiguous to numba and silently falls back to scalar code, about 20 times slower:
take a row first (``agents[t]``), then index it. And ``h[start + i]`` makes numba check each index for being
negative, which is scalar too: slice once, then count from 0.

Codes are the integers of `CODES`; the working arrays are float32, or float64 where F64 is involved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

from ramerge._types import DType

BF16, F16, F32, F64 = 0, 1, 2, 3
CODES = {DType.BF16: BF16, DType.F16: F16, DType.F32: F32, DType.F64: F64}
JIT: dict[str, Any] = {"nogil": True, "cache": True, "fastmath": False, "error_model": "numpy"}


def _bitcast(result: Any, argument: Any) -> Any:
    """An intrinsic that reinterprets the bits of ``argument`` as ``result``."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    def typer(_context: Any, _value: Any) -> Any:
        return result(argument), codegen

    return typer


bits_to_float = intrinsic(_bitcast(types.float32, types.uint32))
float_to_bits = intrinsic(_bitcast(types.uint32, types.float32))


@njit(inline="always", **JIT)
def bf16_to_float(half):
    """BF16 bits as float32: the upper half of its bits."""
    return bits_to_float(np.uint32(np.uint32(half) << np.uint32(16)))


@njit(inline="always", **JIT)
def float_to_bf16(value):
    """Float32 to BF16 bits, to nearest even; NaN keeps a quiet bit so that it cannot round to infinity."""
    u = float_to_bits(value)
    rounded = (u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (u >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (u & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16(quiet if is_nan else rounded)


@njit(inline="always", **JIT)
def f16_to_float(half):
    """F16 bits as float32. The product re-biases the exponent and is exact, subnormals included."""
    h = np.uint32(half)
    magnitude = (h & np.uint32(0x7FFF)) << np.uint32(13)
    scaled = float_to_bits(bits_to_float(np.uint32(magnitude)) * np.float32(2.0**112))
    special = (h & np.uint32(0x7C00)) == np.uint32(0x7C00)
    bits = (magnitude | np.uint32(0x7F800000)) if special else scaled
    return bits_to_float(np.uint32(bits | ((h & np.uint32(0x8000)) << np.uint32(16))))


@njit(inline="always", **JIT)
def float_to_f16(value):
    """Float32 to F16 bits, to nearest even; values from 65520 on become infinity."""
    u = float_to_bits(value)
    sign = (u >> np.uint32(16)) & np.uint32(0x8000)
    a = u & np.uint32(0x7FFFFFFF)
    # Below 2^-14 adding 0.5 aligns the subnormal's last place with float32's, and the addition rounds.
    tiny = float_to_bits(bits_to_float(np.uint32(a)) + np.float32(0.5)) - np.uint32(0x3F000000)
    normal = (a + np.uint32(0xC8000FFF) + ((a >> np.uint32(13)) & np.uint32(1))) >> np.uint32(13)
    h = tiny if a < np.uint32(0x38800000) else normal
    h = np.uint32(0x7C00) if a >= np.uint32(0x477FF000) else h
    h = np.uint32(0x7E00) if a > np.uint32(0x7F800000) else h
    return np.uint16(h | sign)


@njit(**JIT)
def double_to_odd(value):
    """Float64 to float32, rounded to odd, so that a second rounding to fewer bits is still one rounding."""
    near = np.float32(value)
    bits = float_to_bits(near)
    exact = np.float64(near) == value or value != value
    toward_zero = bits - np.uint32(abs(np.float64(near)) > abs(value))
    return near if exact else bits_to_float(np.uint32(toward_zero | np.uint32(1)))


@njit(inline="always", **JIT)
def decode(raw, code, start, k, out):
    """Elements [start, start + k) of a raw buffer as numbers.

    Args:
        raw: uint8, contiguous.
        code: one of `CODES`.
        start: first element.
        k: how many elements.
        out: float32 or float64 ``[>= k]``; float64 is required for code F64.
    """
    if code == BF16:
        h = raw.view(np.uint16)[start : start + k]
        for i in range(k):
            out[i] = bf16_to_float(h[i])
    elif code == F16:
        g = raw.view(np.uint16)[start : start + k]
        for i in range(k):
            out[i] = f16_to_float(g[i])
    elif code == F32:
        f = raw.view(np.float32)[start : start + k]
        for i in range(k):
            out[i] = f[i]
    else:
        d = raw.view(np.float64)[start : start + k]
        for i in range(k):
            out[i] = d[i]


def narrow(value):
    """A working number on its way to 32 bits or fewer: float32 as it is, float64 rounded to odd."""
    raise AssertionError("compiled code only")


@overload(narrow)
def _narrow(value):
    if value == types.float32:
        return lambda value: value
    return lambda value: double_to_odd(value)  # noqa: PLW0108 (numba wants a plain function)


@njit(**JIT)
def encode(values, code, start, k, raw):
    """Round ``values[:k]`` once, to nearest even, into elements [start, start + k) of ``raw``.

    Args:
        values: float32 or float64 ``[>= k]``.
        code: one of `CODES`.
        start: first element.
        k: how many elements.
        raw: uint8, contiguous.
    """
    if code == BF16:
        h = raw.view(np.uint16)[start : start + k]
        for i in range(k):
            h[i] = float_to_bf16(narrow(values[i]))
    elif code == F16:
        g = raw.view(np.uint16)[start : start + k]
        for i in range(k):
            g[i] = float_to_f16(narrow(values[i]))
    elif code == F32:
        f = raw.view(np.float32)[start : start + k]
        for i in range(k):
            f[i] = np.float32(values[i])
    else:
        d = raw.view(np.float64)[start : start + k]
        for i in range(k):
            d[i] = values[i]


@njit(inline="always", **JIT)
def limit(code, wide):
    """The smallest magnitude that rounds to infinity in a dtype (infinity itself where nothing does)."""
    if code == BF16:
        return np.float64(3.3961775292304601e38)  # 2^128 - 2^119
    if code == F16:
        return np.float64(65520.0)
    if code == F32 and wide:
        return np.float64(3.4028235677973366e38)  # 2^128 - 2^103
    return np.float64(np.inf)


@njit(inline="always", **JIT)
def unbounded(values, k, bound):
    """Whether any of ``values[:k]`` is NaN or reaches ``bound`` in magnitude. A sum, so that it vectorises."""
    seen = np.uint32(0)
    for i in range(k):
        seen += np.uint32(not (abs(values[i]) < bound))
    return seen != np.uint32(0)
