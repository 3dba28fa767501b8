"""``--set KEY=VALUE``: parameters as texts, read by the grammar of merge files.

A value is what it would be in a file: ``--set weight=[0,1]`` is a gradient, ``--set normalize=True`` a truth value,
``--set 'weight={filter: mlp, value: 2}'`` a choice by tensor name, and ``--set mask=exact`` a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ramerge._errors import ConfigError, MergeError
from ramerge.config.yaml import Node, Where, from_value, read_text, scalar

EXAMPLE = "for example --set r=0.2, or --set coder.weight=0.5 for one agent"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One parameter set from outside a file.

    Attributes:
        key: ``parameter``, or ``agent.parameter``.
        value: its tree, every node placed at the flag or argument it came from.
    """

    key: str
    value: Node

    @property
    def where(self) -> Where:
        """The flag or argument."""
        return self.value.where


def split_target(key: str) -> tuple[str | None, str]:
    """``agent.parameter`` as its parts; the agent is None where the key names a parameter of all."""
    agent, dot, parameter = key.rpartition(".")
    return (agent if dot else None), parameter


def from_texts(texts: Iterable[str], problems: list[MergeError]) -> list[Assignment]:
    """``KEY=VALUE`` each; what is none of these goes to ``problems``."""
    read = []
    for text in texts:
        where = Where(f"--set {text}")
        key, _, value = (part.strip() for part in text.partition("="))
        agent, parameter = split_target(key)
        if not value or not parameter or agent == "":
            problems.append(ConfigError(f"{where}: not KEY=VALUE", hint=EXAMPLE))
            continue
        try:
            read.append(Assignment(key, _value(value, where)))
        except MergeError as error:
            problems.append(error)
    return _once(read, problems)


def from_mapping(values: Mapping[str, object]) -> list[Assignment]:
    """The same from a program: ``{"r": 0.2, "coder.weight": [0, 1]}``.

    Raises:
        ConfigError: a value that YAML could not have said.
    """
    read = []
    for key, value in values.items():
        agent, _ = split_target(key)
        where = Where(f"parameters of {agent}" if agent else "parameters")
        read.append(Assignment(key, from_value(value, where)))
    return read


def _once(read: list[Assignment], problems: list[MergeError]) -> list[Assignment]:
    first: dict[str, Assignment] = {}
    for one in read:
        known = first.setdefault(one.key, one)
        if known is not one:
            message = f"`{one.key}` is given twice, as {known.value.kind} and {one.value.kind}"
            problems.append(one.value.error(message))
    return list(first.values())


def _value(text: str, where: Where) -> Node:
    """A list, mapping or quoted text by the rules of YAML; anything else as the plain text that it is."""
    if text[0] in "[{\"'":
        return _at(read_text(text, file=str(where)), where)
    return Node(where, scalar(text), text)


def _at(node: Node, where: Where) -> Node:
    """The same tree with one place for all of it: a flag has no lines."""
    if isinstance(node.value, dict):
        return Node(where, {key: _at(value, where) for key, value in node.value.items()})
    if isinstance(node.value, tuple):
        return Node(where, tuple(_at(item, where) for item in node.value))
    return Node(where, node.value, node.text)
