"""What programs call, and what every command calls: merge, plan, verify, and merges of state dicts in memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ramerge import engine, summary
from ramerge._errors import ConfigError, MergeError, ProblemsError, nearest, raise_problems
from ramerge.checkpoint.base import Checkpoint
from ramerge.checkpoint.card import model_card
from ramerge.checkpoint.files import public_source
from ramerge.checkpoint.harmonise import Extra, Vocabulary
from ramerge.checkpoint.hashing import InputHashes
from ramerge.checkpoint.manifest import manifest_bytes
from ramerge.checkpoint.memory import MemoryCheckpoint, MemorySink
from ramerge.checkpoint.open import open_checkpoint
from ramerge.checkpoint.sidefiles import config_for_output, config_with, side_files
from ramerge.checkpoint.staging import Staging
from ramerge.checkpoint.target import check_output, preflight
from ramerge.checkpoint.verify import VerifyReport, verify
from ramerge.config import flags, mergekit
from ramerge.config.canonical import to_yaml
from ramerge.config.inputs import Inputs, prepare
from ramerge.config.job import Job
from ramerge.engine import Progress
from ramerge.executors import threads as executor
from ramerge.kernels.limits import BLOCK
from ramerge.methods.registry import METHODS, find
from ramerge.planning import CHUNK, Plan, build
from ramerge.planning import plan as lay_out
from ramerge.report.dilution import dilute
from ramerge.report.health import Finding, examine, from_error
from ramerge.report.probe import ProbeReport
from ramerge.report.probe import build as build_report
from ramerge.summary import MergeReport

__all__ = [
    "MergeReport",
    "Plan",
    "ProbeReport",
    "VerifyReport",
    "doctor",
    "merge",
    "merge_state_dicts",
    "plan",
    "probe",
    "verify",
]

MOST_THREADS = 8
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def merge(
    config: str | Path | Mapping[str, Any] | Job | None = None,
    *,
    out: str | Path,
    base: str | Path | None = None,
    agents: Sequence[str | Path] | Mapping[str, str | Path] | None = None,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    preset: str | None = None,
    out_dtype: str | None = None,
    shard_size: str | int | None = None,
    nonfinite: str | None = None,
    exclude: Sequence[str] = (),
    extra: Extra = "error",
    vocabulary: Vocabulary = "error",
    threads: int | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
    tokenizer_from: str | None = None,
    progress: Progress | None = None,
) -> MergeReport:
    """Merge agents into one model directory, whole or not at all.

    Args:
        config: a merge file (mergekit's YAML), the same as a mapping, or a `Job`; or leave it out and give
        base: the agents' common origin: a directory, a ``.safetensors`` file or a Hub id,
        agents: ``[name=]source`` each, or name -> source, in the order of the arithmetic,
        method: name of a merge method,
        parameters: of the method; ``"agent.parameter"`` sets one agent's, and
        preset: a named set of parameters.
        out: directory to write; absent or empty.
        out_dtype: store every tensor so; default: each as in the base.
        shard_size: bytes per weights file, or a text like ``5GB``.
        nonfinite: ``error`` (default), ``keep_base`` or ``propagate``.
        exclude: parts of names, or globs, of tensors to copy from the base.
        extra: what becomes of tensors that not all models have: ``error``; ``drop`` leaves out what only agents
            have; ``base`` also takes the base's where an agent lacks one; ``keep`` adds what only agents have.
        vocabulary: what becomes of embeddings of unequal length: ``error``, ``base`` (the base's rows), ``min`` (rows
            that all have) or ``union`` (all rows).
        threads: default: the cores this process may use, at most 8.
        memory: limit of the chunk buffers together; default 1 GB, of which little is used.
        overwrite: replace ``out`` as a whole, once the new model is complete.
        resume: go on with an interrupted run of the same merge.
        allow_pickle: read pickled weights too.
        allow_remote_code: copy ``*.py`` and keep ``auto_map``.
        tokenizer_from: name of the agent whose tokenizer files are copied instead of the base's.
        progress: called with an `engine.Step` now and then.

    Raises:
        MergeError: its subclass and `exit_code` say what went wrong; nothing is left at ``out`` then.
    """
    began = time.monotonic()
    job = _job(
        config, base=base, agents=agents, method=method, parameters=parameters, preset=preset,
        out_dtype=out_dtype, shard_size=shard_size, nonfinite=nonfinite, exclude=exclude,
    )  # fmt: skip
    count = threads or default_threads()
    with _planned(job, extra=extra, vocabulary=vocabulary, allow_pickle=allow_pickle) as made:
        plan, ready, inputs = made
        chunk = chunk_size(plan, count, memory)
        target = Path(out)
        files, left_out = _side_content(
            plan, ready, allow_remote_code=allow_remote_code, tokenizer_from=tokenizer_from
        )
        plan = replace(plan, decisions=(*plan.decisions, *left_out))
        with Staging.open(
            target,
            plan.layout,
            plan.fingerprint(),
            overwrite=overwrite,
            resume=resume,
            inputs=inputs,
            side_bytes=sum(
                len(f) if isinstance(f, bytes) else f.stat().st_size for f in files.values()
            ),
        ) as staging:
            hashes = _input_hashes(plan, staging.finished)
            run = partial(
                executor.run,
                threads=1 if plan.method.rule is None else count,
                on_error=hashes.abort,
            )
            outcome = engine.merge(
                plan, staging, run=run, chunk=chunk, observe=hashes, progress=progress
            )
            digests = hashes.finish()
            files["ramerge_config.yml"] = to_yaml(job, source=public_source).encode()
            files["README.md"] = model_card(_card_facts(plan, outcome)).encode()
            written = staging.commit(files, lambda output, tensors: manifest_bytes(
                _manifest_facts(plan, outcome, digests), output, tensors
            ))  # fmt: skip
    return summary.report(
        plan, outcome, seconds=time.monotonic() - began, output=target, files=written
    )


def plan(
    config: str | Path | Mapping[str, Any] | Job | None = None,
    *,
    out: str | Path | None = None,
    base: str | Path | None = None,
    agents: Sequence[str | Path] | Mapping[str, str | Path] | None = None,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    preset: str | None = None,
    out_dtype: str | None = None,
    shard_size: str | int | None = None,
    nonfinite: str | None = None,
    exclude: Sequence[str] = (),
    extra: Extra = "error",
    vocabulary: Vocabulary = "error",
    memory: str | int | None = None,
    allow_pickle: bool = False,
    overwrite: bool = False,
) -> Plan:
    """Check a merge from headers and side files alone; arguments as for `merge`.

    Raises:
        MergeError: the problem, or a `ProblemsError` with all of them.
    """
    job = _job(
        config, base=base, agents=agents, method=method, parameters=parameters, preset=preset,
        out_dtype=out_dtype, shard_size=shard_size, nonfinite=nonfinite, exclude=exclude,
    )  # fmt: skip
    with _planned(job, extra=extra, vocabulary=vocabulary, allow_pickle=allow_pickle) as (
        made,
        _,
        inputs,
    ):
        chunk_size(made, default_threads(), memory)
        if out is not None:
            check_output(Path(out), inputs, overwrite=overwrite)
            preflight(Path(out), made.bytes_written)
        return made


def probe(
    base: str | Path | None = None,
    agents: Sequence[str | Path] | Mapping[str, str | Path] | None = None,
    *,
    config: str | Path | Mapping[str, Any] | Job | None = None,
    mask: str = "abs",
    epsilon: float = 1e-5,
    r: float = 0.1,
    alpha: float = 1.0,
    against: Sequence[str] = (),
    out_dtype: str | None = None,
    extra: Extra = "error",
    vocabulary: Vocabulary = "error",
    threads: int | None = None,
    memory: str | int | None = None,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> ProbeReport:
    """Measure in one pass what training did to the weights of each agent, and how the agents overlap.

    Args:
        base: the agents' common origin.
        agents: ``[name=]source`` each, or name -> source.
        config: a merge file instead of ``base`` and ``agents``; only its models count.
        mask: when an element counts as changed: ``abs``, ``exact`` or ``grid``.
        epsilon: of the ``abs`` mask.
        r: for the preview of λ.
        alpha: for the preview of λ.
        against: methods of which to measure how much of each agent survives (`report.dilution`).
        out_dtype: dtype that a merge would be stored in; default: the base's.
        extra: as in `merge`.
        vocabulary: as in `merge`.
        threads: as in `merge`.
        memory: as in `merge`.
        allow_pickle: as in `merge`.
        progress: as in `merge`.

    Raises:
        MergeError: as `merge`; values that are not finite are counted by `doctor` and are an error here.
    """
    if config is not None:
        given = _job(config)
        base, agents = given.base, {a.name: a.source for a in given.agents}
    job = _job(
        None, base=base, agents=agents, method="ram_plus", out_dtype=out_dtype,
        parameters={"mask": mask, "epsilon": epsilon, "r": r, "alpha": alpha},
    )  # fmt: skip
    with _planned(job, extra=extra, vocabulary=vocabulary, allow_pickle=allow_pickle) as (
        made,
        _,
        _,
    ):
        count = threads or default_threads()
        records = engine.measure(
            made,
            run=partial(executor.run, threads=count),
            bound=epsilon,
            chunk=chunk_size(made, count, memory),
            progress=progress,
        )
        report = build_report(made, records, r=r, alpha=alpha)
        if against:
            run = partial(executor.run, threads=count)
            rows = [
                dilute(_with_method(made, name), run=run, progress=progress) for name in against
            ]
            report.data["dilution"] = rows
        return report


def _with_method(plan: Plan, name: str) -> Plan:
    """The same models under another method at its defaults."""
    method, preset = find(name)
    agents = dict(zip(plan.agent_names, plan.agents, strict=True))
    job = replace(plan.job, method=method.name, preset=preset, parameters={}, agents=tuple(
        replace(a, parameters={}) for a in plan.job.agents
    ))  # fmt: skip
    return build(job, method, plan.base, agents)


def doctor(
    base: str | Path | None = None,
    agents: Sequence[str | Path] | Mapping[str, str | Path] | None = None,
    *,
    threads: int | None = None,
    memory: str | int | None = None,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> tuple[Finding, ...]:
    """Is every agent what it claims to be? One agent after the other, so that one bad one does not hide the rest.

    Args:
        base: the agents' common origin.
        agents: ``[name=]source`` each, or name -> source.
        threads: as in `merge`.
        memory: as in `merge`.
        allow_pickle: as in `merge`.
        progress: as in `merge`.

    Raises:
        MergeError: the base itself cannot be read, or the arguments are wrong.
    """
    job = _job(None, base=base, agents=agents, method="ram_plus", nonfinite="error")
    if job.base is None:
        raise ConfigError("doctor needs a base to compare with", hint="give it as --base")
    open_checkpoint(job.base, allow_pickle=allow_pickle).close()
    findings: list[Finding] = []
    count = threads or default_threads()
    for agent in job.agents:
        alone = replace(job, agents=(agent,))
        try:
            with _planned(alone, extra="error", vocabulary="error", allow_pickle=allow_pickle) as (
                made,
                _,
                _,
            ):
                records = engine.measure(
                    made,
                    run=partial(executor.run, threads=count),
                    bound=made.epsilon,
                    chunk=chunk_size(made, count, memory),
                    progress=progress,
                )
                findings += examine(made, records)
        except MergeError as error:
            findings += from_error(agent.name, error)
    return tuple(findings)


def merge_state_dicts(
    base: Mapping[str, Any],
    agents: Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]],
    *,
    method: str = "ram_plus",
    parameters: Mapping[str, Any] | None = None,
    preset: str | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Merge dictionaries of arrays, with the same arithmetic as files.

    Args:
        base: name -> numpy array (BF16 through ml_dtypes) or torch tensor on the CPU; contiguous ones are not copied.
        agents: the same for each agent, in order; or name -> such a dictionary.
        method: name of a merge method.
        parameters: of the method; ``"agent.parameter"`` sets one agent's (default names ``agent1``, ``agent2`` …).
        preset: a named set of parameters.
        threads: default: the cores this process may use, at most 8.

    Returns:
        Tensors named, ordered, typed and shaped like the base's.

    Raises:
        MergeError: as `merge`.
    """
    named = (
        dict(agents)
        if isinstance(agents, Mapping)
        else {f"agent{i + 1}": a for i, a in enumerate(agents)}
    )
    job = _job(
        None,
        base="base",
        agents={n: n for n in named},
        method=method,
        parameters=parameters,
        preset=preset,
    )
    models = {name: MemoryCheckpoint(tensors, name) for name, tensors in named.items()}
    made = build(job, find(job.method)[0], MemoryCheckpoint(base, "base"), models)
    sink = MemorySink(made.layout.specs())
    run = partial(
        executor.run, threads=1 if made.method.rule is None else threads or default_threads()
    )
    engine.merge(made, sink, run=run)
    return sink.arrays(base)


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
)


