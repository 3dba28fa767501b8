"""Every answer, on disk before anybody reads it: an evaluation can be killed at any moment.

SQLite in WAL mode, one transaction an answer. What `get` returns was paid for once and is never asked
again; only requests that were on their way when the process died are.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from ramerge._errors import CorruptInputError, OutputBusyError, OutputError
from ramerge.evaluate.records import Answer, Prompt

SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL
) WITHOUT ROWID
"""


class Store:
    """Answers by key. Use as a context manager; one process at a time may hold a store."""

    def __init__(self, path: Path) -> None:
        """Open or create the store.

        Args:
            path: the SQLite file; ``path.lock`` beside it keeps a second process out.

        Raises:
            OutputBusyError: another process holds it.
            CorruptInputError: the file is not a store.
        """
        self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise OutputBusyError(
                f"another evaluation is writing `{path.parent}`",
                hint="wait for it, or choose another --out",
            ) from error
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(SCHEMA)
        except sqlite3.DatabaseError as error:
            os.close(self._lock)
            raise CorruptInputError(f"`{path}` is not a store of answers: {error}") from error

    def get(self, key: str) -> Answer | None:
        """The stored answer, or None."""
        row = self._db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else Answer(**json.loads(row[0]))

    def put(self, key: str, model: str, prompt: Prompt, answer: Answer) -> None:
        """Store an answer; the first one stays.

        Raises:
            OutputError: it cannot be written.
        """
        row = (key, model, json.dumps(asdict(prompt)), json.dumps(asdict(answer)))
        try:
            self._db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", row)
        except sqlite3.DatabaseError as error:
            raise OutputError(f"an answer cannot be stored: {error}") from error

    def pace(self, model: str) -> tuple[int, float, float]:
        """Answers stored for ``model``, and their mean seconds and new tokens (0 where there are none)."""
        row = self._db.execute(
            "SELECT count(*), avg(json_extract(answer, '$.seconds')), "
            "avg(json_extract(answer, '$.new_tokens')) FROM answers WHERE model = ?",
            (model,),
        ).fetchone()
        return int(row[0]), float(row[1] or 0.0), float(row[2] or 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.close()
        os.close(self._lock)
