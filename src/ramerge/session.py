"""Between the API's arguments and the engine: one job from file or flags, opened and planned; what goes beside the weights."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramerge import summary
from ramerge._errors import ConfigError, MergeError, ProblemsError, nearest, raise_problems
from ramerge.checkpoint.base import Checkpoint, Notice
from ramerge.checkpoint.files import public_source, redacted
from ramerge.checkpoint.open import open_checkpoint
from ramerge.checkpoint.output.hashing import InputHashes
from ramerge.checkpoint.output.sidefiles import config_for_output, config_with, side_files
from ramerge.config import flags, mergekit
from ramerge.config.canonical import to_yaml
from ramerge.config.inputs import Inputs, prepare
from ramerge.config.job import Job
from ramerge.kernels.limits import BLOCK
from ramerge.methods.registry import METHODS, find
from ramerge.planning import CHUNK, Plan
from ramerge.planning import plan as lay_out
from ramerge.records import Outcome

MOST_THREADS = 8
SELF = "an agent that is the base itself changes nothing and is left out"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def thread_count(wanted: int | None) -> int:
    """How many threads to use: as many as wanted, or the `default_threads`.

    Raises:
        ConfigError: fewer than one is wanted.
    """
    if wanted is None:
        return default_threads()
    if wanted < 1:
        raise ConfigError(f"{wanted} threads are too few", hint="leave it out, or give 1 or more")
    return wanted


def default_threads() -> int:
    """Cores this process may use, at most `MOST_THREADS`."""
    return min(len(os.sched_getaffinity(0)), MOST_THREADS)


def chunk_size(plan: Plan, threads: int, memory: str | int | None) -> int:
    """Elements per chunk, so that all threads' buffers fit into ``memory``.

    Raises:
        ConfigError: the limit is too small for one block per thread.
    """
    if plan.method.rule is None or memory is None:
        return CHUNK
    widest = max((s.dtype.itemsize for t in plan.tensors for s in (t.base, t.output)), default=4)
    per_element = threads * (len(plan.agents) + len(plan.auxiliary) + 2) * widest
    fitting = parse_size(memory) // per_element // BLOCK * BLOCK
    if fitting < BLOCK:
        need = per_element * BLOCK
        raise ConfigError(
            f"memory of {memory} is too little: {threads} threads need at least {need:,} bytes of buffers"
        )
    return min(fitting, CHUNK)


def parse_size(text: str | int) -> int:
    """Bytes in ``2GB``, ``512MiB`` or a plain number.

    Raises:
        ConfigError: not a size.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]i?B)?\s*", str(text), re.IGNORECASE)
    if not match:
        raise ConfigError(
            f"`{text}` is not a size", hint="write it as 2GB, 512MiB or a number of bytes"
        )
    return int(float(match[1]) * _UNITS[(match[2] or "").upper()])


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


@contextmanager
def planned(job: Job, *, allow_pickle: bool) -> Iterator[tuple[Plan, Inputs, list[Path]]]:
    """Open all inputs and plan; yields the plan and the input directories. All problems are raised together."""
    method, _ = find(job.method)
    problems: list[MergeError] = []
    with ExitStack() as stack:

        def opened(who: str, source: str, base: Checkpoint | None = None) -> Checkpoint | None:
            try:
                checkpoint = open_checkpoint(source, base=base, allow_pickle=allow_pickle)
            except MergeError as error:
                problems.extend(named(who, source, error))
                return None
            stack.callback(checkpoint.close)
            return checkpoint

        base = opened("the base", job.base) if job.base is not None else None
        agents = {a.name: opened(f"agent `{a.name}`", a.source, base) for a in job.agents}
        raise_problems(problems)
        ready = prepare(job, base, {name: c for name, c in agents.items() if c is not None})
        made = lay_out(
            ready,
            method,
            _auxiliary(method.auxiliary, job, opened),
        )
        made = _without_paths(made, job)
        models = [c for c in (base, *agents.values()) if c is not None]
        inputs = [f.path.parent for c in models for f in c.files()] + [
            c.directory for c in models if c.directory
        ]
        yield made, ready, inputs


def named(who: str, source: str, error: MergeError) -> list[MergeError]:
    """What went wrong on opening a model, with whose model it is and where it comes from."""
    problems = error.problems if isinstance(error, ProblemsError) else (error,)
    called = f"{who}, `{redacted(source)}`"
    return [
        type(p)(f"{who if source in p.message else called}: {p.message}", hint=p.hint)
        for p in problems
    ]