def _job(config: str | Path | Mapping[str, Any] | Job | None, **flags_given: Any) -> Job:
    """One `Job` from a file, a mapping, or flags; flags beside a file override what stands at its top."""
    given: dict[str, Any] = dict.fromkeys(_FLAGS) | {"exclude": ()} | flags_given
    methods = {name: m.info for name, m in METHODS.items()}
    if isinstance(config, Job):
        return config
    if config is None:
        if given["base"] is None and given["agents"] is None:
            raise ConfigError("neither a configuration file nor --base and --agent is given")
        sources = given.pop("agents") or []
        named = (
            {n: str(a) for n, a in sources.items()}
            if isinstance(sources, Mapping)
            else [str(a) for a in sources]
        )
        base = given.pop("base")
        return flags.job_from_flags(
            methods=methods,
            base=None if base is None else str(base),
            agents=named,
            **{**given, "method": given["method"] or "ram_plus"},
        )
    clash = [k for k in ("base", "agents", "method", "parameters", "preset") if given.get(k)]
    if clash:
        raise ConfigError(
            f"`{clash[0]}` is given beside a configuration file",
            hint="put it into the file, or leave the file out",
        )
    top = {k: given[k] for k in ("out_dtype", "shard_size", "nonfinite", "exclude")}
    if isinstance(config, Mapping):
        return mergekit.from_mapping(config, methods, overrides=top)
    return mergekit.load(config, methods, overrides=top)


