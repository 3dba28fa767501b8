"""Opening a model's files without being led astray.

Every byte of a model directory may be hostile or broken: names stay in the directory, and only
regular files are opened. A file name found *inside* a file (an index, a config) is checked as a
string first and as a resolved path second. The Hub's cache makes every snapshot file a symlink to
``../../blobs/<hash>``, so "no symlinks" would refuse every downloaded model; that one target is
allowed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import unicodedata
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ramerge._errors import CorruptInputError, MergeError, SecurityError

SMALL_FILE = 100_000_000  # bytes; larger JSON side files are not believed
_BIDI = {"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"}
_SNAPSHOT = re.compile(r"/models--([\w.-]+)/snapshots/([0-9a-f]{40})$")
_SECRET = re.compile(r"(?<=//)[^/@\s]+@|\b(?:hf_|sk-|ghp_|gho_|AKIA)[A-Za-z0-9_-]{8,}")


def is_plain(name: str) -> bool:
    """Whether ``name`` is printable text: no control, line-break or bidi character."""
    if name.isascii():
        return name.isprintable()
    return all(
        unicodedata.category(c) not in {"Cc", "Cs", "Zl", "Zp"}
        and unicodedata.bidirectional(c) not in _BIDI
        and c not in "\u200e\u200f\u061c"
        for c in name
    )


def shown(name: object) -> str:
    """``name`` for a message, in backticks; escaped where it could disturb a terminal."""
    text = str(name)
    if not is_plain(text):
        text = text.encode("ascii", "backslashreplace").decode().encode("unicode_escape").decode()
        text = text.replace("\\\\", "\\")
    return f"`{text if len(text) <= 200 else text[:160] + '…' + text[-30:]}`"


def redacted(source: str) -> str:
    """``source`` without credentials: what messages, reports and manifests may show."""
    return _SECRET.sub(lambda found: "" if found[0].endswith("@") else "***", source)


def public_source(source: str) -> str:
    """A source as output may show it: Hub ids whole, of local paths the last part only, as the user wrote it.

    A snapshot in a Hub cache is the model and commit that it holds: ``org/name@commit``.
    """
    if " + " in source and not Path(source).exists():  # a stack of several models
        return " + ".join(map(public_source, source.split(" + ")))
    local = source.startswith((".", "/", "~")) or Path(source).exists()
    if not local:
        return redacted(source)
    path = os.path.abspath(Path(source).expanduser())  # noqa: PTH100 - Path.resolve would follow links
    snapshot = _SNAPSHOT.search(path)
    if snapshot is not None:
        return redacted(f"{snapshot[1].replace('--', '/', 1)}@{snapshot[2]}")
    return redacted(Path(path).name)


def check_basename(name: str, where: str) -> None:
    """Refuse a file name that is not one plain path component under POSIX and Windows rules.

    Raises:
        SecurityError: it could lead out of the directory.
    """
    parts = {PurePosixPath(name).name, PureWindowsPath(name).name}
    if parts != {name} or name in {"", ".", ".."} or ":" in name or not is_plain(name):
        raise SecurityError(
            f"{where} names the file {shown(name)}, which is not a plain file name",
            hint="a model's files must lie in its own directory; do not use this model unless "
            "you trust its author",
        )


def resolve_inside(directory: Path, name: str, where: str) -> Path:
    """The real path of ``name`` (parts joined by ``/``) in ``directory`` or its Hub cache.

    Raises:
        SecurityError: it resolves to somewhere else.
        FileNotFoundError: there is no such file.
    """
    for part in name.split("/"):
        check_basename(part, where)
    root = Path(os.path.realpath(directory))
    try:
        real = Path(os.path.realpath(root / name, strict=True))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SecurityError(
                f"{where} names {shown(name)}, a symbolic link that leads to itself"
            ) from None
        raise
    if not (real.is_relative_to(root) or _is_blob(root, real)):
        raise SecurityError(
            f"{shown(name)} in {shown(directory)} is a link out of the model's directory",
            hint="copy the file into the directory; only links into the Hub cache's own `blobs` "
            "are followed",
        )
    return real


def _is_blob(root: Path, real: Path) -> bool:
    """Whether ``root`` is ``<repo>/snapshots/<commit>`` and ``real`` lies in ``<repo>/blobs``."""
    return root.parent.name == "snapshots" and real.parent == root.parent.parent / "blobs"


def open_regular(path: Path, name: str) -> tuple[int, int]:
    """Open a regular file for reading; never blocks on a FIFO, never touches a device.

    Returns:
        File descriptor (close-on-exec) and size in bytes.

    Raises:
        SecurityError: not a regular file.
        CorruptInputError: it cannot be opened.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SecurityError(f"{shown(name)} is not a regular file")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(name, error) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):  # swapped between stat and open
        os.close(fd)
        raise SecurityError(f"{shown(name)} is not a regular file")
    return fd, status.st_size


