"""A checkpoint under other tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ramerge._errors import CorruptInputError
from ramerge._types import Bytes, TensorSpec
from ramerge.models.base import Checkpoint, Extent, Notice, SourceFile
from ramerge.models.files import shown
from ramerge.models.prefixes import stripped


class RenamedCheckpoint:
    """Another checkpoint's tensors, called by other names; satisfies `Checkpoint`."""

    __slots__ = ("_inner", "_old", "config", "directory", "notices", "revision", "source")

    def __init__(self, inner: Checkpoint, old: Mapping[str, str], notice: Notice) -> None:
        self.source = inner.source
        self.revision = inner.revision
        self.directory = inner.directory
        self.config = inner.config
        self.notices = (*inner.notices, notice)
        self._inner = inner
        self._old = old

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        return tuple(sorted(self._old))

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor. Raises KeyError for an unknown name."""
        return replace(self._inner.spec(self._old[name]), name=name)

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Fill ``out`` with elements [start, stop) of a tensor; see `Checkpoint.read`."""
        self._inner.read(self._old[name], start, stop, out)

    def extent(self, name: str) -> Extent | None:
        """Position of the tensor's bytes, where the other checkpoint knows it."""
        return self._inner.extent(self._old[name])

    def files(self) -> tuple[SourceFile, ...]:
        """The other checkpoint's files."""
        return self._inner.files()

    def close(self) -> None:
        """Close the other checkpoint."""
        self._inner.close()


def without_prefixes(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, without the wrapper prefixes that all of its names share.

    Raises:
        CorruptInputError: two names would become one.
    """
    try:
        old = stripped(checkpoint.names())
    except ValueError as error:
        raise CorruptInputError(f"in {shown(checkpoint.source)} {error}") from None
    changed = [(new, name) for new, name in old.items() if new != name]
    if not changed:
        return checkpoint
    new, name = changed[0]
    text = (
        f"{len(changed)} tensor names of {shown(checkpoint.source)} lose a wrapper's prefix, "
        f"for example {shown(name)} is read as {shown(new)}"
    )
    return RenamedCheckpoint(checkpoint, old, Notice("prefix-stripped", text))
