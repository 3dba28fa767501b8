"""Small real models on disk: transformers builds and saves them, agents are perturbed copies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

QWEN = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 160, "max_position_embeddings": 128,
}  # fmt: skip


def save_base(directory, *, architecture="Qwen2", dtype="bfloat16", seed=0, **changes):
    """A randomly initialised causal LM of that architecture, saved by transformers itself."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{architecture}Config")(**{**QWEN, **changes})
    model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    return directory


def read_tensors(directory):
    """name -> array of a model directory or file."""
    from ramerge.models.memory import numpy_dtype
    from ramerge.models.open import open_checkpoint

    checkpoint = open_checkpoint(str(directory))
    tensors = {}
    for name in checkpoint.names():
        spec = checkpoint.spec(name)
        raw = np.empty(spec.nbytes, np.uint8)
        checkpoint.read(name, 0, spec.elements, raw)
        tensors[name] = raw.view(numpy_dtype(spec.dtype)).reshape(spec.shape)
    checkpoint.close()
    return tensors


def write_tensors(directory, tensors, *, shards=1):
    """The same tensors in ``shards`` files with an index."""
    from safetensors.numpy import save_file

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors)
    parts = [names[i::shards] for i in range(shards)]
    if shards == 1:
        save_file(
            {n: tensors[n] for n in names},
            directory / "model.safetensors",
            metadata={"format": "pt"},
        )
        return directory
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file({n: tensors[n] for n in part}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.nbytes for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def save_agent(directory, base, *, seed, density, shards=1):
    """A copy of ``base`` whose float tensors have a share of elements moved by a few ulps."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, array in read_tensors(base).items():
        x = array.astype(np.float64)
        step = np.maximum(np.abs(x) * 2.0**-6, 1e-4) * rng.choice([-1.0, 1.0], x.shape)
        tensors[name] = np.where(rng.random(x.shape) < density, x + step, x).astype(array.dtype)
    write_tensors(directory, tensors, shards=shards)
    for file in Path(base).glob("*.json"):
        if "index" not in file.name:
            shutil.copy(file, Path(directory) / file.name)
    return Path(directory)


def tree_bytes(directory):
    """file name -> content, for whole-directory comparisons."""
    directory = Path(directory)
    return {
        str(f.relative_to(directory)): f.read_bytes()
        for f in sorted(directory.rglob("*"))
        if f.is_file()
    }
