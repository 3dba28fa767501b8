"""Read finished evaluations back and put their models into one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ramerge._errors import ConfigError, CorruptInputError
from ramerge.evaluate import rows
from ramerge.evaluate.records import Outcome, Score
from ramerge.evaluate.report import EvaluationReport, build


def compare(runs: Sequence[str | Path]) -> EvaluationReport:
    """One report over the models of all ``runs``, in order; the first model is what the others are held against.

    Raises:
        ConfigError: a run has no outcomes, or two runs evaluated with different settings.
        CorruptInputError: an outcome does not read.
    """
    found: dict[str, list[Outcome]] = {}
    seconds: dict[str, float] = {}
    common: dict[str, object] | None = None
    for run in map(Path, runs):
        report = run / "report.json"
        if not report.is_file():
            raise ConfigError(
                f"`{run}` holds no finished evaluation", hint="give the --out of `ramerge evaluate`"
            )
        facts = json.loads(report.read_text(encoding="utf-8"))
        _require_equal(common, facts["settings"], run)
        common = facts["settings"]
        seconds |= facts["merge_seconds"]
        taken = set(found)
        for row in rows.read(run / "outcomes.jsonl", None):
            name = row["model"] if row["model"] not in taken else f"{row['model']} ({run.name})"
            found.setdefault(name, []).append(_outcome(row, run))
    return build(found, seconds, common or {})


def _require_equal(first: dict[str, object] | None, second: dict[str, object], run: Path) -> None:
    """Scores are compared at equal prompts, data and sampling only."""
    if first is None:
        return
    for name in first:
        if name != "suites" and first[name] != second.get(name):
            raise ConfigError(
                f"`{run}` was evaluated with {name} {second.get(name)}, the first run with {first[name]}"
            )


def _outcome(row: dict[str, object], run: Path) -> Outcome:
    fields = {k: v for k, v in row.items() if k != "model"}
    score = fields.pop("score")
    try:
        if score is not None:
            score = Score(
                metrics={k: (float(h), float(t)) for k, (h, t) in score["metrics"].items()},  # type: ignore[index]
                prediction=score["prediction"],  # type: ignore[index]
                flags=tuple(score["flags"]),  # type: ignore[index]
            )
        return Outcome(score=score, **fields)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptInputError(f"an outcome of `{run}` does not read: {error}") from error
