"""The merge itself: one loop over chunks, read from every model, merged, written.

    for tensor in plan: for chunk of tensor:          (several threads, each with its own buffers)
        read the base's and the agents' bytes  ->  kernel: decode, compare, count, merge, encode  ->  write

Nothing here is ever as large as a tensor. A chunk is `planning.CHUNK` elements; results are added up in the order of
tensors and chunks, whatever thread made them, so the output depends on neither threads nor chunk size.

**RAM+ in one read.** λ depends on counts over the whole model, which are known only after everything was read. So λ is
guessed from a sample, the merge runs with the guess while counting exactly, and if the exact λ is the guessed one (it is
whenever ρ is clipped), the output is final. Tensors whose guess was wrong, or too uncertain to try, are merged in a
second pass. A sample may pick the guess and never the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ramerge._errors import IncompatibleError
from ramerge._types import F64, I64
from ramerge.kernels import codec, fuse, limits, sample
from ramerge.methods import rules
from ramerge.methods.base import Context
from ramerge.models.base import Sink
from ramerge.planning.plan import CHUNK, Plan, TensorPlan
from ramerge.probes import measure as measures
from ramerge.probes.measure import ChunkMeasures, Measures, extend, nothing
from ramerge.probes.overlap import Overlap
from ramerge.run import nonfinite as numeric
from ramerge.run.chunks import Executor, Observer, Progress, Task, Worker, ignore, stream
from ramerge.run.records import ChunkRecord, Outcome, TensorRecord, fold
from ramerge.run.whole import whole_tensor_kernel

R = TypeVar("R")
# For the guess one block in `SAMPLED` is read, at least one of each tensor and `sample.MOST` of each group. `DOUBT` is the
# relative error of the sampled counts up to which it pays to merge with the guess at once.
SAMPLED = 400
DOUBT = 0.04


def merge(
    plan: Plan,
    sink: Sink,
    *,
    run: Executor,
    chunk: int = CHUNK,
    observe: Observer = ignore,
    progress: Progress | None = None,
) -> Outcome:
    """Run a plan.

    Args:
        plan: what to do.
        sink: where merged bytes go; tensors it reports as finished are not computed again.
        run: the executor.
        chunk: elements per task, a multiple of `kernels.limits.BLOCK`.
        observe: told of every piece of the first full pass.
        progress: called after every chunk.

    Raises:
        NumericError: NaN, infinity or overflow, against the policy.
        IncompatibleError: data that only looked compatible (integer tensors that differ, untied heads).
        OutputError: from the sink.
    """
    assert chunk % limits.BLOCK == 0, (
        "chunks must hold whole blocks, or results would depend on them"
    )
    if plan.method.rule is None:  # whole tensors at once
        longest = max((t.output.elements for t in plan.tensors), default=1)
        chunk = -(-max(longest, 1) // limits.BLOCK) * limits.BLOCK
    loop = Loop(plan, sink, run, chunk, progress)
    numeric.check_tied(plan, chunk)
    facts = loop.probe()
    guess, sure = loop.guess()
    records = {
        name: TensorRecord.from_json(len(plan.agents), r) for name, r in sink.finished.items()
    }
    todo = [t for t in plan.tensors if t.name not in records]
    records |= loop.sweep(
        todo, {g: lam for g, lam in guess.items() if g in sure}, facts, observe, "merge"
    )
    exact = loop.exact_lambdas(records)
    again = [t for t in plan.merged if records[t.name].lambdas != exact[t.group]]
    if again:
        records |= loop.sweep(again, exact, facts, ignore, "pass 2 of 2")
    missed = any(g not in sure or guess[g] != exact[g] for g in exact)  # the same for a resumed run
    return Outcome(records, exact, len(plan.method.needs) + 1 + missed, loop.bytes_read, facts)


class Loop:
    """State of one run: the passes share buffers' sizes, progress and byte counts."""

    def __init__(
        self, plan: Plan, sink: Sink, run: Executor, chunk: int, progress: Progress | None
    ) -> None:
        self.plan, self.sink, self.run, self.chunk, self.progress = plan, sink, run, chunk, progress
        self.bytes_read = 0
        self._lambda = plan.method.lambdas

    def probe(self) -> dict[str, Any]:
        """Run the probe passes that the method needs; results by name."""
        facts: dict[str, Any] = {}
        for make in self.plan.method.needs:
            probe = make(self.plan.values)

            def visit(worker: Worker, task: Task, probe: Any = probe) -> Any:
                worker.read(task)
                return probe.visit(worker, task, facts)

            steps = self._stream(self.plan.merged, visit, ignore, probe.name)
            facts[probe.name] = probe.fold(((t.tensor, t.start, r) for t, r in steps), facts)
        return facts

    def guess(self) -> tuple[dict[str, tuple[float, ...]], set[str]]:
        """λ per group from a sample, and the groups where it is safe to merge with it at once.

        Safe means that λ stays the same when the sampled unique counts are off by `DOUBT` either way. No sample is
        needed where λ is the same for ρ = 0 and ρ = ∞: it lies between the two.
        """
        plan, rule, n = self.plan, self._lambda, len(self.plan.agents)
        groups = {t.group: t for t in plan.merged}
        if rule is None:
            return dict.fromkeys(groups, ()), set(groups)
        apart, together = Overlap(n), Overlap(n, {(1 << n) - 1: 1})
        ends = {g: (rule(apart, t.values), rule(together, t.values)) for g, t in groups.items()}
        if all(low == high for low, high in ends.values()):
            return {g: low for g, (low, _) in ends.items()}, set(groups)
        sampled = self._sampled_overlap()
        lambdas = {g: rule(o, groups[g].values) for g, o in sampled.items()}
        sure = {
            g
            for g, o in sampled.items()
            if all(
                rule(o.with_unique_scaled(f), groups[g].values) == lambdas[g]
                for f in (1 - DOUBT, 1 + DOUBT)
            )
        }
        return lambdas, sure

    def _sampled_overlap(self) -> dict[str, Overlap]:
        plan, agents = self.plan, len(self.plan.agents)
        worker = Worker(plan, limits.BLOCK)
        sizes = Counter(t.group for t in plan.merged)
        parts: dict[str, list[Overlap]] = {}
        for tensor in plan.merged:
            n = tensor.output.elements
            most = max(1, sample.MOST // sizes[tensor.group], n // limits.BLOCK // SAMPLED)
            seen = []
            for at in sample.blocks(n, most):
                task = Task(tensor, int(at), min(int(at) + limits.BLOCK, n))
                worker.read(task)
                seen.append(count(worker, task))
            overlap = Overlap.total(agents, seen)
            parts.setdefault(tensor.group, []).append(overlap.scaled(n / max(overlap.elements, 1)))
        return {g: Overlap.total(agents, p) for g, p in parts.items()}

    def exact_lambdas(self, records: Mapping[str, TensorRecord]) -> dict[str, tuple[float, ...]]:
        """λ per group from the exact counts of all its tensors."""
        parts: dict[str, list[Overlap]] = {}
        values = {}
        for tensor in self.plan.merged:
            parts.setdefault(tensor.group, []).append(records[tensor.name].overlap)
            values[tensor.group] = tensor.values
        if self._lambda is None:
            return dict.fromkeys(parts, ())
        agents = len(self.plan.agents)
        return {g: self._lambda(Overlap.total(agents, p), values[g]) for g, p in parts.items()}

    def sweep(
        self,
        tensors: Sequence[TensorPlan],
        lambdas: Mapping[str, tuple[float, ...]],
        facts: Mapping[str, Any],
        observe: Observer,
        phase: str,
    ) -> dict[str, TensorRecord]:
        """One pass: merge the tensors whose group has a λ, only count the others; returns their records."""
        plan, sink = self.plan, self.sink

        def work(worker: Worker, task: Task) -> ChunkRecord:
            worker.read(task)
            if task.tensor.action == "copy":
                return copy(worker, task, sink)
            if task.tensor.action == "merge" and task.tensor.group not in lambdas:
                return ChunkRecord(count(worker, task))
            return merge_chunk(worker, task, lambdas.get(task.tensor.group, ()), facts, sink)

        records: dict[str, TensorRecord] = {}
        pending: list[ChunkRecord] = []
        for task, record in self._stream(tensors, work, observe, phase):
            pending.append(record)
            if task.last:
                used = lambdas.get(task.tensor.group) if task.tensor.action == "merge" else ()
                records[task.tensor.name] = whole = fold(len(plan.agents), pending, used)
                pending = []
                if used is not None:
                    sink.finish(task.tensor.name, whole.to_json())
        return records

    def _stream(
        self,
        tensors: Sequence[TensorPlan],
        work: Callable[[Worker, Task], R],
        observe: Observer,
        phase: str,
    ) -> Iterator[tuple[Task, R]]:
        self.bytes_read += sum(t.bytes_read for t in tensors)
        return stream(
            self.plan, tensors, work, run=self.run, chunk=self.chunk, observe=observe,
            progress=self.progress, phase=phase,
        )  # fmt: skip


def measure(
    plan: Plan, *, run: Executor, bound: float, chunk: int = CHUNK, progress: Progress | None = None
) -> dict[str, Measures]:
    """Measure every merged tensor in one pass (`probes.measure`).

    Args:
        plan: what to read; its mask decides what changed means.
        run: the executor.
        bound: epsilon of the `abs` mask, which is counted whatever is in force.
        chunk: elements per task.
        progress: called after every chunk.
    """
    numeric.check_tied(plan, chunk)

    def work(worker: Worker, task: Task) -> ChunkMeasures:
        worker.read(task)
        return measure_chunk(worker, task, bound)

    records: dict[str, Measures] = {}
    record = empty = nothing(len(plan.agents))
    for task, found in stream(
        plan, plan.merged, work, run=run, chunk=chunk, progress=progress, phase="probe"
    ):
        record = extend(record, found)
        if task.last:
            records[task.tensor.name], record = record, empty
    return records


def measure_chunk(worker: Worker, task: Task, bound: float) -> ChunkMeasures:
    """Statistics of the chunk in the worker's buffers."""
    out_code = codec.CODES[task.tensor.output.dtype]
    found: Any = None

    def run() -> tuple[int, I64]:
        nonlocal found
        table = _table(worker)
        flags, *found = measures.measure(worker, table, bound=bound, out_code=out_code)
        return flags, table

    table = numeric.settle(worker, task, run, None)
    return ChunkMeasures(_overlap(worker, table), *found)


def count(worker: Worker, task: Task) -> Overlap:
    """Contributor patterns of the chunk in the worker's buffers."""
    w, plan = worker, worker.plan

    def run() -> tuple[int, I64]:
        table = _table(w)
        flags = fuse.count(
            w.base, w.base_code, w.agents, w.codes, w.n, w.real(plan.epsilon), plan.grid,
            len(plan.auxiliary), w.scratch, table, w.patterns[: w.n],
        )  # fmt: skip
        return flags, table

    return _overlap(w, numeric.settle(w, task, run, None))


def _table(worker: Worker) -> I64:
    """Room for dense pattern counts; empty where patterns are listed instead."""
    return np.zeros(0 if worker.patterns.size else 1 << len(worker.plan.agents), np.int64)


def _overlap(worker: Worker, table: I64) -> Overlap:
    agents = len(worker.plan.agents)
    if table.size:
        return Overlap.from_table(agents, table)
    return Overlap.from_patterns(agents, worker.patterns[: worker.n])


def copy(worker: Worker, task: Task, sink: Sink) -> ChunkRecord:
    """Write the base's bytes, after comparing every agent's: integers are never averaged (SPEC 5)."""
    tensor = task.tensor
    piece = worker.base[: worker.n * tensor.base.dtype.itemsize]
    for t, spec in enumerate(tensor.agents):
        if spec is not None and not np.array_equal(worker.agents[t, : piece.size], piece):
            raise IncompatibleError(
                f"`{tensor.name}` ({tensor.base.dtype.name}) differs between the base and agent"
                f" `{worker.plan.agent_names[t]}`, and tensors of this type are never averaged",
                hint="leave it out of the merge with `exclude`, which keeps the base's",
            )
    sink.write(tensor.name, task.start, piece)
    return ChunkRecord(Overlap(len(worker.plan.agents)))


def merge_chunk(
    worker: Worker,
    task: Task,
    lambdas: tuple[float, ...],
    facts: Mapping[str, Any],
    sink: Sink,
) -> ChunkRecord:
    """Merge the chunk in the worker's buffers, write it, and sample what became of it."""
    w, plan, tensor = worker, worker.plan, task.tensor
    out_code = codec.CODES[tensor.output.dtype]
    piece = w.out[: w.n * tensor.output.dtype.itemsize]
    kernel, coefficients = recipe(w, task, lambdas, facts)

    kept = tensor.action == "keep"
    streams = 0 if kept else len(w.codes)  # nobody read the agents of an excluded tensor
    auxiliary = 0 if kept else len(plan.auxiliary)

    lost = np.zeros(1 + len(plan.agents), np.int64)

    def run() -> tuple[int, I64]:
        table = _table(w)
        lost[:] = 0
        flags = kernel(
            w.base, w.base_code, w.agents[:streams], w.codes[:streams], w.n, task.start, w.real(plan.epsilon),
            plan.grid, auxiliary, coefficients, w.out, out_code, w.scratch, table, w.patterns[: w.n], lost,
        )  # fmt: skip
        return flags, table

    table = numeric.settle(w, task, run, piece)
    sink.write(tensor.name, task.start, piece)
    if kept:
        return ChunkRecord(Overlap(agents=len(plan.agents)))
    return ChunkRecord(_overlap(w, table), diagnose(w, task, out_code), lost)


def recipe(
    worker: Worker, task: Task, lambdas: tuple[float, ...], facts: Mapping[str, Any]
) -> tuple[Callable[..., int], Any]:
    """The kernel of a task, and the coefficients that it applies."""
    method, tensor = worker.plan.method, task.tensor
    if tensor.action == "keep":
        return fuse.fuse(rules.keep), ()
    context = Context(
        tensor=tensor.output,
        agents=len(worker.plan.agents),
        start=task.start,
        elements=task.stop - task.start,
        real=worker.real,
        lambdas=lambdas,
        facts=facts,
    )
    if method.rule is None:
        return whole_tensor_kernel(method, tensor), context
    kernel = fuse.fuse(method.rule(tensor.values), everywhere=method.everywhere)
    return kernel, method.coefficients(context, tensor.values)


def diagnose(worker: Worker, task: Task, out_code: int) -> tuple[F64, ...]:
    """Partial sums of the sampled blocks of the merged chunk."""
    w, plan, agents = worker, worker.plan, len(worker.plan.agents)
    starts = sample.blocks(task.tensor.output.elements)
    partial = []
    for start in starts[(starts >= task.start) & (starts < task.stop)]:
        sums = np.zeros((2, agents))
        at = int(start) - task.start
        sample.diagnose(
            w.base, w.base_code, w.agents, w.codes, at, min(limits.BLOCK, w.n - at), w.real(plan.epsilon),
            plan.grid, len(plan.auxiliary), w.out, out_code, w.scratch, sums,
        )  # fmt: skip
        partial.append(sums)
    return tuple(partial)
