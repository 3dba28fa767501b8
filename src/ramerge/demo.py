"""A miniature base with three agents, to see a merge without having a model.

Two sets: the trained one that ships with the package (`copy_trained_set`; made by `ramerge lab`, its
origin beside it), and a drawn one for tests and benchmarks (`write_demo_set`): a Llama-shaped BF16
base of 0.2 M parameters, and three agents whose
changes have the densities and overlaps that the paper reports for its coding, tool-use and memory
agents (arXiv 2601.13572, figure 2). It shows what merging does to weights and says nothing about
skills.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ramerge._errors import OutputBusyError
from ramerge._types import F32, F64

AGENTS = ("coder", "tools", "memory")
DENSITIES = (0.032, 0.462, 0.543)
UNIQUE_SHARES = (0.063, 0.408, 0.475)  # of each agent's changed elements
CHANGED_BY_ALL = (
    0.0142  # of all elements: 44.6 % of the first's changes, 3.1 % and 2.6 % of the others'
)

_MARKER = ".ramerge-demo"  # stands in directories that may be overwritten, because we made them
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Bf16 = NDArray[np.uint16]  # bit patterns


def overlap_classes(
    densities: Sequence[float], unique_shares: Sequence[float], by_all: float
) -> F64:
    """How often each combination of three agents changes an element.

    Args:
        densities: share of elements that each agent changes.
        unique_shares: of an agent's changed elements, the share that no other agent changes.
        by_all: share of elements that all three change.

    Returns:
        probabilities ``[8]``, indexed by the bit mask of the agents that changed the element.
    """
    unique = np.multiply(densities, unique_shares)
    shared = np.subtract(densities, unique) - by_all  # with exactly one other agent
    pairs = shared.sum() / 2 - shared[::-1]  # {0,1}, {0,2}, {1,2}: each agent is in two of them
    classes = np.zeros(8)
    classes[[1, 2, 4]] = unique
    classes[[3, 5, 6]] = pairs
    classes[7] = by_all
    classes[0] = 1 - classes.sum()
    assert (classes >= 0).all(), "these densities and shares cannot occur together"
    return classes


def write_demo_set(directory: Path, *, overwrite: bool = False) -> tuple[Path, dict[str, Path]]:
    """Write the miniature base and its agents below ``directory``.

    Args:
        directory: created if it is missing.
        overwrite: replace an earlier demo there; never anything else.

    Returns:
        the base's directory, and each agent's by name.

    Raises:
        OutputBusyError: ``directory`` holds something.
    """
    _claim(directory, overwrite=overwrite)
    models: dict[str, dict[str, tuple[tuple[int, ...], Bf16]]] = {
        name: {} for name in ("base", *AGENTS)
    }
    rng = np.random.default_rng(2601_13572)
    for name, shape in _shapes():
        for model, bits in zip(models, _draw(rng, name, shape), strict=True):
            models[model][name] = (shape, bits)
    for model, tensors in models.items():
        target = directory / model
        target.mkdir(exist_ok=True)
        _write_json(target / "config.json", _CONFIG)
        _write_json(target / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
        write_bf16(target / "model.safetensors", tensors)
    return directory / "base", {name: directory / name for name in AGENTS}


def copy_trained_set(
    directory: Path, *, overwrite: bool = False
) -> tuple[Path, dict[str, Path], dict[str, dict[str, float]]]:
    """Copy the trained miniature base and agents that ship with the package below ``directory``.

    Args:
        directory: as for `write_demo_set`.
        overwrite: as for `write_demo_set`.

    Returns:
        the base's directory, each agent's by name, and the test accuracies of their training:
        model -> task -> share.

    Raises:
        OutputBusyError: ``directory`` holds something.
    """
    from importlib.resources import as_file, files

    _claim(directory, overwrite=overwrite)
    with as_file(files("ramerge") / "data" / "demo") as source:
        for model in ("base", *AGENTS):
            target = directory / model
            target.mkdir(exist_ok=True)
            for file in sorted((source / model).iterdir()):
                (target / file.name).write_bytes(file.read_bytes())
        provenance = json.loads((source / "provenance.json").read_text("utf-8"))
    scores: dict[str, dict[str, float]] = provenance["test_accuracy"]
    return directory / "base", {name: directory / name for name in AGENTS}, scores


def _claim(directory: Path, *, overwrite: bool) -> None:
    """Make sure that ``directory`` is ours to write into."""
    if directory.exists() and any(directory.iterdir()):
        if not (directory / _MARKER).is_file():
            raise OutputBusyError(
                f"`{directory}` exists and is not an earlier demo", hint="name another --out"
            )
        if not overwrite:
            raise OutputBusyError(
                f"`{directory}` holds an earlier demo", hint="--overwrite replaces it"
            )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _MARKER).touch()


def write_bf16(path: Path, tensors: Mapping[str, tuple[tuple[int, ...], Bf16]]) -> None:
    """Write tensors, given as shape and BF16 bit patterns, as a safetensors file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, bits) in tensors.items():
        header[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [offset, offset + bits.nbytes],
        }
        offset += bits.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, bits in tensors.values():
            file.write(bits.tobytes())


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Llama with tied embeddings."""
    hidden, inner, vocab = 64, 160, 512
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(4):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "mlp.down_proj.weight", (hidden, inner)
        yield prefix + "mlp.gate_proj.weight", (inner, hidden)
        yield prefix + "mlp.up_proj.weight", (inner, hidden)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        yield prefix + "self_attn.k_proj.weight", (hidden // 2, hidden)
        yield prefix + "self_attn.o_proj.weight", (hidden, hidden)
        yield prefix + "self_attn.q_proj.weight", (hidden, hidden)
        yield prefix + "self_attn.v_proj.weight", (hidden // 2, hidden)
    yield "model.norm.weight", (hidden,)


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Iterator[Bf16]:
    """Bit patterns ``[n]`` of one tensor in the base and in each agent."""
    n = int(np.prod(shape))
    mean, deviation = (1.0, 0.05) if "norm" in name else (0.0, 0.05)
    base = _bf16_bits((mean + deviation * rng.standard_normal(n)).astype(np.float32))
    yield base
    changed_by = rng.choice(8, n, p=overlap_classes(DENSITIES, UNIQUE_SHARES, CHANGED_BY_ALL))
    values = _as_f32(base)
    step = np.ldexp(np.float32(1), np.frexp(values)[1] - 8)  # one unit in the last of BF16's 8 bits
    for agent in range(len(AGENTS)):
        steps = rng.choice([1, 2, 3], n, p=[0.75, 0.19, 0.06]) * rng.choice([-1, 1], n)
        moved = values + np.copysign(np.maximum(np.abs(steps) * step, 2e-5), steps)
        yield np.where(changed_by >> agent & 1, _bf16_bits(moved.astype(np.float32)), base)


def _bf16_bits(values: F32) -> Bf16:
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def _as_f32(bits: Bf16) -> F32:
    return np.asarray(bits.view(ml_dtypes.bfloat16), np.float32)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
