"""The suites, one file each. A suite module has `DOMAIN`, `SOURCES` and `load(options) -> tasks`."""

from __future__ import annotations

from importlib import import_module

from ramerge._errors import ConfigError, nearest
from ramerge.evaluate.records import Options, Task

MODULES = {
    "coding": "ramerge.evaluate.suites.coding",
    "tool": "ramerge.evaluate.suites.tool",
    "memory": "ramerge.evaluate.suites.memory",
    "math": "ramerge.evaluate.suites.mathematics",
    "search": "ramerge.evaluate.suites.search",
    "ifeval": "ramerge.evaluate.suites.ifeval",
    "lab": "ramerge.lab.suite",  # by name only: the lab stands above
}


def load(name: str, options: Options) -> list[Task]:
    """The tasks of suite ``name``.

    Raises:
        ConfigError: no such suite, or its data or scorer is missing.
    """
    if name not in MODULES:
        close = nearest(name, MODULES)
        hint = f"did you mean `{close}`?" if close else f"there are {', '.join(MODULES)}"
        raise ConfigError(f"there is no suite `{name}`", hint=hint)
    tasks: list[Task] = import_module(MODULES[name]).load(options)
    return tasks


def data_sets() -> dict[str, str]:
    """Every name that ``--data`` takes, with its suite."""
    return {
        source: suite
        for suite, module in MODULES.items()
        for source in import_module(module).SOURCES
    }
