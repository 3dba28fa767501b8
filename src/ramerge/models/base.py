"""The seam between bytes and merging: what every input format offers and what every output takes.

A new input format is one file with a class that satisfies `Checkpoint`; `checkpoint.open.open_checkpoint` picks it.
Nothing here, or below here, knows what a merge method is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ramerge._types import Bytes, Json, TensorSpec


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of an input, as the manifest records it."""

    name: str  # relative to the model's directory, never a host path
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor's bytes lie, when they lie contiguously and as they are in one file."""

    file: str  # a SourceFile.name
    offset: int  # absolute byte offset of the first element
    nbytes: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user must be told about an input: never silent, never fatal by itself.

    ``code`` is stable and greppable (`buffers-copied`, `prefix-stripped`, `consolidated-ignored` …); docs/guides/probe.md lists
    all. ``warning``: it may make the merge worse; the rest are decisions to know of.
    """

    code: str
    message: str
    tensors: tuple[str, ...] = ()
    warning: bool = False


class Checkpoint(Protocol):
    """An opened model: named tensors that can be read in pieces from several threads at once."""

    source: str  # as the user named it, credentials removed
    revision: str | None  # commit of a Hub model
    directory: Path | None  # where side files lie; None for a bare file or a model in memory
    config: Mapping[str, Any] | None  # parsed config.json, None when there is none
    notices: tuple[Notice, ...]

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        ...

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor. Raises KeyError for an unknown name."""
        ...

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Fill ``out`` with elements [start, stop) of the flattened tensor.

        Args:
            name: a tensor's name.
            start: first element.
            stop: one past the last element.
            out: uint8 ``[(stop - start) * itemsize]``, contiguous.

        Raises:
            CorruptInputError: the file ends early or cannot be read.
        """
        ...

    def extent(self, name: str) -> Extent | None:
        """Position of the raw bytes in a file, or None when `read` computes them."""
        ...

    def files(self) -> tuple[SourceFile, ...]:
        """Every file that tensor values come from, sorted by name."""
        ...

    def close(self) -> None:
        """Release file descriptors. Reading afterwards is an error."""
        ...


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A finished output file."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensor goes to which place of which output file; a pure function of specs and shard size.

    ``shards``: (file name, its tensors in file order). One shard is called ``model.safetensors``.
    """

    shards: tuple[tuple[str, tuple[TensorSpec, ...]], ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def specs(self) -> tuple[TensorSpec, ...]:
        """All tensors in output order."""
        return tuple(spec for _, specs in self.shards for spec in specs)


class Sink(Protocol):
    """Where merged bytes go: a staging directory, or arrays in memory."""

    def write(self, name: str, start: int, data: Bytes) -> None:
        """Put ``data`` (raw bytes) at element ``start`` of tensor ``name``. Thread-safe."""
        ...

    def finish(self, name: str, record: Json) -> None:
        """Tensor ``name`` is whole; remember ``record`` (JSON) for a resumed run. Thread-safe."""
        ...

    @property
    def finished(self) -> Mapping[str, Json]:
        """Records of tensors that an interrupted run had already finished."""
        ...
