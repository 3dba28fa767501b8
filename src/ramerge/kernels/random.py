"""Randomness as a pure function of (seed, agent, tensor, element): no state, so no chunk, thread or order can change it.

A tensor's stream has a 64-bit key; element i gets the finaliser of splitmix64 (Steele, Lea and Flood, 2014) applied to
``key + i · golden ratio``, the i-th output of that generator when seeded with the key.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numba import njit
from numba.extending import register_jitable

from ramerge.kernels.codec import JIT


def stream_key(seed: int, agent: int, tensor: str) -> int:
    """The 64-bit key of one agent's stream in one tensor; agents are counted from 0 in config order."""
    text = f"{seed}\n{agent}\n{tensor}".encode()
    return int.from_bytes(
        hashlib.blake2b(text, digest_size=8, person=b"ramerge stream").digest(), "little"
    )


@register_jitable
def uniform_bits(key, index):
    """32 uniform random bits of element ``index``."""
    z = key + (np.uint64(index) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint32((z ^ (z >> np.uint64(31))) >> np.uint64(32))


@njit(**JIT)
def uniform(key, out):
    """The first random numbers of a stream, evenly spread over [0, 1).

    Args:
        key: uint64, see `stream_key`.
        out: float64 ``[n]``, filled; entry i belongs to element i.
    """
    for i in range(out.size):
        out[i] = np.float64(uniform_bits(key, i)) / 4294967296.0


def threshold(probability: float) -> int:
    """The number t for which ``uniform_bits < t`` has this probability, to within 2^-32; t = 2^32 is always."""
    return min(round(probability * 2.0**32), 1 << 32)
