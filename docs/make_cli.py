"""Write docs/reference/cli.md and README's example from the program itself; tests check that they agree."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ramerge.cli.app import available, run

INTRO = """# Command line

Generated from `--help` by `make docs`.

Results go to stdout, everything else (progress, warnings, errors) to stderr. The progress bar shows
only on a terminal; in a log, a line every 30 seconds says how far a merge is. `NO_COLOR` is obeyed. `--json` prints one JSON object. `--debug`, anywhere
on the line, shows the traceback behind an error.

| exit code | meaning |
|---:|---|
| 0 | done, and verified |
| 1 | internal error: a bug |
| 2 | usage or configuration |
| 3 | an input is corrupt or incomplete |
| 4 | the inputs do not fit together |
| 5 | NaN, infinity or overflow, against the policy |
| 6 | input or output failed: space, permission |
| 7 | the output exists or is locked |
| 8 | refused for safety |
| 9 | hub or network |
| 10 | verification failed |
| 11 | no sandbox for model-written code |
| 12 | an evaluation finished, with task errors |
| 130, 143 | stopped by Ctrl-C, by SIGTERM |
| 141 | the reader of the output went away |
"""


def reference() -> str:
    """The whole page."""
    os.environ["COLUMNS"] = "100"
    parts = [INTRO, _section([])]
    for name in available():
        parts.append(_section([name]))
        parts += [_section([name, sub]) for sub in _subcommands(name)]
    return "\n".join(parts)


def _section(words: list[str]) -> str:
    title = " ".join(["ramerge", *words])
    return f"## {title}\n\n```text\n{_help(words).rstrip()}\n```\n"


def _help(words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run([*words, "--help"])
    assert code == 0, words
    return out.getvalue()


def _subcommands(name: str) -> list[str]:
    """Names under "Commands:" in the help of a command that has some."""
    listed = _help([name]).partition("\nCommands:\n")[2].splitlines()
    return [line.split()[0] for line in listed if line.startswith("  ") and line[2:3].strip()]


def demo_output() -> str:
    """What `make demo` prints, once the kernels are compiled."""
    command = [sys.executable, "-m", "ramerge", "demo", "--overwrite"]
    with tempfile.TemporaryDirectory() as empty:
        for _ in range(2):
            done = subprocess.run(
                command,
                cwd=empty,
                text=True,
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
    return done.stdout


def with_demo(page: str) -> str:
    """``page`` with the output between its demo marks replaced."""
    block = f"<!-- demo -->\n```text\n{demo_output()}```\n<!-- /demo -->"
    return re.sub("<!-- demo -->.*<!-- /demo -->", lambda _: block, page, flags=re.DOTALL)


if __name__ == "__main__":
    here = Path(__file__).parent
    (here / "reference" / "cli.md").write_text(reference(), encoding="utf-8")
    readme = here.parent / "README.md"
    readme.write_text(with_demo(readme.read_text(encoding="utf-8")), encoding="utf-8")
