"""Chunks on a few threads, results in order.

numba's kernels, preadv, pwrite and sha256 all release the GIL, so threads are enough. Tasks are handed out in order, which
is what lets files be hashed while they are read; results are yielded in that order too, so that sums do not depend on
who was faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
W = TypeVar("W")
R = TypeVar("R")

AHEAD = 256  # results that may wait for a slow predecessor, per thread


def run(
    tasks: Iterable[T],
    make: Callable[[], W],
    work: Callable[[W, T], R],
    *,
    threads: int,
    on_error: Callable[[], None] = lambda: None,
) -> Iterator[tuple[T, R]]:
    """Apply ``work`` to every task on ``threads`` threads, each with its own ``make()``.

    Yields:
        (task, result), in the order of ``tasks``.

    Raises:
        BaseException: of the earliest task that failed; no task is started after a failure. ``on_error`` is called
            once then, to wake threads that wait for one another.
    """
    if threads == 1:
        worker = make()
        for task in tasks:
            yield task, work(worker, task)
        return
    yield from _Pool(tasks, make, work, threads, on_error).results()


class _Pool:
    """Shared state of one run, guarded by one lock."""

    def __init__(
        self,
        tasks: Iterable[Any],
        make: Callable[[], Any],
        work: Callable[[Any, Any], Any],
        threads: int,
        on_error: Callable[[], None],
    ) -> None:
        self.source = enumerate(tasks)
        self.make, self.work, self.on_error = make, work, on_error
        self.limit = AHEAD * threads
        self.done: dict[int, tuple[Any, Any]] = {}
        self.failed: dict[int, BaseException] = {}
        self.taken, self.given, self.exhausted, self.stopped = 0, 0, False, False
        self.changed = threading.Condition()
        self.threads = [
            threading.Thread(target=self._serve, name=f"chunk-{i}", daemon=True)
            for i in range(threads)
        ]

    def _take(self) -> tuple[int, Any] | None:
        with self.changed:
            while self.taken - self.given >= self.limit and not self.stopped:
                self.changed.wait()
            item = None if self.stopped or self.exhausted else next(self.source, None)
            if item is None:
                self.exhausted = True
                self.changed.notify_all()
                return None
            self.taken += 1
            return item

    def _serve(self) -> None:
        item: tuple[int, object] | None = (-1, None)
        try:
            worker = self.make()
            while (item := self._take()) is not None:
                result = self.work(worker, item[1])
                with self.changed:
                    self.done[item[0]] = (item[1], result)
                    self.changed.notify_all()
        except BaseException as error:
            with self.changed:
                self.failed[item[0] if item else -1] = error
                self.stopped = True
                self.changed.notify_all()
            self.on_error()

    def results(self) -> Iterator[tuple[Any, Any]]:
        for thread in self.threads:
            thread.start()
        try:
            while True:
                with self.changed:
                    while self.given not in self.done and not self.stopped and not self._finished():
                        self.changed.wait()
                    if self.stopped or self.given not in self.done:
                        break
                    item = self.done.pop(self.given)
                    self.given += 1
                    self.changed.notify_all()
                yield item
        finally:
            self._stop()
        if self.failed:
            raise self.failed[min(self.failed)]

    def _finished(self) -> bool:
        return self.exhausted and self.given == self.taken

    def _stop(self) -> None:
        with self.changed:
            unfinished = not self._finished()
            self.stopped = True
            self.changed.notify_all()
        if unfinished:
            self.on_error()
        for thread in self.threads:
            thread.join()
