"""What programs call, and what every command calls: merge, plan, verify, and merges of state dicts in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ramerge._errors import ConfigError, MergeError, raise_problems
from ramerge.config import assemble
from ramerge.config.canonical import to_yaml
from ramerge.config.job import Job
from ramerge.config.vocabulary import Extra, Vocabulary
from ramerge.methods.registry import find
from ramerge.models.base import OutputFile
from ramerge.models.files import public_source
from ramerge.models.memory import MemoryCheckpoint, MemorySink
from ramerge.models.open import open_checkpoint
from ramerge.output.base_card import kept_metadata
from ramerge.output.card import model_card
from ramerge.output.manifest import manifest_bytes
from ramerge.output.staging import Staging
from ramerge.output.target import check_output, preflight
from ramerge.output.verify import VerifyReport, verify
from ramerge.planning.beside import side_content
from ramerge.planning.opened import named, planned
from ramerge.planning.plan import Plan, build
from ramerge.report import merge as summary
from ramerge.report import record
from ramerge.report.dilution import dilute
from ramerge.report.health import Finding, examine, from_error
from ramerge.report.merge import MergeReport
from ramerge.report.probe import ProbeReport
from ramerge.report.probe import build as build_report
from ramerge.run import engine, sizes
from ramerge.run import threads as executor
from ramerge.run.chunks import Progress
from ramerge.run.digests import input_hashes
from ramerge.run.records import Outcome

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


def merge(
    config: str | Path | Mapping[str, Any] | Job | None = None,
    *,
    out: str | Path,
    base: str | Path | None = None,
    agents: Sequence[str | Path] | Mapping[str, str | Path] | None = None,
    method: str | None = None,
    parameters: Mapping[str, Any] | Sequence[str] | None = None,
    preset: str | None = None,
    out_dtype: str | None = None,
    shard_size: str | int | None = None,
    nonfinite: str | None = None,
    exclude: Sequence[str] = (),
    extra: Extra | None = None,
    vocabulary: Vocabulary | None = None,
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
        parameters: of the method; ``"agent.parameter"`` sets one agent's. A mapping, or ``KEY=VALUE`` texts, and
        preset: a named set of parameters.
        out: directory to write; absent or empty.
        out_dtype: store every tensor so; default: each as in the base.
        shard_size: bytes per weights file, or a text like ``5GB``.
        nonfinite: ``error`` (default), ``keep_base`` or ``propagate``.
        exclude: parts of names, or globs, of tensors to copy from the base.
        extra: what becomes of tensors that not all models have: ``error`` (default); ``drop`` leaves out what only agents
            have; ``base`` also takes the base's where an agent lacks one; ``keep`` adds what only agents have.
        vocabulary: what becomes of embeddings of unequal length: ``error`` (default), ``base`` (the base's rows), ``min`` (rows
            that all have) or ``union`` (all rows).
        threads: default: the cores this process may use, at most 8.
        memory: limit of the chunk buffers together; default 1 GB, of which little is used.
        overwrite: replace ``out`` as a whole, once the new model is complete.
        resume: go on with an interrupted run of the same merge.
        allow_pickle: read pickled weights too.
        allow_remote_code: copy ``*.py`` and keep ``auto_map``.
        tokenizer_from: name of the agent whose tokenizer files are copied instead of the base's.
        progress: called with a `chunks.Step` now and then.

    Raises:
        MergeError: its subclass and `exit_code` say what went wrong; nothing is left at ``out`` then.
    """
    began = time.monotonic()
    job = assemble.job(
        config, base=base, agents=agents, method=method, parameters=parameters, preset=preset,
        out_dtype=out_dtype, shard_size=shard_size, nonfinite=nonfinite, exclude=exclude,
        extra=extra, vocabulary=vocabulary,
    )  # fmt: skip
    count = sizes.thread_count(threads)
    with planned(job, allow_pickle=allow_pickle) as made:
        plan, ready, inputs = made
        chunk = sizes.chunk_size(plan, count, memory)
        target = Path(out)
        files, left_out = side_content(
            plan, ready, allow_remote_code=allow_remote_code, tokenizer_from=tokenizer_from
        )
        plan = replace(plan, notices=(*plan.notices, *left_out))
        beside = sum(len(f) if isinstance(f, bytes) else f.stat().st_size for f in files.values())
        with Staging.open(
            target, plan.layout, plan.fingerprint(),
            overwrite=overwrite, resume=resume, inputs=inputs, side_bytes=beside,
        ) as staging:  # fmt: skip
            resumed = len(staging.finished)
            outcome, digests = _fill(plan, staging, count, chunk, progress)
            files["ramerge_config.yml"] = to_yaml(job, source=public_source).encode()
            files["README.md"] = model_card(_card_facts(plan, outcome)).encode()
            written = staging.commit(files, lambda output, tensors: manifest_bytes(
                record.manifest_facts(plan, outcome, digests), output, tensors
            ))  # fmt: skip
    return summary.report(
        plan,
        outcome,
        seconds=time.monotonic() - began,
        output=target,
        files=written,
        resumed=resumed,
    )


