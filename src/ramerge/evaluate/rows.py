"""Rows of a data set, from a local file or the Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ramerge._errors import ConfigError, CorruptInputError, HubError
from ramerge._types import Json
from ramerge.evaluate.records import Options


class Source(NamedTuple):
    """Where a data set lives on the Hub."""

    repository: str
    configuration: str | None
    split: str


def chosen(options: Options, sources: Mapping[str, Source | None]) -> list[str]:
    """The data sets of a suite to run: those given as local files, or all if none is."""
    return [name for name in sources if name in options.data] or list(sources)


def load(name: str, options: Options, source: Source | None) -> list[Json]:
    """At most ``options.limit`` rows of the data set ``name``, in its own order.

    Raises:
        ConfigError: there is no local file and no way to the Hub.
        CorruptInputError: the file is not JSON lines or a JSON list.
    """
    if name in options.data:
        return read(Path(options.data[name]), options.limit)
    if source is None:
        raise ConfigError(f"data set `{name}` is on no Hub", hint=f"give --data {name}=FILE.jsonl")
    return _from_hub(name, source, options.limit)


def read(path: Path, limit: int | None) -> list[Json]:
    """Rows of a JSON-lines file or of a JSON list.

    Raises:
        ConfigError: no such file.
        CorruptInputError: it is neither, or not UTF-8; names the line.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file `{path}`")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptInputError(f"`{path}` is not UTF-8 text") from error
    if text.lstrip().startswith("["):
        return _from_list(path, text, limit)
    rows: list[Json] = []
    for number, line in enumerate(text.split("\n"), 1):
        if limit is not None and len(rows) == limit:
            break
        if line.strip():
            try:
                rows.append(dict(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise CorruptInputError(
                    f"line {number} of `{path}` is not a JSON object"
                ) from error
    return rows


def _from_list(path: Path, text: str, limit: int | None) -> list[Json]:
    try:
        return [dict(row) for row in islice(json.loads(text), limit)]
    except (ValueError, TypeError) as error:
        raise CorruptInputError(f"`{path}` is not a JSON list of objects") from error


def _from_hub(name: str, source: Source, limit: int | None) -> list[Json]:
    hint = f"give --data {name}=FILE.jsonl"
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"data set `{name}` comes from the Hub, which needs `datasets`",
            hint=f"pip install datasets, or {hint}",
        ) from error
    try:
        found = datasets.load_dataset(source.repository, source.configuration, split=source.split)
    except Exception as error:
        raise HubError(
            f"data set `{source.repository}` cannot be had: {error}", hint=hint
        ) from error
    return [dict(row) for row in islice(found, limit)]
