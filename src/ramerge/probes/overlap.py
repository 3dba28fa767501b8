"""Exact counts of which agents changed which elements: the only statistics RAM+ needs.

One number per *contributor pattern*: bit t of the pattern says whether agent t changed the element. Densities,
unique and shared counts, ρ, overlaps of every set of agents all follow from them, and records add.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ramerge._types import I64, U32


@dataclass(frozen=True, slots=True)
class Overlap:
    """How many elements show each contributor pattern.

    Attributes:
        agents: N.
        counts: pattern -> elements; pattern 0 is the unchanged ones, absent patterns count nothing.
    """

    agents: int
    counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def from_table(cls, agents: int, table: I64) -> Overlap:
        """From a dense table int64 ``[2^N]``."""
        return cls(agents, {int(p): int(table[p]) for p in np.flatnonzero(table)})

    @classmethod
    def from_patterns(cls, agents: int, patterns: U32) -> Overlap:
        """From one pattern per element, uint32 ``[n]``."""
        values, counts = np.unique(patterns, return_counts=True)
        return cls(agents, {int(p): int(c) for p, c in zip(values, counts, strict=True)})

    @classmethod
    def total(cls, agents: int, parts: Iterable[Overlap]) -> Overlap:
        """Sum of any number of records."""
        counts: dict[int, int] = {}
        for part in parts:
            for pattern, n in part.counts.items():
                counts[pattern] = counts.get(pattern, 0) + n
        return cls(agents, dict(sorted(counts.items())))

    def __add__(self, other: Overlap) -> Overlap:
        return Overlap.total(self.agents, (self, other))

    @property
    def elements(self) -> int:
        """All elements, changed or not."""
        return sum(self.counts.values())

    @property
    def unchanged(self) -> int:
        """Elements that no agent changed."""
        return self.counts.get(0, 0)

    def changed(self, agent: int) -> int:
        """Elements that this agent changed."""
        return sum(n for p, n in self.counts.items() if p >> agent & 1)

    def unique(self, agent: int) -> int:
        """Elements that this agent alone changed."""
        return self.counts.get(1 << agent, 0)

    def shared(self, agent: int) -> int:
        """Elements that this agent and at least one other changed."""
        return self.changed(agent) - self.unique(agent)

    def overlap_with(self, agent: int) -> list[int]:
        """Entry k: how many of this agent's elements exactly k others changed too; ``[N]`` entries."""
        spread = [0] * self.agents
        for pattern, n in self.counts.items():
            if pattern >> agent & 1:
                spread[pattern.bit_count() - 1] += n
        return spread

    def both(self, a: int, b: int) -> int:
        """Elements that agents a and b both changed."""
        mask = 1 << a | 1 << b
        return sum(n for p, n in self.counts.items() if p & mask == mask)

    def rho(self, agent: int) -> float:
        """Overlap-unique ratio ρ = shared / unique; inf without unique elements, 0 where nothing changed (SPEC 3)."""
        unique, shared = self.unique(agent), self.shared(agent)
        if unique == 0:
            return math.inf if shared else 0.0
        return shared / unique

    def with_unique_scaled(self, factor: float) -> Overlap:
        """The same record with every unique count multiplied: how far a sampled ρ might be off."""
        scaled = {p: round(n * factor) if p.bit_count() == 1 else n for p, n in self.counts.items()}
        return Overlap(self.agents, scaled)

    def scaled(self, factor: float) -> Overlap:
        """The same record for ``factor`` times as many elements: what a sample says of the whole."""
        return Overlap(self.agents, {p: round(n * factor) for p, n in self.counts.items()})

    def to_json(self) -> dict[str, int]:
        """Pattern -> elements, keys as decimal strings."""
        return {str(p): n for p, n in self.counts.items()}

    @classmethod
    def from_json(cls, agents: int, record: Mapping[str, int]) -> Overlap:
        """Inverse of `to_json`."""
        return cls(agents, {int(p): int(n) for p, n in record.items()})
