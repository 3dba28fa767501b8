"""``*.index.json``: which shard holds which tensor, checked against what the shards really hold.

Loaders differ in how they use an index, and hardly any checks it. Here every file name in it must
be a plain one, every file must be there, no other file may claim to belong to the model, and index
and shards must agree tensor by tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ramerge._errors import CorruptInputError, MergeError, SecurityError, nearest, raise_problems
from ramerge.models.base import Notice
from ramerge.models.files import check_basename, json_object, read_small, resolve_inside, shown

_NEAREST = 20_000  # names among which a similar one is looked for; it takes seconds beyond
_SHOWN = 5  # problems of one kind that are listed; the others are counted


@dataclass(frozen=True, slots=True)
class Naming:
    """How one format calls its files."""

    single: str
    index: str
    shard: re.Pattern[str]
    suffix: str


class Index(NamedTuple):
    """A parsed index. ``total_size`` is what it claims, None where it claims nothing."""

    weight_map: Mapping[str, str]
    total_size: int | None

    @property
    def files(self) -> set[str]:
        """Names of the shards."""
        return set(self.weight_map.values())


def read_index(directory: Path, naming: Naming) -> Index | None:
    """The index of a directory, every file name in it checked as text; None where there is none.

    Raises:
        CorruptInputError: not an index.
        SecurityError: a file name that could lead out of the directory.
    """
    name = naming.index
    if not (directory / name).exists():
        return None
    content = json_object(read_small(resolve_inside(directory, name, "the model"), name), name)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptInputError(f"{shown(name)} has no `weight_map`")
    for value in set(map(_text_of(name), weight_map.values())):
        check_basename(value, shown(name))
        if not value.endswith(naming.suffix):
            raise SecurityError(
                f"{shown(name)} names {shown(value)}, which is not a {naming.suffix} file"
            )
    metadata = content.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(weight_map, int(total) if isinstance(total, int | float) else None)


def _text_of(name: str) -> Any:
    def text(value: Any) -> str:
        if isinstance(value, str):
            return value
        raise CorruptInputError(
            f"{shown(name)} maps a tensor to {shown(value)} where a file name is expected"
        )

    return text


def check_present(
    index: Index | None, present: Iterable[str], directory: Path, naming: Naming
) -> set[str]:
    """Files of the model, all there; no other file claims to be part of it.

    Args:
        index: the index, None for a model in one file.
        present: names of the weights files in the directory.
        directory: where.
        naming: the format's names.

    Raises:
        CorruptInputError: files are missing or left over.
    """
    used = {naming.single} if index is None else index.files
    there = set(present)
    extra = {name for name in there - used if naming.shard.fullmatch(name)}
    problems: list[MergeError] = []
    if used - there:
        problems.append(
            _missing(used, used - there, directory, naming, has_index=index is not None)
        )
    if naming.single in there - used:
        problems.append(_two_models(directory, naming))
    if extra:
        what = "shard is" if len(extra) == 1 else "shards are"
        problems.append(
            CorruptInputError(
                f"{len(extra)} {what} not part of the model in {shown(directory)}: {_some(extra)}",
                hint=f"left over from an earlier save, or {naming.index} is out of date",
            )
        )
    raise_problems(problems)
    return used


def _missing(
    used: set[str], missing: set[str], directory: Path, naming: Naming, *, has_index: bool
) -> CorruptInputError:
    what = f"{naming.index} names" if has_index else "the model needs"
    return CorruptInputError(
        f"{what} {len(used)} weights files, {len(missing)} of them missing in "
        f"{shown(directory)}: {_some(missing)}",
        hint="the download is incomplete: fetch the model again",
    )


def _two_models(directory: Path, naming: Naming) -> CorruptInputError:
    return CorruptInputError(
        f"{shown(directory)} holds both {shown(naming.single)} and an index of other files: "
        "loaders differ in which of the two models they read",
        hint="one is left over from an earlier save: delete it, or give the file itself",
    )


def _some(names: set[str]) -> str:
    text = ", ".join(map(shown, sorted(names)[:_SHOWN]))
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN} more"


def check_agreement(
    index: Index, shards: Iterable[tuple[str, Iterable[str]]], naming: Naming
) -> None:
    """Index and shards must agree tensor by tensor; the first few disagreements are listed.

    Args:
        index: the index.
        shards: file name and tensor names of every shard.
        naming: the format's names.

    Raises:
        CorruptInputError: they do not; names the tensor, the shard named, and where it really is.
    """
    homes: dict[str, list[str]] = {}
    for file, names in shards:
        for name in names:
            homes.setdefault(name, []).append(file)
    wrong = [
        name
        for name in sorted(homes.keys() | index.weight_map.keys())
        if homes.get(name) != [index.weight_map.get(name)]
    ]
    problems: list[MergeError] = [
        CorruptInputError(_disagreement(name, homes.get(name, []), index, naming))
        for name in wrong[:_SHOWN]
    ]
    if len(wrong) > _SHOWN:
        text = f"{len(wrong) - _SHOWN} more tensors where {naming.index} and the shards differ"
        problems.append(CorruptInputError(text))
    raise_problems(problems)


def _disagreement(name: str, homes: list[str], index: Index, naming: Naming) -> str:
    """What is wrong with one tensor."""
    tensor, said = f"tensor {shown(name)}", index.weight_map.get(name)
    if len(homes) > 1:
        return f"{tensor} is stored twice, in {shown(homes[0])} and in {shown(homes[1])}"
    if said is None:
        like = nearest(name, index.weight_map) if len(index.weight_map) < _NEAREST else None
        near = f" (it does list {shown(like)})" if like else ""
        return f"{tensor} is stored in {shown(homes[0])}, but {naming.index} does not list it{near}"
    if not homes:
        return f"{tensor} should be in {shown(said)} by {naming.index}, but no shard holds it"
    return f"{tensor} should be in {shown(said)} by {naming.index}, but it is in {shown(homes[0])}"


def check_total(index: Index, stored: int, naming: Naming) -> tuple[Notice, ...]:
    """Writers disagree about ``total_size`` and loaders ignore it: worth a word, no more.

    Args:
        index: the index.
        stored: bytes of all tensors.
        naming: the format's names.
    """
    if index.total_size in {None, stored}:
        return ()
    text = (
        f"{naming.index} gives a total_size of {index.total_size} bytes, the tensors have {stored}"
    )
    return (Notice("index-total-size", text),)


def ignored(names: set[str]) -> tuple[Notice, ...]:
    """Notices for weights files beside the model that are not read."""
    notices = []
    for code, chosen in (
        ("consolidated-ignored", {n for n in names if n.startswith("consolidated")}),
        ("weights-ignored", {n for n in names if not n.startswith("consolidated")}),
    ):
        if chosen:
            text = ", ".join(map(shown, sorted(chosen)))
            notices.append(
                Notice(code, f"weights files that are not part of the model are ignored: {text}")
            )
    return tuple(notices)
