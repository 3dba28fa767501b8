"""The one door from the study to the merging engine, and a little algebra of task vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import ramerge
from ramerge.lab.model import Shape, Weights, load, save


def merge(base: Weights, agents: Mapping[str, Weights], method: str, **parameters: Any) -> Weights:
    """Merge by a method of the engine; everything fp32, on one thread.

    Raises:
        MergeError: as `ramerge.merge_state_dicts`.
    """
    return ramerge.merge_state_dicts(base, agents, method=method, parameters=parameters, threads=1)


def merge_files(
    base: Weights, agents: Mapping[str, Weights], method: str, shape: Shape, **parameters: Any
) -> Weights:
    """`merge` by way of files, for methods that read files of their own.

    Raises:
        MergeError: as `ramerge.merge`.
    """
    with TemporaryDirectory(prefix="ramerge-lab-") as name:
        place = Path(name)
        for model, weights in {"base": base, **agents}.items():
            save(weights, shape, place / model, torch.float32)
        sources = {agent: place / agent for agent in agents}
        ramerge.merge(
            base=place / "base",
            agents=sources,
            method=method,
            parameters=parameters,
            out=place / "out",
            threads=1,
        )
        return load(place / "out")


def task_vector(base: Weights, model: Weights) -> Weights:
    """``model − base``, name by name."""
    return {name: model[name] - weight for name, weight in base.items()}


def moved(base: Weights, vector: Weights, scale: float = 1.0) -> Weights:
    """``base + scale · vector``."""
    return {name: weight + scale * vector[name] for name, weight in base.items()}


def norm(vector: Weights) -> float:
    """Euclidean norm over the whole model."""
    return float(sum(v.double().square().sum() for v in vector.values())) ** 0.5


def flat(vector: Weights) -> torch.Tensor:
    """All elements ``[n]``, in the order of the names."""
    return torch.cat([v.flatten() for v in vector.values()])


def unflat(elements: torch.Tensor, like: Weights) -> Weights:
    """The inverse of `flat`."""
    parts = elements.split([w.numel() for w in like.values()])
    return {n: p.view(w.shape) for (n, w), p in zip(like.items(), parts, strict=True)}
