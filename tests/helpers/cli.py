"""Run the command line as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np


def ramerge(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m ramerge ARGUMENTS`, its output as text."""
    return subprocess.run(
        [sys.executable, "-m", "ramerge", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(**environment),
    )


def child_environment(**extra: str) -> dict[str, str]:
    """This process's environment, with the sources that are under test first on the path."""
    source = str(Path(__file__).parents[2] / "src")
    return os.environ | {"PYTHONPATH": source, "COLUMNS": "100"} | extra


def write_bf16(path: Path, **tensors) -> None:
    """Write a safetensors file of BF16 tensors, each given as (shape, array of uint16 bit patterns)."""
    header, offset = {}, 0
    for name, (shape, bits) in tensors.items():
        end = offset + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(bits.tobytes() for _, bits in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def bf16_values(directory: Path) -> np.ndarray:
    """All elements of a model's only BF16 file, as float32."""
    raw = (directory / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    return np.frombuffer(raw[start:], ml_dtypes.bfloat16).astype(np.float32)


def expected_row(models: dict[str, Path], name: str, r: float = 0.1) -> list[str]:
    """What a RAM+ report must say of an agent, counted here: changed, unique, shared, ρ and λ as text."""
    base = bf16_values(models["base"])
    changed = {
        agent: np.abs(bf16_values(path) - base) > np.float32(1e-5)
        for agent, path in models.items()
        if agent != "base"
    }
    mine, by = changed[name], sum(mask.astype(int) for mask in changed.values())
    unique, shared = int((mine & (by == 1)).sum()), int((mine & (by >= 2)).sum())
    density = (unique + shared) / base.size
    regions = (count / (unique + shared) for count in (unique, shared))
    shares = [f"{100 * share:.1f} %" for share in (density, *regions)]
    rho = shared / unique
    return [*shares, f"{rho:.3g}", f"{1 + r * min(rho, 1):.3f}"]
