"""Slices: which tensors of which models make each tensor of the output. Names in, names out.

A slice takes the same number of layers from each of its sources and puts their merge on top of the
slices before it. What lies outside the layers comes from the first slice's sources (embeddings) or
the last slice's (norm, head).

The engine works on whole models: the base, and as many agents as a slice has sources beside it.
`streams` turns the plan into such models: stacking is a matter of reading under other names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ramerge._errors import ConfigError, IncompatibleError, MergeError, raise_problems
from ramerge.config.job import Job, Slice, SliceSource
from ramerge.models.facts import block_of, text_config

_EMBEDDING = re.compile(r"(?:^|[._])(?:embed(?:ding)?s?|embed_\w+|wte|wpe|shared)(?:[._]|$)")
_HEAD = re.compile(r"(?:^|\.)embed_out\.")
_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of an input: ``model`` is an agent's name or ``base``."""

    model: str
    name: str


@dataclass(frozen=True, slots=True)
class SlicedTensor:
    """A tensor of the output.

    Attributes:
        name: in the output.
        places: where it comes from, in the order of the slice's sources.
        piece: index of the slice whose parameters hold for it.
        depth: relative depth within the slice, for gradients; 0 outside the layers.
    """

    name: str
    places: tuple[Place, ...]
    piece: int
    depth: float


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """All tensors of the output in order of layers, and the origin of each layer.

    ``origins[i]``: (model, layer) of the first source of output layer i.
    """

    tensors: tuple[SlicedTensor, ...]
    origins: tuple[tuple[str, int], ...]


def plan_slices(job: Job, names: Mapping[str, Iterable[str]]) -> SlicePlan:
    """Lay the output's tensors out.

    Args:
        job: a job with slices.
        names: tensor names of every model, by agent's name or ``base``.

    Raises:
        MergeError: a range outside a model, sources whose layers differ in their tensors, a model
            with several stacks of layers; all such problems together.
    """
    problems: list[MergeError] = []
    used = dict.fromkeys(source.model for piece in job.slices for source in piece.sources)
    models = {m: read for m in used if (read := _model(m, names[m], problems)) is not None}
    raise_problems(problems)
    for number, piece in enumerate(job.slices, start=1):
        problems += [e for s in piece.sources if (e := _out_of_range(s, number, models[s.model]))]
    raise_problems(problems)
    starts = [0, *accumulate(_height(piece) for piece in job.slices)]
    tensors = [*_outside(job, models, problems, last=False)]
    for index, piece in enumerate(job.slices):
        tensors += _layers(index, piece, starts[index], models, problems)
    tensors += _outside(job, models, problems, last=True)
    raise_problems(problems)
    firsts = [(piece.sources[0], i) for piece in job.slices for i in range(_height(piece))]
    return SlicePlan(tuple(tensors), tuple((s.model, s.start + i) for s, i in firsts))


@dataclass(frozen=True, slots=True)
class Streams:
    """The inputs of an engine: output name -> place, one mapping for the base and each agent."""

    base: Mapping[str, Place] | None
    agents: tuple[Mapping[str, Place], ...]


def streams(job: Job, plan: SlicePlan) -> Streams:
    """The plan as whole models, one a source.

    Raises:
        ConfigError: slices with different numbers of sources, or only some with the base.
    """
    counts = [sum(s.model != "base" for s in piece.sources) for piece in job.slices]
    bases = [any(s.model == "base" for s in piece.sources) for piece in job.slices]
    for number, (count, base) in enumerate(zip(counts, bases, strict=True), start=1):
        if (count, base) != (counts[0], bases[0]):
            first, this = _sources(counts[0], base=bases[0]), _sources(count, base=base)
            hint = "every slice merges the same number of models"
            raise ConfigError(f"slice {number} merges {this}, slice 1 {first}", hint=hint)
    of_base: dict[str, Place] = {}
    of_agents: tuple[dict[str, Place], ...] = tuple({} for _ in range(counts[0]))
    for tensor in plan.tensors:
        rest = iter(of_agents)
        for place in tensor.places:
            (of_base if place.model == "base" else next(rest))[tensor.name] = place
    return Streams(of_base if bases[0] else None, of_agents)


def layer_config(
    config: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]], plan: SlicePlan
) -> dict[str, Any]:
    """What config.json must say anew: the number of layers, and lists with an entry a layer.

    Args:
        config: the output's config as copied from the base.
        configs: configs of the models that layers come from, by agent's name or ``base``.
        plan: the stacking.

    Returns:
        keys of the language model's part of the config (see `checkpoint.facts.text_config`).
    """
    part = text_config(config)
    height = next((part[key] for key in _COUNTS if isinstance(part.get(key), int)), None)
    changes: dict[str, Any] = {key: len(plan.origins) for key in _COUNTS if key in part}
    for key, value in part.items():
        if height is not None and isinstance(value, list) and len(value) == height:
            entries = [_entry(configs[model], key, layer) for model, layer in plan.origins]
            changes |= {key: entries} if None not in entries else {}
    return {key: value for key, value in changes.items() if part[key] != value}


