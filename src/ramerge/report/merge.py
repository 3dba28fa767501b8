"""What a merge did, in the terms of SPEC 1: the table at the end, the manifest's numbers, the model card's table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ramerge._types import Json
from ramerge.fit.pairs import main_dtype
from ramerge.models.base import OutputFile
from ramerge.planning.plan import Plan
from ramerge.probes.overlap import Overlap
from ramerge.run.records import Outcome


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """One agent in a merge.

    Attributes:
        name: config name.
        dtype: dtype most of it is stored in.
        changed: elements it changed.
        density: changed / all.
        unique: elements that it alone changed.
        shared: elements that others changed too.
        rho: shared / unique; None without unique elements.
        lam: λ on its unique elements; with several scopes their mean, weighted by unique elements; None where the
            method has no λ.
        lam_range: smallest and largest λ over the scopes.
        lam_effective: ⟨merged - base, τ⟩ / ⟨τ, τ⟩ over unique elements after rounding, from a fixed sample of blocks;
            None without unique elements in it.
        lost_to_rounding: share of its changed elements that the merge moved, and rounding moved back; None without any.
    """

    name: str
    dtype: str
    changed: int
    density: float
    unique: int
    shared: int
    rho: float | None
    lam: float | None
    lam_range: tuple[float, float] | None
    lam_effective: float | None
    lost_to_rounding: float | None


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The result of `ramerge.merge`.

    Attributes:
        lost_to_rounding: share of changed elements that the merge moved, and rounding moved back onto the base.
        passes: reads of the inputs, probe passes included.
        bytes_read: input bytes read by them.
        bytes_written: size of the weights.
        resumed: tensors that an interrupted run had finished.
        seconds: wall time, the final verification included.
        output: the directory; None for a merge in memory.
        decisions: what was copied, dropped or left out, in words.
    """

    method: str
    preset: str | None
    parameters: Json
    elements: int
    unchanged: int
    agents: tuple[AgentSummary, ...]
    lost_to_rounding: float | None
    passes: int
    bytes_read: int
    bytes_written: int
    resumed: int
    seconds: float
    output: Path | None
    files: tuple[OutputFile, ...]
    tensors: int
    decisions: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> Json:
        """One JSON object; ``output`` as text."""
        return asdict(self) | {"output": None if self.output is None else str(self.output)}


def total_overlap(plan: Plan, outcome: Outcome) -> Overlap:
    """Exact contributor patterns over all merged tensors."""
    return Overlap.total(len(plan.agents), (outcome.records[t.name].overlap for t in plan.merged))


def agents(plan: Plan, outcome: Outcome) -> tuple[AgentSummary, ...]:
    """The summary of every agent, in config order."""
    overlap = total_overlap(plan, outcome)
    return tuple(_agent(plan, outcome, overlap, t) for t in range(len(plan.agents)))


def _agent(plan: Plan, outcome: Outcome, overlap: Overlap, t: int) -> AgentSummary:
    records = [outcome.records[x.name] for x in plan.merged]
    moved = math.fsum(r.moved[t] for r in records)
    squared = math.fsum(r.squared[t] for r in records)
    rho = overlap.rho(t)
    lams = _lambdas(plan, outcome, t)
    return AgentSummary(
        name=plan.agent_names[t],
        dtype=main_dtype(plan.agents[t]).name,
        changed=overlap.changed(t),
        density=overlap.changed(t) / max(overlap.elements, 1),
        unique=overlap.unique(t),
        shared=overlap.shared(t),
        rho=None if math.isinf(rho) else rho,
        lam=_mean(lams),
        lam_range=(min(x for x, _ in lams), max(x for x, _ in lams)) if lams else None,
        lam_effective=moved / squared if squared else None,
        lost_to_rounding=_lost(outcome, plan, overlap, t),
    )


def _lambdas(plan: Plan, outcome: Outcome, t: int) -> list[tuple[float, int]]:
    """λ of agent t in every scope, with its unique elements there."""
    unique: dict[str, int] = {}
    for tensor in plan.merged:
        unique[tensor.group] = unique.get(tensor.group, 0) + outcome.records[
            tensor.name
        ].overlap.unique(t)
    return [(lams[t], unique[group]) for group, lams in outcome.lambdas.items() if lams]


def _mean(lams: Sequence[tuple[float, int]]) -> float | None:
    if len({x for x, _ in lams}) == 1:
        return lams[0][0]
    weight = sum(n for _, n in lams)
    return math.fsum(x * n for x, n in lams) / weight if weight else None


