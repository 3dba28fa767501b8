"""What is done about NaN, infinities, overflow, and tensors that had to be equal (SPEC 5).

The kernels only raise flags, which costs next to nothing; everything here is the slow path behind a flag, and may be
plain numpy. Policies: ``error`` names model, tensor, count and first index; ``keep_base`` keeps the base's bits wherever
an input or the result is not finite; ``propagate`` writes what the arithmetic gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ramerge._errors import IncompatibleError, MergeError, NumericError
from ramerge._types import I64, Bytes, DType, TensorSpec
from ramerge.kernels import codec, fuse
from ramerge.models.base import Checkpoint
from ramerge.planning.plan import Plan

if TYPE_CHECKING:
    from ramerge.run.chunks import Task, Worker

Run = Callable[[], tuple[int, I64]]


def settle(worker: Worker, task: Task, run: Run, out: Bytes | None) -> I64:
    """Run a kernel and put its flags right by the policy; returns its counts.

    Args:
        worker: buffers that ``run`` reads, and may be changed by ``keep_base``.
        task: what lies in them.
        run: the kernel call; returns flags and pattern counts.
        out: raw merged bytes, or None when only counting.

    Raises:
        NumericError: something is not finite and the policy is ``error``.
    """
    flags, counts = run()
    policy = worker.plan.job.nonfinite
    if not flags or policy == "propagate":
        return counts
    if policy == "error":
        raise _describe(worker, task, int(flags), out)
    original = worker.base.copy()
    bad = _unsound_inputs(worker, task)
    if bad.any():
        _blank(worker, task, bad)
        _, counts = run()
    if out is not None:
        dtype = task.tensor.output.dtype
        bad |= ~np.isfinite(numbers(out, dtype))
        raw = original[: worker.n * task.tensor.base.dtype.itemsize]
        kept = recode(raw, task.tensor.base.dtype, dtype)
        _check_fits(task, raw, kept)
        out.reshape(-1, dtype.itemsize)[bad] = kept.reshape(-1, dtype.itemsize)[bad]
    return counts


def _check_fits(task: Task, base: Bytes, kept: Bytes) -> None:
    """Whether the base's values, which `keep_base` falls back on, can be stored at all."""
    tensor, dtype = task.tensor, task.tensor.output.dtype
    lost = np.isfinite(numbers(base, tensor.base.dtype)) & ~np.isfinite(numbers(kept, dtype))
    if lost.any():
        first = task.start + int(np.flatnonzero(lost)[0])
        raise NumericError(
            f"`{tensor.name}` of the base overflows {dtype.name}: element {first}"
            f" ({index(first, tensor.output.shape)}) cannot be kept",
            hint="write a wider dtype (`out_dtype: bfloat16` or `float32`)",
        )


def numbers(raw: Bytes, dtype: DType) -> NDArray[Any]:
    """Raw elements as float32, or float64 for F64."""
    n = raw.size // dtype.itemsize
    out = np.empty(n, np.float64 if dtype is DType.F64 else np.float32)
    fuse.decode_whole(np.ascontiguousarray(raw), codec.CODES[dtype], n, out)
    return out


def recode(raw: Bytes, source: DType, target: DType) -> Bytes:
    """Raw elements of one dtype as raw elements of another, rounded once."""
    values = numbers(raw, source)
    out = np.empty(values.size * target.itemsize, np.uint8)
    codec.encode(values, codec.CODES[target], 0, values.size, out)
    return out


def _streams(worker: Worker, task: Task) -> Iterator[tuple[Bytes, DType]]:
    """Raw bytes and dtype of every stream in the buffers, base first."""
    tensor = task.tensor
    yield worker.base, tensor.base.dtype
    for t, spec in enumerate((*tensor.agents, *tensor.auxiliary)):
        yield worker.agents[t], (spec or tensor.base).dtype


def _unsound_inputs(worker: Worker, task: Task) -> NDArray[np.bool_]:
    bad = np.zeros(worker.n, np.bool_)
    for raw, dtype in _streams(worker, task):
        bad |= ~np.isfinite(numbers(raw[: worker.n * dtype.itemsize], dtype))
    return bad


