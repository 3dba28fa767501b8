"""CRC-32 of a tensor from pieces that were seen in any order, by any thread.

zlib's CRC-32 runs at memory speed and every language has it, so a manifest can name the tensor in
which a bit has flipped at no cost. It is no defence against an adversary: files have SHA-256.
Combining two CRCs is multiplication by x^(8·length) in GF(2)[x] modulo the CRC's polynomial (the
algorithm of zlib's `crc32_combine`, which Python does not expose).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320  # bit-reflected, as zlib has it: bit 31 is x^0


def _multiply(a: int, b: int) -> int:
    """Product of two reflected polynomials modulo the CRC's."""
    product = 0
    mask = 1 << 31
    while mask:
        if a & mask:
            product ^= b
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
        mask >>= 1
    return product


@lru_cache(maxsize=256)
def _shift(nbytes: int) -> int:
    """x^(8 · nbytes) modulo the polynomial, by repeated squaring."""
    power, square = 1 << 31, 1 << 23  # 1 and x^8
    while nbytes:
        if nbytes & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        nbytes >>= 1
    return power


def combine(first: int, second: int, second_bytes: int) -> int:
    """CRC of two adjacent pieces from their CRCs and the second one's length in bytes."""
    return _multiply(_shift(second_bytes), first) ^ second


def combine_all(pieces: Iterable[tuple[int, int]]) -> int:
    """CRC of adjacent pieces, in order, each given as (length in bytes, CRC)."""
    total = 0
    for nbytes, crc in pieces:
        total = combine(total, crc, nbytes)
    return total


def crc_hex(crc: int) -> str:
    """As it stands in a manifest: eight hex digits."""
    return f"{crc:08x}"
