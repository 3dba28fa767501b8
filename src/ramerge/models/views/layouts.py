"""The same architecture under other tensor names: wrappers moved, experts packed into one tensor.

Libraries have renamed `language_model.model.*` to `model.language_model.*`, saved towers without
their wrapper, and packed the experts of a layer. A name of the agent that the base lacks is
matched with a name of the base that the agent lacks when both mean the same place and have the
same shape; the match must be unique. Whatever is matched is said; whatever is not stays as it is,
for others to refuse.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ramerge._types import TensorSpec
from ramerge.models.base import Checkpoint
from ramerge.models.views.patched import Patch, Segment, alias, patch

_WRAPPER = re.compile(
    r"^(?:model|language_model|transformer|base_model|bert|roberta|gpt_neox|backbone)\."
)
_EXPERT = re.compile(
    r"^(?P<stem>.+\.experts)\.(?P<index>\d+)\.(?P<role>gate|up|down)_proj\.weight$"
)
_PACKED = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}


def canonical(name: str) -> str:
    """A name without the wrappers in front, which libraries move around."""
    while (shorter := _WRAPPER.sub("", name)) != name:
        name = shorter
    return name


def renamed(base: Mapping[str, TensorSpec], agent: Checkpoint) -> dict[str, Patch]:
    """Tensors of the base that the agent holds under another name, or packed.

    Args:
        base: the base's tensors.
        agent: an opened agent.

    Returns:
        By name in the base; the agent's own names are in the segments.
    """
    theirs = {name: agent.spec(name) for name in agent.names()}
    wanted = {name: spec for name, spec in base.items() if name not in theirs}
    spare = {name: spec for name, spec in theirs.items() if name not in base}
    places: dict[str, list[str]] = defaultdict(list)
    for name in spare:
        places[canonical(name)].append(name)
    rivals = _count(map(canonical, wanted))
    patches: dict[str, Patch] = {}
    for name, spec in wanted.items():
        here = places.get(canonical(name), [])
        if len(here) == 1 and rivals[canonical(name)] == 1 and spare[here[0]].shape == spec.shape:
            patches[name] = alias(name, agent, here[0])
        elif (found := _unpacked(name, spec, places, spare, agent)) is not None:
            patches[name] = found
    return patches


def _count(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        counts[name] += 1
    return counts


def _unpacked(
    name: str,
    spec: TensorSpec,
    places: Mapping[str, list[str]],
    spare: Mapping[str, TensorSpec],
    agent: Checkpoint,
) -> Patch | None:
    """One expert's matrix as a run of rows of the layer's packed tensor (transformers 5)."""
    expert = _EXPERT.match(name)
    if expert is None or len(spec.shape) != 2:
        return None
    role = expert["role"]
    here = places.get(f"{canonical(expert['stem'])}.{_PACKED[role]}", [])
    if len(here) != 1:
        return None
    experts, *matrix = spare[here[0]].shape or (0,)
    halves = 1 if role == "down" else 2
    if matrix != [spec.shape[0] * halves, spec.shape[1]] or int(expert["index"]) >= experts:
        return None
    start = (int(expert["index"]) * halves + (role == "up")) * spec.elements
    return patch(name, spec.shape, [Segment(agent, here[0], start, start + spec.elements)])
