"""How many threads, and how large a chunk: what a run may use of the machine."""

from __future__ import annotations

import os

from ramerge._errors import ConfigError
from ramerge.config.bytes import parse_size
from ramerge.kernels.limits import BLOCK
from ramerge.planning.plan import CHUNK, Plan

MOST_THREADS = 8


def thread_count(wanted: int | None) -> int:
    """How many threads to use: as many as wanted, or the `default_threads`.

    Raises:
        ConfigError: fewer than one is wanted.
    """
    if wanted is None:
        return default_threads()
    if wanted < 1:
        raise ConfigError(f"{wanted} threads are too few", hint="leave it out, or give 1 or more")
    return wanted


def default_threads() -> int:
    """Cores this process may use, at most `MOST_THREADS`."""
    return min(len(os.sched_getaffinity(0)), MOST_THREADS)


def chunk_size(plan: Plan, threads: int, memory: str | int | None) -> int:
    """Elements per chunk, so that all threads' buffers fit into ``memory``.

    Raises:
        ConfigError: the limit is too small for one block per thread.
    """
    if plan.method.rule is None or memory is None:
        return CHUNK
    widest = max((s.dtype.itemsize for t in plan.tensors for s in (t.base, t.output)), default=4)
    per_element = threads * (len(plan.agents) + len(plan.auxiliary) + 2) * widest
    fitting = _bytes(memory) // per_element // BLOCK * BLOCK
    if fitting < BLOCK:
        need = per_element * BLOCK
        raise ConfigError(
            f"memory of {memory} is too little: {threads} threads need at least {need:,} bytes of buffers"
        )
    return min(fitting, CHUNK)


def _bytes(memory: str | int) -> int:
    if isinstance(memory, int):
        return memory
    try:
        return parse_size(memory)
    except ValueError as error:
        raise ConfigError(f"memory: {error}") from None
