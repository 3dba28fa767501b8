"""The table of formats names tests that exist; every report that reading covers has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "formats.md"
CODE = "\n".join(path.read_text() for path in sorted(HERE.parent.rglob("test_*.py")))
# Reports of public failures that concern what is read; the others are tested where they belong.
REPORTS = [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 23, 25, 27, 28, 30, 31,
           32, 33, 34, 35, 39, 40, 41, 43, 44, 45, 48]  # fmt: skip


def test_tests_named_in_the_table_exist():
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 30
    missing = {name for name in named if f"def {name}(" not in CODE}
    assert missing == set()


@pytest.mark.parametrize("number", REPORTS)
def test_every_report_has_a_test(number):
    names = re.findall(r"(?:def (test_\w+)\(|\"(\w+_report_\d+)\":)", CODE)
    numbers = [n for pair in names for name in pair for n in _numbers(name)]
    assert number in numbers


def _numbers(name: str) -> list[int]:
    return [
        int(n) for part in re.findall(r"reports?((?:_\d+)+)", name) for n in part.split("_") if n
    ]
