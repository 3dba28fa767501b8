"""Models stored as safetensors: one file, or shards with an index, read in place with `pread`.

Loaders disagree about which of several weight files in a directory count, and hardly any checks
the index against the shards. So everything is settled here from the headers, before the first
tensor byte is used, and whatever two loaders could read differently is an error that names the
file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ramerge._errors import MergeError
from ramerge._types import Bytes, TensorSpec
from ramerge.models.base import Extent, Notice, SourceFile
from ramerge.models.files import open_regular, read_exactly, redacted, resolve_inside
from ramerge.models.formats.header import Header, read_header
from ramerge.models.formats.index import (
    Naming,
    check_agreement,
    check_present,
    check_total,
    ignored,
    read_index,
)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
NAMING = Naming(SINGLE, INDEX, re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors"), ".safetensors")


class _Shard(NamedTuple):
    """One open weights file."""

    file: SourceFile
    fd: int
    header: Header


class SafetensorsCheckpoint:
    """A model in safetensors files; satisfies `Checkpoint`, reads with `pread`."""

    __slots__ = ("_shards", "_where", "config", "directory", "notices", "revision", "source")

    def __init__(
        self,
        shards: Iterable[_Shard],
        *,
        source: str,
        directory: Path | None,
        config: Mapping[str, Any] | None,
        revision: str | None = None,
        notices: tuple[Notice, ...] = (),
    ) -> None:
        self.source = redacted(source)
        self.revision = revision
        self.directory = directory
        self.config = config
        self.notices = notices
        self._shards = {shard.file.name: shard for shard in shards}
        self._where = {
            name: (shard, placed)
            for shard in self._shards.values()
            for name, placed in shard.header.tensors.items()
        }

    def names(self) -> tuple[str, ...]:
        """All tensor names, sorted."""
        return tuple(sorted(self._where))

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape of a tensor. Raises KeyError for an unknown name."""
        return self._where[name][1].spec

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Fill ``out`` with elements [start, stop) of a tensor; see `Checkpoint.read`."""
        shard, placed = self._where[name]
        if shard.file.name not in self._shards:
            raise ValueError(f"{self.source} is closed")
        width = placed.spec.dtype.itemsize
        assert (
            0 <= start <= stop
            and stop * width <= placed.nbytes
            and out.nbytes == (stop - start) * width
        )
        read_exactly(shard.fd, placed.offset + start * width, out.data, shard.file.name)

    def extent(self, name: str) -> Extent | None:
        """Position of the tensor's bytes in its file."""
        shard, placed = self._where[name]
        return Extent(shard.file.name, placed.offset, placed.nbytes)

    def files(self) -> tuple[SourceFile, ...]:
        """The weights files, sorted by name."""
        return tuple(self._shards[name].file for name in sorted(self._shards))

    def metadata(self) -> Mapping[str, str]:
        """``__metadata__`` of all files together; the first file in name order wins."""
        merged: dict[str, str] = {}
        for name in sorted(self._shards, reverse=True):
            merged.update(self._shards[name].header.metadata)
        return merged

    def close(self) -> None:
        """Release file descriptors. Reading afterwards is an error."""
        while self._shards:
            os.close(self._shards.popitem()[1].fd)


def open_file(path: Path, *, source: str) -> SafetensorsCheckpoint:
    """Open a bare ``.safetensors`` file; the user named it, so links are followed.

    Raises:
        CorruptInputError: damaged or truncated.
        SecurityError: not a regular file.
    """
    return SafetensorsCheckpoint(
        [_open(path, path.name)], source=source, directory=None, config=None
    )


def open_directory(
    directory: Path, *, source: str, config: Mapping[str, Any] | None, revision: str | None = None
) -> SafetensorsCheckpoint:
    """Open a directory that holds `SINGLE`, or shards and `INDEX`.

    Args:
        directory: the model's directory.
        source: as the user named it.
        config: parsed config.json.
        revision: commit of a Hub model.

    Raises:
        CorruptInputError: damaged, truncated, missing or extra shards; index and headers disagree.
        SecurityError: a file name or link leads out of the directory.
    """
    present = {e.name for e in os.scandir(directory) if e.name.endswith(NAMING.suffix)}
    index = read_index(directory, NAMING)
    used = check_present(index, present, directory, NAMING)
    shards: list[_Shard] = []
    try:
        for name in sorted(used):
            shards.append(  # noqa: PERF401 - on an error the ones opened so far must be closed
                _open(resolve_inside(directory, name, "the model"), name)
            )
        notices = ignored(present - used)
        if index is not None:
            homes = [(shard.file.name, shard.header.tensors) for shard in shards]
            check_agreement(index, homes, NAMING)
            stored = sum(t.nbytes for shard in shards for t in shard.header.tensors.values())
            notices += check_total(index, stored, NAMING)
    except MergeError:
        for shard in shards:
            os.close(shard.fd)
        raise
    return SafetensorsCheckpoint(
        shards,
        source=source,
        directory=directory,
        config=config,
        revision=revision,
        notices=notices,
    )


def _open(path: Path, name: str) -> _Shard:
    fd, size = open_regular(path, name)
    try:
        header = read_header(fd, size, name)
    except MergeError:
        os.close(fd)
        raise
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return _Shard(SourceFile(name, path, size), fd, header)
