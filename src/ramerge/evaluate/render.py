"""The report as Markdown and as one HTML file without scripts or remote parts. Model names and texts are data: escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ramerge.evaluate.report import Cell, EvaluationReport, Key, published
from ramerge.evaluate.statistics import Estimate

SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|`*_[]<>#&!"} | {"\n": " ", "\r": " "})

Table = tuple[
    str, list[str], list[list[str]]
]  # title, head, rows; "*" before a cell marks the best


def tables(report: EvaluationReport) -> list[Table]:
    """Everything the report shows, as plain cells."""
    main = [k for k in report.keys if any(r[k].main for r in report.cells.values() if k in r)]
    rest = [k for k in report.keys if k not in main]
    found = [
        (
            "Scores (main metric of each data set, percent)",
            ["model", *map(_label, main)],
            _rows(report, main),
        ),
        ("Averages over complete columns", *_averages(report)),
    ]
    if rest:
        found.append(("Further metrics", ["model", *map(_label, rest)], _rows(report, rest)))
    if report.merge_seconds:
        found.append(("Score against merge time", *_pareto(report)))
    flags = _flags(report)
    if flags:
        found.append(("What happened on the way", ["model", "data set", "event", "tasks"], flags))
    found.append((f"As published ({published()['source']})", *_published()))
    return [(title, head, rows) for title, head, rows in found]


def markdown(report: EvaluationReport) -> str:
    """The report as Markdown; the best of a column is bold."""
    parts = ["# Evaluation\n"]
    for title, head, rows in tables(report):
        lines = ["| " + " | ".join(map(_escaped, head)) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(map(_marked, row)) + " |" for row in rows]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join([*parts, NOTE])


def html(report: EvaluationReport) -> str:
    """The report as one self-contained page."""
    from jinja2 import Environment, PackageLoader

    page = Environment(
        loader=PackageLoader("ramerge.evaluate", "data"), autoescape=True, trim_blocks=True
    ).get_template("report.html")
    return page.render(tables=tables(report), note=NOTE)


NOTE = (
    "Brackets are 95 % intervals: Wilson's for won-or-lost tasks, else a bootstrap over tasks. Differences are paired "
    "bootstraps over the same tasks. A cell with errors is left out of averages and is never best.\n"
)


def _label(key: Key) -> str:
    return key[0] if key[1] == "accuracy" else f"{key[0]}, {key[1]}"


def _rows(report: EvaluationReport, keys: Sequence[Key]) -> list[list[str]]:
    return [
        [model, *(_cell(row.get(key), best=model in report.best.get(key, ())) for key in keys)]
        for model, row in report.cells.items()
    ]


def _cell(cell: Cell | None, *, best: bool) -> str:
    if cell is None:
        return "–"
    failed = f", {cell.errors} errors" if cell.errors else ""
    return ("*" if best else "") + _interval(cell.score, failed)


def _interval(score: Estimate, more: str = "") -> str:
    if math.isnan(score.mean):
        return f"– (n={score.n}{more})"
    return f"{score.mean:.2f} [{score.low:.1f}, {score.high:.1f}] (n={score.n}{more})"


def _averages(report: EvaluationReport) -> tuple[list[str], list[list[str]]]:
    domains = list(dict.fromkeys(d for row in report.averages.values() for d in row))
    versus = report.models[0] if report.models else ""
    head = ["model", *domains, f"all minus {versus}"]
    top = {
        d: max((row.get(d, -1.0) for row in report.averages.values()), default=-1.0)
        for d in domains
    }
    rows = [
        [
            model,
            *(
                _average(row.get(d), best=len(report.models) > 1 and row.get(d) == top[d])
                for d in domains
            ),
            _interval(report.differences[model]) if model in report.differences else "–",
        ]
        for model, row in report.averages.items()
    ]
    return head, rows


def _average(score: float | None, *, best: bool) -> str:
    return "–" if score is None else f"{'*' if best else ''}{score:.2f}"


def _pareto(report: EvaluationReport) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            m,
            _average(report.averages.get(m, {}).get("all"), best=False),
            f"{s:.1f}",
            "yes" if m in report.pareto else "no",
        ]
        for m, s in report.merge_seconds.items()
    ]
    return ["model", "average", "merge seconds", "on the Pareto front"], rows


def _flags(report: EvaluationReport) -> list[list[str]]:
    return [
        [model, column, flag, str(count)]
        for model, row in report.cells.items()
        for (column, _), cell in row.items()
        if cell.main
        for flag, count in cell.flags.items()
    ]


def _published() -> tuple[list[str], list[list[str]]]:
    paper = published()
    head = ["model", *(_label((c["column"], c["metric"])) for c in paper["columns"]), "average"]
    scores = [[*row["scores"], row["average"]] for row in paper["rows"]]
    top = [max(column) for column in zip(*scores, strict=True)]
    rows = [
        [row["model"], *(f"{'*' if s == t else ''}{s:.2f}" for s, t in zip(line, top, strict=True))]
        for row, line in zip(paper["rows"], scores, strict=True)
    ]
    return head, rows


def _escaped(text: str) -> str:
    return text.translate(SPECIAL)


def _marked(text: str) -> str:
    return f"**{_escaped(text[1:])}**" if text.startswith("*") else _escaped(text)