def _fill(
    plan: Plan, staging: Staging, threads: int, chunk: int, progress: Progress | None
) -> tuple[Outcome, list[tuple[OutputFile, ...]]]:
    """Merge into a staging directory, and hash the inputs while they are read."""
    hashes = input_hashes(plan, staging.finished)
    count = (
        1 if plan.method.rule is None else threads
    )  # whole tensors: one at a time is memory enough
    run = partial(executor.run, threads=count, on_error=hashes.abort)
    outcome = engine.merge(plan, staging, run=run, chunk=chunk, observe=hashes, progress=progress)
    return outcome, hashes.finish()


def _card_facts(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What the model card is made of, the base's own card and architecture included."""
    architectures = (plan.base.config or {}).get("architectures") or ()
    kept = {"kept": kept_metadata(plan.base.directory), "architectures": architectures}
    return {**record.card_facts(plan, outcome), **kept}


def plan(
    config: str | Path | Mapping[str, Any] | Job | None = None,
    *,
    out: str | Path | None = None,
    base: str | Path | None = None,
    agents: Sequence[str | Path] | Mapping[str, str | Path] | None = None,
    method: str | None = None,
    parameters: Mapping[str, Any] | Sequence[str] | None = None,
    preset: str | None = None,
    out_dtype: str | None = None,
    shard_size: str | int | None = None,
    nonfinite: str | None = None,
    exclude: Sequence[str] = (),
    extra: Extra | None = None,
    vocabulary: Vocabulary | None = None,
    memory: str | int | None = None,
    allow_pickle: bool = False,
    overwrite: bool = False,
) -> Plan:
    """Check a merge from headers and side files alone; arguments as for `merge`.

    Raises:
        MergeError: the problem, or a `ProblemsError` with all of them.
    """
    job = assemble.job(
        config, base=base, agents=agents, method=method, parameters=parameters, preset=preset,
        out_dtype=out_dtype, shard_size=shard_size, nonfinite=nonfinite, exclude=exclude,
        extra=extra, vocabulary=vocabulary,
    )  # fmt: skip
    with planned(job, allow_pickle=allow_pickle) as (made, _, inputs):
        sizes.chunk_size(made, sizes.default_threads(), memory)
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
    extra: Extra | None = None,
    vocabulary: Vocabulary | None = None,
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
        against: methods of which to measure how much of each agent survives (``data["dilution"]``).
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
    for name in against:
        find(name)  # an unknown one is said before the pass, not after it
    if config is not None:
        given = assemble.job(config)
        base, agents = given.base, {a.name: a.source for a in given.agents}
    job = assemble.job(
        None, base=base, agents=agents, method="ram_plus", out_dtype=out_dtype,
        parameters={"mask": mask, "epsilon": epsilon, "r": r, "alpha": alpha},
        extra=extra, vocabulary=vocabulary,
    )  # fmt: skip
    with planned(job, allow_pickle=allow_pickle) as (made, _, _):
        count = sizes.thread_count(threads)
        records = engine.measure(
            made,
            run=partial(executor.run, threads=count),
            bound=epsilon,
            chunk=sizes.chunk_size(made, count, memory),
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
    job = assemble.job(None, base=base, agents=agents, method="ram_plus", nonfinite="error")
    if job.base is None:
        raise ConfigError("doctor needs a base to compare with", hint="give it as --base")
    try:
        open_checkpoint(job.base, allow_pickle=allow_pickle).close()
    except MergeError as error:
        raise_problems(named("the base", job.base, error))
    findings = [
        Finding("error", "base", "identical", note, "leave it out")
        for note in job.notes
        if note == assemble.SELF
    ]
    count = sizes.thread_count(threads)
    for agent in job.agents:
        alone = replace(job, agents=(agent,), notes=())
        try:
            with planned(alone, allow_pickle=allow_pickle) as (made, _, _):
                records = engine.measure(
                    made,
                    run=partial(executor.run, threads=count),
                    bound=made.epsilon,
                    chunk=sizes.chunk_size(made, count, memory),
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
    parameters: Mapping[str, Any] | Sequence[str] | None = None,
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
    job = assemble.job(
        None,
        base="base",
        agents={n: n for n in named},
        method=method,
        parameters=parameters,
        preset=preset,
    )
    if find(job.method)[0].auxiliary is not None:
        raise ConfigError(
            f"`{job.method}` reads files beside the agents",
            hint="merge model directories with `merge`",
        )
    models = {name: MemoryCheckpoint(tensors, name) for name, tensors in named.items()}
    made = build(job, find(job.method)[0], MemoryCheckpoint(base, "base"), models)
    sink = MemorySink(made.layout.specs())
    run = partial(
        executor.run,
        threads=1 if made.method.rule is None else sizes.thread_count(threads),
    )
    engine.merge(made, sink, run=run)
    return sink.arrays(base)
