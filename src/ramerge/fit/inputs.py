"""From opened models to the models that are merged: one vocabulary, layers stacked.

What comes out looks like any base and agents, so that nothing after this needs to know of
tokenizers or slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramerge.config.job import AgentJob, Job, Slice
from ramerge.config.resolve import depths
from ramerge.fit.slices import Place, layer_config, plan_slices, streams
from ramerge.fit.tokenizer.chat import chosen_template, with_template
from ramerge.fit.tokenizer.tokenizer_json import CONFIG, NAME, parsed, read_tokenizer
from ramerge.fit.tokenizer.tokenizers import VocabularyPlan, plan_vocabulary
from ramerge.models.base import Checkpoint, Notice
from ramerge.models.views.stacked import StackedCheckpoint


@dataclass(frozen=True, slots=True)
class Inputs:
    """The models to merge, and what else the configuration asks of the output.

    Attributes:
        job: the job with one agent a stream: where slices stack models, agents are called after the
            models in their stream (``orca+platy``).
        base: the base, or the first agent where there is none.
        agents: by name, in the order of the arithmetic.
        depths: relative depth of every tensor, for gradients.
        pieces: the slice whose parameters hold for a tensor; empty without slices.
        files: side files that replace the base's: a file to copy, or content.
        dropped: side files of the base that are not copied.
        config: changed keys of the language model's part of config.json (`sidefiles.config_with`).
        notices: what the user must be told.
    """

    job: Job
    base: Checkpoint
    agents: Mapping[str, Checkpoint]
    depths: Mapping[str, float]
    pieces: Mapping[str, Slice] = field(default_factory=dict)
    files: Mapping[str, Path | bytes] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()


def prepare(job: Job, base: Checkpoint | None, agents: Mapping[str, Checkpoint]) -> Inputs:
    """Bring models into the form that the job asks for.

    Args:
        job: the merge.
        base: the opened base, None where the job has none.
        agents: opened agents by name, in the order of ``job.agents``.

    Raises:
        MergeError: vocabularies or layers that do not fit together.
    """
    models = ({"base": base} if base is not None else {}) | dict(agents)
    vocabulary = None
    if job.tokenizer is not None:
        vocabulary = plan_vocabulary(job.tokenizer, models)
        models = vocabulary.apply(models)
    inputs = _stacked(job, models) if job.slices else _whole(job, models)
    if vocabulary is not None:
        inputs = _with_vocabulary(inputs, vocabulary)
    return (
        inputs if job.chat_template is None else _with_template(inputs, job.chat_template, models)
    )


def _whole(job: Job, models: Mapping[str, Checkpoint]) -> Inputs:
    origin = next(iter(models.values()))
    agents = {agent.name: models[agent.name] for agent in job.agents}
    return Inputs(job, origin, agents, depths(origin.names(), origin.config))


def _stacked(job: Job, models: Mapping[str, Checkpoint]) -> Inputs:
    plan = plan_slices(job, {name: model.names() for name, model in models.items()})
    split = streams(job, plan)
    agents = {_stream_name(s): _stack(s, models) for s in split.agents}
    base = _stack(split.base, models) if split.base else next(iter(agents.values()))
    configs = {name: model.config or {} for name, model in models.items()}
    sources = {agent.name: agent.source for agent in job.agents}
    streamed = tuple(
        AgentJob(name, " + ".join(sources[m] for m in _models(stream)))
        for name, stream in zip(agents, split.agents, strict=True)
    )
    return Inputs(
        job=replace(job, agents=streamed),
        base=base,
        agents=agents,
        depths={tensor.name: tensor.depth for tensor in plan.tensors},
        pieces={tensor.name: job.slices[tensor.piece] for tensor in plan.tensors},
        config=layer_config(base.config, configs, plan) if base.config else {},
    )


def _stack(places: Mapping[str, Place], models: Mapping[str, Checkpoint]) -> StackedCheckpoint:
    """One stream; config and side files are those of the model that its first layers come from."""
    like = models[_models(places)[0]]
    return StackedCheckpoint({n: (models[p.model], p.name) for n, p in places.items()}, like)


def _models(places: Mapping[str, Place]) -> list[str]:
    return list(dict.fromkeys(place.model for place in places.values()))


def _stream_name(places: Mapping[str, Place]) -> str:
    return "+".join(_models(places))


def _with_template(inputs: Inputs, choice: str, models: Mapping[str, Checkpoint]) -> Inputs:
    text = chosen_template(choice, [model.directory for model in models.values()])
    directory = inputs.base.directory
    config = inputs.files.get(CONFIG)
    tokenizer = inputs.files.get(NAME)
    if directory is not None and CONFIG not in inputs.dropped:
        config = config or (directory / CONFIG if (directory / CONFIG).exists() else None)
    read = parsed(tokenizer) if tokenizer else read_tokenizer(directory)
    files, notices = with_template(text, config, read.vocabulary if read else None)
    dropped = tuple(name for name in inputs.dropped if name not in files)
    return replace(
        inputs,
        files={**inputs.files, **files},
        dropped=dropped,
        notices=(*inputs.notices, *notices),
    )


def _with_vocabulary(inputs: Inputs, vocabulary: VocabularyPlan) -> Inputs:
    return replace(
        inputs,
        files=vocabulary.files,
        dropped=vocabulary.dropped,
        config={**vocabulary.config, **inputs.config},
        notices=vocabulary.notices,
    )
