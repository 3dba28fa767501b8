"""What a merge will do, decided from headers and side files alone; every problem is found here, and all at once.

`engine` trusts a `Plan`: names, shapes and dtypes fit, parameters are resolved per tensor, the output's layout is fixed.
What only the data can tell (is a spare head really the tied embedding? are integers equal?) is checked by the engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ramerge._types import DType, Json, TensorSpec
from ramerge.checkpoint.base import Checkpoint, Layout
from ramerge.config.job import Job
from ramerge.methods.base import Method, Values

CHUNK = 131_072  # elements; a multiple of every block size, measured best in benchmarks/
Action = Literal["merge", "copy", "keep"]


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One output tensor.

    Attributes:
        output: name, dtype and shape as they will be written.
        action: ``merge``; ``copy`` the base's bytes after comparing the agents' (integers, buffers); ``keep`` the base's
            values, cast if need be (excluded by a filter).
        base: spec in the base.
        agents: spec in each agent, None where the agent takes the base's values for this tensor.
        auxiliary: spec of each agent's auxiliary tensor (Fisher weights); empty without.
        group: the set of tensors whose counts make one λ (SPEC 3, scope).
        values: the method's parameters for this tensor.
    """

    output: TensorSpec
    action: Action
    base: TensorSpec
    agents: tuple[TensorSpec | None, ...]
    group: str
    values: Values
    auxiliary: tuple[TensorSpec, ...] = ()

    @property
    def name(self) -> str:
        """The tensor's name, the same in every model."""
        return self.output.name

    @property
    def wide(self) -> bool:
        """Whether an F64 tensor is involved, so that the arithmetic is fp64."""
        return any(s is not None and s.dtype is DType.F64 for s in (self.base, *self.agents))

    @property
    def bytes_read(self) -> int:
        """Bytes that one pass over the inputs reads."""
        return self.base.nbytes + sum(s.nbytes for s in (*self.agents, *self.auxiliary) if s is not None)


@dataclass(frozen=True, slots=True)
class TiedHead:
    """An agent's output head that must equal its embedding, because the base ties the two and stores one."""

    agent: int
    head: str
    embedding: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked merge, ready for `engine.merge`. ``agents`` are those with a non-zero weight, in config order."""

    job: Job
    method: Method
    base: Checkpoint
    agents: tuple[Checkpoint, ...]
    agent_names: tuple[str, ...]
    tensors: tuple[TensorPlan, ...]
    layout: Layout
    values: Values  # global ones; a per-agent parameter is a tuple
    auxiliary: tuple[Checkpoint, ...] = ()
    tied: tuple[TiedHead, ...] = ()
    decisions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    tensor_sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def epsilon(self) -> float:
        """Bound of the mask; 0 where the method has none or compares exactly."""
        if not self.method.masked or self.values["mask"] != "abs":
            return 0.0
        return float(self.values["epsilon"])

    @property
    def grid(self) -> bool:
        """Whether elements are compared on the base's own grid."""
        return self.method.masked and self.values["mask"] == "grid"

    @property
    def merged(self) -> tuple[TensorPlan, ...]:
        """Tensors that the method works on."""
        return tuple(t for t in self.tensors if t.action == "merge")

    @property
    def bytes_read(self) -> int:
        """Input bytes of one pass."""
        return sum(t.bytes_read for t in self.tensors)

    @property
    def bytes_written(self) -> int:
        """Tensor bytes of the output."""
        return sum(t.output.nbytes for t in self.tensors)

    @property
    def elements(self) -> int:
        """Elements that are merged."""
        return sum(t.output.elements for t in self.merged)

    def fingerprint(self) -> str:
        """Digest of all that decides the output: the job, the method's parameters, and the inputs' files as found."""
        files = [
            (file.name, file.size, file.path.stat().st_mtime_ns)
            for checkpoint in (self.base, *self.agents, *self.auxiliary)
            for file in checkpoint.files()
        ]
        what = [self.method.name, dict(self.values), str(self.job), files, self.agent_names]
        return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()

    def to_json(self) -> Json:
        """What `ramerge plan --json` prints."""
        return {
            "method": self.method.name,
            "parameters": {k: list(v) if isinstance(v, tuple) else v for k, v in self.values.items()},
            "base": self.base.source,
            "agents": {n: c.source for n, c in zip(self.agent_names, self.agents, strict=True)},
            "tensors": len(self.tensors),
            "merged": len(self.merged),
            "elements": self.elements,
            "bytes_read_per_pass": self.bytes_read,
            "bytes_written": self.bytes_written,
            "files": [name for name, _ in self.layout.shards],
            "decisions": list(self.decisions),
            "warnings": list(self.warnings),
        }
