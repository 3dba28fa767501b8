"""A miniature base with three agents, to see a merge without having a model.

`ramerge lab export-demo` trained them and wrote them here: a Llama of 0.1 M parameters, pre-trained, and
three copies of it that reinforcement learning made good at one task each. ``provenance.json`` says how,
and what each of them scores. They show that the machinery works and say nothing about large models.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from ramerge._errors import OutputBusyError

AGENTS = {
    "coder": "coding",
    "tools": "tools",
    "memory": "memory",
}  # name -> what it was trained for
PROVENANCE = (
    "provenance.json"  # stands in directories that may be overwritten, because we made them
)


@dataclass(frozen=True, slots=True)
class DemoSet:
    """Where the miniature models lie, and what they score on the held-out tasks.

    Attributes:
        base: directory of the base.
        agents: directory of each agent, by name.
        accuracy: model -> task -> share of test problems solved.
    """

    base: Path
    agents: dict[str, Path]
    accuracy: dict[str, dict[str, float]]


def write_demo_set(directory: Path, *, overwrite: bool = False) -> DemoSet:
    """Copy the miniature models below ``directory``.

    Args:
        directory: created if it is missing.
        overwrite: replace an earlier demo there; never anything else.

    Raises:
        OutputBusyError: ``directory`` holds something.
    """
    if directory.exists() and any(directory.iterdir()):
        if not (directory / PROVENANCE).is_file():
            raise OutputBusyError(
                f"`{directory}` exists and is not an earlier demo", hint="name another --out"
            )
        if not overwrite:
            raise OutputBusyError(
                f"`{directory}` holds an earlier demo", hint="--overwrite replaces it"
            )
    with as_file(files("ramerge") / "miniature" / "data" / "demo") as packaged:
        shutil.copytree(packaged, directory, dirs_exist_ok=True)
    provenance = json.loads((directory / PROVENANCE).read_text(encoding="utf-8"))
    agents = {name: directory / name for name in AGENTS}
    return DemoSet(directory / "base", agents, provenance["test_accuracy"])
