"""Models stored as safetensors: one file, or shards with an index, read in place with `pread`.

Loaders disagree about which of several weight files in a directory count, and hardly any checks
the index against the shards. So everything is settled here from the headers, before the first
tensor byte is used, and whatever two loaders could read differently is an error that names the
file.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ramerge._errors import CorruptInputError, MergeError, SecurityError, nearest, raise_problems
from ramerge._types import Bytes, TensorSpec
from ramerge.checkpoint.base import Extent, Notice, SourceFile
from ramerge.checkpoint.files import (
    check_basename,
    json_object,
    open_regular,
    read_exactly,
    read_small,
    redacted,
    resolve_inside,
    shown,
)
from ramerge.checkpoint.header import Header, read_header

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")
_SHOWN_PROBLEMS = 5


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
    present = {entry.name for entry in os.scandir(directory) if entry.name.endswith(".safetensors")}
    index = _read_index(directory) if (directory / INDEX).exists() else None
    used = {SINGLE} if index is None else set(index.weight_map.values())
    _check_present(used, present, directory, has_index=index is not None)
    shards: list[_Shard] = []
    try:
        for name in sorted(used):
            shards.append(  # noqa: PERF401 - on an error the ones opened so far must be closed
                _open(resolve_inside(directory, name, "the model"), name)
            )
        notices = _ignored(present - used)
        if index is not None:
            _check_index(index.weight_map, shards)
            notices += _check_total(index.total_size, shards)
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
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return _Shard(SourceFile(name, path, size), fd, header)


class _Index(NamedTuple):
    weight_map: dict[str, str]
    total_size: int | None


def _read_index(directory: Path) -> _Index:
    """The index, with every file name in it checked as text."""
    content = json_object(read_small(resolve_inside(directory, INDEX, "the model"), INDEX), INDEX)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptInputError(f"{shown(INDEX)} has no `weight_map`")
    for value in set(map(_as_text, weight_map.values())):
        check_basename(value, shown(INDEX))
        if not value.endswith(".safetensors"):
            raise SecurityError(
                f"{shown(INDEX)} names {shown(value)}, which is not a .safetensors file"
            )
    metadata = content.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return _Index(weight_map, int(total) if isinstance(total, int | float) else None)


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise CorruptInputError(
            f"{shown(INDEX)} maps a tensor to {shown(value)} where a file name is expected"
        )
    return value


def _check_present(used: set[str], present: set[str], directory: Path, *, has_index: bool) -> None:
    """Every file the index names exists, and no other file claims to be part of the model."""
    problems: list[MergeError] = []
    missing = sorted(used - present)
    if missing:
        names = ", ".join(map(shown, missing[:_SHOWN_PROBLEMS])) + (
            " …" if len(missing) > _SHOWN_PROBLEMS else ""
        )
        what = f"{INDEX} names" if has_index else "the model needs"
        problems.append(
            CorruptInputError(
                f"{what} {len(used)} weights files, {len(missing)} of them missing in "
                f"{shown(directory)}: {names}",
                hint="the download is incomplete: fetch the model again",
            )
        )
    if SINGLE in present - used:
        problems.append(
            CorruptInputError(
                f"{shown(directory)} holds both {shown(SINGLE)} and an index of other files: "
                "loaders differ in which of the two models they read",
                hint="one of them is left over from an earlier save: delete it, or give the file "
                "itself",
            )
        )
    extra = sorted(name for name in present - used if _SHARD.fullmatch(name))
    if extra:
        names = ", ".join(map(shown, extra[:_SHOWN_PROBLEMS])) + (
            " …" if len(extra) > _SHOWN_PROBLEMS else ""
        )
        problems.append(
            CorruptInputError(
                f"{len(extra)} shards in {shown(directory)} are not part of the model: {names}",
                hint=f"they are left over from an earlier save, or {INDEX} is out of date",
            )
        )
    raise_problems(problems)


def _check_index(weight_map: Mapping[str, str], shards: Iterable[_Shard]) -> None:
    """Index and headers must agree tensor by tensor; `_SHOWN_PROBLEMS` disagreements are listed."""
    homes: dict[str, list[str]] = {}
    for shard in shards:
        for name in shard.header.tensors:
            homes.setdefault(name, []).append(shard.file.name)
    found = [
        text
        for name in sorted(homes.keys() | weight_map.keys())
        if (text := _disagreement(name, weight_map.get(name), homes.get(name, []), weight_map))
    ]
    problems = [CorruptInputError(text) for text in found[:_SHOWN_PROBLEMS]]
    if len(found) > len(problems):
        problems.append(
            CorruptInputError(
                f"{len(found) - len(problems)} more tensors where index and shards differ"
            )
        )
    raise_problems(list(problems))


def _disagreement(
    name: str, said: str | None, homes: list[str], weight_map: Mapping[str, str]
) -> str | None:
    """What is wrong with one tensor, or None."""
    tensor = f"tensor {shown(name)}"
    if len(homes) > 1:
        return f"{tensor} is stored twice, in {shown(homes[0])} and in {shown(homes[1])}"
    if said is None:
        like = nearest(name, weight_map)
        near = f" (it does list {shown(like)})" if like and len(weight_map) < 5000 else ""
        return f"{tensor} is stored in {shown(homes[0])}, but {INDEX} does not list it{near}"
    if not homes:
        return f"{tensor} should be in {shown(said)} by {INDEX}, but no shard holds it"
    if homes[0] != said:
        return f"{tensor} should be in {shown(said)} by {INDEX}, but it is in {shown(homes[0])}"
    return None


def _check_total(total: int | None, shards: Iterable[_Shard]) -> tuple[Notice, ...]:
    """Writers disagree about `total_size` and loaders ignore it: worth a word, no more."""
    stored = sum(placed.nbytes for shard in shards for placed in shard.header.tensors.values())
    if total in {None, stored}:
        return ()
    return (
        Notice(
            "index-total-size",
            f"{INDEX} gives a total_size of {total} bytes, the tensors have {stored}",
        ),
    )


def _ignored(names: set[str]) -> tuple[Notice, ...]:
    """A notice for weights files beside the model that are not read."""
    if not names:
        return ()
    kinds = Counter(
        "consolidated-ignored" if n.startswith("consolidated") else "weights-ignored" for n in names
    )
    return tuple(
        Notice(
            code,
            "weights files that are not part of the model are ignored: "
            + ", ".join(
                shown(n) for n in sorted(names) if (code[0] == "c") == n.startswith("consolidated")
            ),
        )
        for code in sorted(kinds)
    )
