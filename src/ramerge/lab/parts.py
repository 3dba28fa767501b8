"""The pieces of a report, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramerge.lab import statistics as st


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first column is left-aligned."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """An SVG with the name of its file."""

    name: str
    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class Part:
    """A heading with what stands below it."""

    title: str
    text: Sequence[str] = ()
    items: Sequence[Table | Figure] = ()
    level: int = 2


def percent(e: st.Estimate) -> str:
    """A score with its interval."""
    return f"{100 * e.value:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def points(e: st.Estimate) -> str:
    """A difference with its interval."""
    return f"{100 * e.value:+.1f} [{100 * e.low:+.1f}, {100 * e.high:+.1f}]"


def p_value(value: float) -> str:
    """Three digits are all that the bootstrap can tell."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def spread(values: Any) -> str:
    """Mean, least and most."""
    return f"{100 * np.mean(values):.1f} ({100 * np.min(values):.1f} … {100 * np.max(values):.1f})"
