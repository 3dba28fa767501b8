"""Making a base and its agents hold the same tensors: names, tied heads, vocabularies, extras.

Each step is a view (`PatchedCheckpoint`); no data is copied. What is changed is a decision in
words, and what the options do not allow is a problem. After it, every tensor of the base is in
every agent, with one shape, or there are problems to report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ramerge._errors import IncompatibleError, MergeError
from ramerge._types import TensorSpec
from ramerge.config.vocabulary import Extra, Vocabulary
from ramerge.models.base import Checkpoint, Notice
from ramerge.models.facts import is_buffer, is_tied, is_vocabulary_tensor, tied_head
from ramerge.models.files import shown
from ramerge.models.views.layouts import renamed
from ramerge.models.views.patched import Patch, PatchedCheckpoint, Segment, alias, patch

_BASE = "the base"
_SHOWN = 5
_SAMPLES = 64  # places at which a head is compared with its embedding
_SAMPLE = 1024  # elements at each
_PIECE = 1 << 20  # elements compared at a time, where all are


@dataclass(slots=True)
class Harmony:
    """Models that fit each other, and how they came to.

    Attributes:
        base: the base, as it is to be merged.
        agents: the agents likewise, in the given order.
        notices: what was changed.
        problems: what the options do not allow.
        tied: what config.json must say of the output head; None leaves it.
        vocab_size: what config.json must give; None leaves it.
        equal: (agent, head, embedding): taken for equal after a sample; whoever merges compares
            them in full.
    """

    base: Checkpoint
    agents: dict[str, Checkpoint]
    notices: list[Notice] = field(default_factory=list)
    problems: list[MergeError] = field(default_factory=list)
    tied: bool | None = None
    vocab_size: int | None = None
    equal: list[tuple[str, str, str]] = field(default_factory=list)

    def models(self) -> Iterator[tuple[str | None, Checkpoint]]:
        """The base (None) and the agents by name."""
        yield None, self.base
        yield from self.agents.items()

    def say(self, code: str, message: str) -> None:
        """Note what was changed."""
        self.notices.append(Notice(code, message))

    def patch(
        self, model: str | None, patches: Mapping[str, Patch], hidden: frozenset[str] = frozenset()
    ) -> None:
        """Lay patches over one model."""
        if not patches and not hidden:
            return
        if model is None:
            self.base = PatchedCheckpoint(self.base, patches, hidden)
        else:
            self.agents[model] = PatchedCheckpoint(self.agents[model], patches, hidden)


def harmonise(
    base: Checkpoint,
    agents: Mapping[str, Checkpoint],
    *,
    extra: Extra = "error",
    vocabulary: Vocabulary | None = "error",
) -> Harmony:
    """Views of the models that hold the same tensors.

    Args:
        base: the opened base.
        agents: opened agents by name, in config order.
        extra: tensors that not all models have. ``error``; ``drop`` leaves out those that only
        agents
            have; ``base`` also takes the base's for those that an agent lacks; ``keep`` adds
            those that only agents have to the output, with the values of the first agent that has
            them.
        vocabulary: embeddings of unequal length. ``error``; ``base`` keeps the base's rows, and
        takes
            its values where an agent has none; ``min`` keeps the rows that all have; ``union``
            keeps all, with the first agent's values where the base has none; None leaves rows
            alone.

    Returns:
        The views, and a list of problems (nothing is raised).
    """
    harmony = Harmony(base, dict(agents))
    for agent in agents:
        _rename(harmony, agent)
    _head(harmony)
    if vocabulary is not None:
        _rows(harmony, vocabulary)
    if extra == "keep":
        _keep_extras(harmony)
    for agent in agents:
        _missing(harmony, agent, extra)
        _surplus(harmony, agent, extra)
    return harmony


def _specs(checkpoint: Checkpoint) -> dict[str, TensorSpec]:
    return {name: checkpoint.spec(name) for name in checkpoint.names()}


def _listed(names: list[str]) -> str:
    text = ", ".join(map(shown, names[:_SHOWN]))
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN} more"


def _called(model: str | None) -> str:
    return _BASE if model is None else f"agent {shown(model)}"


# --- names -------------------------------------------------------------------------------------


def _rename(harmony: Harmony, agent: str) -> None:
    """Give an agent's tensors the base's names, where they mean the same place."""
    checkpoint = harmony.agents[agent]
    patches = renamed(_specs(harmony.base), checkpoint)
    used = {segment.name for found in patches.values() for segment in found.segments}
    harmony.patch(agent, patches, frozenset(used))
    if patches:
        name = min(patches)
        harmony.say(
            "names-matched",
            f"{len(patches)} tensors of {_called(agent)} have other names, for example "
            f"{shown(patches[name].segments[0].name)} for {shown(name)}",
        )


# --- tied heads --------------------------------------------------------------------------------


def _head(harmony: Harmony) -> None:
    """Tied heads: left out where all models tie them, written out where one does not."""
    names = {name for _, checkpoint in harmony.models() for name in checkpoint.names()}
    tie = tied_head(names, harmony.base.config)
    if tie is None:
        return
    states = {
        model: _state(checkpoint, tie.head, tie.embed, harmony.base)
        for model, checkpoint in harmony.models()
    }
    has_own = [model for model, state in states.items() if state == "own"]
    if not has_own:
        for model, state in states.items():
            if state == "equal":
                harmony.patch(model, {}, frozenset({tie.head}))
                if model is not None:
                    harmony.equal.append((model, tie.head, tie.embed))
                harmony.say(
                    "head-tied",
                    f"{shown(tie.head)} of {_called(model)} is {shown(tie.embed)}: left out, tied",
                )
        return
    for model, checkpoint in harmony.models():
        if states[model] == "tied":
            harmony.patch(model, {tie.head: alias(tie.head, checkpoint, tie.embed)})
    if is_tied(harmony.base.config):
        harmony.tied = False
        who = ", ".join(_called(model) for model in has_own)
        harmony.say(
            "head-untied",
            f"{shown(tie.head)} of {who} is not {shown(tie.embed)}: both are written, untied",
        )


def _state(checkpoint: Checkpoint, head: str, embed: str, base: Checkpoint) -> str:
    """`own` head, head `equal` to the embedding, `tied` (no head needed), or `absent`."""
    names = set(checkpoint.names())
    tied = is_tied(checkpoint.config if checkpoint.config is not None else base.config)
    if head not in names:
        return "tied" if tied and embed in names else "absent"
    if tied and embed in names and looks_equal(checkpoint, head, embed, full=checkpoint is base):
        return "equal"
    return "own"


def looks_equal(checkpoint: Checkpoint, one: str, other: str, *, full: bool = False) -> bool:
    """Whether two tensors have the same bits: all (``full``), or at evenly spaced places."""
    specs = checkpoint.spec(one), checkpoint.spec(other)
    if (specs[0].dtype, specs[0].shape) != (specs[1].dtype, specs[1].shape):
        return False
    n = specs[0].elements
    size = _PIECE if full else _SAMPLE
    for start in range(0, n, size if full else max(n // _SAMPLES, size)):
        stop = min(start + size, n)
        bits = []
        for name in (one, other):
            out = np.empty((stop - start) * specs[0].dtype.itemsize, np.uint8)
            checkpoint.read(name, start, stop, out)
            bits.append(out.tobytes())
        if bits[0] != bits[1]:
            return False
    return True


# --- vocabulary --------------------------------------------------------------------------------


def _rows(harmony: Harmony, policy: Vocabulary) -> None:
    """Give embeddings and heads of unequal length one length, if the policy says which."""
    for name, spec in _specs(harmony.base).items():
        if not is_vocabulary_tensor(name) or not spec.shape:
            continue
        rows = {
            model: checkpoint.spec(name).shape[0]
            for model, checkpoint in harmony.models()
            if name in checkpoint.names() and checkpoint.spec(name).shape[1:] == spec.shape[1:]
        }
        if len(set(rows.values())) > 1:
            _resize(harmony, name, rows, policy)


def _resize(
    harmony: Harmony, name: str, rows: Mapping[str | None, int], policy: Vocabulary
) -> None:
    counts = ", ".join(f"{n} in {_called(model)}" for model, n in rows.items())
    if policy == "error":
        harmony.problems.append(
            IncompatibleError(
                f"{shown(name)} has unequal numbers of rows: {counts}",
                hint="tokens were added, or rows padded: see `--vocabulary base`, `min`, `union`",
            )
        )
        return
    wanted = {"base": rows[None], "min": min(rows.values()), "union": max(rows.values())}[policy]
    models = dict(harmony.models())
    order = [None, *(agent for agent in harmony.agents if agent in rows)]
    for model in rows:
        if rows[model] != wanted:
            sources = [model, *(m for m in order if m != model)]
            found = _filled(name, wanted, [(models[m], rows[m]) for m in sources])
            harmony.patch(model, {name: found})
    if wanted != rows[None]:
        harmony.vocab_size = wanted
    harmony.say("rows-adjusted", f"{shown(name)} gets {wanted} rows (policy `{policy}`): {counts}")


def _filled(name: str, wanted: int, sources: list[tuple[Checkpoint, int]]) -> Patch:
    """A tensor of ``wanted`` rows: each row from the first source that has it."""
    shape = sources[0][0].spec(name).shape[1:]
    width = int(np.prod(shape, dtype=np.int64))
    segments, have = [], 0
    for checkpoint, rows in sources:
        end = min(rows, wanted)
        if end > have:
            segments.append(Segment(checkpoint, name, have * width, end * width))
            have = end
    return patch(name, (wanted, *shape), segments)


# --- extras ------------------------------------------------------------------------------------


def _keep_extras(harmony: Harmony) -> None:
    """Tensors that only agents have become the base's too, with the first such agent's values."""
    added: dict[str, Patch] = {}
    for agent, checkpoint in harmony.agents.items():
        new = [n for n in checkpoint.names() if n not in harmony.base.names() and n not in added]
        new = [n for n in new if not is_buffer(checkpoint.spec(n))]
        added |= {name: alias(name, checkpoint, name) for name in new}
        if new:
            harmony.say(
                "tensors-added", f"added to the output from {_called(agent)}: {_listed(new)}"
            )
    harmony.patch(None, added)
    for agent in harmony.agents:
        harmony.patch(agent, added)


def _missing(harmony: Harmony, agent: str, extra: Extra) -> None:
    """Tensors of the base that an agent lacks."""
    checkpoint = harmony.agents[agent]
    ours, theirs = _specs(harmony.base), set(checkpoint.names())
    lost = [name for name in ours if name not in theirs]
    if not lost:
        return
    idle = all(is_buffer(ours[n]) or ours[n].dtype.is_discrete for n in lost)
    if extra not in {"base", "keep"} and not idle:
        why = _one_of_several(checkpoint) or _other_size(harmony, agent)
        harmony.problems.append(_lost(agent, lost, ours, theirs, why))
        return
    harmony.patch(agent, {name: alias(name, harmony.base, name) for name in lost})
    harmony.say("base-taken", f"{_called(agent)} has no {_listed(lost)}: using the base's")


_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")


def _one_of_several(checkpoint: Checkpoint) -> str | None:
    """A hint where a model was given as one file of several."""
    if not _SHARD.search(checkpoint.source):
        return None
    return f"{shown(checkpoint.source)} is one file of several: give its directory"


def _other_size(harmony: Harmony, agent: str) -> str | None:
    """A hint where most tensors that both have are of another shape."""
    ours, theirs = _specs(harmony.base), _specs(harmony.agents[agent])
    both = [n for n in ours if n in theirs]
    unlike = [n for n in both if ours[n].shape != theirs[n].shape]
    if not both or 2 * len(unlike) < len(both):
        return None
    name = unlike[0]
    shapes = f"{shown(name)} is {list(theirs[name].shape)}, not {list(ours[name].shape)}"
    return f"a model of another size, not one of this base: {shapes}"


def _lost(
    agent: str, lost: list[str], ours: Mapping[str, TensorSpec], theirs: set[str], why: str | None
) -> MergeError:
    hint = why or (
        "is this a full model of the same architecture? `--extra base` takes the base's values"
    )
    if len(lost) == len(ours) and theirs:
        hint = f"its names look different ({shown(min(theirs))}): another architecture"
    text = f"{_called(agent)} lacks {len(lost)} of the base's {len(ours)} tensors: {_listed(lost)}"
    return IncompatibleError(text, hint=hint)


def _surplus(harmony: Harmony, agent: str, extra: Extra) -> None:
    """Tensors of an agent that the base lacks."""
    checkpoint = harmony.agents[agent]
    ours = set(harmony.base.names())
    more = [name for name in checkpoint.names() if name not in ours]
    kept = [name for name in more if not is_buffer(checkpoint.spec(name))]
    if kept and extra == "error":
        harmony.problems.append(
            IncompatibleError(
                f"{_called(agent)} has {len(kept)} tensors that the base lacks: {_listed(kept)}",
                hint=_one_of_several(harmony.base)
                or _other_size(harmony, agent)
                or "`--extra drop` leaves them out, `--extra keep` adds them to the output",
            )
        )
        return
    harmony.patch(agent, {}, frozenset(more))
    if more:
        harmony.say("tensors-left-out", f"left out of {_called(agent)}: {_listed(more)}")
