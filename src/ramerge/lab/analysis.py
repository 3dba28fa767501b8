"""From the results of cells to estimates, and to the differences that are more than luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """

    cells: list[tuple[int, int]]
    rewards: Mapping[Key, F64]
    validation: Mapping[Key, float]
    length: Mapping[Key, float]
    settings: Mapping[Key, list[str]]
    others: Mapping[str, Mapping[Key, F64]]
    agents: list[Mapping[str, Any]]
    draws: st.Draws

    @property
    def experts(self) -> F64:
        """Accuracy of every agent on its own task ``[C, K - 1]``."""
        own = [self.rewards[a, "published"].mean(2)[:, at] for at, a in enumerate(AGENTS)]
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


def gather(found: Sequence[Mapping[str, Any]]) -> Results:
    """Results of one regime's cells."""
    cells = [(f["base_seed"], f["agent_seed"]) for f in found]
    stacked: dict[str, dict[Key, list[Mapping[str, Any]]]] = {}
    for cell in found:
        for row in cell["rows"]:
            stacked.setdefault(row["setting_of"], {}).setdefault(
                (row["arm"], row["variant"]), []
            ).append(row)
    rewards = {
        of: {k: np.stack([unpack(r["right"], PROBLEMS) for r in rows]) for k, rows in table.items()}
        for of, table in stacked.items()
    }
    three = stacked[THREE]
    return Results(
        cells=cells,
        rewards=rewards.pop(THREE),
        validation={k: _mean(r["validation"] for r in rows) for k, rows in three.items()},
        length={k: _mean(r["length"] for r in rows) for k, rows in three.items()},
        settings={k: [r["setting"] for r in rows] for k, rows in three.items()},
        others=rewards,
        agents=[f["agents"] for f in found],
        draws=st.draw([base for base, _ in cells], len(TASKS), PROBLEMS),
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
