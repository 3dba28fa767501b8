"""Run the command line as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


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
    source = str(Path(__file__).parents[1] / "src")
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
