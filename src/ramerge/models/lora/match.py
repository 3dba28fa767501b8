"""Which tensors of an adapter change which tensors of the base, and how: from names and shapes.

Every adapter tensor must be used exactly once. One that finds no counterpart is an error with its
name, because the usual fate of such tensors is to be dropped in silence, which leaves an agent that
is its base.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ramerge._errors import CorruptInputError, IncompatibleError, nearest
from ramerge._types import DType, TensorSpec
from ramerge.models.facts import tied_head
from ramerge.models.files import shown
from ramerge.models.lora.config import LoraConfig
from ramerge.models.views.layouts import canonical

_PARTS = "lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector"
_KEY = re.compile(
    rf"(?P<module>.+?)\.(?P<part>{_PARTS})"
    r"(?:\.(?P<adapter>(?!(?:weight|bias)$)[\w-]+))?(?:\.(?P<leaf>weight|bias))?"
)
_SAVED = re.compile(r"\.modules_to_save(?:\.[\w-]+(?=\.))?|\.base_layer")

Parts = Mapping[str, str]  # adapter tensors on one module, by role (`lora_A`, `lora_B.bias` …)


@dataclass(frozen=True, slots=True)
class Pair:
    """An adapter and the base it is put on, without their data.

    Attributes:
        name: what messages call the adapter.
        config: its configuration.
        adapter: its tensors by name, wrapper prefixes removed.
        base: the base's tensors.
        model_config: the base's config.json, for tied heads.
    """

    name: str
    config: LoraConfig
    adapter: Mapping[str, TensorSpec]
    base: Mapping[str, TensorSpec]
    model_config: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Delta:
    """``scale * (left @ right)`` on the stored matrix, the factors being tensors of the adapter.

    Attributes:
        left: B, or A transposed.
        right: A, or B transposed.
        transposed: whether both are to be transposed (embeddings, and GPT-2's Conv1D).
        scale: factor of the product.
        magnitude: DoRA's norms of the matrix's rows, or of its columns if ``transposed``.
    """

    left: str
    right: str
    transposed: bool
    scale: float
    magnitude: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """How one tensor of the agent comes about.

    Attributes:
        spec: name, dtype and shape of the agent's tensor.
        source: the tensor that the values start from.
        from_adapter: whether ``source`` is a tensor of the adapter (else of the base).
        delta: what is added to a matrix.
        bias: adapter tensor added to a vector, times ``bias_scale``.
    """

    spec: TensorSpec
    source: str
    from_adapter: bool
    delta: Delta | None = None
    bias: str | None = None
    bias_scale: float = 1.0


def match(pair: Pair) -> dict[str, Change]:
    """Changes by tensor name of the agent; adapter tensors carry the names of ``pair.adapter``.

    Raises:
        IncompatibleError: a tensor without counterpart; shapes or ranks that do not fit.
        CorruptInputError: half a pair of factors, or tensors not gathered from their shards.
    """
    modules, saved = _sorted_out(pair)
    homes = {module: _place(pair, f"{module}.weight") for module in modules}
    transposed = pair.config.fan_in_fan_out or _looks_transposed(pair, modules, homes)
    changes = {c.spec.name: c for c in (_replacement(pair, t, k) for t, k in saved.items())}
    for module, parts in modules.items():
        _check_targeted(pair, module)
        target, home = homes[module]
        start = changes.get(target) or _untouched(pair, target, home)
        delta = _delta(pair, module, parts, start.spec, transposed=transposed)
        spec = TensorSpec(target, _wide(start.spec.dtype), start.spec.shape)
        changes[target] = Change(spec, start.source, start.from_adapter, delta)
        if "lora_B.bias" in parts:
            change = _bias(pair, module, parts["lora_B.bias"], changes)
            changes[change.spec.name] = change
    head = _split_head(pair, changes)
    return changes if head is None else {**changes, head.spec.name: head}


def moved(pair: Pair, changes: Mapping[str, Change]) -> list[str]:
    """Tensors that the adapter calls otherwise than the base does."""
    found = (_KEY.fullmatch(key) for key in pair.adapter)
    return sorted({f"{m['module']}.weight" for m in found if m} - changes.keys())


def _sorted_out(pair: Pair) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Adapter tensors by module and role; and tensors saved whole, agent's name to key."""
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    saved: dict[str, str] = {}
    _check_one_adapter(pair)
    for key in pair.adapter:
        found = _KEY.fullmatch(key)
        if found is None:
            _claim(pair, saved, _SAVED.sub("", key), key)
            continue
        leaf = ".bias" if found["leaf"] == "bias" else ""
        _claim(pair, modules[found["module"]], found["part"] + leaf, key)
    return dict(modules), saved


def _check_one_adapter(pair: Pair) -> None:
    """Names like ``lora_A.coder.weight`` may carry the adapter's own name, but only one."""
    found = {m["adapter"] for key in pair.adapter if (m := _KEY.fullmatch(key)) and m["adapter"]}
    if len(found) > 1:
        raise IncompatibleError(
            f"{shown(pair.name)} holds several adapters: {', '.join(map(shown, sorted(found)))}",
            hint="save them one by one, and give them as `MODEL+ADAPTER`",
        )


def _claim(pair: Pair, places: dict[str, str], place: str, key: str) -> None:
    if place in places:
        raise CorruptInputError(
            f"{shown(places[place])} and {shown(key)} in {shown(pair.name)} are the same tensor"
        )
    places[place] = key


def _place(pair: Pair, target: str) -> tuple[str, str]:
    """The agent's name for what an adapter calls ``target``, and the base's tensor it starts from.

    The two are one, but for a tied head that is not saved: it starts from the embedding. Where a
    library version has moved wrappers (``model.language_model.``), the base's name holds.
    """
    if target in pair.base:
        return target, target
    tied = tied_head([*pair.base, target], pair.model_config)
    if tied is not None and tied.tied and tied.head == target and tied.embed in pair.base:
        return target, tied.embed
    moved = [name for name in pair.base if canonical(name) == canonical(target)]
    if len(moved) == 1:
        return moved[0], moved[0]
    like = nearest(target, pair.base)
    raise IncompatibleError(
        f"adapter {shown(pair.name)} changes {shown(target)}, which the base does not have",
        hint=f"the base has {shown(like)}" if like else "the adapter belongs to another base",
    )


def _looks_transposed(
    pair: Pair, modules: Mapping[str, Parts], homes: Mapping[str, tuple[str, str]]
) -> bool:
    """Whether some matrix fits its factors only as the transpose, whatever the flag says."""
    for module, parts in modules.items():
        a, b = (pair.adapter.get(parts.get(f"lora_{letter}", "")) for letter in "AB")
        if a is not None and b is not None and len(a.shape) == len(b.shape) == 2:
            product = (b.shape[0], a.shape[1])
            if product != pair.base[homes[module][1]].shape == product[::-1]:
                return True
    return False


def _check_targeted(pair: Pair, module: str) -> None:
    if not pair.config.targets(module):
        raise IncompatibleError(
            f"adapter {shown(pair.name)} holds tensors for {shown(module)}, "
            "which its configuration does not target",
            hint="PEFT would ignore them: correct `target_modules` in adapter_config.json",
        )


def _replacement(pair: Pair, target: str, key: str) -> Change:
    """A tensor that the adapter holds whole (modules_to_save, trained biases)."""
    name, _ = _place(pair, target)
    spec = TensorSpec(name, pair.adapter[key].dtype, pair.adapter[key].shape)
    return Change(spec, key, from_adapter=True)


def _untouched(pair: Pair, target: str, home: str) -> Change:
    spec = pair.base[home]
    return Change(TensorSpec(target, spec.dtype, spec.shape), home, from_adapter=False)


def _wide(dtype: DType) -> DType:
    return DType.F64 if dtype is DType.F64 else DType.F32


def _delta(pair: Pair, module: str, parts: Parts, spec: TensorSpec, *, transposed: bool) -> Delta:
    """The low-rank change of one matrix, shapes and rank checked."""
    kind = "lora_embedding_" if "lora_embedding_A" in parts else "lora_"
    a, b = (parts.get(f"{kind}{letter}") for letter in "AB")
    if a is None or b is None:
        have = shown(next(iter(parts.values())))
        raise CorruptInputError(f"adapter {shown(pair.name)} holds {have} without its other factor")
    transposed = transposed or kind == "lora_embedding_"
    shape_a, shape_b = (_gathered(pair, key) for key in (a, b))
    product = (shape_b[0], shape_a[1])
    if shape_a[0] != shape_b[1] or (product[::-1] if transposed else product) != spec.shape:
        raise IncompatibleError(
            f"{shown(b)} {list(shape_b)} times {shown(a)} {list(shape_a)} does not fit "
            f"{shown(spec.name)} {list(spec.shape)}",
            hint=f"adapter {shown(pair.name)} belongs to another base",
        )
    rank = pair.config.rank_of(module)
    if rank != shape_a[0]:
        raise IncompatibleError(
            f"{shown(a)} has rank {shape_a[0]}, the configuration of {shown(pair.name)} says {rank}"
        )
    left, right = (a, b) if transposed else (b, a)
    magnitude = _magnitude(pair, parts, product[0])
    return Delta(left, right, transposed, pair.config.scale_of(module), magnitude)


def _gathered(pair: Pair, key: str) -> tuple[int, ...]:
    """Shape of a factor, which must be a matrix with elements."""
    shape = pair.adapter[key].shape
    if len(shape) != 2 or 0 in shape:
        raise CorruptInputError(
            f"{shown(key)} in {shown(pair.name)} is {list(shape)} where a matrix is expected",
            hint="the trainer saved it without gathering its shards (ZeRO-3 or FSDP)",
        )
    return shape


def _magnitude(pair: Pair, parts: Parts, outputs: int) -> str | None:
    """The DoRA vector, which must be there exactly when the configuration says so."""
    key = parts.get("lora_magnitude_vector")
    if pair.config.dora != (key is not None):
        have = shown(key or next(iter(parts.values())))
        raise IncompatibleError(
            f"{shown(pair.name)} says `use_dora: {str(pair.config.dora).lower()}`, but holds "
            f"{have} {'with' if key else 'without'} a magnitude vector"
        )
    if key is not None and pair.adapter[key].elements != outputs:
        raise IncompatibleError(
            f"{shown(key)} has {pair.adapter[key].elements} elements where {outputs} are expected"
        )
    return key


def _bias(pair: Pair, module: str, key: str, changes: Mapping[str, Change]) -> Change:
    """The change that ``lora_bias`` makes to the module's own bias."""
    target, home = _place(pair, f"{module}.bias")
    start = changes.get(target) or _untouched(pair, target, home)
    if start.spec.shape != pair.adapter[key].shape:
        raise IncompatibleError(
            f"{shown(key)} is {list(pair.adapter[key].shape)}, but {shown(target)} is "
            f"{list(start.spec.shape)}"
        )
    spec = TensorSpec(target, _wide(start.spec.dtype), start.spec.shape)
    scale = pair.config.scale_of(module)
    return Change(spec, start.source, start.from_adapter, bias=key, bias_scale=scale)


def _split_head(pair: Pair, changes: Mapping[str, Change]) -> Change | None:
    """The head of a tied base, with the base's values, once an adapter changes the embedding alone.

    An adapter acts where tokens are looked up; the head stays as it was, so the two are tied no
    longer. None where the base has its own head, the adapter brings one, or it keeps the two tied.
    """
    tied = tied_head(pair.base, pair.model_config)
    if tied is None or not tied.tied or tied.head in pair.base or tied.head in changes:
        return None
    change = changes.get(tied.embed)
    if change is None or pair.config.ties_weights:
        return None
    module = tied.embed.removesuffix(".weight")
    saved = pair.config.saved_modules
    retrained = any(module == m or module.endswith("." + m) for m in saved)
    if change.delta is None and not retrained:
        return None  # a copy that PEFT saves beside the adapter; the head follows it
    spec = pair.base[tied.embed]
    return Change(TensorSpec(tied.head, spec.dtype, spec.shape), tied.embed, from_adapter=False)
