"""Is this agent what its name says? Findings with severity, evidence and a way out, before anything is merged.

Thresholds: an agent of a base moves little of it far. On-policy RL changes weights by 0.1 to 2 % of their length
(arXiv 2601.13572, section 3); independent trainings of one architecture differ by more than their own length, and their
values are uncorrelated. Between the two lies a wide gap, in which `FAR` sits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ramerge._errors import MergeError, ProblemsError
from ramerge._types import Json, TensorSpec
from ramerge.checkpoint.base import Checkpoint
from ramerge.checkpoint.facts import is_vocabulary_tensor
from ramerge.checkpoint.tokenizer.tokens import token_ids
from ramerge.numeric import numbers
from ramerge.planning import Plan
from ramerge.probes.measure import MASKS, Measures, total
from ramerge.report.hints import HINTS, settled

FAR = 0.5  # relative norm of the task vector from which an agent is doubted,
UNLIKE = 0.7  # and cosine of its values with the base's below which it is
DENSE = 0.8  # density from which RAM comes close to averaging

Severity = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one model.

    Attributes:
        severity: ``ok``, ``note`` (worth knowing), ``warning`` (look at it before merging) or ``error``.
        model: an agent's name, or ``base``.
        code: stable and greppable.
        evidence: one sentence with the numbers.
        hint: what to do, or None.
    """

    severity: Severity
    model: str
    code: str
    evidence: str
    hint: str | None = None

    def to_json(self) -> Json:
        """All fields."""
        return asdict(self)


def from_error(model: str, error: MergeError) -> list[Finding]:
    """The problems of opening, planning or reading a model, as findings."""
    problems = error.problems if isinstance(error, ProblemsError) else (error,)
    codes = [type(p).__name__.removesuffix("Error").lower() for p in problems]
    return [
        Finding("error", model, code, p.message, p.hint or HINTS.get(code, HINTS["settled"]))
        for code, p in zip(codes, problems, strict=True)
    ]


def said(plan: Plan) -> list[Finding]:
    """What headers and side files say about the agent of a plan: the same that `merge` warns of."""
    agent = plan.agent_names[0]
    warnings = [(text, "warning") for text in plan.warnings]
    notes = [(text, "note") for text in plan.decisions]
    found = []
    for text, severity in (*warnings, *notes):
        code = plan.codes.get(text) or settled(text)
        found.append(Finding(severity, agent, code, text, HINTS.get(code, HINTS["settled"])))  # type: ignore[arg-type]
    return found


def examine(plan: Plan, records: Mapping[str, Measures]) -> list[Finding]:
    """What the numbers say about the only agent of a plan, after what its files said.

    Args:
        plan: base and one agent.
        records: of all merged tensors, by name.
    """
    agent = plan.agent_names[0]
    whole = total(1, list(records.values()))
    elements = whole.overlap.elements
    changed = int(whole.masks[0, MASKS.index("exact")])
    found = [*said(plan), *padding(plan)]
    if changed == 0:
        evidence = f"0 of {elements:,} elements differ from the base"
        return [*found, Finding("error", agent, "identical", evidence, HINTS["identical"])]
    # Norm weights are close to 1 in every model, so that only matrices tell where a model comes from.
    matrices = [records[t.name] for t in plan.merged if len(t.output.shape) > 1]
    origin = total(1, matrices) if matrices else whole
    base_norm, norm = math.sqrt(origin.gram[0, 0]), math.sqrt(origin.gram[1, 1])
    relative = norm / base_norm if base_norm else 0.0
    cosine = _cosine_of_values(origin)
    if relative > FAR and cosine < UNLIKE:
        evidence = (
            f"its values have a cosine of {cosine:.2g} with the base's, and differ by {relative:.2g} of their length:"
            " probably not derived from this base"
        )
        return [*found, Finding("error", agent, "another-base", evidence, HINTS["another-base"])]
    density = whole.overlap.changed(0) / max(elements, 1)
    if density > DENSE:
        evidence = f"{density:.1%} of all elements changed: with little left unique, RAM comes close to averaging"
        found.append(Finding("warning", agent, "dense", evidence, HINTS["dense"]))
    evidence = f"derived from the base (relative norm {relative:.2g}), density {density:.1%}"
    return [Finding("ok", agent, "derived", evidence), *found]


def padding(plan: Plan) -> list[Finding]:
    """Rows of the embeddings that no token has: how many, and how many of them training moved."""
    ids = token_ids(plan.base.directory)
    found = []
    for tensor in plan.merged:
        shape, theirs = tensor.base.shape, tensor.agents[0]
        tokens = max(ids.values(), default=-1) + 1 if ids else 0
        if (
            not ids
            or not is_vocabulary_tensor(tensor.name)
            or len(shape) != 2
            or shape[0] <= tokens
        ):
            continue
        rows = shape[0] - tokens
        moved = 0
        if theirs is not None:
            mine, other = (
                _rows(model, spec, tokens)
                for model, spec in ((plan.base, tensor.base), (plan.agents[0], theirs))
            )
            moved = int((mine != other).any(axis=1).sum())
        evidence = (
            f"`{tensor.name}` has {shape[0]:,} rows for {tokens:,} tokens: {rows:,} of padding, of which the agent"
            f" changed {moved:,}"
        )
        found.append(
            Finding("note", plan.agent_names[0], "padded-rows", evidence, HINTS["padded-rows"])
        )
    return found


def _rows(model: Checkpoint, spec: TensorSpec, first: int) -> NDArray[Any]:
    """The rows of a matrix from one on, as numbers."""
    rows, columns = spec.shape
    raw = np.empty((rows - first) * columns * spec.dtype.itemsize, np.uint8)
    model.read(spec.name, first * columns, rows * columns, raw)
    return numbers(raw, spec.dtype).reshape(rows - first, columns)


def _cosine_of_values(whole: Measures) -> float:
    """Cosine between the agent's values and the base's, from the products of base and task vector."""
    base, mixed, moved = whole.gram[0, 0], whole.gram[0, 1], whole.gram[1, 1]
    agent = base + 2 * mixed + moved
    norms = math.sqrt(base) * math.sqrt(max(agent, 0.0))
    return float(base + mixed) / norms if norms else 1.0
