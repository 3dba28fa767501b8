"""Merge RL-trained agents that share one base into a single generalist.

    import ramerge

    report = ramerge.merge(base="base", agents={"coder": "a", "tools": "b"}, method="ram_plus", out="merged")

Names are loaded when they are used: importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ramerge._version import __version__

if TYPE_CHECKING:
    from ramerge._errors import MergeError
    from ramerge.api import (
        MergeReport,
        Plan,
        ProbeReport,
        VerifyReport,
        doctor,
        merge,
        merge_state_dicts,
        plan,
        probe,
        verify,
    )

__all__ = [
    "MergeError",
    "MergeReport",
    "Plan",
    "ProbeReport",
    "VerifyReport",
    "__version__",
    "doctor",
    "merge",
    "merge_state_dicts",
    "plan",
    "probe",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module `ramerge` has no attribute `{name}`")
    from importlib import import_module

    return getattr(
        import_module("ramerge._errors" if name == "MergeError" else "ramerge.api"), name
    )


def __dir__() -> list[str]:
    return sorted(__all__)
