"""An adapter left beside full weights: it is not read, so that its agent is perhaps less trained than its owner thinks."""

from __future__ import annotations

from collections.abc import Mapping

from ramerge.models.base import Checkpoint, Notice
from ramerge.models.lora.config import CONFIG


def unread_adapters(agents: Mapping[str, Checkpoint]) -> tuple[Notice, ...]:
    """A notice for each agent with an adapter in its directory that is not the agent itself."""
    return tuple(
        Notice(
            "adapter-beside",
            f"`{CONFIG}` lies beside the full weights of agent `{name}`; only the full weights are read",
        )
        for name, agent in agents.items()
        if _unread(agent)
    )


def _unread(agent: Checkpoint) -> bool:
    beside = agent.directory and agent.directory / CONFIG
    if beside is None or not beside.is_file():
        return False
    return all(file.path.resolve() != beside.resolve() for file in agent.files())
