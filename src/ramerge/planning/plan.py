"""What a merge will do, decided from headers and side files alone; every problem is found here, and all at once.

`engine` trusts a `Plan`: names, shapes and dtypes fit, parameters are resolved per tensor, the output's layout is fixed.
What only the data can tell (is a spare head really the tied embedding? are integers equal?) is checked by the engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ramerge._errors import ConfigError, MergeError, raise_problems
from ramerge._types import DType, Json, TensorSpec
from ramerge.config import canonical, resolve
from ramerge.config.job import Job, Slice
from ramerge.fit import pairs as compat
from ramerge.fit.complete import check_complete
from ramerge.fit.configs import Findings, check_configs
from ramerge.fit.harmonise import harmonise
from ramerge.fit.inputs import Inputs
from ramerge.fit.pairs import TiedHead
from ramerge.fit.tokenizer.tokens import check_tokens
from ramerge.kernels.limits import MAX_AGENTS
from ramerge.methods.base import Method, Values
from ramerge.models.base import Checkpoint, Layout, Notice
from ramerge.models.facts import block_of, is_buffer, module_of
from ramerge.models.lora.unread import unread_adapters
from ramerge.output.layout import plan_layout
from ramerge.output.sidefiles import generation_config_problems

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
        return self.base.nbytes + sum(
            s.nbytes for s in (*self.agents, *self.auxiliary) if s is not None
        )


@dataclass(frozen=True, slots=True, repr=False)
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
    sources: Mapping[str, str]  # where each agent comes from, as the user named it
    auxiliary: tuple[Checkpoint, ...] = ()
    tied: tuple[TiedHead, ...] = ()
    config_tied: bool | None = None  # what config.json must say of the output head; None leaves it
    config_vocabulary: int | None = None  # the vocabulary size that it must give; None leaves it
    notices: tuple[Notice, ...] = ()

    def __repr__(self) -> str:
        return f"Plan({self.method.name} of {', '.join(self.agent_names)}: {self.bytes_written:,} bytes)"

    @property
    def decisions(self) -> tuple[str, ...]:
        """What was copied, dropped or left out, in words."""
        return tuple(n.message for n in self.notices if not n.warning)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may make the merge worse, in words."""
        return tuple(n.message for n in self.notices if n.warning)

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

    @property
    def parameters(self) -> Json:
        """Parameters by name; per-agent ones as lists in agent order, what differs by tensor as the file has it."""
        return {name: self._stated(name) for name in self.method.signature}

    def _stated(self, name: str) -> Any:
        job, value = self.job, self.values[name]
        pieces = [s.parameters for s in job.slices]
        pieces += [source.parameters for s in job.slices for source in s.sources]
        if any(name in parameters for parameters in pieces):
            return "by slice"
        general = job.parameters.get(name)
        if not isinstance(value, tuple):
            return canonical.setting(general) if resolve.varies(general) else value
        own = {a.name: a.parameters.get(name, general) for a in job.agents}
        stated = [own.get(agent) for agent in self.agent_names]
        return [
            canonical.setting(s) if resolve.varies(s) else v
            for s, v in zip(stated, value, strict=True)
        ]

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
            "parameters": self.parameters,
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


def build(
    job: Job,
    method: Method,
    base: Checkpoint,
    agents: Mapping[str, Checkpoint],
    auxiliary: Mapping[str, Checkpoint] | None = None,
) -> Plan:
    """`plan` for models that need no preparation.

    Args:
        job: the merge as configured.
        method: its method.
        base: the opened base (the first agent, for methods that need none).
        agents: opened agents by name, in config order.
        auxiliary: opened extra weights by agent (Fisher).

    Raises:
        MergeError: one problem, or a ProblemsError with all of them.
    """
    inputs = Inputs(job, base, agents, resolve.depths(base.names(), base.config))
    return plan(inputs, method, auxiliary or {})


def plan(
    inputs: Inputs,
    method: Method,
    auxiliary: Mapping[str, Checkpoint],
) -> Plan:
    """Check everything that headers can tell, and lay out the merge; arguments and errors as for `build`."""
    job, base, agents = inputs.job, inputs.base, inputs.agents
    raise_problems(_check_parameters(job, method, agents))
    active = _active(job, agents)
    notices = [
        Notice("weight-zero", f"agent `{name}` has weight 0 and is left out, of the counts too")
        for name in agents
        if name not in active
    ]
    notices += _notices(inputs)
    merged = {n: agents[n] for n in active}
    findings = _side_findings(job, base, merged)
    harmony = harmonise(base, merged, extra=job.extra, vocabulary=job.vocabulary)
    incomplete = check_complete("the base", base, inputs.config)
    raise_problems([*incomplete, *harmony.problems, *(p for f in findings for p in f.problems)])
    base, job_agents = harmony.base, harmony.agents
    pairing = compat.pair(base, job_agents)
    raise_problems(pairing.problems)
    extras = {n: c for n, c in auxiliary.items() if n in active}
    tensors = tuple(
        _tensor(inputs, method, base.spec(name), specs, active, extras)
        for name, specs in pairing.specs.items()
    )
    return Plan(
        job=job,
        method=method,
        base=base,
        agents=tuple(job_agents.values()),
        agent_names=tuple(job_agents),
        sources={a.name: a.source for a in job.agents if a.name in job_agents},
        tensors=tensors,
        layout=plan_layout([t.output for t in tensors], job.shard_size),
        values=_values(inputs, method, "", 0.0, None, active),
        auxiliary=tuple(extras.values()),
        tied=tuple(
            TiedHead(active.index(agent), head, embed) for agent, head, embed in harmony.equal
        ),
        config_tied=harmony.tied,
        config_vocabulary=harmony.vocab_size,
        notices=(
            *notices,
            *_copied(tensors),
            *harmony.notices,
            *pairing.notices,
            *(Notice("configuration", note, warning=True) for note in job.notes),
            *(
                Notice("filter-unused", f"the filter `{p}` fits no tensor", warning=True)
                for p in resolve.unused_filters(job, base.names())
            ),
            *compat.same_agents(merged),
            *(replace(notice, warning=True) for f in findings for notice in f.notices),
            *compat.dtype_warnings(base, job_agents),
        ),
    )


