"""Golden vectors: random miniature models, and what the RAM authors' own functions made of them in fp32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ramerge.models.formats.safetensors import open_file
from ramerge.models.memory import numpy_dtype

VECTORS = Path(__file__).parents[1] / "vectors"
CASES = {case["case"]: case for case in json.loads((VECTORS / "index.json").read_text())}
EXPECTED = [(name, expected) for name, case in CASES.items() for expected in case["expected"]]


def load(name):
    checkpoint = open_file(VECTORS / f"{name}.safetensors", source=name)
    tensors = {}
    for tensor in checkpoint.names():
        spec = checkpoint.spec(tensor)
        raw = np.empty(spec.nbytes, np.uint8)
        checkpoint.read(tensor, 0, spec.elements, raw)
        tensors[tensor] = raw.view(numpy_dtype(spec.dtype)).reshape(spec.shape)
    checkpoint.close()
    return tensors


def models(case):
    return load(f"{case}.base"), [
        load(f"{case}.agent{t + 1}") for t in range(CASES[case]["agents"])
    ]
