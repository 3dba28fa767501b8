"""From settings to the plain numbers that hold for one tensor.

Precedence, first that says something about the tensor: a source of a slice, the slice, the agent,
the whole file, the preset, the default. A conditional value whose filters all miss a tensor says
nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from ramerge._errors import ConfigError
from ramerge._signature import MethodInfo, Parameter, Scalar
from ramerge.config.job import Filtered, Gradient, Job, Setting, Settings, Slice
from ramerge.models.facts import block_of, layer_counts


class _Silent:
    """What a setting says about a tensor that none of its filters fits."""


SILENT = _Silent()


def varies(setting: Setting) -> bool:
    """Whether a setting gives different tensors different values."""
    return isinstance(setting, Gradient | tuple)


def resolve(setting: Setting, tensor: str, depth: float) -> Scalar | _Silent:
    """The value of a setting for a tensor, or `SILENT` where no filter fits its name.

    Args:
        setting: a scalar, gradient or conditional value.
        tensor: the tensor's name; filters are parts of it, the first that fits wins.
        depth: 0 at the first layer, 1 at the last (see `depths`).
    """
    if isinstance(setting, Gradient):
        return _interpolated(setting.anchors, depth)
    if isinstance(setting, tuple):
        return _first_fitting(setting, tensor, depth)
    return setting


def values(
    job: Job, info: MethodInfo, tensor: str, depth: float = 0.0, piece: Slice | None = None
) -> dict[str, Any]:
    """Every parameter of the method for one tensor.

    Args:
        job: the merge.
        info: its method.
        tensor: the tensor's name in the output.
        depth: see `depths`.
        piece: the slice that the tensor belongs to, in a job with slices (default: the first).

    Returns:
        parameter -> value; a tuple over the agents (``job.agents``, or the slice's sources other
        than the base) where the parameter is per agent.

    Raises:
        ConfigError: a parameter without default is not set for this tensor.
    """
    shared: tuple[Settings, ...] = (job.parameters, _preset(job, info))
    agents = {a.name: (a.parameters, *shared) for a in job.agents}
    piece = piece or (job.slices[0] if job.slices else None)
    if piece is not None:
        shared = (piece.parameters, *shared)
        sources = (source for source in piece.sources if source.model != "base")
        agents = {source.model: (source.parameters, *shared) for source in sources}
    if info.max_agents == 1:  # what stands at the only agent holds for the merge
        shared = next(iter(agents.values()), shared)
    resolved: dict[str, Any] = {}
    for name, parameter in info.signature.items():
        if parameter.per_agent:
            resolved[name] = tuple(
                _value(parameter, levels, tensor, depth, f"agent `{agent}`")
                for agent, levels in agents.items()
            )
        else:
            resolved[name] = _value(parameter, shared, tensor, depth, "the file")
    return resolved


def base_value(job: Job, info: MethodInfo, name: str, tensor: str, depth: float = 0.0) -> Scalar:
    """A per-agent parameter as it stands for the base (where a file lists the base as a model)."""
    levels = (job.base_parameters, job.parameters, _preset(job, info))
    return _value(info.signature[name], levels, tensor, depth, "the base")


def missing(job: Job, info: MethodInfo) -> list[ConfigError]:
    """Parameters without default that nobody sets, before any tensor is known."""
    problems = []
    for name, parameter in info.signature.items():
        settled = name in job.parameters or name in _preset(job, info)
        if not parameter.required or settled or (job.slices and _in_slices(job, name)):
            continue
        lacking = [f"`{a.name}`" for a in job.agents if name not in a.parameters]
        if not info.of_agent(parameter):
            problems.append(_unset(name, info.name, "the file", parameter))
        elif lacking:
            problems.append(_unset(name, info.name, f"agent {', '.join(lacking)}", parameter))
    return problems


def _in_slices(job: Job, name: str) -> bool:
    """Whether every slice, or every agent in it, sets a parameter."""
    return all(
        name in piece.parameters
        or all(name in s.parameters for s in piece.sources if s.model != "base")
        for piece in job.slices
    )


def depths(names: Iterable[str], config: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Relative depth of every tensor: i/(L - 1) in layer i of L, and 0 outside the layers.

    A single layer has depth 1, as in mergekit. Every stack (a language model's ``model.layers``, a
    tower's ``visual.blocks``) is measured by itself. Layers for multi-token prediction, which are
    numbered on after the last one, do not count: they have depth 1.

    Args:
        names: all tensors of the model.
        config: its config.json, which says how many of its layers are of that kind.
    """
    names = list(names)
    places = {name: layer_of(name) for name in names}
    last: dict[str, int] = {}
    for place in places.values():
        if place:
            last[place[0]] = max(last.get(place[0], 0), place[1])
    layers, beyond = layer_counts(config)
    for stack, top in last.items():
        if beyond and layers and top + 1 == layers + beyond:
            last[stack] = layers - 1
    return {n: _share(p[1], last[p[0]]) if p else 0.0 for n, p in places.items()}


