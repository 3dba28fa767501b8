"""Is this agent what its name says? Findings with severity, evidence and a way out, before anything is merged.

Thresholds: an agent of a base moves little of it far. On-policy RL changes weights by 0.1 to 2 % of their length
(arXiv 2601.13572, section 3); independent trainings of one architecture differ by more than their own length, and their
values are uncorrelated. Between the two lies a wide gap, in which `FAR` sits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from ramerge._errors import MergeError, ProblemsError
from ramerge._types import Json
from ramerge.fit.tokenizer.tokens import token_ids
from ramerge.models.facts import is_vocabulary_tensor
from ramerge.models.numbers import read_numbers
from ramerge.planning.plan import Plan
from ramerge.probes.measure import MASKS, Measures, total

FAR = 0.5  # relative norm of the task vector from which an agent is doubted,
UNLIKE = 0.7  # and cosine of its values with the base's below which it is
DENSE = 0.8  # density from which RAM comes close to averaging

Severity = Literal["ok", "note", "warning", "error"]

HINTS = {  # by the codes of notices: what to do
    "adapter-base": "merge the adapter into the base that its config names, or make sure that the two are the same",
    "adapter-beside": "if it was not folded in, fold it in, or keep it in a directory of its own: MODEL+ADAPTER",
    "adapter-inside": "give MODEL+ADAPTER to read the adapter too",
    "base-taken": "harmless if they are not learned; else the agent was not exported whole",
    "buffers-copied": "nothing to do: they are not learned",
    "chat-template": "the output gets the base's; `chat_template` in a merge file, or --tokenizer-from, takes another",
    "config-differs": "an agent that computes otherwise is not an agent of this base: compare the two config.json",
    "configuration": "correct the merge file if it is not what you mean",
    "consolidated-ignored": "remove the files if they are copies; if not, mend the index",
    "entries-left-aside": "check that nothing of the model is among them",
    "excluded": "nothing to do, if the filter is what you mean",
    "filter-unused": "compare the filter with the names that `ramerge plan --json` gives",
    "generation-config-broken": "mend generation_config.json of the base: loaders refuse it",
    "generation-config-strict": "mend generation_config.json of the base: recent loaders refuse it",
    "head-tied": "nothing to do: the output stores the two once, as the base does",
    "head-untied": "the output grows by the head; tie it again if the training did not mean to untie it",
    "index-total-size": "harmless; the index was written by another tool",
    "merges-differ": "the agent read other tokens in training: take its tokenizer (--tokenizer-from), or do not merge it",
    "names-matched": "check one of the names: a wrong match puts the adapter on other weights",
    "other-dtype": "count with `mask: grid`, or store the agent as the base is stored",
    "prefix-stripped": "nothing to do: the trainer's wrapper left the prefix",
    "rows-adjusted": "check that the policy is what you mean",
    "same-agent": "leave one of them out: what both changed counts as shared",
    "special-tokens": "a wrong end-of-sequence id never stops: correct generation_config.json of the base",
    "template-tokens-missing": "take a template of a model with this tokenizer, or `tokenizer_source: union`",
    "tensors-added": "the output has more tensors than the base: check that its config describes them",
    "tensors-left-out": "`extra: keep` adds them to the output",
    "tied-head-split": "nothing to do: head and embedding are stored apart",
    "tokenizer-assumed": "put a tokenizer.json beside the model if its tokens are others",
    "tokens-added": "the output lacks them; `tokenizer_source: union` in a merge file keeps them",
    "tokens-missing": "the output keeps the base's; an agent that never saw them has not trained their rows",
    "tokens-unreachable": "take the tokenizer of a model that can produce them, or leave them out",
    "weight-zero": "give it a weight, or leave the agent out",
    "weights-ignored": "remove the files if they are copies; if not, mend the index",
}

ERROR_HINTS = {  # by the codes of errors that say nothing themselves
    "config": "correct the option or the file",
    "corruptinput": "download or export the model again",
    "hub": "check name, network and token",
    "incompatible": "look for the base that the agent was trained from, or export the agent anew",
    "numeric": "the training diverged or a file is damaged: take an earlier checkpoint",
    "security": "do not use the model before you know why",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one model.

    Attributes:
        severity: ``ok``, ``note``, ``warning`` or ``error``.
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
        Finding("error", model, code, p.message, p.hint or ERROR_HINTS.get(code))
        for code, p in zip(codes, problems, strict=True)
    ]


def examine(plan: Plan, records: Mapping[str, Measures]) -> list[Finding]:
    """What headers, side files and numbers say about the only agent of a plan.

    Args:
        plan: base and one agent.
        records: of all merged tensors, by name.
    """
    agent = plan.agent_names[0]
    found = [
        Finding("warning" if n.warning else "note", agent, n.code, n.message, HINTS.get(n.code))
        for n in plan.notices
    ]
    found += _padding(plan)
    return [*found, *_origin(plan, records)]


def _origin(plan: Plan, records: Mapping[str, Measures]) -> list[Finding]:
    """Is it trained from this base, and how much of it changed?"""
    agent, whole = plan.agent_names[0], total(1, list(records.values()))
    elements = whole.overlap.elements
    if not whole.masks[0, MASKS.index("exact")]:
        evidence = f"0 of {elements:,} elements differ from the base"
        hint = (
            "was the training saved? an adapter that was never folded in is given as MODEL+ADAPTER"
        )
        return [Finding("error", agent, "identical", evidence, hint)]
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
        hint = "merging models of different origin gives noise; look for the base that it was trained from"
        return [Finding("error", agent, "another-base", evidence, hint)]
    density = whole.overlap.changed(0) / max(elements, 1)
    evidence = f"derived from the base (relative norm {relative:.2g}), density {density:.1%}"
    found = [Finding("ok", agent, "derived", evidence)]
    if density > DENSE:
        evidence = f"{density:.1%} of all elements changed: with little left unique, RAM comes close to averaging"
        hint = "compare with task_arithmetic and ties, or count with `mask: grid` if it is stored wider than the base"
        found.append(Finding("warning", agent, "dense", evidence, hint))
    return found


def _padding(plan: Plan) -> list[Finding]:
    """Embedding rows beyond the last token: no text reaches them, so what changed there is not training."""
    base, agent, name = plan.base, plan.agents[0], plan.agent_names[0]
    ids = token_ids(base.directory)
    tables = [t for t in plan.merged if is_vocabulary_tensor(t.name) and len(t.output.shape) == 2]
    table = min(tables, key=lambda t: "embed" not in t.name, default=None)  # rather than the head
    if not ids or table is None or table.agents[0] is None:
        return []
    first, (rows, width) = max(ids.values()) + 1, table.output.shape
    if rows <= first:
        return []
    ours, theirs = np.empty((2, rows - first, width))
    for checkpoint, spec, room in ((base, table.base, ours), (agent, table.agents[0], theirs)):
        read_numbers(checkpoint, spec.name, first * width, rows * width, room.reshape(-1))
    moved = int((ours != theirs).any(axis=1).sum())
    where = f"`{table.name}` has {rows - first} rows beyond the last token, {first - 1}"
    if not moved:
        hint = "nothing to do: no text reaches them"
        return [Finding("note", name, "padded-rows", f"{where}; none changed", hint)]
    hint = "weight decay or a trainer's padding does that; they count as changes, and do no harm to answers"
    return [Finding("note", name, "padded-rows", f"{where}; {moved} of them changed", hint)]


def _cosine_of_values(whole: Measures) -> float:
    """Cosine between the agent's values and the base's, from the products of base and task vector."""
    base, mixed, moved = whole.gram[0, 0], whole.gram[0, 1], whole.gram[1, 1]
    agent = base + 2 * mixed + moved
    norms = math.sqrt(base) * math.sqrt(max(agent, 0.0))
    return float(base + mixed) / norms if norms else 1.0
