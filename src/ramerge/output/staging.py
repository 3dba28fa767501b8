"""Whole or nothing: a model is written beside its place, read back, and only then given its name.

    DIR.partial-<id>/     the work; <id> follows from the job, so that the same job finds it again
    DIR.partial-lock      who is at it (see `lock`)
    DIR.partial-old       a replaced model, for the moment between exchange and removal

Shards are created exclusively at their full size; finished tensors go to a journal once their bytes
are on stable storage; `commit` adds the side files, lets a second reader open the result and
compare every byte, writes the manifest last, syncs, renames, and syncs the parent. A run that dies
at any point leaves DIR as it was.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType

from ramerge._errors import (
    MergeError,
    OutputBusyError,
    OutputError,
    VerificationError,
)
from ramerge._types import Bytes, Json
from ramerge.models.base import Layout, OutputFile
from ramerge.models.formats.safetensors import open_directory
from ramerge.output.crc import crc_hex
from ramerge.output.disk import sync_directory, write_new, writing
from ramerge.output.hashing import hash_file
from ramerge.output.journal import JOURNAL, Entry, Journal
from ramerge.output.layout import INDEX_NAME, encode_header, index_bytes, layout_bytes
from ramerge.output.lock import OutputLock
from ramerge.output.manifest import MANIFEST
from ramerge.output.shard import ShardFile
from ramerge.output.target import check_output, preflight, publish, resolved, write_side

BATCH_BYTES = 256_000_000  # of finished tensors between two entries into the journal,
BATCH_SECONDS = 5.0  # or this long
PATIENCE = 3.0  # seconds for pieces that are being written when everything stops
SLACK = 1 << 20  # bytes for the card, the manifest and the directory itself

Files = Mapping[str, bytes | Path]
ManifestOf = Callable[[tuple[OutputFile, ...], Mapping[str, str]], bytes]


class Staging:
    """A `Sink` that is a model directory in the making; a context manager.

    Leaving it without `commit` leaves the output as it was.
    """

    def __init__(self, out: Path, layout: Layout, fingerprint: str) -> None:
        """Names only; `open` does the work."""
        self.target = resolved(out)
        self._layout = layout
        headers = b"".join(encode_header(specs, layout.metadata) for _, specs in layout.shards)
        self._fingerprint = hashlib.sha256(fingerprint.encode() + headers).hexdigest()
        self.partial = self.target.with_name(f"{self.target.name}.partial-{self._fingerprint[:12]}")
        self._old = self.target.with_name(f"{self.target.name}.partial-old")
        self._lock = OutputLock(self.target)
        self._journal: Journal | None = None
        self._shards: list[ShardFile] = []
        self._shard_of: dict[str, ShardFile] = {}
        self._finished: dict[str, Json] = {}
        self._pending: list[Entry] = []
        self._pending_bytes, self._flushed = 0, time.monotonic()
        self._dirty: set[ShardFile] = set()
        self._calm = threading.Condition()
        self._writers, self._closed = 0, False
        self._overwrite, self._ours = False, False
        self._complete, self._committed = False, False

    @classmethod
    def open(
        cls,
        out: Path,
        layout: Layout,
        fingerprint: str,
        *,
        overwrite: bool = False,
        resume: bool = False,
        inputs: Sequence[Path] = (),
        side_bytes: int = 0,
    ) -> Staging:
        """Check, lock, reserve room and create the weights files; or take up an interrupted run.

        Args:
            out: the output directory; absent, empty, or with ``overwrite`` an older model.
            layout: what goes where.
            fingerprint: digest of all that decides the output's bytes.
            overwrite: replace ``out`` as a whole at the end.
            resume: keep tensors that the same job has finished before.
            inputs: directories and files that ``out`` must stay clear of.
            side_bytes: expected size of the side files.

        Raises:
            ConfigError: ``out`` is, contains or lies in an input.
            OutputBusyError: ``out`` is not empty or locked, or an interrupted run's work would be lost.
            OutputError: no room, no permission, a failing disk; names the bytes needed and free.
        """
        check_output(out, inputs, overwrite=overwrite)
        staging = cls(out, layout, fingerprint)
        staging._overwrite = overwrite
        try:
            with writing(staging._lock.path, layout_bytes(layout) + side_bytes):
                staging.target.parent.mkdir(parents=True, exist_ok=True)
                staging._lock.acquire()
                staging._recover()
                check_output(out, inputs, overwrite=overwrite)  # it may have come to be meanwhile
                staging._refuse_strange()
                if not (resume and staging._reopen()):
                    staging._refuse_foreign(resume=resume)
                    staging._refuse_loss(resume=resume)
                    staging._begin(side_bytes)
        except BaseException as error:
            staging.close(error)
            raise
        return staging

    def _recover(self) -> None:
        """Finish what an exchange of directories may have left half done."""
        if not self._old.is_dir():
            return
        if self.target.exists():
            shutil.rmtree(self._old, ignore_errors=True)
        else:
            self._old.rename(self.target)

    def _refuse_strange(self) -> None:
        if self.partial.is_symlink() or (self.partial.exists() and not self.partial.is_dir()):
            raise OutputBusyError(
                f"`{self.partial.name}` is in the way and was not made by ramerge"
            )

    def _refuse_foreign(self, *, resume: bool) -> None:
        if not resume or self.partial.exists():
            return
        prefix = f"{self.target.name}.partial-"
        others = sorted(
            e.name for e in os.scandir(self.target.parent)
            if e.name.startswith(prefix) and e.is_dir() and e.name != self._old.name
        )  # fmt: skip
        if others:
            raise OutputBusyError(
                f"`{others[0]}` was left by another merge, whose inputs or settings differ",
                hint="run without --resume to begin anew, and delete it when you no longer need it",
            )

    def _refuse_loss(self, *, resume: bool) -> None:
        """Finished work of the same job is kept or deleted by its owner, never in silence."""
        found = None if resume else Journal.reopen(self.partial / JOURNAL, self._fingerprint)
        if found is None:
            return
        journal, entries = found
        journal.close()
        if entries:
            total = len(self._layout.specs())
            raise OutputBusyError(
                f"an interrupted run of this merge finished {len(entries):,} of {total:,} tensors",
                hint=f"add --resume to continue it, or delete `{self.partial}` to start over",
            )

    def _begin(self, side_bytes: int) -> None:
        if self.partial.exists():
            shutil.rmtree(self.partial)
        preflight(self.target, layout_bytes(self._layout) + side_bytes + SLACK)
        self.partial.mkdir()
        self._ours = True
        self._open_shards(reopen=False)
        self._journal = Journal.create(self.partial / JOURNAL, self._fingerprint)
        sync_directory(self.partial)

    def _reopen(self) -> bool:
        """Take up an interrupted run; False where there is none that can be trusted."""
        found = Journal.reopen(self.partial / JOURNAL, self._fingerprint)
        if found is None:
            return False
        self._journal, entries = found
        keep = {JOURNAL, *(name for name, _ in self._layout.shards)}
        for path in sorted(self.partial.iterdir()):  # side files of a commit that was interrupted
            if path.name not in keep:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        try:
            self._open_shards(reopen=True)
        except (FileNotFoundError, ValueError):
            self._drop_files()
            return False
        self._ours = True
        for name, entry in entries.items():
            if name in self._shard_of and self._shard_of[name].adopt(name, entry.crc):
                self._finished[name] = entry.record
        return True

    def _open_shards(self, *, reopen: bool) -> None:
        for name, specs in self._layout.shards:
            path, room = self.partial / name, sum(s.nbytes for s in specs)
            with nullcontext() if reopen else writing(path, room):
                shard = ShardFile(path, specs, self._layout.metadata, reopen=reopen)
            self._shards.append(shard)
            self._shard_of |= dict.fromkeys(shard.names, shard)

    # --- the sink ---

    @property
    def finished(self) -> Mapping[str, Json]:
        """Records of what an interrupted run had finished and that reads back as written."""
        return self._finished

    def write(self, name: str, start: int, data: Bytes) -> None:
        """Put raw bytes at element ``start`` of a tensor. Thread-safe.

        Raises:
            OutputError: the system refuses.
        """
        with self._writing(name) as shard, writing(shard.path, data.nbytes):
            shard.write(name, start, data)

    def finish(self, name: str, record: Json) -> None:
        """All pieces of a tensor are written; remember ``record`` for a resumed run. Thread-safe.

        Raises:
            VerificationError: some bytes of it never came.
            OutputError: the system refuses.
        """
        shard = self._shard_of[name]
        crc = shard.seal(name)
        with self._calm:
            self._pending.append(Entry(name, crc, record))
            self._pending_bytes += shard.nbytes(name)
            due = (
                self._pending_bytes >= BATCH_BYTES
                or time.monotonic() - self._flushed >= BATCH_SECONDS
            )
        with writing(shard.path, shard.size):
            shard.follow()
        if due:
            self._flush()

    @contextmanager
    def _writing(self, name: str) -> Iterator[ShardFile]:
        """Count writers, so that no descriptor is closed (and reused) under one of them."""
        with self._calm:
            if self._closed:
                raise OutputError(f"`{self.target.name}` is no longer being written")
            shard = self._shard_of[name]
            self._writers += 1
            self._dirty.add(shard)
        try:
            yield shard
        finally:
            with self._calm:
                self._writers -= 1
                self._calm.notify_all()

    def _flush(self) -> None:
        """Bytes first, then the journal's word that they are there."""
        with self._calm:
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            dirty, self._dirty = self._dirty, set()
        for shard in dirty:
            with writing(shard.path, shard.size):
                shard.sync()
        assert self._journal is not None
        with writing(self.partial / JOURNAL, SLACK):
            self._journal.append(pending)
        self._flushed = time.monotonic()

    # --- the end ---

    def commit(self, files: Files, manifest: ManifestOf) -> tuple[OutputFile, ...]:
        """Make the model complete, prove it, and give it its name.

        Args:
            files: side files by name (``/`` separates directories), as content or as a file to
                copy.
            manifest: content of the manifest from all other files and each tensor's CRC-32 in hex.

        Returns:
            all files but the manifest, sorted by name.

        Raises:
            VerificationError: a tensor is missing, or a second reader found something else than was
                written.
            OutputError: the system refuses.
            OutputBusyError: something appeared at the output's place.
        """
        crcs = {name: crc for shard in self._shards for name, crc in shard.sealed.items()}
        missing = [spec.name for spec in self._layout.specs() if spec.name not in crcs]
        if missing:
            raise VerificationError(
                f"tensor `{missing[0]}` was not written ({len(missing)} of its kind)"
            )
        self._flush()
        index = index_bytes(self._layout)
        sides = dict(files) if index is None else {**files, INDEX_NAME: index}
        written = [
            write_side(self.partial, name, content) for name, content in sorted(sides.items())
        ]
        with writing(self.partial, layout_bytes(self._layout)):
            weights = self._second_reader(written)
        output = tuple(sorted((*weights, *written), key=lambda f: f.name))
        checksums = {name: crc_hex(crc) for name, crc in sorted(crcs.items())}
        write_side(self.partial, MANIFEST, manifest(output, checksums))
        self._publish()
        return output

    def _second_reader(self, sides: Sequence[OutputFile]) -> list[OutputFile]:
        """Open the result as a model, and read every byte of it back."""
        model = open_directory(self.partial, source=self.target.name, config=None)
        try:
            found = {name: model.spec(name) for name in model.names()}
        finally:
            model.close()
        if found != {spec.name: spec for spec in self._layout.specs()}:
            raise VerificationError(
                f"`{self.target.name}` does not contain the tensors that were written"
            )
        for side in sides:
            if hash_file(self.partial / side.name) != (side.size, side.sha256):
                raise VerificationError(f"`{side.name}` does not read back as written")
        with ThreadPoolExecutor(min(4, len(self._shards))) as pool:
            return list(pool.map(ShardFile.read_back, self._shards))

    def _publish(self) -> None:
        self._close_files()
        self._complete = True
        with writing(self.target, layout_bytes(self._layout)):
            journal = (self.partial / JOURNAL).read_bytes()
            (self.partial / JOURNAL).unlink()
            try:
                for directory, _, _ in os.walk(self.partial, topdown=False):
                    sync_directory(Path(directory))
                publish(self.partial, self.target, self._old, overwrite=self._overwrite)
            except (OSError, MergeError):
                # What was finished must be found again by a resumed run.
                with suppress(OSError):
                    write_new(self.partial / JOURNAL, journal)
                raise
        self._committed = True

    def _close_files(self) -> None:
        """Close once the last writer is through; later ones are refused.

        A writer that never comes back (interrupted at an unlucky moment) keeps the descriptors open:
        better that than to close them under one that still writes.
        """
        with self._calm:
            self._closed = True
            calm = self._calm.wait_for(lambda: self._writers == 0, timeout=PATIENCE)
        if calm:
            self._drop_files()

    def _drop_files(self) -> None:
        for shard in self._shards:
            shard.close()
        self._shards, self._shard_of = [], {}
        if self._journal is not None:
            self._journal.close()

    def close(self, error: BaseException | None = None) -> None:
        """Let go of everything. What is worth resuming stays.

        That is not the case after an ``error`` which a further run would meet again.
        """
        again = isinstance(error, MergeError) and not isinstance(error, OutputError)
        if self._ours and not self._committed and not self._closed and self._pending:
            with suppress(MergeError):
                self._flush()
        shards = self._shards
        self._close_files()
        if (
            self._ours
            and not self._committed
            and not self._complete
            and (again or not any(shard.sealed for shard in shards))
        ):
            shutil.rmtree(self.partial, ignore_errors=True)
        with suppress(OSError):
            self._lock.release()

    def __enter__(self) -> Staging:
        """The staging itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; without `commit` nothing appears at the output's place."""
        self.close(error)
