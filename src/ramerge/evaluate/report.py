"""From outcomes to a table: every cell with its n and interval, averages, paired differences, the Pareto front.

Laid out like the paper's Table 1: a row a model, a column a data set, grouped by domain, the average last.
A cell in which tasks failed (no answer, after all retries) shows how many, is never marked best and enters
no average: leaving failed tasks out silently would flatter a model that fails on the hard ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path

from ramerge._types import Json
from ramerge.evaluate.records import Outcome
from ramerge.evaluate.statistics import Estimate, Paired, average, difference, estimate
from ramerge.output.manifest import finite

Key = tuple[str, str]  # column, metric
ALSO_MAIN = {"unit tests"}  # beside each data set's first metric, as in the paper's Table 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One score of one model.

    Attributes:
        score: percent, n, 95 % interval.
        errors: tasks without an answer; they are not in ``score``.
        flags: how often each thing happened on the way.
        main: whether it stands in the main table and enters averages; the others only describe.
    """

    score: Estimate
    errors: int
    flags: dict[str, int] = field(default_factory=dict)
    main: bool = True


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What an evaluation found.

    Attributes:
        models: in the order given; differences are to the first.
        cells: model -> (column, metric) -> cell.
        domains: column -> domain.
        averages: model -> domain, and "all", -> mean over the main cells that are complete for every model.
        differences: model -> (column, metric) -> its score minus the first model's, paired bootstrap.
        average_differences: model -> the same of the "all" average.
        best: (column, metric) -> models with the highest score; nobody where all are equal.
        pareto: models that none beats in both average and merge time; empty without times.
        merge_seconds: model -> seconds.
        outcomes: everything the rest was computed from.
        settings: what the scores depend on.
    """

    models: tuple[str, ...]
    cells: dict[str, dict[Key, Cell]]
    domains: dict[str, str]
    averages: dict[str, dict[str, Estimate]]
    differences: dict[str, dict[Key, Estimate]]
    average_differences: dict[str, Estimate]
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

    @property
    def main(self) -> list[Key]:
        """The keys of the main table."""
        return [k for k in self.keys if any(r[k].main for r in self.cells.values() if k in r)]

    def as_json(self) -> Json:
        """The stable form, without the outcomes."""
        return {
            "version": 1,
            "models": list(self.models),
            "cells": [
                _named(key) | {"model": model, "domain": self.domains[key[0]]} | asdict(cell)
                for model, row in self.cells.items()
                for key, cell in row.items()
            ],
            "averages": {
                m: {domain: asdict(score) for domain, score in row.items()}
                for m, row in self.averages.items()
            },
            "differences": [
                _named(key) | {"model": model, "minus": self.models[0]} | asdict(found)
                for model, row in self.differences.items()
                for key, found in row.items()
            ],
            "average_differences": {m: asdict(d) for m, d in self.average_differences.items()},
            "best": [_named(key) | {"models": list(b)} for key, b in self.best.items()],
            "merge_seconds": self.merge_seconds,
            "pareto": list(self.pareto),
            "errors": self.errors,
            "settings": self.settings,
            "published": published(),
        }


def _named(key: Key) -> Json:
    return {"column": key[0], "metric": key[1]}


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
    pairs = {model: _pairs(found, model) for model in list(found)[1:]}
    return EvaluationReport(
        models=tuple(found),
        cells=cells,
        domains=domains,
        averages=averages,
        differences={
            model: {key: difference([pair]) for key, pair in row.items() if cells[model][key].main}
            for model, row in pairs.items()
        },
        average_differences={
            model: difference([row[key] for key in complete]) for model, row in pairs.items()
        },
        best=_best(cells),
        pareto=_pareto({m: a["all"].mean for m, a in averages.items() if a}, merge_seconds),
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
            main = index == 0 or metric in ALSO_MAIN
            cell = Cell(estimate(pairs), len(rows) - len(scores), flags, main)
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
) -> dict[str, Estimate]:
    grouped: dict[str, list[tuple[str, Estimate]]] = {}
    for key in complete:
        for domain in (domains[key[0]], "all"):
            grouped.setdefault(domain, []).append((key[0], row[key].score))
    ordered = sorted(grouped, key=lambda domain: domain == "all")
    return {domain: average(grouped[domain]) for domain in ordered}


def _best(cells: Mapping[str, Mapping[Key, Cell]]) -> dict[Key, tuple[str, ...]]:
    best: dict[Key, tuple[str, ...]] = {}
    for key in dict.fromkeys(key for row in cells.values() for key in row):
        scores = {
            m: row[key].score.mean for m, row in cells.items() if key in row and not row[key].errors
        }
        if len(set(scores.values())) > 1:
            best[key] = tuple(m for m, score in scores.items() if score == max(scores.values()))
    return best


def _pareto(averages: Mapping[str, float], seconds: Mapping[str, float]) -> tuple[str, ...]:
    timed = {m: (averages[m], seconds[m]) for m in averages if m in seconds}

    def beaten(model: str) -> bool:
        score, cost = timed[model]
        return any(s >= score and c <= cost and (s, c) != (score, cost) for s, c in timed.values())

    return tuple(model for model in timed if not beaten(model))


def _pairs(found: Mapping[str, Sequence[Outcome]], model: str) -> dict[Key, Paired]:
    """What ``model`` and the first model got on the tasks that both answered, by (column, metric)."""
    a, b = _by_item(found[model]), _by_item(next(iter(found.values())))
    pairs = {}
    for key, scores in a.items():
        shared = [item for item in scores if item in b.get(key, {})]
        if shared:
            pairs[key] = Paired(key[0], [scores[i] for i in shared], [b[key][i] for i in shared])
    return pairs


def _by_item(outcomes: Sequence[Outcome]) -> dict[Key, dict[str, tuple[float, float]]]:
    """(column, metric) -> item -> (hits, trials), failed tasks left out."""
    found: dict[Key, dict[str, tuple[float, float]]] = {}
    for outcome in outcomes:
        for metric, hits in (outcome.score.metrics if outcome.score else {}).items():
            found.setdefault((outcome.column, metric), {})[outcome.item] = hits
    return found


def write(report: EvaluationReport, out: Path) -> None:
    """Write ``report.json``, ``report.md``, ``report.html`` and ``outcomes.jsonl``, each whole or not at all."""
    from ramerge.evaluate.page import html
    from ramerge.evaluate.render import markdown

    lines = (
        json.dumps({"model": model, **outcome.as_json()})
        + "\n"  # ASCII: models write broken Unicode too
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
