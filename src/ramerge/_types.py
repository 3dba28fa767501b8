"""The vocabulary that every layer shares: element types, tensor descriptions, array aliases.

Shape letters in docstrings: ``N`` agents, ``n`` elements of a tensor, ``B`` elements of one kernel block.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]  # raw little-endian bytes of tensor elements, contiguous, 1-D
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
Json = dict[str, Any]


class DType(enum.Enum):
    """Element types by their safetensors names. Value = (name, bits per element, kind)."""

    BOOL = ("BOOL", 8, "bool")
    U8 = ("U8", 8, "uint")
    I8 = ("I8", 8, "int")
    U16 = ("U16", 16, "uint")
    I16 = ("I16", 16, "int")
    F16 = ("F16", 16, "float")
    BF16 = ("BF16", 16, "float")
    U32 = ("U32", 32, "uint")
    I32 = ("I32", 32, "int")
    F32 = ("F32", 32, "float")
    U64 = ("U64", 64, "uint")
    I64 = ("I64", 64, "int")
    F64 = ("F64", 64, "float")
    C64 = ("C64", 64, "complex")
    F8_E5M2 = ("F8_E5M2", 8, "packed")
    F8_E4M3 = ("F8_E4M3", 8, "packed")
    F8_E8M0 = ("F8_E8M0", 8, "packed")
    F8_E5M2FNUZ = ("F8_E5M2FNUZ", 8, "packed")
    F8_E4M3FNUZ = ("F8_E4M3FNUZ", 8, "packed")
    F6_E2M3 = ("F6_E2M3", 6, "packed")
    F6_E3M2 = ("F6_E3M2", 6, "packed")
    F4 = ("F4", 4, "packed")

    @property
    def bits(self) -> int:
        """Width of one element in bits."""
        return self.value[1]

    @property
    def itemsize(self) -> int:
        """Width of one element in bytes; only meaningful where it is whole (not F4, F6)."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether tensors of this type are merged (BF16, F16, F32, F64)."""
        return self in MERGEABLE

    @property
    def is_discrete(self) -> bool:
        """Whether tensors of this type are copied when equal and never averaged."""
        return self.value[2] in {"bool", "int", "uint"}

    @classmethod
    def parse(cls, name: str) -> DType:
        """The type called ``name`` in a safetensors header, or its torch spelling (``bfloat16``).

        Raises:
            KeyError: no such type.
        """
        return cls[_TORCH_NAMES.get(name.removeprefix("torch."), name)]

    @property
    def torch_name(self) -> str:
        """Name in config.json and in YAML (``bfloat16``); the safetensors name where torch has none."""
        return next((k for k, v in _TORCH_NAMES.items() if v == self.name), self.name)


MERGEABLE = frozenset({DType.BF16, DType.F16, DType.F32, DType.F64})
_TORCH_NAMES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bf16": "BF16",
    "fp16": "F16",
    "fp32": "F32",
    "fp64": "F64",
    "half": "F16",
    "float": "F32",
    "double": "F64",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor is, without its data."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements (1 for a 0-d tensor, 0 for an empty one)."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored tensor."""
        return self.elements * self.dtype.bits // 8
