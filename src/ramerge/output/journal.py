"""Which tensors are safely on disk, so that an interrupted merge can go on.

JSON lines. The first names the job by its fingerprint; each further one a finished tensor, the
CRC-32 of its bytes and the engine's record of it. A line is appended only after the tensor's bytes
are on stable storage. A torn tail is what a crash leaves, so reading stops at the first line that
is not whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramerge._types import Json

JOURNAL = ".ramerge_journal.jsonl"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished tensor."""

    name: str
    crc: int
    record: Json


class Journal:
    """An open journal, appended to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def create(cls, path: Path, fingerprint: str) -> Journal:
        """A new journal. Raises FileExistsError where there is one."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        journal = cls(fd)
        journal._write([{"ramerge": _VERSION, "fingerprint": fingerprint}])
        return journal

    @classmethod
    def reopen(cls, path: Path, fingerprint: str) -> tuple[Journal, dict[str, Entry]] | None:
        """The journal of an interrupted run and what it holds; None if missing or another job's."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        lines, end = _whole_lines(data)
        if not lines or lines[0] != {"ramerge": _VERSION, "fingerprint": fingerprint}:
            return None
        entries = {}
        for line in lines[1:]:
            entries[line["tensor"]] = Entry(line["tensor"], int(line["crc32"], 16), line["record"])
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        os.ftruncate(fd, end)
        return cls(fd), entries

    def append(self, entries: Iterable[Entry]) -> None:
        """Add finished tensors, whose bytes the caller has already synced, and sync."""
        self._write(
            [{"tensor": e.name, "crc32": f"{e.crc:08x}", "record": e.record} for e in entries]
        )

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        while data:
            data = data[os.write(self._fd, data) :]
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _whole_lines(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Parsed lines up to the first that is damaged, and the offset where they end."""
    lines: list[dict[str, Any]] = []
    end = 0
    while (stop := data.find(b"\n", end)) >= 0:
        try:
            line = json.loads(data[end:stop])
        except ValueError:
            break
        if not isinstance(line, dict) or (lines and line.keys() != {"tensor", "crc32", "record"}):
            break
        lines.append(line)
        end = stop + 1
    return lines, end
