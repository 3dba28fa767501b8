"""Package one cell of the study as the demo: base and agents in BF16, with their origin."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from ramerge._errors import VerificationError
from ramerge.lab.agents import PROVENANCE, Cell, accuracies, base_directory, get_agents, get_base
from ramerge.lab.environments import AGENTS, TASKS
from ramerge.lab.regimes import REGIMES

LEAST_GAIN = 0.20  # an agent that did not gain this much on its own task was not trained


def package(cache: Path, cell: Cell, target: Path) -> dict[str, Any]:
    """Copy base and agents to ``target/{base,coder,tools,memory}``; write ``provenance.json``.

    Returns:
        the provenance: settings, test accuracies, SHA-256 of every file.

    Raises:
        VerificationError: an agent's own-task accuracy did not rise by 20 points.
    """
    base = get_base(cache, cell.base_seed)
    agents = get_agents(cache, cell, base)
    scores = {
        name: accuracies(weights, "test") for name, weights in {"base": base, **agents}.items()
    }
    for name, task in zip(AGENTS, TASKS, strict=False):
        before, after = scores["base"][task], scores[name][task]
        if after - before < LEAST_GAIN:
            raise VerificationError(
                f"agent `{name}` scores {after:.3f} on {task}, the base {before:.3f}"
            )
    source = base_directory(cache, cell.base_seed)
    below = source / cell.regime / f"seed-{cell.agent_seed}"
    settings = {
        "base": _provenance(source),
        "agents": {k: v for k, v in _provenance(below).items() if k != "test"},
    }
    files = {}
    for name, directory in {"base": source, **{n: below / f"{n}.bf16" for n in AGENTS}}.items():
        for path in sorted(directory.iterdir()):
            if path.is_file() and path.name != PROVENANCE:
                copied = target / name / path.name
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copied)
                files[f"{name}/{path.name}"] = hashlib.sha256(copied.read_bytes()).hexdigest()
    found = {
        "what": "trained by `ramerge lab`: pre-training, then GRPO on one task for each agent",
        "regime": f"{cell.regime}: {REGIMES[cell.regime]}",
        "torch": torch.__version__.split("+")[0],
        "test_accuracy": scores,
        "settings": settings,
        "sha256": files,
    }
    (target / PROVENANCE).write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return found


def _provenance(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / PROVENANCE).read_text("utf-8"))
    found.pop("test", None)
    return found
