"""From outcomes to a table: every cell with its n and interval, averages, paired differences, the Pareto front.

Laid out like the paper's Table 1: a row a model, a column a data set, grouped by domain, the average last.
A cell in which tasks failed (no answer, after all retries) shows how many, is never marked best and enters
no average: leaving failed tasks out silently would flatter a model that fails on the hard ones.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path

from ramerge._types import Json
from ramerge.evaluate.records import Outcome
from ramerge.evaluate.statistics import Estimate, estimate, mean_difference

Key = tuple[str, str]  # column, metric


@dataclass(frozen=True, slots=True)
class Cell:
    """One score of one model.

    Attributes:
        score: percent, n, 95 % interval.
        errors: tasks without an answer; they are not in ``score``.
        flags: how often each thing happened on the way.
        main: whether this is its column's main metric, which alone enters averages.
    """

    score: Estimate
    errors: int
    flags: dict[str, int] = field(default_factory=dict)
    main: bool = True


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What an evaluation found.

    Attributes:
        models: in the order given.
        cells: model -> (column, metric) -> cell.
        domains: column -> domain.
        averages: model -> domain, and "all", -> mean over the columns that are complete for every model.
        differences: model -> "all" average minus the first model's, paired bootstrap.
        best: (column, metric) -> models with the highest score.
        pareto: models that none beats in both average and merge time; empty without times.
        merge_seconds: model -> seconds.
        outcomes: everything the rest was computed from.
        settings: what the scores depend on.
    """

    models: tuple[str, ...]
    cells: dict[str, dict[Key, Cell]]
    domains: dict[str, str]
    averages: dict[str, dict[str, float]]
    differences: dict[str, Estimate]
    best: dict[Key, tuple[str, ...]]
    pareto: tuple[str, ...]
    merge_seconds: dict[str, float]
    outcomes: dict[str, list[Outcome]]
    settings: dict[str, object]

    @property
    def errors(self) -> int:
        """Tasks of all models that got no answer."""
        return sum(not o.score for found in self.outcomes.values() for o in found)

    @property
    def keys(self) -> list[Key]:
        """Every (column, metric), in the order of the suites."""
        return list(dict.fromkeys(key for row in self.cells.values() for key in row))

    def as_json(self) -> Json:
        """The stable form, without the outcomes."""
        return {
            "version": 1,
            "models": list(self.models),
            "cells": [
                {
                    "model": model,
                    "column": c,
                    "metric": m,
                    "domain": self.domains[c],
                    **asdict(cell),
                }
                for model, row in self.cells.items()
                for (c, m), cell in row.items()
            ],
            "averages": self.averages,
            "differences": {m: asdict(d) for m, d in self.differences.items()},
            "best": [
                {"column": c, "metric": m, "models": list(b)} for (c, m), b in self.best.items()
            ],
            "merge_seconds": self.merge_seconds,
            "pareto": list(self.pareto),
            "errors": self.errors,
            "settings": self.settings,
            "published": published(),
        }


def published() -> Json:
    """The paper's Table 1: ``columns``, ``rows`` of ``scores`` and their ``average``."""
    text = files("ramerge.evaluate").joinpath("data/table1.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def build(
    found: Mapping[str, Sequence[Outcome]],
    merge_seconds: Mapping[str, float],
    settings: dict[str, object],
) -> EvaluationReport:
    """Compute everything the report shows from the outcomes of each model."""
    cells = {model: _cells(outcomes) for model, outcomes in found.items()}
    domains = {o.column: o.domain for outcomes in found.values() for o in outcomes}
    complete = _complete(cells)
    averages = {model: _averages(row, complete, domains) for model, row in cells.items()}
    models = tuple(found)
    return EvaluationReport(
        models=models,
        cells=cells,
        domains=domains,
        averages=averages,
        differences={m: compare_averages(found[m], found[models[0]]) for m in models[1:]},
        best=_best(cells),
        pareto=_pareto({m: a.get("all", math.nan) for m, a in averages.items()}, merge_seconds),
        merge_seconds=dict(merge_seconds),
        outcomes={model: list(outcomes) for model, outcomes in found.items()},
        settings=settings,
    )


