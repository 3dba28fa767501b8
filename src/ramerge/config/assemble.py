"""One `Job` from whatever the caller gave: a file, a mapping, flags, or a `Job`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramerge._errors import ConfigError
from ramerge.config import flags, mergekit
from ramerge.config.job import Job
from ramerge.methods.registry import METHODS

SELF = "an agent that is the base itself changes nothing and is left out"
_FLAGS = (
    "base",
    "agents",
    "method",
    "parameters",
    "preset",
    "out_dtype",
    "shard_size",
    "nonfinite",
    "extra",
    "vocabulary",
)
_AS_FLAGS = {"agents": "agents (--agent)", "parameters": "parameters (--set)"}
_BESIDE = ("out_dtype", "shard_size", "nonfinite", "extra", "vocabulary", "exclude")  # a file


def job(config: str | Path | Mapping[str, Any] | Job | None, **flags_given: Any) -> Job:
    """One `Job` from a file, a mapping, or flags; flags beside a file override what stands at its top."""
    given: dict[str, Any] = dict.fromkeys(_FLAGS) | {"exclude": ()} | flags_given
    methods = {name: m.info for name, m in METHODS.items()}
    if isinstance(config, Job):
        return config
    if config is None:
        if given["base"] is None and given["agents"] is None:
            raise ConfigError(
                "no models are given",
                hint="name them: --base ./base --agent coder=./coder --agent tools=./tools",
            )
        sources = given.pop("agents") or []
        named = (
            {n: str(a) for n, a in sources.items()}
            if isinstance(sources, Mapping)
            else [str(a) for a in sources]
        )
        base = given.pop("base")
        made = flags.job_from_flags(
            methods=methods,
            base=None if base is None else str(base),
            agents=named,
            **{**given, "method": given["method"] or "ram_plus"},
        )
        left_out = len(named) - len(made.agents)
        return replace(made, notes=(*made.notes, SELF)) if left_out else made
    clash = [k for k in ("base", "agents", "method", "parameters", "preset") if given.get(k)]
    if clash:
        hint = "put it into the file, or leave the file out"
        if isinstance(config, str | Path) and Path(config).is_dir():
            hint = f"`{config}` is a directory: repeat --agent for every agent"
        name = _AS_FLAGS.get(clash[0], clash[0])
        raise ConfigError(
            f"`{name}` is given beside the configuration file `{_named(config)}`", hint=hint
        )
    top = {k: given[k] for k in _BESIDE}
    if isinstance(config, Mapping):
        return mergekit.from_mapping(config, methods, overrides=top)
    return mergekit.load(config, methods, overrides=top)


def _named(config: str | Path | Mapping[str, Any]) -> str:
    return "(a mapping)" if isinstance(config, Mapping) else str(config)
