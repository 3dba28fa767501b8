"""What chunks and tensors leave behind; records add up in order, and survive a journal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramerge._types import F64, I64, Json
from ramerge.probes.overlap import Overlap


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """What one chunk left behind. ``sums`` and ``tallies`` as in `kernels.sample.diagnose`; per sampled block."""

    overlap: Overlap
    sums: tuple[F64, ...] = ()
    tallies: I64 | None = None


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """What one tensor left behind.

    Attributes:
        overlap: exact contributor patterns.
        lambdas: the λ it was merged with; None when it was only counted.
        moved: per agent, Σ (merged - base)·τ over sampled unique elements.
        squared: per agent, Σ τ² over them.
        tallies: ``[1 + N][2]``: sampled changed elements, and those lost to rounding; row 0 of any agent.
    """

    overlap: Overlap
    lambdas: tuple[float, ...] | None
    moved: tuple[float, ...] = ()
    squared: tuple[float, ...] = ()
    tallies: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> Json:
        """For the journal; floats survive exactly."""
        return {
            "overlap": self.overlap.to_json(),
            "lambdas": self.lambdas,
            "moved": self.moved,
            "squared": self.squared,
            "tallies": self.tallies,
        }

    @classmethod
    def from_json(cls, agents: int, record: Mapping[str, Any]) -> TensorRecord:
        """Inverse of `to_json`."""
        return cls(
            Overlap.from_json(agents, record["overlap"]),
            tuple(record["lambdas"]),
            tuple(record["moved"]),
            tuple(record["squared"]),
            tuple((a, b) for a, b in record["tallies"]),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a merge learned. ``lambdas`` per scope group; ``passes`` over the inputs, probes included."""

    records: Mapping[str, TensorRecord]
    lambdas: Mapping[str, tuple[float, ...]]
    passes: int
    bytes_read: int
    facts: Mapping[str, Any] = field(default_factory=dict)


def fold(
    agents: int, chunks: Sequence[ChunkRecord], lambdas: tuple[float, ...] | None
) -> TensorRecord:
    """One record for a tensor. Float sums are exact over the fixed blocks, whatever chunks they lay in."""
    blocks = [block for chunk in chunks for block in chunk.sums]
    tallies = sum(
        (c.tallies for c in chunks if c.tallies is not None), np.zeros((1 + agents, 2), np.int64)
    )
    return TensorRecord(
        overlap=Overlap.total(agents, (c.overlap for c in chunks)),
        lambdas=lambdas,
        moved=tuple(math.fsum(b[0, t] for b in blocks) for t in range(agents)),
        squared=tuple(math.fsum(b[1, t] for b in blocks) for t in range(agents)),
        tallies=tuple((int(a), int(b)) for a, b in tallies),
    )
