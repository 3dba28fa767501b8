"""Models that are dictionaries of arrays: the same engine for state dicts in a training loop, without files.

Arrays are numpy (BF16 through ml_dtypes) or torch tensors on the CPU; contiguous ones are read in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ramerge._errors import IncompatibleError
from ramerge._types import Bytes, DType, Json, TensorSpec
from ramerge.models.base import Extent, Notice, SourceFile

_NUMPY = {
    "bool": DType.BOOL,
    "bfloat16": DType.BF16,
    "float16": DType.F16,
    "float32": DType.F32,
    "float64": DType.F64,
    **{f"{kind}{bits}": DType[f"{letter}{bits}"] for kind, letter in (("int", "I"), ("uint", "U")) for bits in (8, 16, 32, 64)},
}  # fmt: skip


def to_bytes(array: Any) -> tuple[Bytes, DType, tuple[int, ...]]:
    """Flat bytes, dtype and shape of a numpy array or CPU torch tensor; no copy where it is contiguous.

    Raises:
        IncompatibleError: a dtype that safetensors has no name for, a mask, or a tensor that is sparse or not on the CPU.
    """
    if type(array).__module__.partition(".")[0] == "torch":
        array, name = _from_torch(array)
    else:
        if np.ma.isMaskedArray(array):
            raise IncompatibleError(
                "a masked array cannot be merged: its mask would be lost",
                hint="call .filled() first",
            )
        array = np.asarray(array)
        name = array.dtype.name
        if not array.dtype.isnative:  # bytes are read as this machine's
            array = array.astype(array.dtype.newbyteorder("="))
    if name not in _NUMPY:
        raise IncompatibleError(
            f"arrays of type {name} cannot be merged", hint="convert them to a float type"
        )
    shape = tuple(array.shape)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8), _NUMPY[name], shape


def _from_torch(tensor: Any) -> tuple[Any, str]:
    import torch

    if tensor.device.type != "cpu":
        raise IncompatibleError(
            f"a tensor is on {tensor.device}, not on the CPU", hint="call .cpu() first"
        )
    if tensor.layout != torch.strided:
        raise IncompatibleError(
            f"a tensor has the layout {tensor.layout}", hint="call .to_dense() first"
        )
    tensor = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    return (
        tensor.contiguous().view(torch.int16).numpy() if name == "bfloat16" else tensor.numpy()
    ), name


class MemoryCheckpoint:
    """A `Checkpoint` over a mapping from names to arrays."""

    revision: str | None = None
    directory: Path | None = None
    config: Mapping[str, Any] | None = None
    notices: tuple[Notice, ...] = ()

    def __init__(self, tensors: Mapping[str, Any], source: str) -> None:
        self.source = source
        self._data: dict[str, Bytes] = {}
        self._specs: dict[str, TensorSpec] = {}
        for name in sorted(tensors):
            self._data[name], dtype, shape = to_bytes(tensors[name])
            self._specs[name] = TensorSpec(name, dtype, shape)

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        return tuple(self._specs)

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor."""
        return self._specs[name]

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Copy elements [start, stop) into ``out``."""
        size = self._specs[name].dtype.itemsize
        out[:] = self._data[name][start * size : stop * size]

    def extent(self, name: str) -> Extent | None:
        """Memory has no files."""
        del name
        return None

    def files(self) -> tuple[SourceFile, ...]:
        """Memory has no files."""
        return ()

    def close(self) -> None:
        """Nothing to release."""


class MemorySink:
    """A `Sink` that keeps merged tensors as arrays like the base's."""

    def __init__(self, specs: tuple[TensorSpec, ...]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._data = {spec.name: np.empty(spec.nbytes, np.uint8) for spec in specs}

    def write(self, name: str, start: int, data: Bytes) -> None:
        """Keep a piece."""
        at = start * self._specs[name].dtype.itemsize
        self._data[name][at : at + data.size] = data

    def finish(self, name: str, record: Json) -> None:
        """Nothing to remember: memory does not survive an interruption."""

    @property
    def finished(self) -> Mapping[str, Json]:
        """Always empty."""
        return {}

    def arrays(self, like: Mapping[str, Any]) -> dict[str, Any]:
        """The merged tensors, as torch tensors where ``like`` holds torch tensors, in its order."""
        result = {}
        for name, model in like.items():
            spec = self._specs[name]
            raw = self._data[name]
            if type(model).__module__.partition(".")[0] == "torch":
                import torch

                dtype = getattr(torch, spec.dtype.torch_name)
                result[name] = (
                    torch.from_numpy(raw).view(dtype).reshape(spec.shape)
                    if raw.size
                    else torch.empty(spec.shape, dtype=dtype)
                )
            else:
                result[name] = raw.view(numpy_dtype(spec.dtype)).reshape(spec.shape)
        return result


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type of a stored dtype (BF16 from ml_dtypes)."""
    if dtype is DType.BF16:
        import ml_dtypes

        bfloat: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat
    return np.dtype(next(name for name, d in _NUMPY.items() if d is dtype))
