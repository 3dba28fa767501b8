"""Files that ``torch.save`` wrote: which tensors they hold, and at which bytes. Without torch.

Such a file is an uncompressed zip: ``data.pkl`` describes the objects, ``data/<key>`` are the
storages. The pickle is read by `unpickle`, so nothing in it can run; tensors stay in the file until
they are asked for.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError, SecurityError
from ramerge._types import DType
from ramerge.models.files import open_regular, read_exactly, shown, sniff
from ramerge.models.formats.unpickle import Global, Opaque, load


class OpenFile(NamedTuple):
    """An open file that tensors lie in."""

    name: str
    path: Path
    fd: int
    size: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file; element ``[i, j]`` lies ``i * stride[0] + j * stride[1]`` further on."""

    file: OpenFile
    dtype: DType
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements
    offset: int  # in bytes from the start of the file

    @property
    def contiguous(self) -> bool:
        """Whether the elements follow each other in row-major order."""
        expected = 1
        for n, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if n != 1 and step != expected:
                return False
            expected *= n
        return True


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a distributed tensor.

    Attributes:
        local: this rank's elements.
        shape: of the whole tensor.
        dims: for each dimension of the device mesh, which dimension of the tensor it splits; None
            where it repeats the tensor.
        offset: of the part in the whole, where the file says it (then ``dims`` is empty).
    """

    local: Stored
    shape: tuple[int, ...]
    dims: tuple[int | None, ...] = ()
    offset: tuple[int, ...] | None = None


Value = Stored | Shard | list[Shard]  # what a tensor of a state dict is here


def open_torch(path: Path, name: str) -> OpenFile:
    """Open a file for `read_torch`. Raises as `files.open_regular` does."""
    return OpenFile(name, path, *open_regular(path, name))


def read_torch(file: OpenFile, *, start: int = 0, length: int | None = None) -> Any:
    """What a ``torch.save`` file holds: dicts, lists, numbers, `Stored` and `Shard`.

    Args:
        file: the open file.
        start: where the archive begins in it.
        length: bytes of the archive; None for the rest of the file.

    Raises:
        SecurityError: the pickle refers to anything that torch's tensors do not need.
        CorruptInputError: damaged, compressed, or not such a file.
    """
    window = _Window(file, start, file.size - start if length is None else length)
    archive = _open_zip(window, file.name)
    members = _members(archive, window, file.name)
    if members.get("byteorder") is not None and _bytes(window, members["byteorder"]) != b"little":
        raise CorruptInputError(f"{shown(file.name)} is not little-endian")
    rebuild = _Rebuild(file, members, start)
    return load(
        _bytes(window, members["data.pkl"]),
        rebuild.table(),
        persistent=rebuild.storage,
        name=file.name,
    )


class _Window(io.RawIOBase):
    """A part of a file as a file of its own, for zipfile. Closing it leaves the descriptor open."""

    def __init__(self, file: OpenFile, start: int, length: int) -> None:
        self.file, self.start, self.length, self.at = file, start, length, 0
        if start < 0 or length < 0 or start + length > file.size:
            raise CorruptInputError(
                f"{shown(file.name)} is {file.size} bytes, {start + length} are needed",
                hint="the file is incomplete: fetch it again",
            )

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.at = max(0, (0, self.at, self.length)[whence] + offset)
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1) -> bytes:
        n = max(0, self.length - self.at if size < 0 else min(size, self.length - self.at))
        data = bytearray(n)
        read_exactly(self.file.fd, self.start + self.at, memoryview(data), self.file.name)
        self.at += n
        return bytes(data)


class _Member(NamedTuple):
    offset: int  # in the window
    size: int


def _open_zip(window: _Window, name: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(window)
    except MergeError:
        raise
    except Exception as error:  # zipfile fails in many ways on damaged archives
        window.seek(0)
        kind = sniff(window.read(512)) or "no zip archive"
        if kind == "a Python pickle":
            kind = "a Python pickle of the old, unzipped form"
        elif "zip" in kind and kind != "no zip archive":
            kind = f"a damaged zip archive ({error})"
        raise CorruptInputError(
            f"{shown(name)} is {kind}, not a file that torch.save writes today",
            hint="fetch it again, or save it again with torch 1.6 or newer",
        ) from None


def _members(archive: zipfile.ZipFile, window: _Window, name: str) -> dict[str, _Member]:
    """Members by name below the archive's folder; all must be stored as they are."""
    members: dict[str, _Member] = {}
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise CorruptInputError(
                f"{shown(info.filename)} in {shown(name)} is compressed or encrypted, "
                "which torch never does",
                hint="a small compressed file can fill any memory: do not load it anywhere",
            )
        key = info.filename.partition("/")[2]
        if key in members:
            raise CorruptInputError(f"{shown(name)} holds {shown(key)} twice")
        members[key] = _Member(_data_offset(window, info, name), info.file_size)
    if "data.pkl" not in members:
        raise CorruptInputError(f"{shown(name)} is a zip archive, but torch.save did not write it")
    return members


