"""Which elements are among an agent's k largest? Thresholds over a tensor or the whole model, exact, in three passes.

The result is a `Cut` per tensor and agent: a magnitude, and for every chunk how many elements of exactly that magnitude
still count (`kernels.selection` defines the order). Methods ask for it with ``needs=trim(...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ramerge._types import I64
from ramerge.kernels import selection

KeepRule = Callable[[Mapping[str, Any], int], Sequence[float]]
"""Parameter values and agent -> fractions of elements; each gives one cut."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The k largest: magnitudes above ``bits``, and of those equal to it ``quota[start]`` in the chunk at ``start``.

    ``bits`` of 2^32 - 1 keeps nothing.
    """

    bits: int
    quota: Mapping[int, int]


NOTHING = Cut(0xFFFFFFFF, {})
Cuts = Mapping[str, tuple[tuple[Cut, ...], ...]]  # tensor -> agent -> cut


def trim(fractions: KeepRule) -> tuple[Callable[[Mapping[str, Any]], Any], ...]:
    """The three probes behind ``context.facts["cuts"]``.

    Args:
        fractions: the shares of elements whose largest are wanted, for one agent.
    """
    return tuple(partial(kind, fractions) for kind in (_High, _Low, _Equal))


def wanted(fraction: float, elements: int) -> int:
    """Elements to keep: max(1, floor(fraction · n)), 0 for a fraction of 0 (SPEC 4)."""
    return max(1, int(fraction * elements)) if fraction > 0 and elements else 0


@dataclass(frozen=True, slots=True)
class _Bin:
    """A bin of the first histogram; ``rest`` of its elements are wanted."""

    high: int
    rest: int


def _scope(tensor: Any) -> str:
    """Key of the elements that compete with one another."""
    return "" if tensor.values.get("trim", "tensor") == "model" else tensor.name


def _chunk(worker: Any, agent: int) -> tuple[Any, ...]:
    x, a = selection.worker_rows(worker)
    return (
        worker.base,
        worker.base_code,
        worker.agents[agent],
        worker.codes[agent],
        worker.n,
        x,
        a,
    )


def _agents(worker: Any) -> int:
    return len(worker.plan.agents)


class _High:
    """Pass 1: the upper half of the magnitude's bits."""

    name = "trim: upper bits"

    def __init__(self, fractions: KeepRule, values: Mapping[str, Any]) -> None:
        self._fractions = fractions
        del values

    def visit(self, worker: Any, task: Any, facts: Mapping[str, Any]) -> list[tuple[I64, I64]]:
        """Sparse histograms of one chunk, one per agent."""
        del task, facts
        found = []
        for t in range(_agents(worker)):
            histogram = np.zeros(selection.HALF, np.int64)
            selection.high_histogram(*_chunk(worker, t), histogram)
            bins = np.flatnonzero(histogram)
            found.append((bins, histogram[bins]))
        return found

    def fold(
        self, records: Iterable[tuple[Any, int, Any]], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Scope -> agent -> bins, one per fraction; None where nothing is wanted."""
        del facts
        totals: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        rules: dict[str, Any] = {}
        done: dict[str, Any] = {}
        for tensor, start, record in records:
            scope = _scope(tensor)
            if start == 0:
                sizes[scope] = sizes.get(scope, 0) + tensor.output.elements
                rules.setdefault(scope, tensor.values)
            total = totals.setdefault(scope, [np.zeros(selection.HALF, np.int64) for _ in record])
            for histogram, (bins, counts) in zip(total, record, strict=True):
                histogram[bins] += counts
            whole = start + _piece(record) >= tensor.output.elements
            if (
                scope == tensor.name and whole
            ):  # this scope is complete: keep the answer, not the histogram
                done[scope] = self._bins(totals.pop(scope), sizes[scope], rules[scope])
        for scope, total in totals.items():
            done[scope] = self._bins(total, sizes[scope], rules[scope])
        return done

    def _bins(
        self, total: list[I64], elements: int, values: Mapping[str, Any]
    ) -> list[list[_Bin | None]]:
        return [
            [
                _Bin(*selection.find_bin(histogram, k)) if (k := wanted(f, elements)) else None
                for f in self._fractions(values, t)
            ]
            for t, histogram in enumerate(total)
        ]


def _piece(record: list[tuple[I64, I64]]) -> int:
    """Elements of the chunk that a record describes."""
    return int(record[0][1].sum()) if record else 0


class _Low:
    """Pass 2: the lower half, inside the bins that pass 1 found."""

    name = "trim: lower bits"

    def __init__(self, fractions: KeepRule, values: Mapping[str, Any]) -> None:
        del fractions, values

    def visit(self, worker: Any, task: Any, facts: Mapping[str, Any]) -> list[list[Any]]:
        """Sparse histograms, agent by agent and cut by cut."""
        bins = facts[_High.name][_scope(task.tensor)]
        return [[self._one(worker, t, b) for b in bins[t]] for t in range(_agents(worker))]

    @staticmethod
    def _one(worker: Any, agent: int, place: _Bin | None) -> Any:
        if place is None:
            return None
        histogram = np.zeros(selection.HALF, np.int64)
        selection.low_histogram(*_chunk(worker, agent), place.high, histogram)
        bins = np.flatnonzero(histogram)
        return bins, histogram[bins]

    def fold(
        self, records: Iterable[tuple[Any, int, Any]], facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Scope -> agent -> (bits, equal ones wanted), one per cut; None where nothing is wanted."""
        bins = facts[_High.name]
        totals: dict[str, dict[tuple[int, int], dict[int, int]]] = {}
        for tensor, _, record in records:
            total = totals.setdefault(_scope(tensor), {})
            for t, cuts in enumerate(record):
                for c, sparse in enumerate(cuts):
                    if sparse is not None:
                        counts = total.setdefault((t, c), {})
                        for low, n in zip(sparse[0].tolist(), sparse[1].tolist(), strict=True):
                            counts[low] = counts.get(low, 0) + n
        return {
            scope: [
                [_exact(b, totals[scope].get((t, c), {})) for c, b in enumerate(agent)]
                for t, agent in enumerate(per_agent)
            ]
            for scope, per_agent in bins.items()
        }


def _exact(place: _Bin | None, counts: Mapping[int, int]) -> tuple[int, int] | None:
    """Threshold bits and how many equal elements belong to the top k."""
    if place is None:
        return None
    histogram = np.zeros(selection.HALF, np.int64)
    histogram[list(counts)] = list(counts.values())
    low, rest = selection.find_bin(histogram, place.rest)
    return place.high << 16 | low, rest


class _Equal:
    """Pass 3: where the elements of exactly the threshold's magnitude lie."""

    name = "cuts"

    def __init__(self, fractions: KeepRule, values: Mapping[str, Any]) -> None:
        del fractions, values

    def visit(self, worker: Any, task: Any, facts: Mapping[str, Any]) -> list[list[int]]:
        """Equal elements of one chunk, agent by agent and cut by cut."""
        exact = facts[_Low.name][_scope(task.tensor)]
        return [
            [
                0 if e is None else int(selection.count_equal(*_chunk(worker, t), e[0]))
                for e in exact[t]
            ]
            for t in range(_agents(worker))
        ]

    def fold(self, records: Iterable[tuple[Any, int, Any]], facts: Mapping[str, Any]) -> Cuts:
        """Hand the wanted equal elements out in order of tensors and chunks."""
        exact = facts[_Low.name]
        left = {
            scope: [[0 if e is None else e[1] for e in cuts] for cuts in per_agent]
            for scope, per_agent in exact.items()
        }
        quotas: dict[str, Any] = {}
        for tensor, start, record in records:
            budget = left[_scope(tensor)]
            mine = quotas.setdefault(tensor.name, [[{} for _ in cuts] for cuts in record])
            for t, cuts in enumerate(record):
                for c, equal in enumerate(cuts):
                    mine[t][c][start] = min(equal, budget[t][c])
                    budget[t][c] -= mine[t][c][start]
            quotas[tensor.name] = mine
        scopes = {name: name if name in exact else "" for name in quotas}
        return {
            name: tuple(
                tuple(
                    NOTHING if e is None else Cut(e[0], quotas[name][t][c])
                    for c, e in enumerate(cuts)
                )
                for t, cuts in enumerate(exact[scopes[name]])
            )
            for name in quotas
        }
