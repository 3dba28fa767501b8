"""The same job from flags alone: flags become the tree that a file would have been.

Values of ``--set`` are read like values in a file, so that ``--set weight=[0,1]`` is a gradient and
``--set mask=exact`` a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ramerge._errors import ConfigError, MergeError, raise_problems
from ramerge._signature import Methods
from ramerge.config.job import Job
from ramerge.config.mergekit import read_job
from ramerge.config.sources import agent_names, split_named
from ramerge.config.yaml import Node, Where, from_value, read_text


def job_from_flags(
    *,
    methods: Methods,
    base: str | None,
    agents: Sequence[str] | Mapping[str, str],
    method: str,
    settings: Sequence[str] = (),
    parameters: Mapping[str, object] | None = None,
    preset: str | None = None,
    out_dtype: str | None = None,
    nonfinite: str | None = None,
    extra: str | None = None,
    vocabulary: str | None = None,
    exclude: Sequence[str] = (),
    shard_size: str | int | None = None,
    tokenizer_source: str | None = None,
    chat_template: str | None = None,
) -> Job:
    """The job that flags describe; equal to the one a file with the same content gives.

    Args:
        methods: what methods there are.
        base: source of the base.
        agents: sources, each perhaps as ``name=source``; or name -> source.
        method: name or alias of the method.
        settings: ``parameter=value`` for all agents, ``agent.parameter=value`` for one.
        parameters: the same from a program, ``{"r": 0.2, "coder.weight": 0.5}``.
        preset: named set of parameter values.
        out_dtype: output type by its torch name.
        nonfinite: ``error``, ``keep_base`` or ``propagate``.
        extra: what becomes of tensors that not all models have.
        vocabulary: what becomes of embeddings of unequal length.
        exclude: parts of names, or globs, of tensors to copy.
        shard_size: bytes, or a size like ``5GB``.
        tokenizer_source: ``base``, ``union`` or an agent.
        chat_template: a name or a Jinja template.

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
    said = [_parsed(text, problems) for text in settings]
    for key, value in (parameters or {}).items():
        agent = key.rpartition(".")[0]
        where = f"parameters of {agent}" if agent else "parameters"
        said.append((where, key, from_value(value, Where(where))))
    shared, own = _settings(said, names, problems)
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
        "tokenizer_source": (tokenizer_source, "--tokenizer-source"),
        "chat_template": (chat_template, "--chat-template"),
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
    settings: Iterable[tuple[str, str, Node | None]],
    names: Sequence[str],
    problems: list[MergeError],
) -> tuple[dict[str, Node], dict[str, dict[str, Node]]]:
    """Trees of the parameters of all agents, and of each."""
    shared: dict[str, Node] = {}
    own: dict[str, dict[str, Node]] = {name: {} for name in names}
    for where, key, value in settings:
        agent, dot, parameter = key.rpartition(".")
        if value is None or not parameter or (dot and not agent):
            hint = "as in `--set r=0.2` or `--set coder.weight=0.5`"
            problems.append(ConfigError(f"{where}: not PARAMETER=VALUE", hint=hint))
        elif dot and agent not in own:
            hint = "agents here are " + ", ".join(f"`{name}`" for name in names)
            problems.append(ConfigError(f"{where}: no agent `{agent}`", hint=hint))
        elif parameter in (own[agent] if dot else shared):
            problems.append(ConfigError(f"{where}: `{key}` is set twice"))
        else:
            (own[agent] if dot else shared)[parameter] = value
    return shared, own


def _parsed(text: str, problems: list[MergeError]) -> tuple[str, str, Node | None]:
    """One ``--set``: its place, its key, and its value (None where there is no ``=``)."""
    where = f"--set {text}"
    key, equals, value = text.partition("=")
    if not equals:
        return where, "", None
    try:
        return where, key.strip(), _at(read_text(value, file=where), Where(where))
    except MergeError as error:
        problems.append(error)
        return where, key.strip(), Node(Where(where), None)


def _at(node: Node, where: Where) -> Node:
    """The same tree with one place for all of it: a flag has no lines."""
    if isinstance(node.value, dict):
        return Node(where, {key: _at(value, where) for key, value in node.value.items()})
    if isinstance(node.value, tuple):
        return Node(where, tuple(_at(item, where) for item in node.value))
    return Node(where, node.value, node.text)


def _node(value: object, flag: str) -> Node:
    return from_value(value, Where(flag))
