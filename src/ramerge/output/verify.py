"""Does a merged model still hold what its manifest says? Every file, to the last bit.

SHA-256 finds a damaged file; the CRC-32 of its tensors then say which of them the damage lies in.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ramerge._errors import MergeError, VerificationError, raise_problems
from ramerge._types import Json
from ramerge.models.base import OutputFile
from ramerge.models.files import is_plain, open_regular, read_exactly, shown
from ramerge.models.formats.header import Header, read_header
from ramerge.output.crc import crc_hex
from ramerge.output.manifest import MANIFEST, read_manifest

STEP = 1 << 20  # bytes per read
THREADS = 4


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found to be as the manifest says.

    Attributes:
        directory: the model.
        files: files compared, the manifest not counted.
        bytes: their sizes together.
        tensors: tensors in them.
    """

    directory: Path
    files: int
    bytes: int
    tensors: int

    def to_json(self) -> Json:
        """One JSON object."""
        return {
            "directory": str(self.directory),
            "verified": True,
            "files": self.files,
            "bytes": self.bytes,
            "tensors": self.tensors,
        }


def verify(directory: str | Path) -> VerifyReport:
    """Compare a model that ramerge wrote with its manifest.

    Raises:
        VerificationError: no manifest; or a file is missing, damaged or too many. Names the file,
            and the tensors whose bytes differ. Several differences come as one `ProblemsError`.
    """
    root = Path(directory)
    if not root.is_dir():
        raise VerificationError(f"there is no directory {shown(str(directory))}")
    _, files, tensors = read_manifest(root)
    problems: list[MergeError] = []
    with ThreadPoolExecutor(THREADS) as pool:
        for found in pool.map(lambda file: _check(root, file, tensors), files):
            problems.extend(found)
    known = {MANIFEST, *(f.name for f in files)}
    problems += [
        VerificationError(
            f"{shown(name)} is not in the manifest",
            hint="a loader may prefer it to the files that are: move it out of the directory",
        )
        for name in _present(root)
        if name not in known
    ]
    raise_problems(problems)
    return VerifyReport(root, len(files), sum(f.size for f in files), len(tensors))


def _present(root: Path) -> Iterator[str]:
    """All files below ``root`` but hidden ones (of git, and of Hub downloads)."""
    for parent, directories, names in os.walk(root):
        directories[:] = sorted(d for d in directories if not d.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield (Path(parent) / name).relative_to(root).as_posix()


def _check(root: Path, file: OutputFile, tensors: Mapping[str, str]) -> list[MergeError]:
    """What is wrong with one file: nothing or one thing."""
    path = PurePosixPath(file.name)
    if not is_plain(file.name) or path.is_absolute() or ".." in path.parts:
        return [VerificationError(f"the manifest names {shown(file.name)}, which lies outside")]
    if not (root / path).exists():
        return [VerificationError(f"{shown(file.name)} is missing")]
    try:
        fd, size = open_regular(root / path, file.name)
        try:
            what = _difference(fd, size, file, tensors)
        finally:
            os.close(fd)
    except MergeError as error:
        return [VerificationError(error.message)]
    return [VerificationError(f"{shown(file.name)} {what}")] if what else []


def _difference(fd: int, size: int, file: OutputFile, tensors: Mapping[str, str]) -> str:
    """How the open file differs from its entry in the manifest, in words; or nothing."""
    if size != file.size:
        return f"is {size} bytes, the manifest says {file.size}"
    if _sha256(fd, size, file.name) == file.sha256:
        return ""
    weights = file.name.endswith(".safetensors")
    where = locate(fd, size, file.name, tensors) if weights else ""
    return f"is damaged{where}: its SHA-256 differs"


def _pieces(fd: int, start: int, stop: int, name: str) -> Iterator[memoryview]:
    room = memoryview(bytearray(STEP))
    for at in range(start, stop, STEP):
        piece = room[: min(STEP, stop - at)]
        read_exactly(fd, at, piece, name)
        yield piece


def _sha256(fd: int, size: int, name: str) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(fd, 0, size, name):
        digest.update(piece)
    return digest.hexdigest()


def locate(fd: int, size: int, name: str, tensors: Mapping[str, str]) -> str:
    """Where in a weights file the damage lies, in words."""
    try:
        header = read_header(fd, size, name)
    except MergeError:
        return " in its header"
    damaged = [n for n in header.tensors if n in tensors and _crc(fd, header, n) != tensors[n]]
    strange = [n for n in header.tensors if n not in tensors]
    if strange:
        return f" in its header, which names an unknown tensor {shown(strange[0])}"
    if not damaged:
        return " in its header"
    more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
    return f" in tensor {', '.join(map(shown, damaged[:5]))}{more}"


def _crc(fd: int, header: Header, name: str) -> str:
    placed = header.tensors[name]
    crc = 0
    for piece in _pieces(fd, placed.offset, placed.offset + placed.nbytes, name):
        crc = zlib.crc32(piece, crc)
    return crc_hex(crc)
