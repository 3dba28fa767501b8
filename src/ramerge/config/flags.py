"""The same job from flags alone: flags become the tree that a file would have been."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ramerge._errors import MergeError, raise_problems
from ramerge._signature import Methods
from ramerge.config.assignments import Assignment, split_target
from ramerge.config.job import Job
from ramerge.config.mergekit import read_job
from ramerge.config.sources import agent_names, split_named
from ramerge.config.yaml import Node, Where, from_value


def job_from_flags(
    *,
    methods: Methods,
    base: str | None,
    agents: Sequence[str] | Mapping[str, str],
    method: str,
    settings: Sequence[Assignment] = (),
    preset: str | None = None,
    out_dtype: str | None = None,
    nonfinite: str | None = None,
    extra: str | None = None,
    vocabulary: str | None = None,
    exclude: Sequence[str] = (),
    shard_size: str | int | None = None,
) -> Job:
    """The job that flags describe; equal to the one a file with the same content gives.

    Args:
        methods: what methods there are.
        base: source of the base.
        agents: sources, each perhaps as ``name=source``; or name -> source.
        method: name or alias of the method.
        settings: parameters of all agents, and of one (`assignments`).
        preset: named set of parameter values.
        out_dtype: output type by its torch name.
        nonfinite: ``error``, ``keep_base`` or ``propagate``.
        extra: what becomes of tensors that not all models have.
        vocabulary: what becomes of embeddings of unequal length.
        exclude: parts of names, or globs, of tensors to copy.
        shard_size: bytes, or a size like ``5GB``.

    Raises:
        ConfigError: anything wrong; the message names the flag.
    """
    named: list[tuple[str | None, str]] = (
        list(agents.items())
        if isinstance(agents, Mapping)
        else [split_named(agent) for agent in agents]
    )
    names = agent_names([source for _, source in named], [name for name, _ in named])
    problems: list[MergeError] = []
    shared, own = _settings(settings, names, problems)
    tree = {
        "merge_method": _node(method, "--method"),
        "models": Node(
            Where("--agent"),
            tuple(
                _agent(name, source, own[unique])
                for (name, source), unique in zip(named, names, strict=True)
            ),
        ),
        "parameters": Node(Where("--set"), shared),
    }
    given = {
        "base_model": (base, "--base"),
        "preset": (preset, "--preset"),
        "out_dtype": (out_dtype, "--out-dtype"),
        "nonfinite": (nonfinite, "--nonfinite"),
        "extra": (extra, "--extra"),
        "vocabulary": (vocabulary, "--vocabulary"),
        "exclude": (list(exclude) or None, "--exclude"),
        "shard_size": (shard_size, "--shard-size"),
    }
    tree |= {key: _node(value, flag) for key, (value, flag) in given.items() if value is not None}
    raise_problems(problems)
    return read_job(Node(Where("flags"), tree), methods)


def _agent(name: str | None, source: str, settings: dict[str, Node]) -> Node:
    where = Where(f"--agent {source}")
    tree = {"model": from_value(source, where), "parameters": Node(where, settings)}
    if name is not None:
        tree["name"] = from_value(name, where)
    return Node(where, tree)


def _settings(
    settings: Sequence[Assignment], names: Sequence[str], problems: list[MergeError]
) -> tuple[dict[str, Node], dict[str, dict[str, Node]]]:
    """Trees of the parameters of all agents, and of each."""
    shared: dict[str, Node] = {}
    own: dict[str, dict[str, Node]] = {name: {} for name in names}
    for assignment in settings:
        agent, parameter = split_target(assignment.key)
        if agent is None:
            shared[parameter] = assignment.value
        elif agent in own:
            own[agent][parameter] = assignment.value
        else:
            hint = "agents here are " + ", ".join(f"`{name}`" for name in names)
            problems.append(assignment.value.error(f"no agent `{agent}`", hint=hint))
    return shared, own


def _node(value: object, flag: str) -> Node:
    return from_value(value, Where(flag))
