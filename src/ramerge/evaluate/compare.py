"""Read finished evaluations back and put their models into one table."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from ramerge._errors import ConfigError, CorruptInputError
from ramerge._types import Json
from ramerge.evaluate import rows
from ramerge.evaluate.records import Outcome, Score
from ramerge.evaluate.report import EvaluationReport, build

PARTIAL = ("data", "scorers")  # settings that only concern the suites that use them
MALFORMED = (KeyError, TypeError, ValueError, AttributeError)


def compare(runs: Sequence[str | Path]) -> EvaluationReport:
    """One report over the models of all ``runs``, in order; the first model is what the others are held against.

    Raises:
        ConfigError: a run has no outcomes, or two runs evaluated with different settings.
        CorruptInputError: a report or an outcome does not read.
    """
    found: dict[str, list[Outcome]] = {}
    seconds: dict[str, float] = {}
    settings: dict[str, Any] = {}
    for run in map(Path, runs):
        facts, times = _facts(run)
        _require_equal(settings, facts, run)
        merged = {name: facts.get(name, {}) | settings.get(name, {}) for name in PARTIAL}
        settings = {**facts, **settings, **merged}
        names: dict[str, str] = {}
        for row in rows.read(run / "outcomes.jsonl", None):
            model, outcome = _outcome(row, run)
            if model not in names:
                names[model] = _free_name(model, run, found)
                found[names[model]] = []
            found[names[model]].append(outcome)
        seconds |= {names[model]: time for model, time in times.items() if model in names}
    return build(found, seconds, settings)


def _free_name(model: str, run: Path, taken: Container[str]) -> str:
    """A name that no model of an earlier run has: with the run's directory, and a number where that is not enough."""
    choices = chain(
        [model, f"{model} ({run.name})"], (f"{model} ({run.name} {n})" for n in count(2))
    )
    return next(name for name in choices if name not in taken)


def _facts(run: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """Settings and merge times of a run."""
    report = run / "report.json"
    if not report.is_file():
        raise ConfigError(
            f"`{run}` holds no finished evaluation", hint="give the --out of `ramerge evaluate`"
        )
    try:
        facts = json.loads(report.read_text(encoding="utf-8"))
        times = {str(model): float(time) for model, time in facts["merge_seconds"].items()}
        return dict(facts["settings"]), times
    except MALFORMED as error:
        raise CorruptInputError(f"`{report}` does not read: {type(error).__name__}") from error


def _require_equal(first: Mapping[str, Any], second: Mapping[str, Any], run: Path) -> None:
    """Scores are compared at equal prompts, data and sampling only; data sets that only one run has do not matter."""
    for name in first.keys() - {"suites", *PARTIAL}:
        _require(name, first[name], second.get(name), run)
    for part in PARTIAL:
        ours, theirs = first.get(part, {}), second.get(part, {})
        for name in ours.keys() & theirs.keys():
            _require(f"{part} {name}", ours[name], theirs[name], run)


def _require(name: str, first: Any, second: Any, run: Path) -> None:
    if first != second:
        raise ConfigError(
            f"`{run}` was evaluated with {name} {second}, the first run with {first}",
            hint="only scores of equal settings can be compared: evaluate again",
        )


def _outcome(row: Json, run: Path) -> tuple[str, Outcome]:
    try:
        score = row["score"]
        if score is not None:
            score = Score(
                metrics={k: (float(h), float(t)) for k, (h, t) in score["metrics"].items()},
                prediction=str(score["prediction"]),
                flags=tuple(map(str, score["flags"])),
            )
        return str(row["model"]), Outcome(
            str(row["column"]), str(row["domain"]), str(row["item"]), score, str(row["error"])
        )
    except MALFORMED as error:
        raise CorruptInputError(
            f"an outcome of `{run}` does not read: {type(error).__name__} {error}"
        ) from error
