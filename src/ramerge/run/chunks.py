"""Chunks: what a thread works on, the buffers it reads them into, and the stream that hands them out.

Memory is set here: a worker's buffers hold one chunk of every model, whatever the size of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from ramerge._types import Bytes
from ramerge.kernels import codec, fuse, limits
from ramerge.models.base import Checkpoint
from ramerge.planning.plan import CHUNK, Plan, TensorPlan

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Step:
    """How far a phase is, in bytes of the inputs."""

    done: int
    total: int
    phase: str


Progress = Callable[[Step], None]


@dataclass(frozen=True, slots=True)
class Task:
    """Elements [start, stop) of one tensor; ``last`` marks a tensor's final chunk."""

    tensor: TensorPlan
    start: int
    stop: int

    @property
    def last(self) -> bool:
        """Whether the tensor ends here."""
        return self.stop == self.tensor.output.elements


class Executor(Protocol):
    """Runs ``work`` over tasks on some threads and yields the results in the order of the tasks."""

    def __call__(
        self, tasks: Iterable[Task], make: Callable[[], Worker], work: Callable[[Worker, Task], R]
    ) -> Iterator[tuple[Task, R]]:
        """Run everything; the first exception stops the rest and is raised."""
        ...


class Observer(Protocol):
    """Told of every raw piece that was read, in file order per file (hashing)."""

    def __call__(self, stream: int, name: str, start: int, data: Bytes) -> None:
        """``stream`` 0 is the base, 1 + t agent t."""
        ...


def ignore(stream: int, name: str, start: int, data: Bytes) -> None:
    """The observer that observes nothing."""


class Worker:
    """The reused buffers of one thread, and how a chunk gets into them.

    ``base`` and ``out`` are uint8 ``[capacity]``, ``agents`` uint8 ``[N, capacity]``, capacity = chunk · itemsize.
    """

    def __init__(self, plan: Plan, chunk: int, observe: Observer = ignore) -> None:
        specs = [
            s
            for t in plan.tensors
            for s in (t.output, t.base, *t.agents, *t.auxiliary)
            if s is not None
        ]
        largest = max((s.dtype.itemsize for s in specs), default=1)
        longest = max((t.output.elements for t in plan.tensors), default=0)
        capacity = -(-min(chunk, max(longest, 1)) * largest // 64) * 64
        streams = len(plan.agents) + len(plan.auxiliary)
        self.plan, self.observe = plan, observe
        self.base, self.out = np.empty(capacity, np.uint8), np.empty(capacity, np.uint8)
        self.agents = np.empty((streams, capacity), np.uint8)
        self.codes = np.zeros(streams, np.int64)
        self.patterns = np.empty(chunk if len(plan.agents) > limits.MAX_DENSE else 0, np.uint32)
        self._scratch = {
            wide: fuse.scratch(streams, wide=wide) for wide in {t.wide for t in plan.tensors}
        }
        self.real: type[np.floating[Any]] = np.float32
        self.base_code = 0
        self.n = 0

    @property
    def scratch(self) -> fuse.Scratch:
        """Working arrays in the current tensor's working dtype."""
        return self._scratch[self.real is np.float64]

    def read(self, task: Task) -> None:
        """Fill the buffers with the task's elements of every model."""
        tensor, plan = task.tensor, self.plan
        self.n = task.stop - task.start
        self.real = np.float64 if tensor.wide else np.float32
        self.base_code = codec.CODES.get(tensor.base.dtype, -1)
        base = self._fill(0, plan.base, tensor.base, task, self.base)
        for t, (checkpoint, spec) in enumerate(
            zip((*plan.agents, *plan.auxiliary), (*tensor.agents, *tensor.auxiliary), strict=False)
        ):
            if spec is None:  # stands for the base here
                self.agents[t, : base.size] = base
                self.codes[t] = self.base_code
            else:
                self._fill(1 + t, checkpoint, spec, task, self.agents[t])
                self.codes[t] = codec.CODES.get(spec.dtype, -1)

    def _fill(
        self, stream: int, checkpoint: Checkpoint, spec: Any, task: Task, room: Bytes
    ) -> Bytes:
        piece = room[: self.n * spec.dtype.itemsize]
        checkpoint.read(spec.name, task.start, task.stop, piece)
        self.observe(stream, spec.name, task.start, piece)
        return piece


def tasks(tensors: Iterable[TensorPlan], chunk: int) -> Iterator[Task]:
    """All chunks of all tensors, in order. An empty tensor has one empty task."""
    for tensor in tensors:
        n = tensor.output.elements
        for start in range(0, max(n, 1), chunk):
            yield Task(tensor, start, min(start + chunk, n))


def stream(
    plan: Plan,
    tensors: Sequence[TensorPlan],
    work: Callable[[Worker, Task], R],
    *,
    run: Executor,
    chunk: int = CHUNK,
    observe: Observer = ignore,
    progress: Progress | None = None,
    phase: str = "read",
) -> Iterator[tuple[Task, R]]:
    """Apply ``work`` to every chunk of some tensors; yields (task, result) in order of tensors and chunks.

    ``work`` runs in several threads and gets a worker whose buffers it fills with ``worker.read(task)``.
    """
    total = sum(t.bytes_read for t in tensors)
    done = 0
    for task, result in run(tasks(tensors, chunk), lambda: Worker(plan, chunk, observe), work):
        yield task, result
        share = (task.stop - task.start) / max(task.tensor.output.elements, 1)
        done += round(task.tensor.bytes_read * share)
        if progress:
            progress(Step(done, total, phase))
