"""A LoRA adapter on its base, read as if it were the merged agent, which is never materialised.

Changed matrices are ``base + scale * B A`` in fp32 (fp64 over an F64 base), computed for just the
elements asked for; everything else is the base's own. An element's bits do not depend on the piece
in which it is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramerge._errors import CorruptInputError, IncompatibleError, SecurityError
from ramerge._types import Bytes, DType, TensorSpec
from ramerge.models.base import Checkpoint, Extent, Notice, SourceFile
from ramerge.models.files import json_object, read_small, redacted, resolve_inside, shown
from ramerge.models.formats.pickles import open_pickle_file
from ramerge.models.formats.safetensors import open_file
from ramerge.models.lora.config import CONFIG, LoraConfig, parse_lora_config
from ramerge.models.lora.match import Change, Delta, Pair, match, moved
from ramerge.models.numbers import numbers, read_numbers
from ramerge.models.prefixes import stripped

WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
_CACHED = 4_000_000  # bytes of decoded factors kept; the last pair is kept whatever its size
_PIECE = 1 << 18  # elements of the base held at a time while DoRA norms are taken

Numbers = NDArray[Any]  # float32 or float64


class LoraCheckpoint:
    """A base with an adapter on it; satisfies `Checkpoint`. Thread-safe where the base is."""

    __slots__ = ("_adapter", "_base", "_cache", "_changes", "_files", "_owns_base",
                 "config", "directory", "notices", "revision", "source")  # fmt: skip

    def __init__(
        self,
        base: Checkpoint,
        adapter: Checkpoint,
        changes: Mapping[str, Change],
        *,
        source: str,
        directory: Path | None,
        files: tuple[SourceFile, ...],
        notices: tuple[Notice, ...] = (),
        revision: str | None = None,
        owns_base: bool = False,
    ) -> None:
        self.source = redacted(source)
        self.revision = revision
        self.directory = directory
        self.config = base.config
        self.notices = notices
        self._base = base
        self._adapter = adapter
        self._changes = changes
        self._files = files
        self._owns_base = owns_base
        self._cache = _Cache(_CACHED)

    def names(self) -> tuple[str, ...]:
        """All tensor names of the merged agent, sorted."""
        return tuple(sorted({*self._base.names(), *self._changes}))

    def spec(self, name: str) -> TensorSpec:
        """Shape of a tensor; its dtype is F32 (F64) where the adapter changes it."""
        change = self._changes.get(name)
        return self._base.spec(name) if change is None else change.spec

    def read(self, name: str, start: int, stop: int, out: Bytes) -> None:
        """Fill ``out`` with elements [start, stop) of a tensor; see `Checkpoint.read`."""
        change = self._changes.get(name)
        if change is None:
            self._base.read(name, start, stop, out)
            return
        origin = self._adapter if change.from_adapter else self._base
        if change.delta is None and change.bias is None:
            origin.read(change.source, start, stop, out)
            return
        dtype = np.dtype(np.float64 if change.spec.dtype is DType.F64 else np.float32)
        piece = (
            out.view(dtype)
            if out.ctypes.data % dtype.itemsize == 0
            else np.empty(stop - start, dtype)
        )
        self._fill(change, start, stop, piece)
        if piece.base is not out:
            out[:] = piece.view(np.uint8)

    def _fill(self, change: Change, start: int, stop: int, piece: Numbers) -> None:
        """The numbers of a changed tensor, elements [start, stop)."""
        from ramerge.kernels.lowrank import scale_rows

        self._raw(change, start, stop, piece)
        if change.delta is not None and change.delta.magnitude is not None:
            factor = self._cache.get(
                (change.spec.name, "dora"), lambda: self._dora(change, piece.dtype)
            )
            columns = change.spec.shape[1]
            scale_rows(piece, start, columns, factor[0], by_row=not change.delta.transposed)

    def _raw(self, change: Change, start: int, stop: int, piece: Numbers) -> None:
        """Base and low-rank change, or base and bias, without DoRA's magnitudes."""
        from ramerge.kernels.lowrank import add_lowrank

        read_numbers(
            self._adapter if change.from_adapter else self._base, change.source, start, stop, piece
        )
        if change.delta is not None:
            delta = change.delta
            left, right = self._cache.get(
                (change.spec.name, "factors"), lambda: self._factors(delta, piece.dtype)
            )
            add_lowrank(piece, start, left, right, piece.dtype.type(delta.scale))
        if change.bias is not None:
            bias = numbers(self._adapter, change.bias, piece.dtype)
            piece += bias[start:stop] * piece.dtype.type(change.bias_scale)

    def _factors(self, delta: Delta, dtype: np.dtype[Any]) -> tuple[Numbers, ...]:
        """``left`` and ``right``, decoded, in the orientation of the stored matrix."""
        pair = []
        for key in (delta.left, delta.right):
            shape = self._adapter.spec(key).shape
            factor = numbers(self._adapter, key, dtype).reshape(shape)
            pair.append(np.ascontiguousarray(factor.T) if delta.transposed else factor)
        return tuple(pair)

    def _dora(self, change: Change, dtype: np.dtype[Any]) -> tuple[Numbers, ...]:
        """Magnitude over norm for each output of the layer; reads the whole tensor once."""
        from ramerge.kernels.lowrank import add_squares

        delta = change.delta
        assert delta is not None
        assert delta.magnitude is not None
        by_row = not delta.transposed
        rows, columns = change.spec.shape
        total = np.zeros(rows if by_row else columns)
        for start in range(0, change.spec.elements, _PIECE):
            stop = min(start + _PIECE, change.spec.elements)
            piece = np.empty(stop - start, dtype)
            self._raw(change, start, stop, piece)
            add_squares(piece, start, columns, total, by_row=by_row)
        magnitude = numbers(self._adapter, delta.magnitude, dtype)
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # a zero row is NaN, which the merge reports
            return ((magnitude / np.sqrt(total)).astype(dtype),)

    def extent(self, name: str) -> Extent | None:
        """None: values are computed, or lie in a file of the base."""
        del name
        return None

    def files(self) -> tuple[SourceFile, ...]:
        """The adapter's files, and the base's where the base is this checkpoint's own."""
        return self._files

    def close(self) -> None:
        """Release the adapter, and the base where it is this checkpoint's own."""
        self._adapter.close()
        if self._owns_base:
            self._base.close()