def _unreadable(name: str, error: OSError) -> MergeError:
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return CorruptInputError(
            f"{shown(name)} cannot be opened: too many open files",
            hint="raise the limit for this shell, for example with `ulimit -n 4096`",
        )
    return CorruptInputError(f"{shown(name)} cannot be opened: {error.strerror}")


def read_exactly(fd: int, offset: int, out: memoryview, name: str) -> None:
    """Fill ``out`` (bytes) from ``fd`` at ``offset``; thread-safe, loops over short reads.

    Raises:
        CorruptInputError: the file ends early or the disk fails.
    """
    done, total = 0, len(out)
    while done < total:
        try:
            got = os.preadv(fd, [out[done:]], offset + done)
        except OSError as error:
            raise CorruptInputError(
                f"{shown(name)} cannot be read at byte {offset + done}: {error.strerror}"
            ) from error
        if got == 0:
            raise CorruptInputError(
                f"{shown(name)} ends at byte {offset + done}, {total - done} bytes too early",
                hint="the file changed while it was being read",
            )
        done += got


def read_small(path: Path, name: str, limit: int = SMALL_FILE) -> bytes:
    """The whole content of a small regular file.

    Raises:
        CorruptInputError: it is larger than ``limit`` bytes or cannot be read.
    """
    fd, size = open_regular(path, name)
    try:
        if size > limit:
            raise CorruptInputError(
                f"{shown(name)} is {size} bytes, more than the {limit} expected at most"
            )
        data = bytearray(size)
        read_exactly(fd, 0, memoryview(data), name)
        return bytes(data)
    finally:
        os.close(fd)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} appears twice")
    return members


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def strict_json(data: bytes, name: str, *, unique: bool = True) -> Any:
    """Parse JSON that is UTF-8, without duplicate keys (if ``unique``), NaN or bottomless nesting.

    Raises:
        CorruptInputError: names the file, and where and why it does not parse.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique if unique else None,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        message = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not UTF-8"
    except RecursionError:
        message = "it is nested too deeply"
    except ValueError as error:
        message = str(error)
    raise CorruptInputError(f"{shown(name)} is not valid JSON: {message}{_look_alike(data)}")


def json_object(data: bytes, name: str, *, unique: bool = True) -> dict[str, Any]:
    """Like `strict_json`, for a file whose content must be an object."""
    value = strict_json(data, name, unique=unique)
    if not isinstance(value, dict):
        raise CorruptInputError(
            f"{shown(name)} holds a JSON {type(value).__name__} where an object is expected"
        )
    return value


def _look_alike(data: bytes) -> str:
    kind = sniff(data[:512])
    return f" (it is {kind})" if kind else ""


_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\xef\xbb\xbf", "text with a byte order mark"),
)


def sniff(head: bytes) -> str | None:
    """What a file with these first bytes is, when it is a well-known look-alike; else None."""
    if not head.strip(b"\0"):
        return "filled with zero bytes" if head else "empty"
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "an HTML page, not the file itself"
    return None
