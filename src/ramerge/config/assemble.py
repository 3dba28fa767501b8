"""One `Job` from whatever the caller gave: a file, a mapping, flags, or a `Job`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramerge._errors import ConfigError, MergeError, raise_problems
from ramerge._signature import Methods
from ramerge.config import flags, mergekit
from ramerge.config.assignments import Assignment, from_mapping, from_texts
from ramerge.config.job import Job
from ramerge.config.override import Overrides
from ramerge.config.sources import split_named
from ramerge.methods.registry import METHODS

SELF = "an agent that is the base itself changes nothing and is left out"
_BESIDE = (
    "preset", "out_dtype", "shard_size", "nonfinite", "extra", "vocabulary", "exclude",
)  # fmt: skip


def job(config: str | Path | Mapping[str, Any] | Job | None, **given: Any) -> Job:
    """One `Job` from a file, a mapping, or flags; flags beside a file or mapping override it.

    Args:
        config: a merge file, the same as a mapping, a `Job` (taken as it is), or None: flags alone.
        **given: ``base``, ``agents``, ``method``, ``parameters`` (a mapping, or ``KEY=VALUE`` texts), ``preset``, and the
            top-level keys of a file that flags set; None or absent: not set.

    Raises:
        ConfigError: anything wrong in them; several problems come as one `ProblemsError`.
    """
    if isinstance(config, Job):
        return config
    methods = {name: m.info for name, m in METHODS.items()}
    problems: list[MergeError] = []
    settings = _assignments(given.get("parameters"), problems)
    raise_problems(problems)
    top = {key: given.get(key) for key in _BESIDE}
    base = given.get("base")
    base = None if base is None else str(base)
    if config is None:
        return _from_flags(methods, base, given, settings, top)
    agents = given.get("agents") or []
    pairs = agents.items() if isinstance(agents, Mapping) else map(split_named, map(str, agents))
    overrides = Overrides(base, [(n, str(a)) for n, a in pairs], given.get("method"), settings, top)
    if isinstance(config, Mapping):
        return mergekit.from_mapping(config, methods, overrides=overrides)
    if Path(config).is_dir():
        hint = "repeat --agent for every agent: --agent coder=./coder --agent tools=./tools"
        raise ConfigError(f"`{config}` is a directory, not a merge file", hint=hint)
    return mergekit.load(config, methods, overrides=overrides)


def _from_flags(
    methods: Methods,
    base: str | None,
    given: Mapping[str, Any],
    settings: Sequence[Assignment],
    top: dict[str, Any],
) -> Job:
    agents = given.get("agents")
    if base is None and agents is None:
        raise ConfigError(
            "no models are given",
            hint="name them: --base ./base --agent coder=./coder --agent tools=./tools",
        )
    named: dict[str, str] | list[str] = (
        {n: str(a) for n, a in agents.items()}
        if isinstance(agents, Mapping)
        else [str(a) for a in agents or ()]
    )
    made = flags.job_from_flags(
        methods=methods, base=base, agents=named, method=given.get("method") or "ram_plus",
        settings=settings, **top | {"exclude": top["exclude"] or ()},
    )  # fmt: skip
    left_out = len(named) - len(made.agents)
    return replace(made, notes=(*made.notes, SELF)) if left_out else made


def _assignments(
    parameters: Mapping[str, Any] | Sequence[str] | None, problems: list[MergeError]
) -> list[Assignment]:
    if isinstance(parameters, Mapping):
        return from_mapping(parameters)
    return from_texts(parameters or (), problems)