class _Cache:
    """Decoded factors, the least recently used ones dropped beyond a number of bytes."""

    __slots__ = ("_items", "_limit", "_lock")

    def __init__(self, limit: int) -> None:
        self._items: OrderedDict[tuple[str, str], tuple[Numbers, ...]] = OrderedDict()
        self._limit = limit
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str], make: Any) -> tuple[Numbers, ...]:
        """The value of ``key``, made by ``make()`` if need be; two threads may make it twice."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        value: tuple[Numbers, ...] = make()
        with self._lock:
            self._items[key] = value
            while len(self._items) > 1 and self._bytes() > self._limit:
                self._items.popitem(last=False)
        return value

    def _bytes(self) -> int:
        return sum(array.nbytes for value in self._items.values() for array in value)


def open_adapter(
    directory: Path,
    base: Checkpoint,
    *,
    source: str,
    revision: str | None = None,
    owns_base: bool = False,
    allow_pickle: bool = False,
) -> LoraCheckpoint:
    """Open an adapter directory on ``base``.

    Args:
        directory: holds adapter_config.json and adapter_model.safetensors.
        base: the opened model it was trained on.
        source: as the user named it.
        revision: commit of a Hub adapter.
        owns_base: whether closing the result closes the base.
        allow_pickle: read adapter_model.bin where there are no safetensors.

    Raises:
        IncompatibleError: not a LoRA that can be merged, no counterpart, or no effect.
        CorruptInputError: files are missing or damaged.
        SecurityError: the adapter is a pickle.
    """
    config_path = resolve_inside(directory, CONFIG, "the adapter")
    config = parse_lora_config(json_object(read_small(config_path, CONFIG), CONFIG), source)
    adapter = _open_weights(directory, source, allow_pickle=allow_pickle)
    try:
        changes, notices = _changes(config, adapter, base, source)
    except Exception:
        adapter.close()
        raise
    own = (*adapter.files(), SourceFile(CONFIG, config_path, config_path.stat().st_size))
    return LoraCheckpoint(
        base,
        adapter,
        changes,
        source=source,
        directory=base.directory if owns_base else directory,
        files=_named_apart(own, base.files() if owns_base else ()),
        notices=(*(base.notices if owns_base else ()), *notices),
        revision=revision,
        owns_base=owns_base,
    )


def _named_apart(
    own: tuple[SourceFile, ...], below: tuple[SourceFile, ...]
) -> tuple[SourceFile, ...]:
    """The adapter's files as ``adapter/…`` (``adapter2/…`` on another), and its base's."""
    depth = len(
        {f.name.split("/")[0] for f in below if f.name.startswith("adapter") and "/" in f.name}
    )
    folder = "adapter" if depth == 0 else f"adapter{depth + 1}"
    mine = tuple(replace(f, name=f"{folder}/{f.name}") for f in own)
    return tuple(sorted((*mine, *below), key=lambda f: f.name))


def _changes(
    config: LoraConfig, adapter: Checkpoint, base: Checkpoint, source: str
) -> tuple[dict[str, Change], tuple[Notice, ...]]:
    """What the adapter does to the base, by the names in the adapter's file."""
    try:
        old = stripped(adapter.names())
    except ValueError as error:
        raise CorruptInputError(f"in {shown(source)} {error}") from None
    specs = {new: replace(adapter.spec(name), name=name) for new, name in old.items()}
    base_specs = {name: base.spec(name) for name in base.names()}
    pair = Pair(source, config, specs, base_specs, base.config)
    found = match(pair)
    changes = {name: _in_file(change, old) for name, change in found.items()}
    _check_effect(changes, adapter, source)
    return changes, _notices(config, changes, base, source, moved(pair, found))


