"""Model sets to measure with: a Qwen2-shaped BF16 base and three agents.

    python benchmarks/generate.py 0.5b bench-data/0.5b

The agents' densities and overlaps are the paper's (arXiv 2601.13572, figure 2). Every element is a function
of its tensor's position and its own index, so a set has the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numba as nb
import numpy as np

MODELS = ("base", "agent1", "agent2", "agent3")
DENSITIES = (0.032, 0.462, 0.543)
UNIQUE_SHARES = (0.063, 0.408, 0.475)  # of each agent's changed elements
CHANGED_BY_ALL = (
    0.0142  # of all elements: 44.6 % of the first's changes, 3.1 % and 2.6 % of the others'
)


class Size(NamedTuple):
    """What sets a Qwen2's shapes, and where its files are cut."""

    hidden: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    shard_bytes: int


SIZES = {
    "tiny": Size(256, 4, 1024, 4, 2, 32_000, 12_000_000),
    "0.1b": Size(768, 10, 3072, 12, 4, 50_000, 120_000_000),
    "0.5b": Size(896, 24, 4864, 14, 2, 151_936, 400_000_000),
    "1.5b": Size(1536, 28, 8960, 12, 2, 151_936, 1_000_000_000),
}


def shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensor names and shapes of a Qwen2 with tied embeddings, in name order within a layer."""
    hidden, kv = size.hidden, size.kv_heads * size.hidden // size.heads
    yield "model.embed_tokens.weight", (size.vocab, hidden)
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "mlp.down_proj.weight", (hidden, size.inner)
        yield prefix + "mlp.gate_proj.weight", (size.inner, hidden)
        yield prefix + "mlp.up_proj.weight", (size.inner, hidden)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        for part, rows in (("k", kv), ("q", hidden), ("v", kv)):
            yield prefix + f"self_attn.{part}_proj.bias", (rows,)
            yield prefix + f"self_attn.{part}_proj.weight", (rows, hidden)
        yield prefix + "self_attn.o_proj.weight", (hidden, hidden)
    yield "model.norm.weight", (hidden,)


def overlap_classes() -> np.ndarray:
    """How often each combination of agents changes an element: ``[8]``, by bit mask of the agents."""
    unique = np.multiply(DENSITIES, UNIQUE_SHARES)
    shared = np.subtract(DENSITIES, unique) - CHANGED_BY_ALL  # with exactly one other agent
    classes = np.zeros(8)
    classes[[1, 2, 4]] = unique
    classes[[3, 5, 6]] = shared.sum() / 2 - shared[::-1]  # each agent is in two of the pairs
    classes[7] = CHANGED_BY_ALL
    classes[0] = 1 - classes.sum()
    assert (classes >= 0).all(), "these densities and shares cannot occur together"
    return classes


def tables() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Lookup tables by 16 random bits: BF16 patterns by kind of tensor; who changes an element."""
    normal = np.random.default_rng(0).standard_normal(1 << 16)
    kinds = {"norm": (1.0, 0.05), "bias": (0.0, 0.1), "weight": (0.0, 0.02)}
    values = {
        kind: (mean + deviation * normal).astype(ml_dtypes.bfloat16).view(np.uint16)
        for kind, (mean, deviation) in kinds.items()
    }
    borders = np.round(np.cumsum(overlap_classes()) * (1 << 16)).astype(int)
    classes = np.searchsorted(borders, np.arange(1 << 16), side="right").astype(np.uint8)
    return values, classes


@nb.njit(cache=True)
def moved(bits: Any, r: Any) -> Any:
    """The BF16 pattern ``bits`` moved by 1, 2 or 3 units in the last place, by 2e-5 at least."""
    word = np.empty(1, np.uint32)
    value = word.view(np.float32)
    exponent = (bits >> np.uint32(7)) & np.uint32(0xFF)
    word[0] = max(np.int64(exponent) - 7, 1) << 23
    unit = value[0]
    steps = 1 if (r & 31) < 24 else (2 if (r & 31) < 30 else 3)
    step = max(np.float32(steps) * unit, np.float32(2e-5))
    word[0] = bits << np.uint32(16)
    value[0] += -step if r & 32 else step
    rounded = word[0] + np.uint32(0x7FFF) + ((word[0] >> np.uint32(16)) & np.uint32(1))
    return np.uint16(rounded >> np.uint32(16))


@nb.njit(parallel=True, cache=True)
def fill(seed: Any, values: Any, classes: Any, base: Any, agents: Any) -> None:
    """Draw a tensor by SplitMix64: ``base`` uint16 ``[n]`` and ``agents`` uint16 ``[3, n]``."""
    for i in nb.prange(base.size):
        z = (np.uint64(seed) << np.uint64(40)) + np.uint64(i)
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        bits = values[z & np.uint64(0xFFFF)]
        changed_by = classes[(z >> np.uint64(16)) & np.uint64(0xFFFF)]
        base[i] = bits
        for t in range(3):
            if changed_by >> t & 1:
                r = np.int64((z >> np.uint64(32 + 6 * t)) & np.uint64(63))
                agents[t, i] = moved(np.uint32(bits), r)
            else:
                agents[t, i] = bits


def shards(size: Size) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Tensors file by file, cut where a file would grow over ``size.shard_bytes``."""
    files: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    used = 0
    for name, shape in shapes(size):
        nbytes = 2 * prod(shape)
        if used and used + nbytes > size.shard_bytes:
            files.append([])
            used = 0
        files[-1].append((name, shape))
        used += nbytes
    return files


def write_header(file: BinaryIO, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    """Write the safetensors header for ``tensors``, all BF16."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in tensors:
        end = offset + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def write_side_files(directory: Path, size: Size, weight_map: dict[str, str]) -> None:
    """Write config.json and the shard index of one model."""
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "intermediate_size": size.inner,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "vocab_size": size.vocab,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    total = 2 * sum(prod(shape) for _, shape in shapes(size))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def generate(name: str, directory: Path) -> None:
    """Write the set called ``name`` below ``directory``, unless a complete one stands there."""
    size = SIZES[name]
    done = directory / ".complete"
    if done.is_file():
        return
    values, classes = tables()
    files = shards(size)
    weight_map: dict[str, str] = {}
    seed = 0
    for model in MODELS:
        (directory / model).mkdir(parents=True, exist_ok=True)
    for number, tensors in enumerate(files, start=1):
        shard = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        outputs = [(directory / model / shard).open("wb") for model in MODELS]
        for file in outputs:
            write_header(file, tensors)
        for tensor, shape in tensors:
            seed += 1
            weight_map[tensor] = shard
            kind = "norm" if "norm" in tensor else "bias" if tensor.endswith("bias") else "weight"
            base = np.empty(prod(shape), np.uint16)
            agents = np.empty((3, base.size), np.uint16)
            fill(seed, values[kind], classes, base, agents)
            for file, bits in zip(outputs, (base, *agents), strict=True):
                file.write(bits.data)
        for file in outputs:
            file.close()
    for model in MODELS:
        write_side_files(directory / model, size, weight_map)
    done.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    generate(arguments.size, arguments.directory)


if __name__ == "__main__":
    main()
