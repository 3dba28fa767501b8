"""From the results of cells to estimates, and to the differences that are more than luck."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ramerge._types import F64
from ramerge.lab import statistics as st
from ramerge.lab.agents import PROBLEMS
from ramerge.lab.environments import AGENTS, TASKS
from ramerge.lab.study import unpack

THREE = "three"
Key = tuple[str, str]  # arm, variant
BASELINES = (
    "ta_mean",
    "ta_sum",
    "fisher",
    "ties",
    "dare_ta",
    "dare_ties",
)  # the paper's Table 1, and λ = 1


@dataclass(frozen=True, slots=True)
class Terms:
    """What a bench calls its parts, and how its results are read.

    Attributes:
        agents: each is trained on the task of the same place.
        tasks: retention last.
        rewards: of one row of a result file, ``[K, P]``.
        common: whether all tasks judge the same answers, so that their prompts are drawn together.
    """

    agents: Sequence[str]
    tasks: Sequence[str]
    rewards: Callable[[Mapping[str, Any]], F64]
    common: bool = False


def main_terms() -> Terms:
    """Those of the study with three tasks."""
    return Terms(AGENTS, TASKS, lambda row: unpack(row["right"], PROBLEMS))


@dataclass(frozen=True, slots=True)
class Results:
    """All cells of one regime.

    Attributes:
        cells: base and agent seed of every cell.
        rewards: for three agents, arm and variant -> ``[C, K, P]``.
        validation: the same keys -> mean validation score over cells.
        length: the same keys -> mean norm, as a share of the agents' together.
        settings: the same keys -> what tuning chose in each cell.
        others: the same as ``rewards`` for pairs and crowds, by their name.
        agents: what was measured on the agents, cell by cell.
        draws: the bootstrap.
        terms: names of agents and tasks.
    """

    cells: list[tuple[int, int]]
    rewards: Mapping[Key, F64]
    validation: Mapping[Key, float]
    length: Mapping[Key, float]
    settings: Mapping[Key, list[str]]
    others: Mapping[str, Mapping[Key, F64]]
    agents: list[Mapping[str, Any]]
    draws: st.Draws
    terms: Terms

    @property
    def experts(self) -> F64:
        """Accuracy of every agent on its own task ``[C, K - 1]``."""
        own = [
            self.rewards[a, "published"].mean(2)[:, at] for at, a in enumerate(self.terms.agents)
        ]
        return np.stack(own, axis=1)

    def metrics(self) -> dict[str, st.Metric]:
        """The study's metrics by name; the first one is what the planned contrasts use."""
        return {
            "tasks": st.task_mean,
            "retention": st.retention,
            "all four": st.all_mean,
            "composite": st.composite(self.experts),
            "worst task": st.minimum,
        }


def gather(found: Sequence[Mapping[str, Any]], terms: Terms | None = None) -> Results:
    """Results of one regime's cells; of the study with three tasks where no terms are given."""
    terms = terms or main_terms()
    cells = [(f["base_seed"], f["agent_seed"]) for f in found]
    stacked: dict[str, dict[Key, list[Mapping[str, Any]]]] = {}
    for cell in found:
        for row in cell["rows"]:
            stacked.setdefault(row["setting_of"], {}).setdefault(
                (row["arm"], row["variant"]), []
            ).append(row)
    rewards = {
        of: {k: np.stack([terms.rewards(r) for r in rows]) for k, rows in table.items()}
        for of, table in stacked.items()
    }
    three = stacked[THREE]
    problems = next(iter(rewards[THREE].values())).shape[2]
    bases = [base for base, _ in cells]
    return Results(
        cells=cells,
        rewards=rewards.pop(THREE),
        validation={k: _mean(r["validation"] for r in rows) for k, rows in three.items()},
        length={k: _mean(r["length"] for r in rows) for k, rows in three.items()},
        settings={k: [r["setting"] for r in rows] for k, rows in three.items()},
        others=rewards,
        agents=[f["agents"] for f in found],
        draws=st.draw(bases, len(terms.tasks), problems, common=terms.common),
        terms=terms,
    )


def _mean(values: Any) -> float:
    return float(np.mean([float("nan") if v is None else v for v in values]))


def best_baseline(results: Results) -> str:
    """The paper's baseline with the best validation score as published; tests are not looked at."""
    there = [b for b in BASELINES if (b, "published") in results.rewards]
    return max(there, key=lambda name: results.validation[name, "published"])


@dataclass(frozen=True, slots=True)
class Contrast:
    """A paired difference.

    Attributes:
        label: what minus what.
        claim: what the paper says about its sign: ``+`` or empty.
        tasks: difference of the mean over the agents' tasks.
        everything: difference of the mean over all four tasks.
        p: Holm-adjusted p-value of ``tasks`` within its family.
    """

    label: str
    claim: str
    tasks: st.Estimate
    everything: st.Estimate
    p: float

    @property
    def verdict(self) -> str:
        """In words, by the interval and the adjusted p-value."""
        if self.p >= 0.05:
            return "undecided"
        if self.tasks.value > 0:
            return "reproduced" if self.claim else "better"
        return "reversed" if self.claim else "worse"


