"""The report of the study on stories; generated, never edited."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ramerge.lab.analysis import Results, Terms, gather
from ramerge.lab.arms import arms
from ramerge.lab.comparisons import better, of_regime, reinforcement, verdicts
from ramerge.lab.parts import Part, Table
from ramerge.lab.regimes import REGIMES
from ramerge.lab.report import write_parts
from ramerge.lab.sections import numbers
from ramerge.lab.stories.agents import AGENTS
from ramerge.lab.stories.bench import TEST, VALIDATION
from ramerge.lab.stories.study import rewards
from ramerge.lab.stories.tasks import NEW, SENTENCES, TASKS
from ramerge.lab.wording import LONELY, paragraphs

TITLE = "The miniature study on stories260K: results"
WHAT = """
The same arms, looks at validation (on 64 openings, not 128 problems) and statistics as in the study
with three tasks, on a base with real pre-training that was made elsewhere: stories260K, 0.26 M
parameters, from the TinyStories data. Each
agent is trained by the lab's GRPO until two batches in a row reach 90 % on its property of the text
it writes: a dog appears, {sentences} sentences or more end, somebody speaks in quotation marks. A
text has {new} tokens and is judged on all properties at once, so the agents pull one text in three
directions.

Retention is the base's perplexity on texts that it wrote itself, over the model's: 100 % is the
base, 50 % is twice its perplexity. It is no task of the paper, and agents lose more of it than in
the other study.

{cells}. {done} of the {planned} planned cells are in this report. {test} test openings and
{validation} others for tuning, the same for every model and task, with the same sampling noise.
Intervals are 95 % bootstrap intervals over agent seeds and openings; openings are drawn once for all
tasks. There is one base, so nothing here speaks for other bases; the variation between agents is known
from few seeds, so intervals may be too short. Scores are percentages,
differences are points.
"""
SAVED = """
The bench is small and its tasks are properties of style. Agents were trained with a stopping rule,
because longer training cost fluency and gained nothing.
"""


def terms() -> Terms:
    """Names of this bench."""
    return Terms(AGENTS, TASKS, rewards, common=True)


def write(found: Sequence[Mapping[str, Any]], out: Path, *, planned: int) -> list[Path]:
    """Write ``STORIES.md``, ``stories.html``, figures and ``stories-numbers.json`` into ``out``.

    Args:
        found: results of the cells, as `study.run` returns them.
        out: directory.
        planned: cells of the plan; the report says how many are missing.

    Returns:
        the files.
    """
    regimes = {c["regime"]: [d for d in found if d["regime"] == c["regime"]] for c in found}
    results = {regime: gather(cells, terms()) for regime, cells in regimes.items()}
    text = json.dumps(numbers(results), indent=1) + "\n"
    return write_parts(
        all_parts(results, planned),
        out,
        TITLE,
        "stories",
        {"stories-numbers.json": text},
        ("STORIES.md", "stories.html"),
    )


def all_parts(results: Mapping[str, Results], planned: int) -> list[Part]:
    """The report in order."""
    parts = [
        _what(results, planned),
        better(results),
        verdicts(results),
        reinforcement(results),
    ]
    if len(results) > 1:
        parts.append(_overview(results))
    for regime, found in results.items():
        parts.append(Part(f"Regime `{regime}`: {REGIMES[regime]}"))  # type: ignore[index]
        parts += of_regime(regime, found, "stories-")
    return parts


def _what(results: Mapping[str, Results], planned: int) -> Part:
    text = paragraphs(
        WHAT,
        sentences=SENTENCES,
        new=NEW,
        cells="Cells: " + "; ".join(f"`{r}` {len(f.cells)}" for r, f in results.items()),
        done=sum(len(f.cells) for f in results.values()),
        planned=planned,
        test=TEST,
        validation=VALIDATION,
    )
    lonely = [f"`{r}`" for r, f in results.items() if len(f.cells) < 2]
    if lonely:
        text += paragraphs(LONELY, regimes=", ".join(lonely))
    return Part("What was run", text + paragraphs(SAVED))


def _overview(results: Mapping[str, Results]) -> Part:
    """Every method at its best tuning, regime by regime, the best of the mean of regimes first."""
    rows = []
    for arm, label in ((a.name, a.label) for a in arms(AGENTS)):
        cells = []
        for found in results.values():
            there = [k for k in found.rewards if k[0] == arm and not np.isnan(found.validation[k])]
            if not there:
                break
            best = found.rewards[max(there, key=lambda k: found.validation[k])]
            cells.append((float(best[:, :-1].mean()), float(best[:, -1].mean())))
        if len(cells) == len(results):
            rows.append((label, cells))
    rows.sort(key=lambda row: -np.mean([3 * t + r for t, r in row[1]]))
    table = [
        [label, *(f"{100 * t:.1f} / {100 * r:.1f}" for t, r in cells)] for label, cells in rows
    ]
    return Part(
        "Every method at its best tuning",
        ["Agents' tasks / retention, in the variant that is best on validation."],
        [Table(["method", *results], table)],
    )
