"""Do these models fit together, tensor by tensor? Answered from headers; every problem is collected, none repaired.

Nothing is dropped in silence: what is copied, ignored or taken for the base's is a *decision* that reports list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramerge._errors import IncompatibleError, MergeError
from ramerge._types import DType, TensorSpec
from ramerge.models.base import Checkpoint, Notice
from ramerge.models.facts import is_vocabulary_tensor

SHOWN = 5  # tensor names in one message; the rest is counted


@dataclass(frozen=True, slots=True)
class TiedHead:
    """An agent's output head that must equal its embedding: the base ties the two and stores one."""

    agent: int
    head: str
    embedding: str


@dataclass(slots=True)
class Pairing:
    """The base's tensors with their counterparts. ``specs[name]``: one entry per agent, None = takes the base's."""

    specs: dict[str, tuple[TensorSpec | None, ...]] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    problems: list[MergeError] = field(default_factory=list)


def listing(names: Sequence[str]) -> str:
    """Some names in backticks, and how many more there are."""
    shown = ", ".join(f"`{n}`" for n in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def pair(base: Checkpoint, agents: Mapping[str, Checkpoint]) -> Pairing:
    """Find every base tensor in every agent of harmonised models (`checkpoint.views.harmonise`).

    Args:
        base: the base.
        agents: by name, in config order.
    """
    pairing = Pairing()
    found = []
    for agent, checkpoint in agents.items():
        present = set(checkpoint.names())
        specs = {name: checkpoint.spec(name) for name in base.names() if name in present}
        lacking = [name for name in base.names() if name not in present]
        if lacking:  # buffers and integers: anything else is a problem of the harmony
            text = f"agent `{agent}` has no {listing(lacking)}: using the base's"
            pairing.notices.append(Notice("base-taken", text, tuple(lacking)))
        problems = (_unlike(agent, base.spec(name), spec) for name, spec in specs.items())
        pairing.problems += [problem for problem in problems if problem is not None]
        found.append(specs)
    for name in base.names():
        pairing.specs[name] = tuple(specs.get(name) for specs in found)
    return pairing


def _unlike(agent: str, ours: TensorSpec, theirs: TensorSpec) -> MergeError | None:
    if ours.shape != theirs.shape:
        hint = f"`{agent}` was trained from another base"
        if is_vocabulary_tensor(ours.name) and ours.shape[1:] == theirs.shape[1:]:
            hint = f"the vocabularies differ: {theirs.shape[0]} rows against {ours.shape[0]}; see --vocabulary"
        return IncompatibleError(
            f"tensor `{ours.name}` is {list(theirs.shape)} in agent `{agent}` but {list(ours.shape)} in the base",
            hint=hint,
        )
    for label, spec in (("the base", ours), (f"agent `{agent}`", theirs)):
        if not spec.dtype.is_float and not spec.dtype.is_discrete:
            return IncompatibleError(
                f"tensor `{spec.name}` of {label} is stored as {spec.dtype.name}, which cannot be merged",
                hint="dequantise the model to bfloat16 first",
            )
    if ours.dtype.is_float != theirs.dtype.is_float or (
        ours.dtype.is_discrete and ours.dtype != theirs.dtype
    ):
        return IncompatibleError(
            f"tensor `{ours.name}` is {theirs.dtype.name} in agent `{agent}` but {ours.dtype.name} in the base"
        )
    return None


def auxiliary_spec(agent: str, checkpoint: Checkpoint, spec: TensorSpec) -> TensorSpec:
    """An agent's extra tensor (Fisher weights) for ``spec``, of the same shape; raises IncompatibleError."""
    if spec.name not in checkpoint.names():
        raise IncompatibleError(f"the auxiliary weights of agent `{agent}` lack `{spec.name}`")
    extra = checkpoint.spec(spec.name)
    if extra.shape != spec.shape:
        raise IncompatibleError(
            f"auxiliary tensor `{spec.name}` of agent `{agent}` is {list(extra.shape)}, not {list(spec.shape)}"
        )
    return extra


def dtype_warnings(base: Checkpoint, agents: Mapping[str, Checkpoint]) -> list[Notice]:
    """Agents stored in another dtype than the base: their densities cannot be compared (SPEC 2)."""
    stored = main_dtype(base)
    return [
        Notice(
            "other-dtype",
            f"agent `{name}` is stored as {dtype.name} beside a {stored.name} base: its density and ρ are partly an"
            " effect of that; `mask: grid` compares on the base's own grid",
            warning=True,
        )
        for name, checkpoint in agents.items()
        if (dtype := main_dtype(checkpoint)) is not stored
    ]


def same_agents(agents: Mapping[str, Checkpoint]) -> list[Notice]:
    """Agents that are the same files: allowed, seldom meant."""
    first: dict[tuple[Path, ...], str] = {}
    found = []
    for name, agent in agents.items():
        files = tuple(file.path.resolve() for file in agent.files())
        other = first.setdefault(files, name) if files else name
        if other != name:
            text = f"agents `{other}` and `{name}` are the same files: all that they changed counts as shared"
            found.append(Notice("same-agent", text, warning=True))
    return found


def main_dtype(checkpoint: Checkpoint) -> DType:
    """The float dtype that most elements are stored in (F32 where there is none)."""
    sizes: dict[DType, int] = {}
    for name in checkpoint.names():
        spec = checkpoint.spec(name)
        if spec.dtype.is_float:
            sizes[spec.dtype] = sizes.get(spec.dtype, 0) + spec.elements
    return max(sizes, key=lambda d: (sizes[d], d.name), default=DType.F32)
