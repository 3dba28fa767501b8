"""The report as Markdown, for terminals and model cards. Model names and texts are data: escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ramerge.evaluate.report import Cell, EvaluationReport, Key, published
from ramerge.evaluate.statistics import Estimate

SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|`*_[]<>#&!"} | {"\n": " ", "\r": " "})
NOTE = (
    "Brackets are 95 % intervals: Wilson's for tasks won or lost, else a bootstrap over tasks; averages by MOVER. "
    "Differences are paired bootstraps over the same tasks. A cell with errors enters no average and is never best."
)
EVENTS = {
    "crash": "a program crashed",
    "malformed": "nothing to score could be read from the answer",
    "out of turns": "no answer within the allowed turns",
    "timeout": "a program ran out of time",
    "truncated": "the answer was cut off by the token budget",
}

Table = tuple[str, list[str], list[list[str]]]  # title, head, rows; `STRONG` before a cell marks it
STRONG = "\0"  # no name that a user can give holds it


def markdown(report: EvaluationReport) -> str:
    """The report as Markdown; the best of a column, and differences from 0, are bold."""
    parts = ["# Evaluation\n"]
    for title, head, rows in tables(report):
        lines = ["| " + " | ".join(map(_escaped, head)) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(map(_marked, row)) + " |" for row in rows]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join([*parts, NOTE]) + "\n"


def tables(report: EvaluationReport) -> list[Table]:
    """Everything the report shows, as plain cells; tables without rows are left out."""
    main, rest = report.main, [key for key in report.keys if key not in report.main]
    found: list[Table] = [
        (
            "Scores, percent",
            ["model", *map(label, main)],
            _rows(report, main) + _published_rows(main),
        ),
        ("Averages over complete columns", *_averages(report)),
        (f"Minus {report.models[0]}, points" if report.models else "", *_differences(report)),
        ("Further metrics", ["model", *map(label, rest)], _rows(report, rest) if rest else []),
        ("Score against merge time", *_pareto(report)),
        ("On the way", ["model", "data set", "event", "times"], events(report)),
    ]
    return [table for table in found if table[2]]


def label(key: Key) -> str:
    """A column's heading: the data set, and the metric where it is not accuracy."""
    return key[0] if key[1] == "accuracy" else f"{key[0]}, {key[1]}"


def events(report: EvaluationReport) -> list[list[str]]:
    """Model, data set, event, times: errors first, as they make a cell incomplete."""
    rows = []
    for model, row in report.cells.items():
        first: dict[str, Cell] = {}
        for (column, _), cell in row.items():
            first.setdefault(column, cell)
        for column, cell in first.items():
            counted = {"no answer from the server": cell.errors} if cell.errors else {}
            counted |= {EVENTS.get(flag, flag): count for flag, count in cell.flags.items()}
            rows += [[model, column, event, str(count)] for event, count in counted.items()]
    return rows


def settled(difference: Estimate) -> bool:
    """Whether an interval excludes 0."""
    return difference.low > 0 or difference.high < 0


def beside(keys: Sequence[Key]) -> list[tuple[str, list[float | None], float | None]]:
    """The published rows: model, its scores in the columns ``keys`` (None: not published), its average.

    The average only where ``keys`` are the columns that it was published over; no rows where none is shared.
    """
    paper = published()
    places = {(c["column"], c["metric"]): n for n, c in enumerate(paper["columns"])}
    if not places.keys() & set(keys):
        return []
    whole = places.keys() == set(keys)
    return [
        (
            row["model"],
            [row["scores"][places[key]] if key in places else None for key in keys],
            row["average"] if whole else None,
        )
        for row in paper["rows"]
    ]


def _rows(report: EvaluationReport, keys: Sequence[Key]) -> list[list[str]]:
    return [
        [model, *(_cell(row.get(key), best=model in report.best.get(key, ())) for key in keys)]
        for model, row in report.cells.items()
    ]


def _published_rows(keys: Sequence[Key]) -> list[list[str]]:
    return [
        [f"published: {model}", *("–" if score is None else f"{score:.2f}" for score in scores)]
        for model, scores, _ in beside(keys)
    ]


def _cell(cell: Cell | None, *, best: bool) -> str:
    if cell is None:
        return "–"
    failed = f", {cell.errors} errors" if cell.errors else ""
    return (STRONG if best else "") + _interval(cell.score, failed)


def _interval(score: Estimate | None, more: str = "") -> str:
    if score is None:
        return "–"
    if math.isnan(score.mean):
        return f"– (n={score.n}{more})"
    return f"{score.mean:.2f} [{score.low:.1f}, {score.high:.1f}] (n={score.n}{more})"


def _averages(report: EvaluationReport) -> tuple[list[str], list[list[str]]]:
    domains = list(dict.fromkeys(d for row in report.averages.values() for d in row))
    if not domains:
        return [], []
    top = {d: max(row[d].mean for row in report.averages.values()) for d in domains}
    low = {d: min(row[d].mean for row in report.averages.values()) for d in domains}
    rows = [
        [
            m,
            *(
                (STRONG if low[d] < row[d].mean == top[d] else "") + _interval(row[d])
                for d in domains
            ),
        ]
        for m, row in report.averages.items()
    ]
    return ["model", *domains], rows


def _differences(report: EvaluationReport) -> tuple[list[str], list[list[str]]]:
    def shown(found: Estimate | None) -> str:
        return (STRONG if found is not None and settled(found) else "") + _interval(found)

    rows = [
        [m, *(shown(report.differences[m].get(key)) for key in report.main), shown(average)]
        for m, average in report.average_differences.items()
    ]
    return ["model", *map(label, report.main), "average"], rows


def _pareto(report: EvaluationReport) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            model,
            _interval(report.averages.get(model, {}).get("all")),
            f"{seconds:.1f}",
            "yes" if model in report.pareto else "no",
        ]
        for model, seconds in report.merge_seconds.items()
    ]
    return ["model", "average", "merge seconds", "on the Pareto front"], rows


def _escaped(text: str) -> str:
    return text.translate(SPECIAL)


def _marked(text: str) -> str:
    return f"**{_escaped(text[1:])}**" if text.startswith(STRONG) else _escaped(text)
