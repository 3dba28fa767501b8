"""Put what the bench has measured into docs/evidence/reliability.md: `make faults` ends with it.

Usage: python tests/faults/report.py RESULTS_DIRECTORY PAGE
"""

from __future__ import annotations

import json
import platform
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

BEGIN, END = "<!-- measured -->", "<!-- end -->"
TITLES = {
    "2 kill": "Killed",
    "2 errors": "System calls that fail",
    "3 rivals": "Two runs, one directory",
    "3 signals": "Signals, and inputs that nobody may write",
    "4 hostile": "Hostile and damaged files",
    "5 numbers": "Values that are not numbers, or hardly",
    "6 determinism": "Equal inputs, equal bytes",
    "7 secrets": "Secrets, and text that would like to be more",
    "8 scale": "A 70B-shaped set",
    "9 fuzzing": "Readers under random text",
}


def table(rows: list[dict[str, str]]) -> str:
    lines = ["| test | figure | outcome |", "|---|--:|---|"]
    for row in sorted(rows, key=lambda r: r["test"]):
        cells = (row[k].replace("|", "\\|") for k in ("test", "figure", "outcome"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    results, page = Path(sys.argv[1]), Path(sys.argv[2])
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for path in sorted(results.glob("*.json")):
        for row in json.loads(path.read_text()):
            groups[row["group"]].append(row)
    versions = f"Python {platform.python_version()}, numpy {version('numpy')}, {platform.system()}"
    parts = [f"Measured by `make faults`, with {versions}."]
    parts += [f"### {TITLES[group]}\n\n{table(rows)}" for group, rows in sorted(groups.items())]
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{page} has the marks that the tables go between"
    page.write_text(before + begin + "\n\n" + "\n\n".join(parts) + "\n\n" + end + after)
    print(f"{page}: {sum(map(len, groups.values()))} rows")


if __name__ == "__main__":
    main()
