"""What the report says, part by part; numbers come from `analysis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramerge.lab import figures, wording
from ramerge.lab import statistics as st
from ramerge.lab.analysis import BASELINES, Key, Results
from ramerge.lab.arms import NORMS, Arm, arms
from ramerge.lab.comparisons import Named, ablations, better, of_regime, reinforcement, verdicts
from ramerge.lab.environments import AGENTS
from ramerge.lab.parts import Figure, Part, Table, spread
from ramerge.lab.regimes import REGIMES
from ramerge.lab.scoring import VALIDATION_PROBLEMS


def all_parts(results: Named, costs: Sequence[Mapping[str, Any]], planned_cells: int) -> list[Part]:
    """The report in order."""
    parts = [_what(results, planned_cells), verdicts(results), reinforcement(results)]
    parts.append(better(results))
    for regime, found in results.items():
        parts.append(Part(f"Regime `{regime}`: {REGIMES[regime]}"))  # type: ignore[index]
        parts += of_regime(regime, found)
        parts += [p for p in (ablations(found), _others(found), _bases(found)) if p is not None]
    if costs:
        parts.append(_costs(results, costs))
    return parts


def labels() -> dict[str, Arm]:
    """Arms by name."""
    return {a.name: a for a in arms(AGENTS)}


def _what(results: Named, planned_cells: int) -> Part:
    cells = {regime: r.cells for regime, r in results.items()}
    bases = sorted({b for c in cells.values() for b, _ in c})
    text = wording.paragraphs(
        wording.WHAT,
        bases=len(bases),
        cells="; ".join(f"`{regime}`: {len(c)} cells" for regime, c in cells.items()),
        done=sum(map(len, cells.values())),
        planned=planned_cells,
        problems=next(iter(results.values())).draws.prompts.shape[2],
        validation=VALIDATION_PROBLEMS,
        looks=len(NORMS),
    )
    lonely = [
        regime for regime, c in cells.items() if any([b for b, _ in c].count(x) < 2 for x in bases)
    ]
    if lonely:
        text += wording.paragraphs(wording.LONELY, regimes=", ".join(f"`{r}`" for r in lonely))
    return Part("What was run", text)


def _others(found: Results) -> Part | None:
    if not found.others:
        return None
    settings = list(found.others)
    names = {key[0]: None for table in found.others.values() for key in table}
    rows = []
    for name in names:
        cells = []
        for table in found.others.values():
            rewards = table.get((name, "published"))
            cells.append(
                "–"
                if rewards is None
                else f"{100 * rewards[:, :-1].mean():.1f} / {100 * rewards.mean():.1f}"
            )
        rows.append([labels()[name].label, *cells])
    text = wording.paragraphs(wording.OTHERS)
    return Part("Pairs and crowds", text, [Table(["method", *settings], rows)], 3)


def _bases(found: Results) -> Part | None:
    bases = sorted({b for b, _ in found.cells})
    if len(bases) < 2:
        return None
    keys: list[Key] = [
        ("base", "published"),
        *((b, "published") for b in BASELINES),
        ("norm_matched", "published"),
    ]
    keys += [
        ("ram", "published"),
        ("ram_plus", "published"),
        ("ties", "scaled"),
        ("ta_sum", "scaled"),
        ("ram_plus", "scaled"),
    ]
    keys += [("tsv_m", "scaled"), ("gram", "scaled"), ("gram_unit", "published")]
    rows = []
    for name, variant in keys:
        if (name, variant) in found.rewards:
            four = found.rewards[name, variant].mean((1, 2))
            per = [four[[b == base for b, _ in found.cells]] for base in bases]
            label = labels()[name].label + ("" if variant == "published" else f" · {variant}")
            rows.append([label, *(spread(v) for v in per)])
    header = ["method", *(f"base {b}" for b in bases)]
    return Part(
        "Base by base",
        [],
        [Table(header, rows, "mean of all four tasks (least … most over seeds)")],
        3,
    )


def _costs(results: Named, costs: Sequence[Mapping[str, Any]]) -> Part:
    regime, found = next(iter(results.items()))
    rows, points = [], []
    for cost in costs:
        arm = labels()[cost["arm"]]
        value = 100 * float(st.all_mean(found.rewards[arm.name, "published"].mean(2)).mean())
        rows.append([arm.label, f"{cost['seconds']:.3f}", f"{cost['memory']:.1f}", f"{value:.1f}"])
        points.append((arm.label, float(cost["seconds"]), value))
    title = f"Score (regime {regime}) against seconds"
    svg = figures.scatter(
        title, points, "seconds for 3 × 1 M parameters, one thread", "mean of all four tasks, %"
    )
    text = wording.paragraphs(wording.COSTS)
    header = ["method", "seconds", "memory, models", f"all four, %, {regime}"]
    return Part("Cost", text, [Table(header, rows), Figure("cost", title, svg)])


def numbers(results: Named) -> dict[str, Any]:
    """Every score, for other programs: regime -> arm -> variant -> metric -> mean over cells."""
    found: dict[str, Any] = {}
    for regime, r in results.items():
        table = found[regime] = {"cells": r.cells, "arms": {}}
        for (arm, variant), rewards in r.rewards.items():
            accuracy = rewards.mean(2)
            means = {name: round(float(m(accuracy).mean()), 6) for name, m in r.metrics().items()}
            means |= {
                task: round(float(v), 6)
                for task, v in zip(r.terms.tasks, accuracy.mean(0), strict=True)
            }
            table["arms"].setdefault(arm, {})[variant] = {
                **means,
                "chosen": r.settings[arm, variant],
            }
    return found