@contextmanager
def _planned(
    job: Job, *, extra: Extra, vocabulary: Vocabulary, allow_pickle: bool
) -> Iterator[tuple[Plan, Inputs, list[Path]]]:
    """Open all inputs and plan; yields the plan and the input directories. All problems are raised together."""
    method, _ = find(job.method)
    problems: list[MergeError] = []
    with ExitStack() as stack:

        def opened(source: str, base: Checkpoint | None = None) -> Checkpoint | None:
            try:
                checkpoint = open_checkpoint(source, base=base, allow_pickle=allow_pickle)
            except ProblemsError as error:
                problems.extend(error.problems)
                return None
            except MergeError as error:
                problems.append(error)
                return None
            stack.callback(checkpoint.close)
            return checkpoint

        base = opened(job.base) if job.base is not None else None
        agents = {a.name: opened(a.source, base) for a in job.agents}
        raise_problems(problems)
        ready = prepare(job, base, {name: c for name, c in agents.items() if c is not None})
        made = lay_out(
            ready,
            method,
            _auxiliary(method.auxiliary, job, opened),
            extra=extra,
            vocabulary=vocabulary,
        )
        made = _without_paths(made, job)
        models = [c for c in (base, *agents.values()) if c is not None]
        inputs = [f.path.parent for c in models for f in c.files()] + [
            c.directory for c in models if c.directory
        ]
        yield made, ready, inputs


