"""The table of formats names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "formats.md"


def test_tests_named_in_the_table_exist():
    code = "\n".join(path.read_text() for path in sorted(TESTS.rglob("test_*.py")))
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 30
    missing = {name for name in named if f"def {name}(" not in code}
    assert missing == set()
