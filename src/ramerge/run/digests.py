"""Input hashers that follow the first full pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramerge.output.hashing import InputHashes
from ramerge.planning.plan import Plan


def input_hashes(plan: Plan, finished: Mapping[str, Any]) -> InputHashes:
    """Hashers that follow the first full pass."""
    todo = [t for t in plan.tensors if t.name not in finished]
    streams = [plan.base, *plan.agents, *plan.auxiliary]
    visited = [[t.name for t in todo]]
    for t in range(len(plan.agents) + len(plan.auxiliary)):
        specs = [(x.name, (*x.agents, *x.auxiliary)) for x in todo]
        visited.append([name for name, s in specs if t < len(s) and s[t] is not None])
    return InputHashes(streams, visited)
