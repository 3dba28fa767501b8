"""Verifiable tasks: prompts with an exact check of the answer, no judge and no luck."""

from __future__ import annotations

from ramerge.lab.environments.base import Environment, Problem, Split
from ramerge.lab.environments.coding import Coding
from ramerge.lab.environments.memory import Memory
from ramerge.lab.environments.retention import Retention
from ramerge.lab.environments.tools import Tools

__all__ = ["AGENTS", "TASKS", "Environment", "Problem", "Split", "environments"]

AGENTS = ("coder", "tools", "memory")  # each is trained on the task of the same place in TASKS
TASKS = ("coding", "tools", "memory", "retention")


def environments() -> dict[str, Environment]:
    """The tasks by name: three that agents are trained on, and one that they should not forget."""
    found: tuple[Environment, ...] = (Coding(), Tools(), Memory(), Retention())
    return {e.name: e for e in found}
