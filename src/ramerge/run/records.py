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
    """What one chunk left behind.

    Attributes:
        overlap: exact contributor patterns.
        sums: of each sampled block, as in `kernels.sample.diagnose`.
        lost: int64 ``[1 + N]``, as in `kernels.fuse.count_lost`; None where nothing was merged.
    """

    overlap: Overlap
    sums: tuple[F64, ...] = ()
    lost: I64 | None = None


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """What one tensor left behind.

    Attributes:
        overlap: exact contributor patterns.
        lambdas: the λ it was merged with; None when it was only counted.
        moved: per agent, Σ (merged - base)·τ over sampled unique elements.
        squared: per agent, Σ τ² over them.
        lost: ``[1 + N]``: changed elements that rounding made the base's again, of any agent and of each.
    """

    overlap: Overlap
    lambdas: tuple[float, ...] | None
    moved: tuple[float, ...] = ()
    squared: tuple[float, ...] = ()
    lost: tuple[int, ...] = ()

    def to_json(self) -> Json:
        """For the journal; floats survive exactly."""
        return {
            "overlap": self.overlap.to_json(),
            "lambdas": self.lambdas,
            "moved": self.moved,
            "squared": self.squared,
            "lost": self.lost,
        }

    @classmethod
    def from_json(cls, agents: int, record: Mapping[str, Any]) -> TensorRecord:
        """Inverse of `to_json`."""
        return cls(
            Overlap.from_json(agents, record["overlap"]),
            tuple(record["lambdas"]),
            tuple(record["moved"]),
            tuple(record["squared"]),
            tuple(record["lost"]),
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
    lost = sum((c.lost for c in chunks if c.lost is not None), np.zeros(1 + agents, np.int64))
    return TensorRecord(
        overlap=Overlap.total(agents, (c.overlap for c in chunks)),
        lambdas=lambdas,
        moved=tuple(math.fsum(b[0, t] for b in blocks) for t in range(agents)),
        squared=tuple(math.fsum(b[1, t] for b in blocks) for t in range(agents)),
        lost=tuple(map(int, lost)),
    )