def _lost(outcome: Outcome, plan: Plan, overlap: Overlap, agent: int | None = None) -> float | None:
    """Share of the changed elements, of any agent or one, that rounding made the base's again."""
    row = 0 if agent is None else 1 + agent
    changed = overlap.elements - overlap.unchanged if agent is None else overlap.changed(agent)
    lost = sum(outcome.records[t.name].lost[row] for t in plan.merged)
    return lost / changed if changed else None


def settled(plan: Plan, summaries: Sequence[AgentSummary]) -> tuple[str, ...]:
    """What the counts settled: λ that clipping has made the same for all agents."""
    lams = [a.lam for a in summaries]
    equal = len(lams) > 1 and len(set(lams)) == 1 and lams[0] not in {None, 1.0}
    if not equal or plan.values.get("scope") != "model":
        return ()
    return (f"every ρ reaches alpha, so all agents have the same λ = {lams[0]:.4g}",)


def notes(plan: Plan, outcome: Outcome, summaries: Sequence[AgentSummary]) -> tuple[str, ...]:
    """What the numbers say that a reader should not have to find out alone."""
    found = []
    for a in summaries:
        if a.lam and a.lam_effective and (a.lam_effective - 1) < 0.5 * (a.lam - 1):
            found.append(
                f"rounding takes most of λ from agent `{a.name}`: {a.lam:.3f} is {a.lam_effective:.3f} as stored;"
                " `out_dtype: float32` (--out-dtype float32) keeps it"
            )
        if a.changed == 0 and not plan.job.slices:  # a stack of layers has no base to differ from
            found.append(
                f"agent `{a.name}` does not differ from the base anywhere (mask `{plan.values.get('mask', 'exact')}`)"
            )
        elif a.density > 0.8 and plan.method.masked:
            found.append(
                f"agent `{a.name}` changed {a.density:.0%} of all elements: with little left unique, RAM comes close to"
                " plain averaging; is it from this base, or stored in another dtype?"
            )
    lost = _lost(outcome, plan, total_overlap(plan, outcome))
    if lost is not None and lost > 0.001:
        dtypes = sorted({t.output.dtype.name for t in plan.merged})
        keep = "" if dtypes == ["F32"] else "; `out_dtype: float32` keeps them"
        found.append(
            f"{lost:.2%} of changed elements were lost to rounding to {'/'.join(dtypes)}{keep}"
        )
    return tuple(found)


def report(
    plan: Plan,
    outcome: Outcome,
    *,
    seconds: float,
    output: Path | None,
    files: Sequence[OutputFile],
    resumed: int = 0,
) -> MergeReport:
    """Put everything together."""
    summaries = agents(plan, outcome)
    overlap = total_overlap(plan, outcome)
    return MergeReport(
        method=plan.method.name,
        preset=plan.job.preset,
        parameters=plan.parameters,
        elements=overlap.elements,
        unchanged=overlap.unchanged,
        agents=summaries,
        lost_to_rounding=_lost(outcome, plan, overlap),
        passes=outcome.passes,
        bytes_read=outcome.bytes_read,
        bytes_written=plan.bytes_written,
        resumed=resumed,
        seconds=seconds,
        output=output,
        files=tuple(files),
        tensors=len(plan.tensors),
        decisions=(*plan.decisions, *settled(plan, summaries)),
        warnings=(*plan.warnings, *notes(plan, outcome, summaries)),
    )


def probe_json(plan: Plan, outcome: Outcome) -> Json:
    """The counts of a merge in the layout of the probe JSON, as the manifest stores them."""
    overlap = total_overlap(plan, outcome)
    names = plan.agent_names
    pairs = [
        {"a": names[a], "b": names[b], "both": overlap.both(a, b)}
        for a in range(len(names))
        for b in range(a + 1, len(names))
    ]
    rows = [
        {
            "name": a.name,
            "dtype": a.dtype,
            "changed": a.changed,
            "density": a.density,
            "unique": a.unique,
            "shared": a.shared,
            "rho": a.rho,
            "lambda": a.lam,
            "overlap_with": overlap.overlap_with(t),
        }
        for t, a in enumerate(agents(plan, outcome))
    ]
    kind = plan.values.get("mask", "exact")
    return {
        "version": 1,
        "mask": {"kind": kind, "epsilon": plan.epsilon},
        "elements": overlap.elements,
        "unchanged": overlap.unchanged,
        "agents": rows,
        "pairs": pairs,
    }
