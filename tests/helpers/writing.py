"""A small model to write: tensors of many sizes and dtypes, their bytes drawn from a seed."""

from pathlib import Path

import numpy as np

from ramerge._types import DType, TensorSpec
from ramerge.output.layout import plan_layout
from ramerge.output.manifest import manifest_bytes
from ramerge.output.staging import Staging

SPECS = (
    TensorSpec("a.weight", DType.BF16, (64, 48)),
    TensorSpec("b.bias", DType.F32, (37,)),
    TensorSpec("c.scalar", DType.F32, ()),
    TensorSpec("d.empty", DType.BF16, (0, 4)),
    TensorSpec("e.flags", DType.BOOL, (5,)),
    TensorSpec("f.weight", DType.F16, (1000,)),
    TensorSpec("g.wide", DType.F64, (123,)),
)
SIDES = {"config.json": b'{"a": 1}\n', "templates/one.jinja": b"{{ x }}"}


def content(seed: int = 0) -> dict[str, np.ndarray]:
    """Bytes of every tensor."""
    rng = np.random.default_rng(seed)
    return {s.name: rng.integers(0, 256, s.nbytes, dtype=np.uint8) for s in SPECS}


def layout(shard_size: int = 10**9):
    return plan_layout(SPECS, shard_size)


def manifest(output, tensors) -> bytes:
    return manifest_bytes({"ramerge": "test", "tensors": len(tensors)}, output, tensors)


def write_tensor(staging: Staging, name: str, data: np.ndarray, step: int = 256) -> None:
    """In pieces of ``step`` elements, the last ones first."""
    size = next(s for s in SPECS if s.name == name).dtype.itemsize
    for start in reversed(range(0, max(data.size // size, 1), step)):
        staging.write(name, start, data[start * size : (start + step) * size])
    staging.finish(name, {"of": name})


def write_model(out: Path, seed: int = 0, shard_size: int = 10**9, sides=SIDES, **options):
    """A whole run, from opening to commit."""
    data = content(seed)
    with Staging.open(out, layout(shard_size), f"job {seed}", **options) as staging:
        for name in data:
            if name not in staging.finished:
                write_tensor(staging, name, data[name])
        return staging.commit(sides, manifest)


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory by name."""
    return {
        p.relative_to(directory).as_posix(): p.read_bytes()
        for p in sorted(directory.rglob("*"))
        if p.is_file()
    }
