"""What the report says, part by part; numbers come from `analysis`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramerge.lab import figures, wording
from ramerge.lab import statistics as st
from ramerge.lab.analysis import BASELINES, Contrast, Key, Results, planned, searched
from ramerge.lab.arms import NORMS, Arm, arms
from ramerge.lab.environments import AGENTS, TASKS
from ramerge.lab.regimes import REGIMES
from ramerge.lab.scoring import VALIDATION_PROBLEMS

LEAST_GAIN = 0.20
PAPER = {"coder": (3.2, 6.3, 14.87), "tools": (46.2, 40.8, 1.45), "memory": (54.3, 47.5, 1.11)}
Named = Mapping[str, Results]  # by regime


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first column is left-aligned."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """An SVG with the name of its file."""

    name: str
    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class Part:
    """A heading with what stands below it."""

    title: str
    text: Sequence[str] = ()
    items: Sequence[Table | Figure] = ()
    level: int = 2


def all_parts(results: Named, costs: Sequence[Mapping[str, Any]], planned_cells: int) -> list[Part]:
    """The report in order."""
    parts = [_what(results, planned_cells), _verdicts(results), _agents(results)]
    for regime, found in results.items():
        parts.append(Part(f"Regime `{regime}`: {REGIMES[regime]}"))  # type: ignore[index]
        parts += [
            _geometry(found),
            _methods(regime, found),
            _contrasts(regime, found),
            _controls(found),
        ]
        parts += [p for p in (_ablations(found), _others(found), _bases(found)) if p is not None]
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


def _verdicts(results: Named) -> Part:
    rows = [
        [c.label, regime, _points(c.tasks), _p(c.p), c.verdict]
        for regime, found in results.items()
        for c in planned(found)
    ]
    return Part(
        "The planned contrasts",
        wording.paragraphs(wording.PLANNED),
        [Table(["contrast", "regime", "points", "p (Holm)", "verdict"], rows)],
    )


def _agents(results: Named) -> Part:
    rows, failed = [], []
    for regime, found in results.items():
        base = found.rewards["base", "published"].mean(2)
        for at, agent in enumerate(AGENTS):
            own = found.rewards[agent, "published"].mean(2)
            gain = own[:, at] - base[:, at]
            failed += [
                f"`{regime}`, base {b}, seed {s}: {agent} gained {100 * g:.1f}"
                for (b, s), g in zip(found.cells, gain, strict=True)
                if g < LEAST_GAIN
            ]
            values = [base[:, at], own[:, at], gain, own[:, -1]]
            rows.append([regime, agent, TASKS[at], *(_spread(v) for v in values)])
    verdict = (
        "Failed to gain 20 points: " + "; ".join(failed) + "."
        if failed
        else "Every agent gained at least 20 points on its own task in every cell."
    )
    header = ["regime", "agent", "task", "base", "agent's score", "gain", "retention"]
    return Part(
        "Did reinforcement learning work?",
        [verdict],
        [Table(header, rows, "mean (least … most) over cells")],
    )


def _geometry(found: Results) -> Part:
    rows = []
    for agent in AGENTS:
        cells = [c[agent] for c in found.agents]
        rho = [c["rho"] for c in cells if c["rho"] is not None]
        cosine = [abs(v) for c in cells for v in c["cosine_to"].values()]
        density, unique, paper = PAPER[agent]
        rows.append(
            [
                agent,
                f"{100 * np.mean([c['density'] for c in cells]):.1f} ({density})",
                f"{100 * np.mean([c['unique'] for c in cells]):.1f} ({unique})",
                f"{np.mean(rho):.2f} ({paper})" if rho else "–",
                f"{np.mean([c['norm'] for c in cells]):.2f}",
                f"{np.mean(cosine):.3f}",
            ]
        )
    header = ["agent", "density, %", "unique, %", "ρ", "norm", "mean cosine, absolute"]
    return Part(
        "What training changed",
        [],
        [Table(header, rows, "mask of the paper; in brackets the paper's")],
        3,
    )


def _methods(regime: str, found: Results) -> Part:
    metrics = found.metrics()
    rows, points = [], []
    for arm in labels().values():
        if arm.kind not in {"reference", "baseline", "ram", "lead"}:
            continue
        for variant in ("published", "tuned", "scaled"):
            if (arm.name, variant) not in found.rewards:
                continue
            rewards = found.rewards[arm.name, variant]
            got = {name: st.estimate(rewards, found.draws, m) for name, m in metrics.items()}
            label = arm.label if variant == "published" else f"{arm.label} · {variant}"
            rows.append(
                [
                    label,
                    *(_percent(e) for e in got.values()),
                    f"{found.length[arm.name, variant]:.2f}",
                ]
            )
            if arm.kind != "reference":
                e = got["all four"]
                points.append((label, 100 * e.value, 100 * e.low, 100 * e.high))
    points.sort(key=lambda p: -p[1])
    header = ["method", *metrics, "norm"]
    figure = Figure(
        f"methods-{regime}",
        f"All four tasks, {regime}",
        figures.intervals(f"Mean of all four tasks, %, regime {regime}", points, zero=False),
    )
    return Part("Methods", wording.paragraphs(wording.METHODS), [Table(header, rows), figure], 3)


def _contrasts(regime: str, found: Results) -> Part:
    def table(contrasts: Sequence[Contrast], caption: str) -> Table:
        rows = [
            [c.label, _points(c.tasks), _points(c.everything), _p(c.p), c.verdict]
            for c in contrasts
        ]
        return Table(["difference", "tasks", "all four", "p (Holm, tasks)", ""], rows, caption)

    first, second = planned(found), searched(found)
    rows = [
        (c.label, 100 * c.tasks.value, 100 * c.tasks.low, 100 * c.tasks.high)
        for c in [*first, *second]
    ]
    figure = Figure(
        f"contrasts-{regime}",
        f"Differences, {regime}",
        figures.intervals(
            f"Difference of the mean over the agents' tasks, points, regime {regime}",
            rows,
            zero=True,
        ),
    )
    tables = [
        table(first, "planned"),
        table(second, "the search for a better rule, and what explains RAM; exploratory"),
    ]
    return Part("Differences", [], [*tables, figure], 3)


def _controls(found: Results) -> Part:
    names = [
        "ram",
        "ram_plus",
        "norm_matched",
        *(a.name for a in labels().values() if a.kind == "control"),
    ]
    rows = []
    for name in names:
        if (name, "published") not in found.rewards:
            continue
        rewards = found.rewards[name, "published"]
        each = 100 * rewards.mean((0, 2))
        mean = st.estimate(rewards, found.draws, st.task_mean)
        rows.append([labels()[name].label, *(f"{v:.1f}" for v in each), _percent(mean)])
    text = wording.paragraphs(wording.CONTROLS)
    return Part("Controls", text, [Table(["arm", *TASKS, "agents' tasks"], rows)], 3)


def _ablations(found: Results) -> Part | None:
    rows = []
    for arm in labels().values():
        if arm.kind == "ablation" and (arm.name, "published") in found.rewards:
            rewards = found.rewards[arm.name, "published"]
            apart = st.contrast(
                rewards, found.rewards["ram_plus", "published"], found.draws, st.task_mean
            )
            four = st.contrast(
                rewards, found.rewards["ram_plus", "published"], found.draws, st.all_mean
            )
            rows.append([arm.label, _points(apart), _points(four)])
    if not rows:
        return None
    text = wording.paragraphs(wording.ABLATIONS)
    return Part("Ablations", text, [Table(["setting", "tasks", "all four"], rows)], 3)


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
            rows.append([label, *(_spread(v) for v in per)])
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
                task: round(float(v), 6) for task, v in zip(TASKS, accuracy.mean(0), strict=True)
            }
            table["arms"].setdefault(arm, {})[variant] = {
                **means,
                "chosen": r.settings[arm, variant],
            }
    return found


def _percent(e: st.Estimate) -> str:
    return f"{100 * e.value:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def _points(e: st.Estimate) -> str:
    return f"{100 * e.value:+.1f} [{100 * e.low:+.1f}, {100 * e.high:+.1f}]"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _spread(values: Any) -> str:
    return f"{100 * np.mean(values):.1f} ({100 * np.min(values):.1f} … {100 * np.max(values):.1f})"
