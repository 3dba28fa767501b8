"""How many threads, and how large a chunk: what a run may use of the machine."""

from __future__ import annotations

import os
import re

from ramerge._errors import ConfigError
from ramerge.kernels.limits import BLOCK
from ramerge.planning.plan import CHUNK, Plan

MOST_THREADS = 8
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


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
    fitting = parse_size(memory) // per_element // BLOCK * BLOCK
    if fitting < BLOCK:
        need = per_element * BLOCK
        raise ConfigError(
            f"memory of {memory} is too little: {threads} threads need at least {need:,} bytes of buffers"
        )
    return min(fitting, CHUNK)


def parse_size(text: str | int) -> int:
    """Bytes in ``2GB``, ``512MiB`` or a plain number.

    Raises:
        ConfigError: not a size.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]i?B)?\s*", str(text), re.IGNORECASE)
    if not match:
        raise ConfigError(
            f"`{text}` is not a size", hint="write it as 2GB, 512MiB or a number of bytes"
        )
    return int(float(match[1]) * _UNITS[(match[2] or "").upper()])
