"""Work in processes of one thread each.

LAPACK as numpy brings it starts a thread for every core, and threads that wait for each other spin:
with two such processes on two busy cores a singular value decomposition costs fifteen times its
time. The last bits of its result depend on the number of threads, too. numpy reads the number when
it is imported, so work goes to fresh processes that are told it before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def spread(
    work: Callable[..., str],
    items: Sequence[tuple[Any, ...]],
    jobs: int,
    log: Callable[[str], None],
) -> None:
    """Call ``work`` with every item, ``jobs`` at a time; what it returns is logged as it comes."""
    if not items:
        return
    with _pool(min(jobs, len(items))) as pool:
        for done in as_completed([pool.submit(work, *item) for item in items]):
            log(done.result())


def apart(work: Callable[[], T]) -> T:
    """The result of ``work`` from a process of its own."""
    with _pool(1) as pool:
        return pool.submit(work).result()


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            yield pool
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
