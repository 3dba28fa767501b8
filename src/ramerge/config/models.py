"""Who takes part: base and agents out of `base_model`, `models` and `slices`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ramerge._errors import ConfigError, MergeError
from ramerge._signature import MethodInfo
from ramerge.config import fields
from ramerge.config.job import AgentJob, Settings, Slice, SliceSource
from ramerge.config.settings import did_you_mean, read_settings
from ramerge.config.sources import NAME, RESERVED, agent_names
from ramerge.config.yaml import Node

INDENT = "it is a parameter: indent it under `parameters`"


@dataclass(frozen=True, slots=True)
class Entry:
    """One `- model:` of a file: under `models` (no layers) or as a source of a slice."""

    node: Node
    source: str
    name: str | None = None
    parameters: Node | None = None
    layers: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Cast:
    """Base, agents and slices, and the names by which references to them are resolved."""

    base: str | None
    agents: tuple[AgentJob, ...]
    base_parameters: Settings = field(default_factory=dict)
    slices: tuple[Slice, ...] = ()

    def name_of(self, node: Node) -> str:
        """The agent's name, or ``base``, that a reference by source or by name means.

        Raises:
            ConfigError: no such model in this merge.
        """
        wanted = reference(node)
        wanted = wanted.removeprefix("model:") if wanted.startswith("model:") else wanted
        if wanted == "base" or (self.base is not None and same(wanted, self.base)):
            return "base"
        for agent in self.agents:
            if wanted == agent.name or same(wanted, agent.source):
                return agent.name
        known = [*(a.name for a in self.agents), *(a.source for a in self.agents)]
        hint = did_you_mean(wanted, known, "name the base or one of the agents")
        raise node.error(f"`{wanted}` is not one of the models in this merge", hint=hint)


def same(one: str, other: str) -> bool:
    """Whether two references are spelled alike, but for slashes at the end."""
    return one.rstrip("/") == other.rstrip("/")


def reference(node: Node) -> str:
    """A model as one text: ``path[@revision][+lora[@revision]]``; mappings are spelled that way.

    Raises:
        ConfigError: not a reference.
    """
    if not isinstance(node.value, dict):
        return fields.text(node, "a model")
    problems: list[MergeError] = []
    reasons = {"override_architecture": "the tensors' names in the files decide"}
    fields.check_keys(node, ("model", "lora"), "a model", problems, reasons)
    if problems:
        raise problems[0]
    if "model" not in node.value:
        raise node.error("a model needs `model`, its path or Hub id")
    parts = [_located(node.value[key]) for key in ("model", "lora") if key in node.value]
    return "+".join(parts)


def read_models(node: Node, info: MethodInfo, problems: list[MergeError]) -> list[Entry]:
    """The entries under `models`."""
    listed = fields.attempt(problems, fields.some_items, node, "`models`") or ()
    entries = (fields.attempt(problems, _model, item, info, problems) for item in listed)
    return [entry for entry in entries if entry is not None]


def read_slices(
    node: Node, info: MethodInfo, problems: list[MergeError]
) -> list[tuple[Node, list[Entry]]]:
    """The slices of a file, each with its sources."""
    slices = []
    for item in fields.attempt(problems, fields.some_items, node, "`slices`") or ():
        sources = fields.attempt(problems, _slice, item, info, problems)
        if sources is not None:
            slices.append((item, sources))
    return slices


def cast(
    base: str | None, entries: Iterable[Entry], info: MethodInfo, problems: list[MergeError]
) -> Cast:
    """Tell base from agents, and name the agents."""
    entries = list(entries)
    apart = info.base != "member" and base is not None
    of_base = [e for e in entries if apart and base is not None and same(e.source, base)]
    agents = [e for e in entries if e not in of_base]
    twice = f"the base `{base}` stands twice under `models`"
    problems += [entry.node.error(twice) for entry in of_base[1:]]
    _check_names(agents, problems)
    names = agent_names([e.source for e in agents], [e.name for e in agents])
    jobs = tuple(
        AgentJob(name, e.source, read_settings(e.parameters, info, "agent", problems))
        for name, e in zip(names, agents, strict=True)
    )
    of_all = [read_settings(e.parameters, info, "agent", problems) for e in of_base[:1]]
    return Cast(base, jobs, of_all[0] if of_all else {})


def cast_slices(
    base: str | None,
    slices: Iterable[tuple[Node, list[Entry]]],
    info: MethodInfo,
    problems: list[MergeError],
) -> Cast:
    """The same for a file of slices: every model in them is the base or an agent."""
    slices = list(slices)
    unique: dict[str, Entry] = {}
    for _, sources in slices:
        for entry in sources:
            unique.setdefault(entry.source.rstrip("/"), replace(entry, parameters=None))
    members = cast(base, unique.values(), info, problems)
    pieces = tuple(_piece(node, sources, members, info, problems) for node, sources in slices)
    return replace(members, slices=pieces)


def _piece(
    node: Node, sources: list[Entry], members: Cast, info: MethodInfo, problems: list[MergeError]
) -> Slice:
    names = {a.source.rstrip("/"): a.name for a in members.agents}
    read: list[SliceSource] = []
    for entry in sources:
        assert entry.layers is not None
        settings = read_settings(entry.parameters, info, "agent", problems)
        model = names.get(entry.source.rstrip("/"), "base")
        if model in {source.model for source in read}:
            problems.append(entry.node.error(f"`{entry.source}` stands twice in one slice"))
        read.append(SliceSource(model, *entry.layers, entry.source, settings))
    counts = {source.stop - source.start for source in read}
    if len(counts) > 1:
        listed = ", ".join(f"{s.model} {s.stop - s.start}" for s in read)
        problems.append(
            node.error(f"sources of a slice differ in their number of layers: {listed}")
        )
    agents = [source for source in read if source.model != "base"]
    wrong = check_count(len(agents), info, node)
    problems += [wrong] if wrong else []
    if info.base == "required" and len(agents) == len(read):
        hint = "add the base to its sources, with the layers that the agents' are compared with"
        problems.append(node.error(f"`{info.name}` needs the base in every slice", hint=hint))
    assert isinstance(node.value, dict)
    settings = read_settings(node.value.get("parameters"), info, "all", problems)
    return Slice(tuple(read), settings)


def _check_names(agents: list[Entry], problems: list[MergeError]) -> None:
    seen: dict[str, Entry] = {}
    for entry in agents:
        if entry.name is None:
            continue
        if entry.name in RESERVED or not NAME.fullmatch(entry.name):
            hint = "letters, digits, `.`, `_` and `-`; not `base` or `union`"
            problems.append(entry.node.error(f"`{entry.name}` cannot name an agent", hint=hint))
        if entry.name in seen:
            line = seen[entry.name].node.where
            problems.append(entry.node.error(f"the name `{entry.name}` is taken at {line}"))
        seen[entry.name] = entry


def _model(node: Node, info: MethodInfo, problems: list[MergeError]) -> Entry:
    if not isinstance(node.value, dict):
        hint = None if isinstance(node.value, tuple) else f"write `- model: {node.text}`"
        raise node.error("an entry of `models` is a mapping with `model`", hint=hint)
    known = ("model", "name", "parameters")
    fields.check_keys(node, known, "an entry of `models`", problems, _slips(info))
    return _entry(node)


def _slice(node: Node, info: MethodInfo, problems: list[MergeError]) -> list[Entry] | None:
    """The sources of a slice; None where one of them is wrong."""
    tree = fields.mapping(node, "a slice").value
    assert isinstance(tree, dict)
    hints = {
        "base_model": "one base serves the whole file: set `base_model` at its top level",
        "residual_weight": "it has no effect in mergekit either",
        **_slips(info),
    }
    fields.check_keys(node, ("sources", "parameters"), "a slice", problems, hints)
    if "sources" not in tree:
        raise node.error("a slice needs `sources`")
    listed = fields.some_items(tree["sources"], "`sources`")
    read = [fields.attempt(problems, _slice_source, s, info, problems) for s in listed]
    sources = [source for source in read if source is not None]
    return sources if len(sources) == len(read) else None


def _slice_source(node: Node, info: MethodInfo, problems: list[MergeError]) -> Entry:
    tree = fields.mapping(node, "a source").value
    assert isinstance(tree, dict)
    known = ("model", "name", "layer_range", "parameters")
    fields.check_keys(node, known, "a source", problems, _slips(info))
    if "layer_range" not in tree:
        raise node.error("a source needs `layer_range`: [first, one past the last]")
    layers = fields.items(tree["layer_range"], "`layer_range`")
    if len(layers) != 2:
        raise tree["layer_range"].error(f"`layer_range` is two numbers, not {len(layers)}")
    start, stop = (fields.whole(n, "a bound of `layer_range`", 0) for n in layers)
    if stop <= start:
        hint = "the second number is one past the last layer"
        message = f"`layer_range` [{start}, {stop}] holds no layer"
        raise tree["layer_range"].error(message, hint=hint)
    return replace(_entry(node), layers=(start, stop))


def _entry(node: Node) -> Entry:
    assert isinstance(node.value, dict)
    if "model" not in node.value:
        raise node.error("`model` is missing: the path or Hub id")
    name = node.value.get("name")
    return Entry(
        node,
        reference(node.value["model"]),
        fields.text(name, "`name`") if name else None,
        node.value.get("parameters"),
    )


def _slips(info: MethodInfo) -> Mapping[str, str]:
    """Hints for parameters that stand one level too far out."""
    return dict.fromkeys(info.signature, INDENT)


def _located(node: Node) -> str:
    if not isinstance(node.value, dict):
        return fields.text(node, "a model")
    problems: list[MergeError] = []
    fields.check_keys(node, ("path", "revision"), "a model", problems)
    if problems:
        raise problems[0]
    if "path" not in node.value:
        raise node.error("a model needs `path`")
    path = fields.text(node.value["path"], "`path`")
    revision = node.value.get("revision")
    if revision is None or revision.value is None:
        return path
    return f"{path}@{fields.text(revision, '`revision`')}"


def check_count(count: int, info: MethodInfo, top: Node) -> ConfigError | None:
    """An error where the method wants more or fewer agents."""
    low, high = info.min_agents, info.max_agents
    if low <= count and (high is None or count <= high):
        return None
    wanted = f"{low}" if high == low else f"at least {low}" if high is None else f"{low} to {high}"
    besides = "" if info.base == "member" else ", not counting the base"
    message = (
        f"`{info.name}` merges {wanted} agent{'s' * (wanted != '1')}{besides}; here are {count}"
    )
    return top.error(message)