def _without_paths(plan: Plan, job: Job) -> Plan:
    """The plan with sources in its sentences as output may show them: sentences go into the manifest."""
    sources = {s: public_source(s) for s in (job.base, *(a.source for a in job.agents)) if s}

    def public(sentence: str) -> str:
        for source, name in sources.items():
            sentence = sentence.replace(f"`{source}`", f"`{name}`")
        return sentence

    return replace(
        plan,
        decisions=tuple(map(public, plan.decisions)),
        warnings=tuple(map(public, plan.warnings)),
    )


def _auxiliary(parameter: str | None, job: Job, opened: Any) -> dict[str, Checkpoint]:
    """Files of extra tensors, one per agent, for the method that wants them (Fisher)."""
    if parameter is None:
        return {}
    sources = {
        a.name: a.parameters.get(parameter, job.parameters.get(parameter)) for a in job.agents
    }
    found = {name: opened(str(source)) for name, source in sources.items() if source is not None}
    return {name: c for name, c in found.items() if c is not None}


def _input_hashes(plan: Plan, finished: Mapping[str, Any]) -> InputHashes:
    """Hashers that follow the first full pass."""
    todo = [t for t in plan.tensors if t.name not in finished]
    streams = [plan.base, *plan.agents, *plan.auxiliary]
    visited = [[t.name for t in todo]]
    for t in range(len(plan.agents) + len(plan.auxiliary)):
        specs = [(x.name, (*x.agents, *x.auxiliary)) for x in todo]
        visited.append([name for name, s in specs if t < len(s) and s[t] is not None])
    return InputHashes(streams, visited)


def _side_content(
    plan: Plan, inputs: Inputs, *, allow_remote_code: bool, tokenizer_from: str | None
) -> tuple[dict[str, bytes | Path], list[str]]:
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
    return files, [notice.message for notice in sides.notices]


def _manifest_facts(plan: Plan, outcome: engine.Outcome, digests: Sequence[Any]) -> dict[str, Any]:
    """What the manifest says beside the output's own files (DESIGN); no time, host or absolute path."""
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


def _card_facts(plan: Plan, outcome: engine.Outcome) -> dict[str, Any]:
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
