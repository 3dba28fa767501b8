"""The exception tree and the process exit codes that follow from it.

    MergeError                 (1: internal)
    ├── ConfigError            2   usage or configuration
    ├── CorruptInputError      3   input corrupt or incomplete
    ├── IncompatibleError      4   inputs do not fit together
    ├── NumericError           5   NaN, infinity or overflow against the policy
    ├── OutputError            6   space, permission, any failing write
    ├── OutputBusyError        7   output exists or is locked
    ├── SecurityError          8   refused for safety
    ├── HubError               9   hub or network
    ├── VerificationError     10   what was written is not what was meant
    ├── SandboxError          11   no sandbox for model-written code
    └── TaskFailuresError     12   an evaluation finished, with task errors

A message is one sentence without a full stop; it names the thing and both values. The way out is the ``hint``.
A missing optional dependency is a ConfigError whose hint is the pip command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class MergeError(Exception):
    """Base of everything ramerge raises on purpose.

    Attributes:
        exit_code: the process exit code of the command line.
        hint: what the user can do about it, or None.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"


class ConfigError(MergeError):
    """The command line or the configuration file is wrong."""

    exit_code = 2


class CorruptInputError(MergeError):
    """An input file is damaged, truncated or incomplete."""

    exit_code = 3


class IncompatibleError(MergeError):
    """Inputs are sound, but cannot be merged with each other."""

    exit_code = 4


class NumericError(MergeError):
    """NaN, infinity or overflow, against the configured policy."""

    exit_code = 5


class OutputError(MergeError):
    """Writing failed: no space, no permission, a failing disk."""

    exit_code = 6


class OutputBusyError(MergeError):
    """The output exists already, or another run holds its lock."""

    exit_code = 7


class SecurityError(MergeError):
    """Refused because it could run code or leave the model's directory."""

    exit_code = 8


class HubError(MergeError):
    """The hub, the network or the local cache could not serve a model."""

    exit_code = 9


class VerificationError(MergeError):
    """A second reader found something else than what was meant to be written."""

    exit_code = 10


class SandboxError(MergeError):
    """No working sandbox for model-written code."""

    exit_code = 11


class TaskFailuresError(MergeError):
    """An evaluation finished, but some of its tasks failed."""

    exit_code = 12


class ProblemsError(MergeError):
    """Several problems found together; the exit code is the first one's.

    Attributes:
        problems: the single errors, in the order in which they were found.
    """

    def __init__(self, problems: Iterable[MergeError]) -> None:
        self.problems = tuple(problems)
        assert self.problems, "an empty list of problems is no problem"
        lines = [str(p).replace("\n\nhint:", "\n    hint:") for p in self.problems]
        super().__init__(f"{len(lines)} problems\n" + "\n".join(f"  {line}" for line in lines))

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """Exit code of the first problem."""
        return self.problems[0].exit_code


def raise_problems(problems: list[MergeError]) -> None:
    """Raise nothing, the only problem, or all of them as one."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise ProblemsError(problems)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like ``word``, for "did you mean" hints; None when nothing is close."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(choices), n=1, cutoff=0.6)), None)