def _entry(config: Mapping[str, Any], key: str, layer: int) -> Any:
    """What a list of a config says about a layer; None where there is no such list or entry."""
    entries = text_config(config).get(key)
    return entries[layer] if isinstance(entries, list) and layer < len(entries) else None


@dataclass(frozen=True, slots=True)
class _Model:
    stack: str
    layers: Mapping[int, frozenset[str]]  # layer -> names below it
    outside: frozenset[str]


def _model(model: str, names: Iterable[str], problems: list[MergeError]) -> _Model | None:
    stacks: dict[str, dict[int, set[str]]] = {}
    outside = set()
    for name in names:
        block = block_of(name)
        if block is None:
            outside.add(name)
        else:
            stack, _, number = block.rpartition(".")
            stacks.setdefault(stack, {}).setdefault(int(number), set()).add(name[len(block) :])
    if len(stacks) != 1:
        found = ", ".join(f"`{stack}`" for stack in sorted(stacks)) or "none"
        hint = "slices are for models with one stack, such as `model.layers`"
        message = f"{_called(model)} has {len(stacks)} stacks of layers ({found}), not 1"
        problems.append(IncompatibleError(message, hint=hint))
        return None
    ((stack, layers),) = stacks.items()
    return _Model(stack, {i: frozenset(names) for i, names in layers.items()}, frozenset(outside))


def _layers(
    index: int,
    piece: Slice,
    start: int,
    models: Mapping[str, _Model],
    problems: list[MergeError],
) -> Iterable[SlicedTensor]:
    first = piece.sources[0]
    stack = models[first.model].stack
    height = _height(piece)
    for i in range(height):
        groups = [(s.model, models[s.model], s.start + i) for s in piece.sources]
        sets = [(f"layer {at} of {_called(m)}", model.layers[at]) for m, model, at in groups]
        problems += _differences(sets)
        for tail in sorted(sets[0][1]):
            places = tuple(Place(m, f"{model.stack}.{at}{tail}") for m, model, at in groups)
            depth = i / (height - 1) if height > 1 else 1.0
            yield SlicedTensor(f"{stack}.{start + i}{tail}", places, index, depth)


def _outside(
    job: Job, models: Mapping[str, _Model], problems: list[MergeError], *, last: bool
) -> Iterable[SlicedTensor]:
    """Tensors before (embeddings) or after the layers (all others)."""
    index = len(job.slices) - 1 if last else 0
    sources = [s.model for s in job.slices[index].sources]
    sets = [
        (_called(m), frozenset(n for n in models[m].outside if is_embedding(n) != last))
        for m in sources
    ]
    problems += _differences(sets)
    for name in sorted(sets[0][1]):
        yield SlicedTensor(name, tuple(Place(m, name) for m in sources), index, 0.0)


def is_embedding(name: str) -> bool:
    """Whether a tensor outside the layers lies before them: an embedding by its name."""
    return bool(_EMBEDDING.search(name)) and not _HEAD.search(name)


def _differences(sets: Sequence[tuple[str, frozenset[str]]]) -> list[MergeError]:
    """One error for every source whose tensors are not those of the first."""
    (first, expected), *others = sets
    problems: list[MergeError] = []
    for who, names in others:
        if names != expected:
            name = min(names ^ expected)
            has, lacks = (who, first) if name in names else (first, who)
            problems.append(IncompatibleError(f"{has} has `{name.lstrip('.')}`, {lacks} has not"))
    return problems


def _out_of_range(source: SliceSource, number: int, model: _Model) -> MergeError | None:
    height = max(model.layers) + 1
    lacking = [i for i in range(source.start, source.stop) if i not in model.layers]
    if not lacking:
        return None
    hint = "the second number is one past the last layer"
    wanted = f"layers [{source.start}, {source.stop}] of {_called(source.model)}"
    return IncompatibleError(f"slice {number} takes {wanted}, which has {height}", hint=hint)


def _height(piece: Slice) -> int:
    return piece.sources[0].stop - piece.sources[0].start


def _called(model: str) -> str:
    return "the base" if model == "base" else f"agent `{model}`"


def _sources(count: int, *, base: bool) -> str:
    return f"{count} agent{'s' * (count != 1)}{' and the base' if base else ''}"
