"""The command line: one file a command; parse, call the API, print.

Data goes to stdout, everything else to stderr. Importing any module of this package loads neither
numba nor the API: a command imports what it needs when it runs, so that `--help` stays
instant.
"""

from __future__ import annotations


def main() -> None:
    """Run the `ramerge` program and end the process with its exit code (see `ramerge._errors`)."""
    import sys

    from ramerge.cli.app import run

    sys.exit(run(sys.argv[1:]))
