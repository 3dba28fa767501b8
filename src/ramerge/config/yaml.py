"""A strict reader of the YAML that merge files are written in; every node knows its line.

YAML as PyYAML's loaders take it has traps that change a merge without a word: ``1e-5`` is a
string, ``off`` is false, ``010`` is eight, the second of two equal keys wins, an alias bomb fills
the memory. Here numbers are numbers, only ``true`` and ``false`` are booleans, and whatever a merge
file has no use for (tags, anchors, merge keys, directives, several documents, deep nesting, control
characters) is refused with file, line and column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramerge._errors import ConfigError, MergeError, OutputError, raise_problems
from ramerge._signature import Scalar

MAX_BYTES = 1 << 19
MAX_DEPTH = 24

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*)")
_FLOAT = re.compile(r"[-+]?(?:(?:[0-9]+(?:_[0-9]+)*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a file, ``line`` and ``column`` from 1; with line 0, a flag or an argument."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place.

    Attributes:
        where: first character of the value.
        value: a scalar, a tuple of nodes, or a dict from key to node.
        text: a scalar as it was written, quotes removed.
        keys: places of a dict's keys.
    """

    where: Where
    value: Scalar | tuple[Node, ...] | dict[str, Node]
    text: str = ""
    keys: Mapping[str, Where] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What it is, for error messages."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, tuple):
            return "a list"
        return "nothing" if self.value is None else f"`{self.text}`"

    def error(self, message: str, *, hint: str | None = None) -> ConfigError:
        """An error about this value."""
        return place_error(self.where, message, hint)

    def key_error(self, key: str, message: str, *, hint: str | None = None) -> ConfigError:
        """An error about the key ``key`` of this mapping."""
        return place_error(self.keys.get(key, self.where), message, hint)


def place_error(where: Where, message: str, hint: str | None = None) -> ConfigError:
    """An error about a place; what could disturb a terminal (escapes) is spelled out."""
    return ConfigError(_printable(f"{where}: {message}"), hint=hint and _printable(hint))


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def read_file(path: Path) -> Node:
    """The document in a file.

    Raises:
        ConfigError: the file is missing, too large, not UTF-8, or not the YAML described above.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        hint = "name a merge file, or give the models by --base and --agent"
        raise ConfigError(f"no configuration file `{path}`", hint=hint) from error
    except OSError as error:
        raise OutputError(f"cannot read `{path}`: {error.strerror}") from error
    return read_text(data, file=path.name)


def read_text(text: str | bytes, *, file: str = "config") -> Node:
    """The single document of a YAML text; ``file`` is its name in error messages.

    Raises:
        ConfigError: not the YAML described above. Several problems come as one `ProblemsError`.
    """
    text = _decoded(text, file)
    problems: list[MergeError] = []
    node = _Composer(_events(text, file), file, problems).document()
    raise_problems(problems)
    return node


def from_value(value: object, where: Where) -> Node:
    """A tree from Python values (an API call, a parsed flag), all of it at one place.

    Raises:
        ConfigError: something that YAML could not have said.
    """
    if isinstance(value, Mapping):
        items = {str(key): from_value(item, where) for key, item in value.items()}
        return Node(where, items)
    if isinstance(value, list | tuple):
        return Node(where, tuple(from_value(item, where) for item in value))
    if isinstance(value, Path):
        return Node(where, str(value), str(value))
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()  # numpy and torch scalars
    if value is None or isinstance(value, bool | int | float | str):
        words = {True: "true", False: "false", None: "null"}
        plain = value is None or isinstance(value, bool)
        return Node(where, value, words[value] if plain else str(value))  # type: ignore[index]
    raise ConfigError(f"{where}: a {type(value).__name__} cannot be part of a configuration")


def scalar(text: str) -> Scalar:
    """What a plain (unquoted) scalar means."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) < 40:
        return int(text)
    digits = text.lstrip("+-")
    padded = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    if _FLOAT.fullmatch(text) and not padded and math.isfinite(float(text)):
        return float(text)
    return text


def _decoded(text: str | bytes, file: str) -> str:
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{file}: larger than {MAX_BYTES} bytes, so not a merge configuration")
    if isinstance(text, str):
        return text.removeprefix("\ufeff")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        column = error.start - text.rfind(b"\n", 0, error.start)
        raise ConfigError(f"{Where(file, line, column)}: not UTF-8 text") from error


def _events(text: str, file: str) -> Iterator[Any]:
    """PyYAML's events, its errors turned into ours. Lazy: depth is checked while reading."""
    import yaml

    try:
        yield from yaml.parse(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Where(file, mark.line + 1, mark.column + 1) if mark else Where(file)
        tabs = "indent with spaces" if "'\\t'" in str(error.problem) else None
        raise place_error(where, str(error.problem or error.context), tabs) from error
    except yaml.YAMLError as error:
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1
        column = position - text.rfind("\n", 0, position)
        raise ConfigError(f"{Where(file, line, column)}: control character") from error


class _Composer:
    """Events to nodes. Recursion is safe: `MAX_DEPTH` bounds it."""

    def __init__(self, events: Iterator[Any], file: str, problems: list[MergeError]) -> None:
        self.events = events
        self.file = file
        self.problems = problems

    def document(self) -> Node:
        next(self.events)  # stream start
        start = next(self.events)
        if _is(start, "StreamEnd"):
            raise ConfigError(f"{self.file}: the file is empty")
        if start.version or start.tags:
            self._refuse(start, "directives (`%`) have no meaning here")
        node = self._node(next(self.events), 0)
        next(self.events)  # document end
        following = next(self.events)
        if not _is(following, "StreamEnd"):
            hint = "ramerge merges one configuration at a time: one file each, in their order"
            raise ConfigError(f"{self._where(following)}: a second document begins", hint=hint)
        return node

    def _node(self, event: Any, depth: int) -> Node:
        where = self._where(event)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        if _is(event, "Alias"):
            self._refuse(event, f"alias `*{event.anchor}`: write the value out")
            return Node(where, None)
        if event.anchor:
            self._refuse(event, f"anchor `&{event.anchor}`: anchors and aliases are refused")
        if event.tag:
            self._refuse(event, f"tag `{_short(event.tag)}`: tags are refused")
        if _is(event, "Scalar"):
            plain = event.style is None
            return Node(where, scalar(event.value) if plain else event.value, event.value)
        if _is(event, "SequenceStart"):
            return Node(where, tuple(self._items(depth)))
        return self._mapping(where, depth)

    def _items(self, depth: int) -> Iterator[Node]:
        for event in self.events:
            if _is(event, "SequenceEnd"):
                return
            yield self._node(event, depth + 1)

    def _mapping(self, where: Where, depth: int) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, Where] = {}
        for event in self.events:
            if _is(event, "MappingEnd"):
                break
            key = self._node(event, depth + 1)
            value = self._node(next(self.events), depth + 1)
            if isinstance(key.value, dict | tuple):
                self.problems.append(key.error(f"{key.kind} cannot be a key"))
            elif key.text == "<<":
                self.problems.append(key.error("merge keys (`<<`) are refused"))
            elif key.text in values:
                first = keys[key.text].line
                message = f"key `{key.text}` stands twice; the first is in line {first}"
                self.problems.append(key.error(message))
            else:
                values[key.text], keys[key.text] = value, key.where
        return Node(where, values, keys=keys)

    def _where(self, event: Any) -> Where:
        return Where(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _refuse(self, event: Any, message: str) -> None:
        self.problems.append(place_error(self._where(event), message))


def _is(event: Any, name: str) -> bool:
    return type(event).__name__ == f"{name}Event"


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
