"""A model put together from tensors of others, under new names: what slices make of sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramerge._types import Bytes, TensorSpec
from ramerge.models.base import Checkpoint, Extent, Notice, SourceFile


class StackedCheckpoint:
    """A `Checkpoint` whose tensor ``name`` is tensor ``places[name][1]`` of ``places[name][0]``.

    Source, revision, directory and config are those of ``like``. Files of the n-th of several
    models are called ``n/name``. Closing it closes none of them: they belong to who opened them.
    """

    def __init__(self, places: Mapping[str, tuple[Checkpoint, str]], like: Checkpoint) -> None:
        self.source = like.source
        self.revision = like.revision
        self.directory: Path | None = like.directory
        self.config: Mapping[str, Any] | None = like.config
        self._places = {name: places[name] for name in sorted(places)}
        self._models = tuple({id(model): model for model, _ in self._places.values()}.values())
        self.notices: tuple[Notice, ...] = tuple(n for m in self._models for n in m.notices)

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        return tuple(self._places)

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor."""
        model, original = self._places[name]
        return replace(model.spec(original), name=name)

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Fill ``out`` with elements [start, stop)."""
        model, original = self._places[name]
        model.read(original, start, stop, out)

    def extent(self, name: str) -> Extent | None:
        """Position of the raw bytes in a file."""
        model, original = self._places[name]
        extent = model.extent(original)
        return extent and replace(extent, file=self._file(model, extent.file))

    def files(self) -> tuple[SourceFile, ...]:
        """Files of all models that tensors come from."""
        files = [replace(f, name=self._file(m, f.name)) for m in self._models for f in m.files()]
        return tuple(sorted(files, key=lambda file: file.name))

    def close(self) -> None:
        """Nothing: the models are closed by who opened them."""

    def _file(self, model: Checkpoint, name: str) -> str:
        if len(self._models) == 1:
            return name
        number = next(i for i, m in enumerate(self._models, start=1) if m is model)
        return f"{number}/{name}"
