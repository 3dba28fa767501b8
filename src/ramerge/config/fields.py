"""Single fields of a configuration; an error names place, key and what was wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ramerge._errors import ConfigError, MergeError
from ramerge._types import DType
from ramerge.config.bytes import PLAIN, parse_size
from ramerge.config.settings import did_you_mean
from ramerge.config.yaml import Node

T = TypeVar("T")
FLOATS = ("bfloat16", "float16", "float32", "float64")
SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def attempt(problems: list[MergeError], read: Callable[..., T], *args: object) -> T | None:
    """The result of ``read(*args)``; its ConfigError goes to ``problems`` and None comes back."""
    try:
        return read(*args)
    except ConfigError as error:
        problems.append(error)
        return None


def optional(
    tree: Mapping[str, Node],
    key: str,
    problems: list[MergeError],
    read: Callable[..., T],
    *args: object,
) -> T | None:
    """``read`` of the value under ``key``; None where it is missing, null or wrong."""
    node = tree.get(key)
    if node is None or node.value is None:
        return None
    return attempt(problems, read, node, *args)


def check_keys(
    node: Node,
    known: Iterable[str],
    what: str,
    problems: list[MergeError],
    hints: Mapping[str, str] | None = None,
) -> None:
    """Report every key of the mapping ``node`` that is not ``known``."""
    assert isinstance(node.value, dict)
    known = list(known)
    for key in node.value:
        if key not in known:
            listed = ", ".join(f"`{k}`" for k in known)
            hint = (hints or {}).get(key) or did_you_mean(key, known, f"keys here are {listed}")
            problems.append(node.key_error(key, f"unknown key `{key}` in {what}", hint=hint))


def mapping(node: Node, what: str) -> Node:
    """The node, which must be a mapping."""
    if not isinstance(node.value, dict):
        raise node.error(f"{what} is a mapping, not {node.kind}")
    return node


def items(node: Node, what: str) -> tuple[Node, ...]:
    """The items of a list."""
    if not isinstance(node.value, tuple):
        hint = "every item begins with `- `" if isinstance(node.value, dict) else None
        raise node.error(f"{what} is a list, not {node.kind}", hint=hint)
    return node.value


def some_items(node: Node, what: str) -> tuple[Node, ...]:
    """The items of a list that must not be empty."""
    listed = items(node, what)
    if not listed:
        raise node.error(f"{what} is empty")
    return listed


def text(node: Node, what: str) -> str:
    """A text that is not empty (numbers and words such as `1.5` count as text, too)."""
    if isinstance(node.value, dict | tuple) or node.value is None or not node.text.strip():
        raise node.error(f"{what} is a text, not {node.kind}")
    return node.text


def whole(node: Node, what: str, minimum: int) -> int:
    """A whole number, at least ``minimum``."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise node.error(f"{what} is a whole number >= {minimum}, not {node.kind}")
    return value


def flag(node: Node, what: str) -> bool:
    """``true`` or ``false``."""
    if not isinstance(node.value, bool):
        raise node.error(f"{what} is `true` or `false`, not {node.kind}")
    return node.value


def choice(node: Node, what: str, choices: tuple[str, ...]) -> str:
    """One of ``choices``."""
    word = node.text if not isinstance(node.value, dict | tuple) else ""
    if word not in choices:
        listed = ", ".join(f"`{c}`" for c in choices)
        hint = did_you_mean(word, choices)
        raise node.error(f"{what} is one of {listed}, not {node.kind}", hint=hint)
    return word


def dtype(node: Node, what: str) -> DType:
    """A floating-point type by its torch name."""
    known = SHORT.get(node.text) if isinstance(node.value, str) else None
    return DType.parse(known or choice(node, what, FLOATS))


def size(node: Node, what: str) -> int:
    """Bytes: a size with a unit (`bytes.parse_size`), or a whole number of bytes.

    Raises:
        ConfigError: something else, or a number in a file so small that its unit was forgotten.
    """
    value = node.value
    if isinstance(value, dict | tuple | bool) or value is None:
        raise node.error(f"{what} is a size like `5GB`, not {node.kind}")
    in_file = node.where.line > 0
    if isinstance(value, int) and value > 0 and not (in_file and value < PLAIN):
        return value
    try:
        return parse_size(node.text)
    except ValueError as error:
        raise node.error(f"{what}: {error}") from None
