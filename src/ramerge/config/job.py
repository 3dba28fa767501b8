"""What a merge is, after YAML, flags and API calls have become one and the same frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ramerge._signature import Scalar
from ramerge._types import DType
from ramerge.config.vocabulary import Extra, TokenizerRules, Vocabulary


@dataclass(frozen=True, slots=True)
class Gradient:
    """A value that runs linearly over the layers; anchors at evenly spaced depths (a YAML list)."""

    anchors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Filtered:
    """One arm of a conditional value: tensors with ``pattern`` in their name (None: the rest)."""

    pattern: str | None
    value: Scalar | Gradient


Setting = Scalar | Gradient | tuple[Filtered, ...]
Settings = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class AgentJob:
    """One agent: a short unique name, where it is, and its own parameters."""

    name: str
    source: str
    parameters: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SliceSource:
    """Layers [start, stop) of one model: an agent's name or ``base``, and where it is."""

    model: str
    start: int
    stop: int
    source: str
    parameters: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slice:
    """The next layers of the output: equally many of each source, merged with each other."""

    sources: tuple[SliceSource, ...]
    parameters: Settings = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A merge, ready to be planned. Order of ``agents`` is the order of the arithmetic."""

    base: str | None
    agents: tuple[AgentJob, ...]
    method: str
    parameters: Settings = field(default_factory=dict)
    base_parameters: Settings = field(
        default_factory=dict
    )  # the base may stand under `models`, with parameters
    preset: str | None = None
    out_dtype: DType | None = None  # None: each tensor keeps the base's
    nonfinite: Literal["error", "keep_base", "propagate"] = "error"
    shard_size: int = 5_000_000_000  # bytes
    extra: Extra = "error"  # what becomes of tensors that not all models have
    vocabulary: Vocabulary = "error"  # what becomes of embeddings of unequal length
    exclude: tuple[str, ...] = ()  # tensors copied from the base: parts of names, or globs
    tokenizer: TokenizerRules | None = None  # None: the base's files, rows as they are
    chat_template: str | None = None  # a name (`auto`, `chatml` …) or a Jinja template
    slices: tuple[Slice, ...] = ()  # none: every layer at its own place
    notes: tuple[str, ...] = field(default=(), compare=False)  # what the user must be told
