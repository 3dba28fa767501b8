"""What the report says about one regime: what training changed, how the methods compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ramerge.lab import figures, wording
from ramerge.lab import statistics as st
from ramerge.lab.analysis import RIVALS, TOLERATED, Contrast, Results, planned, searched, trials
from ramerge.lab.arms import arms
from ramerge.lab.parts import Figure, Part, Table, p_value, percent, points, spread

LEAST_GAIN = 0.20
PAPER = {"coder": (3.2, 6.3, 14.87), "tools": (46.2, 40.8, 1.45), "memory": (54.3, 47.5, 1.11)}
Named = Mapping[str, Results]  # by regime


def verdicts(results: Named) -> Part:
    """The planned contrasts in all regimes."""
    rows = [
        [c.label, regime, points(c.tasks), p_value(c.p), c.verdict]
        for regime, found in results.items()
        for c in planned(found)
    ]
    return Part(
        "The planned contrasts",
        wording.paragraphs(wording.PLANNED),
        [Table(["contrast", "regime", "points", "p (Holm)", "verdict"], rows)],
    )


def reinforcement(results: Named) -> Part:
    """What each agent gained on its own task; those that did not are named."""
    rows, failed = [], []
    for regime, found in results.items():
        base = found.rewards["base", "published"].mean(2)
        for at, agent in enumerate(found.terms.agents):
            own = found.rewards[agent, "published"].mean(2)
            gain = own[:, at] - base[:, at]
            failed += [
                f"`{regime}`, base {b}, seed {s}: {agent} gained {100 * g:.1f}"
                for (b, s), g in zip(found.cells, gain, strict=True)
                if g < LEAST_GAIN
            ]
            values = [base[:, at], own[:, at], gain, own[:, -1]]
            rows.append([regime, agent, found.terms.tasks[at], *(spread(v) for v in values)])
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


def better(results: Named) -> Part:
    """Whether any rule of the search beats the published ones."""
    rows: list[list[str]] = []
    won: dict[str, list[str]] = {}
    for regime, rules in trials(results).items():
        for trial in rules:
            lost = min(trial.retention, key=lambda e: e.low)
            least = min((c.everything for c in trial.against), key=lambda e: e.value)
            differences = [f"{points(c.tasks)}, p {p_value(c.p)}" for c in trial.against]
            verdict = "holds" if trial.holds else "no"
            rows.append(
                [
                    f"{trial.label} · scaled",
                    regime,
                    *differences,
                    points(lost),
                    points(least),
                    verdict,
                ]
            )
            won.setdefault(trial.label, []).extend([regime] if trial.holds else [])
    said = [
        f"{label}: in {len(regimes)} of {len(results)} regimes"
        + (f" ({', '.join(regimes)})" if regimes else "")
        for label, regimes in won.items()
    ]
    if any(won.values()):
        verdict = "A rule beats all three without losing retention: " + "; ".join(said) + "."
    else:
        verdict = "No rule beats all three without losing retention, in any regime."
    header = [
        "rule",
        "regime",
        *(f"− {name}" for name, _ in RIVALS),
        "retention",
        "all four",
        "verdict",
    ]
    text = [verdict, *wording.paragraphs(wording.BETTER, tolerated=f"{100 * TOLERATED:g}")]
    return Part("Does a rule beat RAM+, TIES and task arithmetic?", text, [Table(header, rows)])


def of_regime(regime: str, found: Results, prefix: str = "") -> list[Part]:
    """All that is said of one regime; ``prefix`` begins the names of its figures."""
    return [
        geometry(found),
        methods(regime, found, prefix),
        contrasts(regime, found, prefix),
        controls(found),
    ]


def geometry(found: Results) -> Part:
    """Densities, unique shares and angles of the task vectors."""
    rows = []
    for agent in found.terms.agents:
        cells = [c[agent] for c in found.agents]
        rho = [c["rho"] for c in cells if c["rho"] is not None]
        cosine = [abs(v) for c in cells for v in c["cosine_to"].values()]
        density, unique, paper = (f" ({v})" if v else "" for v in PAPER.get(agent, (None,) * 3))
        rows.append(
            [
                agent,
                f"{100 * np.mean([c['density'] for c in cells]):.1f}{density}",
                f"{100 * np.mean([c['unique'] for c in cells]):.1f}{unique}",
                f"{np.mean(rho):.2f}{paper}" if rho else "–",
                f"{np.mean([c['norm'] for c in cells]):.2f}",
                f"{np.mean(cosine):.3f}",
            ]
        )
    header = ["agent", "density, %", "unique, %", "ρ", "norm", "mean cosine, absolute"]
    return Part(
        "What training changed",
        [],
        [Table(header, rows, "mask of the paper; in brackets, where given, the paper's")],
        3,
    )


def methods(regime: str, found: Results, prefix: str = "") -> Part:
    """Every method in all its variants."""
    metrics = found.metrics()
    rows, shown = [], []
    for arm in arms(found.terms.agents):
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
                    *(percent(e) for e in got.values()),
                    f"{found.length[arm.name, variant]:.2f}",
                ]
            )
            if arm.kind != "reference":
                e = got["all four"]
                shown.append((label, 100 * e.value, 100 * e.low, 100 * e.high))
    shown.sort(key=lambda p: -p[1])
    header = ["method", *metrics, "norm"]
    figure = Figure(
        f"{prefix}methods-{regime}",
        f"All four tasks, {regime}",
        figures.intervals(f"Mean of all four tasks, %, regime {regime}", shown, zero=False),
    )
    return Part("Methods", wording.paragraphs(wording.METHODS), [Table(header, rows), figure], 3)


def contrasts(regime: str, found: Results, prefix: str = "") -> Part:
    """The planned differences and the explored ones."""

    def table(family: Sequence[Contrast], caption: str) -> Table:
        rows = [
            [c.label, points(c.tasks), points(c.everything), p_value(c.p), c.verdict]
            for c in family
        ]
        return Table(["difference", "tasks", "all four", "p (Holm, tasks)", ""], rows, caption)

    first, second = planned(found), searched(found)
    rows = [
        (c.label, 100 * c.tasks.value, 100 * c.tasks.low, 100 * c.tasks.high)
        for c in [*first, *second]
    ]
    figure = Figure(
        f"{prefix}contrasts-{regime}",
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


def controls(found: Results) -> Part:
    """The experiments that could refute RAM."""
    names = {
        a.name: a.label
        for a in arms(found.terms.agents)
        if a.kind == "control" or a.name in {"ram", "ram_plus", "norm_matched"}
    }
    rows = []
    for name, label in names.items():
        if (name, "published") not in found.rewards:
            continue
        rewards = found.rewards[name, "published"]
        each = 100 * rewards.mean((0, 2))
        mean = st.estimate(rewards, found.draws, st.task_mean)
        rows.append([label, *(f"{v:.1f}" for v in each), percent(mean)])
    text = wording.paragraphs(wording.CONTROLS)
    return Part("Controls", text, [Table(["arm", *found.terms.tasks, "agents' tasks"], rows)], 3)


def ablations(found: Results) -> Part | None:
    """RAM+ with other settings; None where they were not scored."""
    rows = []
    for arm in arms(found.terms.agents):
        if arm.kind == "ablation" and (arm.name, "published") in found.rewards:
            rewards = found.rewards[arm.name, "published"]
            apart = st.contrast(
                rewards, found.rewards["ram_plus", "published"], found.draws, st.task_mean
            )
            four = st.contrast(
                rewards, found.rewards["ram_plus", "published"], found.draws, st.all_mean
            )
            rows.append([arm.label, points(apart), points(four)])
    if not rows:
        return None
    text = wording.paragraphs(wording.ABLATIONS)
    return Part("Ablations", text, [Table(["setting", "tasks", "all four"], rows)], 3)
