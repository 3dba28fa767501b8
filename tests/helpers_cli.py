"""Run the command line as a user does, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def ramerge(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m ramerge ARGUMENTS`, its output as text."""
    return subprocess.run(
        [sys.executable, "-m", "ramerge", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(**environment),
    )


def child_environment(**extra: str) -> dict[str, str]:
    """This process's environment, with the sources that are under test first on the path."""
    source = str(Path(__file__).parents[1] / "src")
    return os.environ | {"PYTHONPATH": source, "COLUMNS": "100"} | extra
