"""Hand-built safetensors files and model directories: sound ones, and ones broken in one way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def blob(header, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file from a header (dict or raw bytes) and the data area."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


NAMES = {
    "float32": "F32",
    "float16": "F16",
    "float64": "F64",
    "int64": "I64",
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "uint32": "U32",
}


def save(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """Write tensors as safetensors, in the given order."""
    header, end = {}, 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = entry(NAMES[str(array.dtype)], list(array.shape), begin, end)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    path.write_bytes(blob(header, data))
    return path


def model(directory: Path, tensors: dict[str, np.ndarray], config: dict | None = None) -> Path:
    """A model directory with one weights file."""
    save(directory / "model.safetensors", tensors)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def sharded(
    directory: Path, shards: list[dict[str, np.ndarray]], changes: dict | None = None
) -> Path:
    """A directory with shards and an index; ``changes`` override weight_map (None removes)."""
    weight_map: dict = {}
    for i, tensors in enumerate(shards, 1):
        name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save(directory / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    weight_map = {k: v for k, v in (weight_map | (changes or {})).items() if v is not None}
    write_index(directory, weight_map, sum(t.nbytes for s in shards for t in s.values()))
    return directory


def write_index(directory: Path, weight_map: dict, total: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def read_all(checkpoint, name: str) -> np.ndarray:
    """A whole tensor through `Checkpoint.read`, as raw bytes."""
    spec = checkpoint.spec(name)
    out = np.empty(spec.nbytes, np.uint8)
    checkpoint.read(name, 0, spec.elements, out)
    return out