def _blank(worker: Worker, task: Task, bad: NDArray[np.bool_]) -> None:
    """Zero the marked elements of every stream: unchanged, and harmless to statistics."""
    for raw, dtype in _streams(worker, task):
        raw[: worker.n * dtype.itemsize].reshape(-1, dtype.itemsize)[bad] = 0


def _describe(worker: Worker, task: Task, flags: int, out: Bytes | None) -> MergeError:
    plan, tensor = worker.plan, task.tensor
    hint = (
        "set `nonfinite: keep_base` to keep the base's values there, or `propagate` to write them"
    )
    models: list[tuple[str, Checkpoint, TensorSpec | None]] = [("the base", plan.base, tensor.base)]
    models += [
        (f"agent `{name}`", checkpoint, spec)
        for name, checkpoint, spec in zip(
            plan.agent_names, plan.agents, tensor.agents, strict=False
        )
    ]
    models += [
        (f"the auxiliary weights of agent `{name}`", checkpoint, spec)
        for name, checkpoint, spec in zip(
            plan.agent_names, plan.auxiliary, tensor.auxiliary, strict=False
        )
    ]
    for bit, (label, checkpoint, spec) in enumerate(models):
        flag = int(fuse.BASE_NONFINITE) if bit == 0 else 1 << (fuse.AGENT_SHIFT + bit - 1)
        if flags & flag and spec is not None:
            where = _scan(checkpoint, spec)
            return NumericError(
                f"`{tensor.name}` of {label} holds {where.size} values that are not finite, the first at"
                f" element {where[0]} ({index(int(where[0]), spec.shape)})",
                hint=hint,
            )
    assert out is not None, "a count cannot overflow"
    dtype = tensor.output.dtype
    bad = np.flatnonzero(~np.isfinite(numbers(out, dtype)))
    first = task.start + int(bad[0])
    return NumericError(
        f"`{tensor.name}` overflows {dtype.name} in the merge: {bad.size} values within elements"
        f" {task.start} to {task.stop - 1}, the first at element {first} ({index(first, tensor.output.shape)})",
        hint=f"write a wider dtype (`out_dtype: bfloat16` or `float32`), or {hint}",
    )


def _scan(checkpoint: Checkpoint, spec: TensorSpec) -> I64:
    """Indices of all elements of a tensor that are not finite."""
    step = 1 << 20
    found = []
    for start in range(0, spec.elements, step):
        stop = min(start + step, spec.elements)
        raw = np.empty((stop - start) * spec.dtype.itemsize, np.uint8)
        checkpoint.read(spec.name, start, stop, raw)
        found.append(start + np.flatnonzero(~np.isfinite(numbers(raw, spec.dtype))))
    return np.concatenate(found)


def index(element: int, shape: tuple[int, ...]) -> str:
    """A flat index as the user would write it: ``[3, 17]``."""
    return "[" + ", ".join(str(int(i)) for i in np.unravel_index(element, shape)) + "]"


def check_tied(plan: Plan, chunk: int) -> None:
    """Compare every agent's spare output head with its embedding, byte by byte.

    Raises:
        IncompatibleError: they differ, so dropping the head would lose what the agent learned.
    """
    for tie in plan.tied:
        checkpoint, name = plan.agents[tie.agent], plan.agent_names[tie.agent]
        head, embedding = checkpoint.spec(tie.head), checkpoint.spec(tie.embedding)
        room = [np.empty(chunk * head.dtype.itemsize, np.uint8) for _ in range(2)]
        same = head.dtype is embedding.dtype and head.shape == embedding.shape
        for start in range(0, head.elements if same else 0, chunk):
            stop = min(start + chunk, head.elements)
            pieces = [r[: (stop - start) * head.dtype.itemsize] for r in room]
            checkpoint.read(tie.head, start, stop, pieces[0])
            checkpoint.read(tie.embedding, start, stop, pieces[1])
            same = same and np.array_equal(pieces[0], pieces[1])
        if not same:
            raise IncompatibleError(
                f"`{tie.head}` of agent `{name}` differs from its `{tie.embedding}`, but the base ties the two",
                hint="the agent was trained with its own output head; untie the base first"
                " (store its head and set tie_word_embeddings to false)",
            )