def _cells(outcomes: Sequence[Outcome]) -> dict[Key, Cell]:
    columns: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        columns.setdefault(outcome.column, []).append(outcome)
    cells: dict[Key, Cell] = {}
    for column, rows in columns.items():
        scores = [row.score for row in rows if row.score]
        flags = dict(sorted(Counter(flag for score in scores for flag in score.flags).items()))
        metrics = list(scores[0].metrics) if scores else ["accuracy"]
        for index, metric in enumerate(metrics):
            pairs = [score.metrics[metric] for score in scores]
            cell = Cell(estimate(pairs), len(rows) - len(scores), flags, main=index == 0)
            cells[column, metric] = cell
    return cells


def _complete(cells: Mapping[str, Mapping[Key, Cell]]) -> list[Key]:
    """Main cells that every model has without errors: what an average may be taken over."""
    rows = list(cells.values())
    return [
        key
        for key, cell in (rows[0].items() if rows else ())
        if cell.main and all(key in row and not row[key].errors for row in rows)
    ]


def _averages(
    row: Mapping[Key, Cell], complete: Sequence[Key], domains: Mapping[str, str]
) -> dict[str, float]:
    grouped: dict[str, list[float]] = {}
    for key in complete:
        grouped.setdefault(domains[key[0]], []).append(row[key].score.mean)
    averages = {domain: sum(scores) / len(scores) for domain, scores in grouped.items()}
    if complete:
        averages["all"] = sum(row[key].score.mean for key in complete) / len(complete)
    return averages


def _best(cells: Mapping[str, Mapping[Key, Cell]]) -> dict[Key, tuple[str, ...]]:
    best: dict[Key, tuple[str, ...]] = {}
    for key in dict.fromkeys(key for row in cells.values() for key in row):
        scores = {
            m: row[key].score.mean for m, row in cells.items() if key in row and not row[key].errors
        }
        if len(scores) > 1:
            best[key] = tuple(m for m, score in scores.items() if score == max(scores.values()))
    return best


def _pareto(averages: Mapping[str, float], seconds: Mapping[str, float]) -> tuple[str, ...]:
    timed = {m: (averages[m], seconds[m]) for m in averages if m in seconds}

    def beaten(model: str) -> bool:
        score, cost = timed[model]
        return any(s >= score and c <= cost and (s, c) != (score, cost) for s, c in timed.values())

    return tuple(model for model in timed if not beaten(model))


def compare_averages(first: Sequence[Outcome], second: Sequence[Outcome]) -> Estimate:
    """Average of ``first`` minus that of ``second``, over the tasks that both answered, paired by column and item."""
    a, b = _by_item(first), _by_item(second)
    columns = []
    for column in a:
        shared = [item for item in a[column] if item in b.get(column, {})]
        columns.append(([a[column][i] for i in shared], [b[column][i] for i in shared]))
    return mean_difference(columns)


def _by_item(outcomes: Sequence[Outcome]) -> dict[str, dict[str, tuple[float, float]]]:
    """Column -> item -> (hits, trials) of the main metric, failed tasks left out."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for outcome in outcomes:
        if outcome.score:
            main = next(iter(outcome.score.metrics.values()))
            found.setdefault(outcome.column, {})[outcome.item] = main
    return found


def write(report: EvaluationReport, out: Path) -> None:
    """Write ``report.json``, ``report.md``, ``report.html`` and ``outcomes.jsonl``, each whole or not at all."""
    from ramerge.evaluate.render import html, markdown

    lines = (
        json.dumps({"model": model, **outcome.as_json()}, ensure_ascii=False, sort_keys=True) + "\n"
        for model, outcomes in report.outcomes.items()
        for outcome in outcomes
    )
    texts = {
        "outcomes.jsonl": "".join(lines),
        "report.md": markdown(report),
        "report.html": html(report),
        "report.json": json.dumps(finite(report.as_json()), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        partial = out / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(out / name)


def finite(value: object) -> object:
    """JSON has no NaN: a score of nothing is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list) else value