def _side_findings(job: Job, base: Checkpoint, agents: Mapping[str, Checkpoint]) -> list[Findings]:
    """What the models' side files say against this merge; slices, or a tokenizer of the job's own, settle both."""
    if job.tokenizer is not None or job.slices:
        return []
    beside = (*generation_config_problems(base.directory), *unread_adapters(agents))
    return [check_configs(base, agents), check_tokens(base, agents), Findings((), beside)]


def _notices(inputs: Inputs) -> list[Notice]:
    """What opening and preparing the models had to say, each thing once."""
    models = (inputs.base, *inputs.agents.values())
    return list(dict.fromkeys([*(n for m in models for n in m.notices), *inputs.notices]))


def _check_parameters(
    job: Job, method: Method, agents: Mapping[str, Checkpoint]
) -> list[MergeError]:
    problems: list[MergeError] = list(resolve.missing(job, method.info))
    if len(agents) > MAX_AGENTS:
        problems.append(
            ConfigError(f"{len(agents)} agents are too many: the limit is {MAX_AGENTS}")
        )
    most, least = method.max_agents, method.min_agents
    if len(agents) < least or (most is not None and len(agents) > most):
        wanted = (
            f"{least}"
            if least == most
            else f"at least {least}"
            if most is None
            else f"{least} to {most}"
        )
        problems.append(ConfigError(f"`{method.name}` merges {wanted} agents, not {len(agents)}"))
    return problems


def _active(job: Job, agents: Mapping[str, Checkpoint]) -> list[str]:
    """Agents that are not switched off as a whole by a weight of 0."""
    settings = {
        a.name: a.parameters.get("weight", job.parameters.get("weight")) for a in job.agents
    }
    off = [n for n in agents if settings.get(n) == 0 and not isinstance(settings.get(n), bool)]
    if len(off) == len(agents):
        raise ConfigError("every agent has weight 0, so there is nothing to merge")
    return [n for n in agents if n not in off]


def _values(
    inputs: Inputs,
    method: Method,
    tensor: str,
    depth: float,
    piece: Slice | None,
    active: Sequence[str],
) -> dict[str, Any]:
    """Parameters for one tensor; per-agent ones of the active agents only."""
    found = resolve.values(inputs.job, method.info, tensor, depth, piece)
    keep = [i for i, name in enumerate(inputs.agents) if name in active]
    values = {
        k: tuple(v[i] for i in keep) if k in method.per_agent else v for k, v in found.items()
    }
    values["based"] = inputs.job.base is not None  # for methods that work with and without a base
    return values


def _tensor(
    inputs: Inputs,
    method: Method,
    spec: TensorSpec,
    specs: tuple[TensorSpec | None, ...],
    active: Sequence[str],
    auxiliary: Mapping[str, Checkpoint],
) -> TensorPlan:
    job, name = inputs.job, spec.name
    copied = is_buffer(spec) or not spec.dtype.is_float
    kept = not copied and resolve.excluded(job.exclude, name)
    output = spec if copied or job.out_dtype is None else replace(spec, dtype=job.out_dtype)
    values = _values(
        inputs, method, name, inputs.depths.get(name, 0.0), inputs.pieces.get(name), active
    )
    weights = values.get("weight")
    if (
        weights is not None and method.masked
    ):  # weight 0 here: as good as absent here, in counts too
        specs = tuple(None if w == 0 else s for w, s in zip(weights, specs, strict=True))
    return TensorPlan(
        output=output,
        action="copy" if copied else "keep" if kept else "merge",
        base=spec,
        agents=() if kept else tuple(None if copied and is_buffer(spec) else s for s in specs),
        group=scope_group(name, str(values.get("scope", "model"))),
        values=values,
        auxiliary=()
        if kept or copied
        else tuple(compat.auxiliary_spec(n, c, spec) for n, c in auxiliary.items()),
    )


def scope_group(name: str, scope: str) -> str:
    """Key of the tensors that are counted together with ``name`` (SPEC 3)."""
    if scope == "layer":
        return block_of(name) or name
    return {"model": "model", "module": module_of(name)}.get(scope, name)


def _copied(tensors: Sequence[TensorPlan]) -> list[Notice]:
    """Tensors that are the base's in the output, and why."""
    reasons = {
        "copy": ("buffers-copied", "copied from the base, not merged (integers or buffers)"),
        "keep": ("excluded", "excluded from the merge, the base's kept"),
    }
    found = []
    for action, (code, why) in reasons.items():
        names = tuple(t.name for t in tensors if t.action == action)
        if names:
            found.append(Notice(code, f"{why}: {compat.listing(names)}", names))
    return found
