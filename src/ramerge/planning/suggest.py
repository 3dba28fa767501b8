"""Which of several models is the base, and a commented merge file for them: what `ramerge init` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ramerge._errors import ConfigError, MergeError
from ramerge.models.base import Checkpoint
from ramerge.models.numbers import read_numbers
from ramerge.models.open import open_checkpoint

TENSORS = 8
ELEMENTS = 1 << 16
_ADAPTER = "adapter_config.json"
_WEIGHTS = (".safetensors", ".safetensors.index.json")


def models_below(directory: Path) -> list[Path]:
    """Model and adapter directories directly below ``directory``, by name; itself, if it is one."""
    if _holds_model(directory):
        return [directory]
    return sorted(d for d in directory.iterdir() if d.is_dir() and _holds_model(d))


def _holds_model(directory: Path) -> bool:
    names = {entry.name for entry in directory.iterdir()}
    return _ADAPTER in names or any(name.endswith(_WEIGHTS) for name in names)


def find_base(models: Sequence[Path]) -> Path:
    """The model that all others were trained from.

    A base that adapters name goes first. Otherwise it is the model with the least sum of distances to
    the others, on a sample of tensors: two agents of one base differ by both of their task vectors.

    Raises:
        ConfigError: fewer than three full models, and no adapter that names one of them.
    """
    adapters = [m for m in models if (m / _ADAPTER).is_file()]
    full = [m for m in models if m not in adapters]
    named = {_named_base(adapter) for adapter in adapters}
    for model in full:
        if model.name in named:
            return model
    if len(full) == 1:
        return full[0]
    if len(full) < 3:
        raise ConfigError(
            f"cannot tell base and agents apart among {len(full)} full models",
            hint="name the base: `ramerge init ... --base DIR`",
        )
    return full[int(np.argmin(_distances(full).sum(axis=1)))]


def _named_base(adapter: Path) -> str:
    config = json.loads((adapter / _ADAPTER).read_text(encoding="utf-8"))
    return Path(str(config.get("base_model_name_or_path", ""))).name


def _distances(models: Sequence[Path]) -> np.ndarray:
    """L1 distance of every two models on the sample; float64 ``[models, models]``."""
    with ExitStack() as stack:
        opened = [open_checkpoint(str(model)) for model in models]
        for checkpoint in opened:
            stack.callback(checkpoint.close)
        samples = _sample(opened)
    return np.array([[np.abs(a - b).sum() for b in samples] for a in samples])


def _sample(models: Sequence[Checkpoint]) -> list[np.ndarray]:
    """The first elements of evenly spaced tensors that all models have in one shape, end to end."""
    common = [
        name
        for name in models[0].names()
        if all(
            name in m.names() and m.spec(name).shape == models[0].spec(name).shape for m in models
        )
    ]
    if not common:
        raise ConfigError(
            "these models share no tensor of equal name and shape",
            hint="name models of one architecture",
        )
    chosen = common[:: max(1, len(common) // TENSORS)]
    return [np.concatenate([_first(model, name) for name in chosen]) for model in models]


def _first(model: Checkpoint, name: str) -> np.ndarray:
    out = np.empty(min(ELEMENTS, model.spec(name).elements), np.float32)
    try:
        read_numbers(model, name, 0, out.size, out)
    except MergeError:
        # Integers say nothing about training.
        return np.zeros(out.size)
    return out.astype(np.float64)


def merge_file(base: str, agents: Sequence[str], method: str, schema: str) -> str:
    """A merge file with comments, in the dialect that `ramerge merge` reads.

    Args:
        base: source of the base.
        agents: sources, in the order of the arithmetic.
        method: name of a merge method.
        schema: where an editor finds the schema.
    """
    lines = [
        f"# yaml-language-server: $schema={schema}",
        "# Check it with `ramerge plan`, run it with `ramerge merge ... --out DIR`.",
        f"merge_method: {method}  # `ramerge methods` lists all",
        f"base_model: {_quoted(base)}  # what the agents were trained from",
        "models:",
    ]
    lines += [f"  - model: {_quoted(agent)}" for agent in agents]
    return "\n".join(
        [
            *lines,
            "    # parameters:",
            "    #   weight: 0.5  # for this agent only",
            "# parameters:  # for all agents",
            "#   r: 0.2  # `ramerge methods ram_plus` explains it",
            "# out_dtype: float32  # default: as the base is stored",
            "",
        ]
    )


def _quoted(source: str) -> str:
    """A YAML string: JSON's form is one."""
    return json.dumps(source, ensure_ascii=False)