def _in_file(change: Change, old: Mapping[str, str]) -> Change:
    """A change whose adapter tensors carry the names that they have in the file."""
    delta = change.delta
    if delta is not None:
        magnitude = None if delta.magnitude is None else old[delta.magnitude]
        delta = replace(delta, left=old[delta.left], right=old[delta.right], magnitude=magnitude)
    return replace(
        change,
        source=old[change.source] if change.from_adapter else change.source,
        delta=delta,
        bias=None if change.bias is None else old[change.bias],
    )


def _check_effect(changes: Mapping[str, Change], adapter: Checkpoint, source: str) -> None:
    """An adapter that changes nothing is a training run that was lost; say so now."""
    for change in changes.values():
        delta = change.delta
        if change.from_adapter or change.bias or (delta and delta.magnitude):
            return
        if (
            delta
            and delta.scale
            and all(numbers(adapter, k).any() for k in (delta.left, delta.right))
        ):
            return
    scales = {change.delta.scale for change in changes.values() if change.delta}
    why = (
        "its scale is 0"
        if scales == {0.0}
        else "a factor of every product is 0"
        if scales
        else "it is empty"
    )
    raise IncompatibleError(
        f"adapter {shown(source)} has no effect: {why}",
        hint="the agent would be its base; check that the trained adapter was saved",
    )


def _notices(
    config: LoraConfig,
    changes: Mapping[str, Change],
    base: Checkpoint,
    source: str,
    elsewhere: list[str],
) -> tuple[Notice, ...]:
    notices = []
    if elsewhere:
        text = (
            f"{len(elsewhere)} tensors have other names in the base than in adapter {shown(source)}"
        )
        notices.append(Notice("names-matched", f"{text}, for example {shown(elsewhere[0])}"))
    if config.base is not None and not _same_model(config.base, base.source):
        text = f"adapter {shown(source)} was trained on {shown(redacted(config.base))}"
        notices.append(Notice("adapter-base", f"{text}, the base is {shown(base.source)}"))
    heads = tuple(sorted(set(changes) - set(base.names())))
    if heads:
        names = ", ".join(map(shown, heads))
        text = f"adapter {shown(source)} unties the output head: {names} is no longer the embedding"
        notices.append(Notice("tied-head-split", text, heads))
    return tuple(notices)


def _same_model(one: str, other: str) -> bool:
    """Whether two names may mean the same model: their last parts are equal."""

    def last(name: str) -> str:
        return name.rstrip("/").rsplit("/", 1)[-1].split("@")[0].lower()

    return last(one) == last(other)


def _open_weights(directory: Path, source: str, *, allow_pickle: bool) -> Checkpoint:
    """The adapter's own tensors."""
    if (directory / WEIGHTS).exists():
        return open_file(resolve_inside(directory, WEIGHTS, "the adapter"), source=source)
    if not (directory / PICKLE).exists():
        text = f"adapter {shown(source)} has no {WEIGHTS}"
        raise CorruptInputError(text, hint="the download is incomplete")
    if not allow_pickle:
        text = f"adapter {shown(source)} is a Python pickle"
        raise SecurityError(text, hint="pass --allow-pickle to read it; no code in it is run")
    return open_pickle_file(resolve_inside(directory, PICKLE, "the adapter"), source=source)