def planned(results: Results) -> list[Contrast]:
    """The four contrasts fixed before any result was seen."""
    best = best_baseline(results)
    pairs = [
        ("RAM − task arithmetic (1/N)", ("ram", "published"), ("ta_mean", "published")),
        (f"RAM − best baseline by validation ({best})", ("ram", "published"), (best, "published")),
        ("RAM+ − RAM", ("ram_plus", "published"), ("ram", "published")),
        ("RAM − norm-matched task arithmetic", ("ram", "published"), ("norm_matched", "published")),
    ]
    return family(results, [(*p, "+") for p in pairs])


def searched(results: Results) -> list[Contrast]:
    """The leads against the best of the rest, at equal tuning."""
    pairs: list[tuple[str, Key, Key]] = []
    rivals = [
        ("TIES", "ties"),
        ("task arithmetic", "ta_sum"),
        ("RAM+", "ram_plus"),
        ("TSV-M", "tsv_m"),
    ]
    for label, arm in (
        ("Gram", "gram"),
        ("Gram, smaller side", "gram_small"),
        ("Gram ∪ RAM", "gram_union"),
    ):
        pairs += [
            (f"{label} − {name}, both scaled", (arm, "scaled"), (rival, "scaled"))
            for name, rival in rivals
        ]
    pairs += [
        ("Gram, unit norm, untuned − TIES, scaled", ("gram_unit", "published"), ("ties", "scaled")),
        (
            "Gram, unit norm, untuned − RAM+ as published",
            ("gram_unit", "published"),
            ("ram_plus", "published"),
        ),
        (
            "Gram, unit norm, untuned − TSV-M, unit norm",
            ("gram_unit", "published"),
            ("tsv_unit", "published"),
        ),
        ("RAM − RAM with a random partition", ("ram", "published"), ("random", "published")),
        ("RAM, scaled − task arithmetic, scaled", ("ram", "scaled"), ("ta_sum", "scaled")),
    ]
    return family(results, [(*p, "") for p in pairs])


LEADS = (
    ("Gram", "gram"),
    ("Gram, smaller side", "gram_small"),
    ("Gram ∪ RAM", "gram_union"),
    ("TSV-M", "tsv_m"),
)
RIVALS = (("RAM+", "ram_plus"), ("TIES", "ties"), ("task arithmetic", "ta_sum"))
TOLERATED = 0.01  # retention that a better rule may lose


@dataclass(frozen=True, slots=True)
class Trial:
    """One rule against RAM+, TIES and task arithmetic, each at its best tuning.

    Attributes:
        label: the rule, scaled.
        against: the three differences.
        retention: the differences of retention, in the same order.
    """

    label: str
    against: Sequence[Contrast]
    retention: Sequence[st.Estimate]

    @property
    def holds(self) -> bool:
        """Better than all three on the agents' tasks, and retention not lost to any of them."""
        return all(c.verdict == "better" for c in self.against) and all(
            e.low > -TOLERATED for e in self.retention
        )


def trials(regimes: Mapping[str, Results]) -> dict[str, list[Trial]]:
    """Whether a rule beats the published ones at equal tuning, regime by regime.

    A rival enters as *tuned* or as *scaled*, whichever is better on validation: eight looks each.
    All differences of all regimes are one family: nothing here was planned.
    """
    found = {regime: _trials(results) for regime, results in regimes.items()}
    every = [c for rules in found.values() for trial in rules for c in trial.against]
    adjusted = iter(st.holm([c.tasks.p for c in every]))
    return {
        regime: [
            replace(trial, against=[replace(c, p=next(adjusted)) for c in trial.against])
            for trial in rules
        ]
        for regime, rules in found.items()
    }


def _trials(results: Results) -> list[Trial]:
    rivals = [(label, _best_variant(results, arm)) for label, arm in RIVALS]
    found = []
    for lead, arm in LEADS:
        ours = (arm, "scaled")
        pairs = [(f"{lead} − {rival}, {key[1]}", ours, key, "") for rival, key in rivals]
        against = family(results, pairs)
        if len(against) == len(RIVALS):
            kept = [
                st.contrast(
                    results.rewards[ours], results.rewards[key], results.draws, st.retention
                )
                for _, key in rivals
            ]
            found.append(Trial(lead, against, kept))
    return found


def _best_variant(results: Results, arm: str) -> Key:
    there = [(arm, v) for v in ("scaled", "tuned") if (arm, v) in results.validation]
    return max(there, key=lambda key: results.validation[key], default=(arm, "scaled"))


def family(results: Results, pairs: Sequence[tuple[str, Key, Key, str]]) -> list[Contrast]:
    """Contrasts of one family, Holm-adjusted together; those with a missing arm are left out."""
    there = [p for p in pairs if p[1] in results.rewards and p[2] in results.rewards]
    tasks, everything = (
        [
            st.contrast(results.rewards[a], results.rewards[b], results.draws, metric)
            for _, a, b, _ in there
        ]
        for metric in (st.task_mean, st.all_mean)
    )
    adjusted = st.holm([e.p for e in tasks])
    return [
        Contrast(label, claim, t, e, p)
        for (label, _, _, claim), t, e, p in zip(there, tasks, everything, adjusted, strict=True)
    ]
