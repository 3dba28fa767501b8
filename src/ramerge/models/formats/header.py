"""The safetensors header: parsed and validated as a whole before any tensor byte is used.

The format is an 8-byte little-endian length, that many bytes of JSON, then the tensors' bytes.
What is checked is everything the format promises and readers sometimes do not hold: unique keys,
known dtypes, sizes that follow from shape and dtype, tensors that fill the file without holes,
overlaps or trailing bytes. The library's own reader takes 15 s and 1 GB for a legal header of a
million empty tensors; this one is linear with a small constant. Format:
github.com/huggingface/safetensors.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ramerge._errors import CorruptInputError
from ramerge._types import DType, TensorSpec
from ramerge.models.files import is_plain, json_object, read_exactly, shown, sniff

MAX_HEADER = 100_000_000  # bytes, the format's own cap
MAX_TENSORS = 100_000  # per file; the largest public models have that many in all their files
MAX_RANK = 64  # numpy's limit
_MAX_ELEMENTS = 2**63 - 1
_FIELDS = {"dtype", "shape", "data_offsets"}
_DTYPES = {d.name: d for d in DType}


class Placed(NamedTuple):
    """A tensor and where its bytes lie, counted from the start of the file."""

    spec: TensorSpec
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A valid header. ``tensors`` keeps the order of the file's JSON."""

    tensors: Mapping[str, Placed]
    metadata: Mapping[str, str]
    size: int  # bytes of the whole file


def read_header(fd: int, size: int, name: str) -> Header:
    """Read and validate the header of an open safetensors file.

    Args:
        fd: open for reading.
        size: bytes of the whole file.
        name: what messages call the file.

    Raises:
        CorruptInputError: the file is truncated, damaged, or not safetensors at all.
    """
    head = bytearray(min(size, 512))
    read_exactly(fd, 0, memoryview(head), name)
    length = int.from_bytes(head[:8], "little")
    if size < 8 or length > MAX_HEADER or not head[8:9].startswith(b"{"):
        raise _not_safetensors(bytes(head), length, size, name)
    if 8 + length > size:
        raise CorruptInputError(
            f"{shown(name)} is {size} bytes, its header alone needs {8 + length}",
            hint="the download is incomplete: fetch the file again",
        )
    data = bytearray(length)
    read_exactly(fd, 8, memoryview(data), name)
    return parse_header(bytes(data), size, name)


def read_header_of(path: str | os.PathLike[str]) -> Header:
    """`read_header` of a file by path, for callers who keep no descriptor."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_header(fd, os.fstat(fd).st_size, Path(path).name)
    finally:
        os.close(fd)


def parse_header(data: bytes, size: int, name: str) -> Header:
    """Validate the JSON part of a header.

    Args:
        data: the JSON bytes, without the 8-byte length.
        size: bytes of the whole file.
        name: what messages call the file.

    Raises:
        CorruptInputError: names the file, the tensor and both values.
    """
    if not data.startswith(b"{"):
        raise CorruptInputError(f"the header of {shown(name)} does not start with an opening brace")
    if data.count(b"{") > MAX_TENSORS + 2:  # one opens each tensor's description; names aside
        raise CorruptInputError(
            f"the header of {shown(name)} describes more than {MAX_TENSORS:,} tensors",
            hint="no known model has so many in one file",
        )
    start = 8 + len(data)
    with _no_garbage_collection():
        entries = json_object(data, name)
        metadata = _metadata(entries.pop("__metadata__", None), name)
        tensors = {key: _placed(key, entry, start, name) for key, entry in entries.items()}
        end = _check_contiguous(tensors, start, name)
    if end != size:
        raise CorruptInputError(
            f"{shown(name)} is {size} bytes, its header needs {end}",
            hint="the download is incomplete: fetch the file again" if size < end else None,
        )
    return Header(tensors, metadata, size)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A million small objects, none of them garbage: do not walk them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _metadata(value: Any, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise CorruptInputError(f"`__metadata__` in {shown(name)} is not a map from text to text")
    return value


def _placed(key: str, entry: Any, start: int, name: str) -> Placed:
    """One header entry as a tensor at its absolute position."""
    if not key or not is_plain(key):
        raise CorruptInputError(
            f"{shown(name)} holds a tensor whose name is not plain text: {shown(key)}"
        )
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise _bad(key, name, "is not described by exactly dtype, shape and data_offsets")
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise _bad(key, name, f"has the unknown dtype {shown(entry['dtype'])}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _naturals(shape) or len(shape) > MAX_RANK:
        raise _bad(key, name, f"has the shape {shown(shape)}, which is not a short list of sizes")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad(
            key, name, f"has the data_offsets {shown(offsets)}, which are not a begin and an end"
        )
    bits = _bits(shape, dtype.bits)
    nbytes = offsets[1] - offsets[0]
    if bits is None or bits != 8 * nbytes:
        needed = "more than 2^63" if bits is None else bits / 8 if bits % 8 else bits // 8
        raise _bad(
            key,
            name,
            f"({dtype.name} {shape}) needs {needed} bytes, its data_offsets span {nbytes}",
        )
    return Placed(TensorSpec(key, dtype, tuple(shape)), start + offsets[0], nbytes)


def _naturals(values: Any) -> bool:
    """Whether ``values`` is a list of integers >= 0; true and false are no integers here."""
    return isinstance(values, list) and all(
        type(v) is int and 0 <= v <= _MAX_ELEMENTS for v in values
    )


def _bits(shape: list[int], width: int) -> int | None:
    """Bits of a tensor, or None where the product of its sizes (zeros aside) leaves 64 bits."""
    product = 1
    for n in shape:
        product *= n or 1
        if product > _MAX_ELEMENTS:
            return None
    return 0 if 0 in shape else product * width


def _check_contiguous(tensors: Mapping[str, Placed], start: int, name: str) -> int:
    """Tensors must tile the data area. Returns the end of the last one."""
    end, before = start, "the header"
    for placed in sorted(tensors.values(), key=lambda p: (p.offset, p.nbytes)):
        if placed.offset != end:
            what = "overlaps" if placed.offset < end else "leaves a hole after"
            raise _bad(
                placed.spec.name,
                name,
                f"{what} {before if before == 'the header' else shown(before)}: "
                f"it begins at byte {placed.offset} where {end} is due",
            )
        end, before = placed.offset + placed.nbytes, placed.spec.name
    return end


def _bad(key: str, name: str, what: str) -> CorruptInputError:
    return CorruptInputError(f"tensor {shown(key)} in {shown(name)} {what}")


def _not_safetensors(head: bytes, length: int, size: int, name: str) -> CorruptInputError:
    """The most helpful account of a file that does not begin as safetensors does."""
    kind = sniff(head)
    if kind is not None:
        hint = "run `git lfs pull` in the repository" if "LFS" in kind else "fetch the file again"
        return CorruptInputError(f"{shown(name)} is {kind}", hint=hint)
    if size < 8:
        return CorruptInputError(f"{shown(name)} is {size} bytes, too short for a safetensors file")
    if length > MAX_HEADER:
        return CorruptInputError(
            f"{shown(name)} claims a header of {length} bytes; {MAX_HEADER} are allowed"
        )
    return CorruptInputError(
        f"the header of {shown(name)} does not start with an opening brace: not safetensors"
    )
