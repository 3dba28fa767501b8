"""Do these models fit together, tensor by tensor? Answered from headers; every problem is collected, none repaired.

Nothing is dropped in silence: what is copied, ignored or taken for the base's is a *decision* that reports list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ramerge._errors import IncompatibleError, MergeError
from ramerge._types import DType, TensorSpec
from ramerge.checkpoint.base import Checkpoint
from ramerge.checkpoint.facts import is_buffer, is_tied, is_vocabulary_tensor, tied_head

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
    tied: list[TiedHead] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    problems: list[MergeError] = field(default_factory=list)


def listing(names: Sequence[str]) -> str:
    """Some names in backticks, and how many more there are."""
    shown = ", ".join(f"`{n}`" for n in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def pair(base: Checkpoint, agents: Mapping[str, Checkpoint], extra: str = "error") -> Pairing:
    """Find every base tensor in every agent.

    Args:
        base: the base.
        agents: by name, in config order.
        extra: what becomes of an agent's tensors that the base lacks: ``error`` or ``drop``.
    """
    pairing = Pairing()
    found: list[dict[str, TensorSpec]] = [
        _match_agent(pairing, base, t, name, checkpoint, extra)
        for t, (name, checkpoint) in enumerate(agents.items())
    ]
    for name in base.names():
        pairing.specs[name] = tuple(specs.get(name) for specs in found)
    return pairing


def _match_agent(
    pairing: Pairing, base: Checkpoint, t: int, agent: str, checkpoint: Checkpoint, extra: str
) -> dict[str, TensorSpec]:
    """One agent's specs by base name; problems and decisions go into ``pairing``."""
    theirs = {name: checkpoint.spec(name) for name in checkpoint.names()}
    ours = {name: base.spec(name) for name in base.names()}
    _drop_tied_head(pairing, base, t, agent, theirs)
    missing = [n for n in ours if n not in theirs]
    buffers = [n for n in missing if is_buffer(ours[n]) or ours[n].dtype.is_discrete]
    lost = [n for n in missing if n not in buffers]
    if buffers:
        pairing.decisions.append(f"agent `{agent}` lacks {listing(buffers)}: the base's are copied")
    if lost:
        pairing.problems.append(_missing(agent, lost, set(theirs) - set(ours), ours))
    surplus = [n for n in theirs if n not in ours]
    idle = [n for n in surplus if is_buffer(theirs[n])]
    if idle:
        pairing.decisions.append(
            f"agent `{agent}` has buffers that the base lacks, left out: {listing(idle)}"
        )
    surplus = [n for n in surplus if n not in idle]
    if surplus and extra == "drop":
        pairing.decisions.append(
            f"agent `{agent}` has tensors that the base lacks, dropped: {listing(surplus)}"
        )
    elif surplus and not lost:
        pairing.problems.append(
            IncompatibleError(
                f"agent `{agent}` has {len(surplus)} tensors that the base lacks: {listing(surplus)}",
                hint="value heads and towers can be left out with `--extra drop`; anything else means another base",
            )
        )
    specs = {n: theirs[n] for n in ours if n in theirs}
    for name, spec in specs.items():
        problem = _unlike(agent, ours[name], spec)
        if problem:
            pairing.problems.append(problem)
    return specs


def _drop_tied_head(
    pairing: Pairing,
    base: Checkpoint,
    t: int,
    agent: str,
    theirs: dict[str, TensorSpec],
) -> None:
    """Take a spare copy of the embedding out of ``theirs``; the engine compares the bytes before it merges."""
    tie = tied_head(base.names(), base.config)
    if tie is None or tie.head in base.names() or not is_tied(base.config):
        return
    if tie.head in theirs and tie.embed in theirs:
        del theirs[tie.head]
        pairing.tied.append(TiedHead(t, tie.head, tie.embed))
        pairing.decisions.append(
            f"`{tie.head}` of agent `{agent}` is left out: the base ties it to `{tie.embed}`; both must be equal"
        )


def _missing(
    agent: str, lost: Sequence[str], surplus: set[str], ours: Mapping[str, TensorSpec]
) -> MergeError:
    hint = "is the download complete, and is this a full model of the same architecture?"
    if surplus and len(lost) == len(ours):
        example = sorted(surplus)[0]
        hint = (
            f"its names look different (`{example}`): a trainer's prefix, or another architecture"
        )
    return IncompatibleError(
        f"agent `{agent}` lacks {len(lost)} of the base's {len(ours)} tensors: {listing(lost)}",
        hint=hint,
    )


def _unlike(agent: str, ours: TensorSpec, theirs: TensorSpec) -> MergeError | None:
    if ours.shape != theirs.shape:
        hint = f"`{agent}` was trained from another base"
        if is_vocabulary_tensor(ours.name) and ours.shape[1:] == theirs.shape[1:]:
            hint = f"the vocabularies differ: {theirs.shape[0]} rows against {ours.shape[0]}; tokens were added, or padding"
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


def dtype_warnings(base: Checkpoint, agents: Mapping[str, Checkpoint]) -> list[str]:
    """Agents stored in another dtype than the base: their densities cannot be compared (SPEC 2)."""
    stored = main_dtype(base)
    return [
        f"agent `{name}` is stored as {dtype.name} beside a {stored.name} base: its density and ρ are partly an"
        " effect of that; `mask: grid` compares on the base's own grid"
        for name, checkpoint in agents.items()
        if (dtype := main_dtype(checkpoint)) is not stored
    ]


def main_dtype(checkpoint: Checkpoint) -> DType:
    """The float dtype that most elements are stored in (F32 where there is none)."""
    sizes: dict[DType, int] = {}
    for name in checkpoint.names():
        spec = checkpoint.spec(name)
        if spec.dtype.is_float:
            sizes[spec.dtype] = sizes.get(spec.dtype, 0) + spec.elements
    return max(sizes, key=lambda d: (sizes[d], d.name), default=DType.F32)