def _without_paths(plan: Plan, job: Job) -> Plan:
    """The plan with sources in its sentences as output may show them: sentences go into the manifest."""
    sources = {s: public_source(s) for s in (job.base, *(a.source for a in job.agents)) if s}

    def public(sentence: str) -> str:
        for source, name in sources.items():
            sentence = sentence.replace(f"`{source}`", f"`{name}`")
        return sentence

    notices = tuple(replace(n, message=public(n.message)) for n in plan.notices)
    return replace(plan, notices=notices)


def _auxiliary(parameter: str | None, job: Job, opened: Any) -> dict[str, Checkpoint]:
    """Files of extra tensors, one per agent, for the method that wants them (Fisher)."""
    if parameter is None:
        return {}
    sources = {
        a.name: a.parameters.get(parameter, job.parameters.get(parameter)) for a in job.agents
    }
    found = {
        name: opened(f"the {parameter} of agent `{name}`", str(source))
        for name, source in sources.items()
        if source is not None
    }
    return {name: c for name, c in found.items() if c is not None}


def input_hashes(plan: Plan, finished: Mapping[str, Any]) -> InputHashes:
    """Hashers that follow the first full pass."""
    todo = [t for t in plan.tensors if t.name not in finished]
    streams = [plan.base, *plan.agents, *plan.auxiliary]
    visited = [[t.name for t in todo]]
    for t in range(len(plan.agents) + len(plan.auxiliary)):
        specs = [(x.name, (*x.agents, *x.auxiliary)) for x in todo]
        visited.append([name for name, s in specs if t < len(s) and s[t] is not None])
    return InputHashes(streams, visited)


def side_content(
    plan: Plan, inputs: Inputs, *, allow_remote_code: bool, tokenizer_from: str | None
) -> tuple[dict[str, bytes | Path], tuple[Notice, ...]]:
    """Side files by name, and what was left out: the base's, what the job replaces, config.json as the tensors are."""
    donor = None
    if tokenizer_from is not None:
        if tokenizer_from not in inputs.agents:
            close = nearest(tokenizer_from, inputs.agents)
            raise ConfigError(
                f"there is no agent `{tokenizer_from}` to take the tokenizer from",
                hint=f"did you mean `{close}`?" if close else None,
            )
        donor = inputs.agents[tokenizer_from].directory
    sides = side_files(
        inputs.base.directory, allow_remote_code=allow_remote_code, tokenizer_from=donor
    )
    files: dict[str, bytes | Path] = {f.name: f.path for f in sides.files} | dict(sides.rewritten)
    files = {n: f for n, f in (files | dict(inputs.files)).items() if n not in inputs.dropped}
    if "config.json" in files:
        content = files["config.json"]
        data = content if isinstance(content, bytes) else content.read_bytes()
        changes = dict(inputs.config)
        if plan.config_vocabulary is not None:
            changes["vocab_size"] = plan.config_vocabulary
        data = config_with(data, changes) if changes else data
        files["config.json"] = config_for_output(data, plan.job.out_dtype, tied=plan.config_tied)
    return files, tuple(sides.notices)


def manifest_facts(plan: Plan, outcome: Outcome, digests: Sequence[Any]) -> dict[str, Any]:
    """What the manifest says beside the output's own files (docs/output.md); no time, host or absolute path."""
    from ramerge._version import __version__

    roles = [
        ("base", "base", plan.job.base or ""),
        *(("agent", name, source) for name, source in plan.sources.items()),
    ]
    roles += [("auxiliary", name, "") for name in plan.sources][: len(plan.auxiliary)]
    streams = [plan.base, *plan.agents, *plan.auxiliary]
    inputs = [
        {
            "role": role,
            "name": name,
            "source": public_source(source or checkpoint.source),
            "revision": checkpoint.revision,
            "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in files],
        }
        for (role, name, source), checkpoint, files in zip(roles, streams, digests, strict=True)
    ]
    agents = summary.agents(plan, outcome)
    return {
        "ramerge": __version__,
        "method": plan.method.name,
        "parameters": plan.parameters,
        "preset": plan.job.preset,
        "inputs": inputs,
        "probe": summary.probe_json(plan, outcome),
        "lambda": {a.name: a.lam for a in agents},
        "lambda_effective": {a.name: a.lam_effective for a in agents},
        "passes": outcome.passes,
        "tensors": len(plan.tensors),
        "decisions": list(plan.decisions),
    }


def card_facts(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What the model card is made of."""
    return {
        "base": public_source(plan.job.base or plan.base.source),
        "agents": [
            {"source": public_source(plan.sources[a.name]), "summary": a}
            for a in summary.agents(plan, outcome)
        ],
        "method": plan.method,
        "parameters": plan.parameters,
        "config": to_yaml(plan.job, source=public_source),
    }
