"""Flags beside a merge file: they change the tree that was read from it, before anything is made of it.

What a flag names wins over the file, wherever the file says it: ``--set weight=1`` also over a weight that stands under
a model. Errors about a value name the place it came from, the flag or the line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ramerge._errors import ConfigError, MergeError
from ramerge.config import fields
from ramerge.config.assignments import Assignment, split_target
from ramerge.config.models import reference, same
from ramerge.config.settings import did_you_mean
from ramerge.config.sources import agent_names
from ramerge.config.yaml import Node, Where, from_value

Tree = dict[str, Node]


@dataclass(frozen=True, slots=True)
class Overrides:
    """What flags say beside a file.

    Attributes:
        base: another base.
        agents: (name, source): other sources for agents of the file, by their names.
        method: another method.
        settings: parameters, of all agents or of one.
        top: top-level keys of a file; None: not set. Patterns of ``exclude`` are added to the file's.
    """

    base: str | None = None
    agents: Sequence[tuple[str | None, str]] = ()
    method: str | None = None
    settings: Sequence[Assignment] = ()
    top: Mapping[str, object] = field(default_factory=dict)


def overridden(top: Node, given: Overrides, problems: list[MergeError]) -> Node:
    """The tree of a file with what flags say put in its place.

    Args:
        top: the file.
        given: the flags.
        problems: what cannot be done goes here.
    """
    if not isinstance(top.value, dict):
        return top
    tree = _top(dict(top.value), given.top)
    if given.method is not None:
        tree["merge_method"] = from_value(given.method, Where("--method"))
    if given.base is not None:
        tree = _with_base(tree, from_value(given.base, Where("--base")), problems)
    for name, source in given.agents:
        tree = _with_source(tree, name, source, problems)
    for assignment in given.settings:
        tree = _with_setting(tree, assignment, problems)
    return replace(top, value=tree)


def _top(tree: Tree, top: Mapping[str, object]) -> Tree:
    for key, value in top.items():
        if value is None or (key == "exclude" and not value):
            continue
        node = from_value(value, Where(f"--{key.replace('_', '-')}"))
        tree[key] = _joined(tree[key], node) if key == "exclude" and key in tree else node
    return tree


def _joined(first: Node, second: Node) -> Node:
    """Both lists in one; a single text is a list of one."""
    both = (n.value if isinstance(n.value, tuple) else (n,) for n in (first, second))
    return Node(first.where, tuple(item for items in both for item in items))


def _with_base(tree: Tree, base: Node, problems: list[MergeError]) -> Tree:
    """Another base; a file that lists its base under ``models`` too means the same model there."""
    if "slices" in tree:
        hint = "change the sources in the file"
        problems.append(base.error("a file of `slices` names its models itself", hint=hint))
        return tree
    old = fields.optional(tree, "base_model", problems, reference)

    def moved(entry: Node) -> Node:
        source = _source(entry)
        named = old is not None and source is not None and same(source, old)
        return _put(entry, "model", base) if named else entry

    return _entries(tree, [moved(entry) for entry in _listed(tree)]) | {"base_model": base}


def _with_source(tree: Tree, name: str | None, source: str, problems: list[MergeError]) -> Tree:
    node = from_value(source, Where(f"--agent {name}={source}" if name else f"--agent {source}"))
    if name is None:
        hint = "say which agent of the file it replaces: --agent NAME=MODEL"
        problems.append(node.error("a model beside a merge file needs a name", hint=hint))
        return tree
    entries, names = _listed(tree), _names(tree, problems)
    if name not in names:
        problems.append(_no_agent(node.where, name, names))
        return tree
    at = names.index(name)
    named = _put(_put(entries[at], "name", from_value(name, node.where)), "model", node)
    return _entries(tree, [*entries[:at], named, *entries[at + 1 :]])


def _with_setting(tree: Tree, assignment: Assignment, problems: list[MergeError]) -> Tree:
    """One parameter: of one agent under its model; of all at the top, and nowhere else any more."""
    agent, parameter = split_target(assignment.key)
    entries = _listed(tree)
    if agent is None:
        shared = _put(tree.get("parameters"), parameter, assignment.value)
        cleared = [_without(entry, parameter) for entry in entries]
        return _entries(tree, cleared) | {"parameters": shared}
    names = _names(tree, problems)
    if agent not in names:
        problems.append(_no_agent(assignment.value.where, agent, names))
        return tree
    at = names.index(agent)
    own = entries[at].value
    assert isinstance(own, dict)
    changed = _put(
        entries[at], "parameters", _put(own.get("parameters"), parameter, assignment.value)
    )
    return _entries(tree, [*entries[:at], changed, *entries[at + 1 :]])


def _no_agent(where: Where, name: str, names: Sequence[str | None]) -> ConfigError:
    known = [n for n in names if n is not None]
    listed = ", ".join(f"`{n}`" for n in known)
    otherwise = f"agents of the file are {listed}" if known else "the file lists no `models`"
    return Node(where, None).error(
        f"the file has no agent `{name}`", hint=did_you_mean(name, known, otherwise)
    )


def _listed(tree: Tree) -> list[Node]:
    models = tree.get("models")
    return list(models.value) if models and isinstance(models.value, tuple) else []


def _entries(tree: Tree, entries: list[Node]) -> Tree:
    models = tree.get("models")
    if models is None or not isinstance(models.value, tuple):
        return tree
    return tree | {"models": replace(models, value=tuple(entries))}


def _names(tree: Tree, problems: list[MergeError]) -> list[str | None]:
    """The agent's name of every entry under ``models``; None for the base and for what is no entry."""
    base = fields.optional(tree, "base_model", problems, reference)
    sources = [_source(entry) for entry in _listed(tree)]
    agents = [
        (at, s) for at, s in enumerate(sources) if s is not None and not (base and same(s, base))
    ]
    own = [_own_name(_listed(tree)[at]) for at, _ in agents]
    found: list[str | None] = [None] * len(sources)
    for (at, _), name in zip(agents, agent_names([s for _, s in agents], own), strict=True):
        found[at] = name
    return found


def _source(entry: Node) -> str | None:
    """The model of an entry, or None where the reader will refuse it."""
    if not isinstance(entry.value, dict) or "model" not in entry.value:
        return None
    try:
        return reference(entry.value["model"])
    except ConfigError:
        return None


def _own_name(entry: Node) -> str | None:
    name = entry.value.get("name") if isinstance(entry.value, dict) else None
    return name.text if name is not None else None


def _put(node: Node | None, key: str, value: Node) -> Node:
    """The mapping ``node`` with one key set; a new mapping where there is none."""
    if node is None or not isinstance(node.value, dict):
        return Node(value.where, {key: value})
    return replace(node, value={**node.value, key: value}, keys={**node.keys, key: value.where})


def _without(entry: Node, parameter: str) -> Node:
    own = entry.value.get("parameters") if isinstance(entry.value, dict) else None
    if own is None or not isinstance(own.value, dict) or parameter not in own.value:
        return entry
    rest = {key: value for key, value in own.value.items() if key != parameter}
    return _put(entry, "parameters", replace(own, value=rest))
