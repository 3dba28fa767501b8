"""Open all inputs of a job and plan the merge; every problem of every input is raised together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramerge._errors import MergeError, ProblemsError, raise_problems
from ramerge.config.job import Job
from ramerge.fit.inputs import Inputs, prepare
from ramerge.methods.registry import find
from ramerge.models.base import Checkpoint
from ramerge.models.files import public_source, redacted
from ramerge.models.open import open_checkpoint
from ramerge.planning.plan import Plan
from ramerge.planning.plan import plan as lay_out


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