def _share(layer: int, last: int) -> float:
    return min(layer / last, 1.0) if last else 1.0


def layer_of(name: str) -> tuple[str, int] | None:
    """Stack and layer number of a tensor (``("model.layers", 3)``), None outside the layers."""
    block = block_of(name)
    if block is None:
        return None
    stack, _, number = block.rpartition(".")
    return stack, int(number)


def excluded(patterns: Iterable[str], tensor: str) -> bool:
    """Whether a tensor is to be copied, not merged: a pattern is part of its name, or a glob."""
    return any(
        fnmatchcase(tensor, p) if any(c in p for c in "*?[") else p in tensor for p in patterns
    )


def unused_filters(job: Job, names: Iterable[str]) -> tuple[str, ...]:
    """Filters and exclusions that fit no tensor at all: almost always a typing error."""
    names = list(names)
    levels = [job.parameters, job.base_parameters, *(a.parameters for a in job.agents)]
    for piece in job.slices:
        levels += [piece.parameters, *(source.parameters for source in piece.sources)]
    arms = (a for level in levels for s in level.values() if isinstance(s, tuple) for a in s)
    patterns = dict.fromkeys(a.pattern for a in arms if a.pattern is not None)
    silent = [p for p in patterns if not any(p in name for name in names)]
    return (*silent, *(p for p in job.exclude if not any(excluded((p,), name) for name in names)))


def _value(
    parameter: Parameter, levels: Iterable[Settings], tensor: str, depth: float, who: str
) -> Scalar:
    for level in levels:
        if parameter.name in level:
            value = resolve(level[parameter.name], tensor, depth)
            if not isinstance(value, _Silent):
                return value
    if parameter.required:
        raise ConfigError(f"`{parameter.name}` is not set for tensor `{tensor}` ({who})")
    return parameter.default


def _preset(job: Job, info: MethodInfo) -> Mapping[str, Scalar]:
    return info.presets[job.preset] if job.preset else {}


def _first_fitting(arms: tuple[Filtered, ...], tensor: str, depth: float) -> Scalar | _Silent:
    for arm in arms:
        if arm.pattern is None or arm.pattern in tensor:
            return resolve(arm.value, tensor, depth)
    return SILENT


def _interpolated(anchors: tuple[float, ...], depth: float) -> float:
    """Linear between evenly spaced anchors; exact at each of them."""
    if len(anchors) == 1:
        return anchors[0]
    position = depth * (len(anchors) - 1)
    left = min(int(position), len(anchors) - 2)
    low, high = list(pairwise(anchors))[left]
    share = position - left
    return low if low == high else (1 - share) * low + share * high


def _unset(name: str, method: str, who: str, parameter: Parameter) -> ConfigError:
    key = f"{who.split('`')[1]}.{name}" if "`" in who else name
    hint = f"{parameter.meaning} ({parameter.range or parameter.kind}): --set {key}=…"
    return ConfigError(f"`{method}` needs `{name}`, which is not set for {who}", hint=hint)