def _data_offset(window: _Window, info: zipfile.ZipInfo, name: str) -> int:
    """Where a member's bytes begin: behind its local header, which varies in length."""
    window.seek(info.header_offset)
    header = window.read(30)
    lengths = (int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little"))
    offset = info.header_offset + 30 + sum(lengths)
    if header[:4] != b"PK\x03\x04" or offset + info.file_size > window.length:
        raise CorruptInputError(f"{shown(info.filename)} in {shown(name)} lies outside the file")
    return offset


def _bytes(window: _Window, member: _Member) -> bytes:
    window.seek(member.offset)
    return window.read(member.size)


class _Storage(NamedTuple):
    dtype: DType | None  # None: untyped bytes
    offset: int  # in the file
    nbytes: int


_STORAGES: Mapping[str, DType | None] = {
    "FloatStorage": DType.F32,
    "DoubleStorage": DType.F64,
    "HalfStorage": DType.F16,
    "BFloat16Storage": DType.BF16,
    "LongStorage": DType.I64,
    "IntStorage": DType.I32,
    "ShortStorage": DType.I16,
    "CharStorage": DType.I8,
    "ByteStorage": DType.U8,
    "BoolStorage": DType.BOOL,
    "UntypedStorage": None,
}


# Parts of distributed tensors and of checkpoint metadata that say nothing about values.
_IGNORED = (
    "torch.device",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "pathlib.PosixPath",
)
METADATA_BUILDERS: Mapping[str, Any] = {
    "collections.OrderedDict": lambda items=(): dict(items),
    "torch.Size": tuple,
    "torch.serialization._get_layout": lambda layout: layout,
    **dict.fromkeys(_IGNORED, lambda *_: None),
}


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """torch's constructors, making `Stored` and `Shard` instead of tensors."""

    file: OpenFile
    members: Mapping[str, _Member]
    start: int  # of the archive in the file

    def table(self) -> dict[str, Any]:
        """Every name that a pickle may call."""
        return {
            **METADATA_BUILDERS,
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor_v3": self.tensor_v3,
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
            "torch._utils._rebuild_parameter_with_state": lambda tensor, *_: tensor,
            "torch._utils._rebuild_wrapper_subclass": lambda kind, *_: Opaque(kind),
            "torch._tensor._rebuild_from_type_v2": self.typed,
            "torch._utils._rebuild_qtensor": self.quantised,
            "__builtin__.getattr": self.attribute,
            "builtins.getattr": self.attribute,
        }

    def storage(self, identity: Any) -> _Storage:
        """The persistent id ``("storage", class, key, device, elements)``."""
        _, kind, key, _, numel = identity
        if kind.name not in _STORAGES:
            self.quantised()
        dtype = _STORAGES[kind.name]
        member = self.members[f"data/{key}"]
        nbytes = numel * (1 if dtype is None else dtype.itemsize)
        if nbytes > member.size:
            raise ValueError(f"storage {key} has {member.size} bytes where {nbytes} are needed")
        return _Storage(dtype, self.start + member.offset, nbytes)

    def quantised(self, *_: Any) -> None:
        """``_rebuild_qtensor``, and storages of packed or complex numbers."""
        raise IncompatibleError(
            f"{shown(self.file.name)} holds quantised or complex tensors",
            hint="merge the unquantised models, then quantise the result",
        )

    def attribute(self, owner: Any, name: Any) -> Global:
        """``getattr``: torch's own files reach one nested class through it."""
        nested = Global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
        if (owner, name) == (nested, "ProcessGroupState"):
            return Global(nested.module, f"{nested.name}.{name}")
        raise SecurityError(
            f"{shown(self.file.name)} is a pickle that looks up {shown(name)} of {shown(owner)}"
        )

    def tensor(self, storage: Any, offset: int, size: Any, stride: Any, *_: Any) -> Stored:
        """``_rebuild_tensor_v2``."""
        return self._stored(storage, storage.dtype, offset, size, stride)

    def tensor_v3(
        self,
        storage: Any,
        offset: int,
        size: Any,
        stride: Any,
        _grad: Any,
        _hooks: Any,
        dtype: Any,
        *_: Any,
    ) -> Stored:
        """``_rebuild_tensor_v3``: the dtype stands beside an untyped storage."""
        return self._stored(storage, DType.parse(dtype.name), offset, size, stride)

    def _stored(
        self, storage: _Storage, dtype: DType, offset: int, size: Any, stride: Any
    ) -> Stored:
        shape, steps = tuple(map(int, size)), tuple(map(int, stride))
        if len(shape) != len(steps) or min((offset, *shape, *steps)) < 0:
            raise ValueError("a tensor with negative or unequal sizes and strides")
        width = dtype.itemsize
        last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        if prod(shape) and (
            (last + 1) * width > storage.nbytes or prod(shape) * width > storage.nbytes
        ):
            raise ValueError(
                f"a tensor of shape {list(shape)} in a storage of {storage.nbytes} bytes"
            )
        return Stored(self.file, dtype, shape, steps, storage.offset + offset * width)

    def typed(self, function: Global, kind: Global, args: Any, state: Any) -> Any:
        """``_rebuild_from_type_v2``: a distributed tensor, or a tensor with Python attributes."""
        if kind.name == "DTensor":
            value = Opaque(kind, (), state)
            spec = value.get("_spec")
            shape = tuple(spec.get("tensor_meta").get("shape", 0))
            return Shard(
                value.get("_local_tensor"), shape, tuple(map(_dim, spec.get("placements")))
            )
        if kind.name == "ShardedTensor":
            shape = tuple(state[1].get("size"))
            return [Shard(part.get("tensor"), shape, offset=_offset(part)) for part in state[0]]
        return self.table()[str(function)](*args)


def _offset(part: Opaque) -> tuple[int, ...]:
    return tuple(part.get("metadata").get("shard_offsets"))


def _dim(placement: Opaque) -> int | None:
    """The dimension that a placement splits; None for a replica."""
    if placement.kind.name == "Replicate":
        return None
    if placement.kind.name != "Shard":
        raise IncompatibleError(f"a tensor is placed as {placement.kind.name}, which is not read")
    return int(placement.get("dim", 0))
