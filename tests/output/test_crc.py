"""CRC-32 of pieces adds up to the CRC-32 of the whole."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from ramerge.output.crc import combine, combine_all, crc_hex


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_pieces_add_up(pieces):
    parts = [(len(p), zlib.crc32(p)) for p in pieces]
    assert combine_all(parts) == zlib.crc32(b"".join(pieces))


@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_two_pieces(a, b):
    assert combine(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


def test_long_pieces():
    a, b = bytes(range(256)) * 4097, b"\xff" * 262_144
    assert combine(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


def test_hex_has_eight_digits():
    assert crc_hex(0x1F) == "0000001f"
