"""Inputs that must be refused: broken headers, and shard names that leave the directory."""

from __future__ import annotations

import struct

from helpers.reading import blob, entry

ONE = {"a": entry("F32", [2], 0, 8)}
BIG = 2**62
U8 = entry("U8", [1], 0, 1)
TWICE = (
    b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    b'"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}'
)
FIELD_TWICE = b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
SURROGATE = b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
BAD = {
    "empty file": (b"", "is empty"),
    "seven bytes": (b"\1" + bytes(6), "7 bytes, too short"),
    "length over cap": (blob(b"{}", length=100_000_001), "claims a header of 100000001 bytes"),
    "length over file": (blob(ONE, bytes(8), length=5000), "its header alone needs 5008"),
    "negative length": (struct.pack("<q", -1) + b"{}", "claims a header of 18446744073709551615"),
    "leading space": (blob(b" {}"), "opening brace"),
    "byte order mark": (blob(b"\xef\xbb\xbf{}"), "opening brace"),
    "not an object": (blob(b"[]"), "opening brace"),
    "not json": (blob(b"{abc}"), "not valid JSON"),
    "not utf-8": (blob(b'{"\xff":1}'), "not UTF-8"),
    "trailing garbage": (blob(b"{} x"), "not valid JSON"),
    "nan": (blob(b'{"a":NaN}'), "NaN is not JSON"),
    "100k nesting": (blob(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "too deeply"),
    "duplicate tensor": (blob(TWICE, bytes(4)), "`a` appears twice"),
    "duplicate field": (blob(FIELD_TWICE, bytes(4)), "`dtype` appears twice"),
    "metadata number": (blob({"__metadata__": {"a": 1}, **ONE}, bytes(8)), "__metadata__"),
    "metadata list": (blob({"__metadata__": [], **ONE}, bytes(8)), "__metadata__"),
    "missing dtype": (blob({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "exactly"),
    "extra field": (blob({"a": {**ONE["a"], "x": 1}}, bytes(8)), "exactly dtype, shape"),
    "tensor is a list": (blob({"a": []}), "exactly dtype, shape"),
    "unknown dtype": (blob({"a": entry("F31", [1], 0, 4)}, bytes(4)), "unknown dtype `F31`"),
    "dtype number": (blob({"a": entry(7, [1], 0, 4)}, bytes(4)), "unknown dtype `7`"),
    "dtype list": (blob({"a": entry([], [1], 0, 4)}, bytes(4)), "unknown dtype"),
    "negative size": (blob({"a": entry("F32", [-1], 0, 4)}, bytes(4)), r"shape `\[-1\]`"),
    "bool size": (blob({"a": entry("F32", [True], 0, 4)}, bytes(4)), "shape `.True.`"),
    "float size": (blob({"a": entry("F32", [1.0], 0, 4)}, bytes(4)), "shape"),
    "rank 65": (blob({"a": entry("U8", [1] * 65, 0, 1)}, bytes(1)), "shape"),
    "shape is text": (blob({"a": entry("F32", "1", 0, 4)}, bytes(4)), "shape"),
    "float offset": (blob({"a": entry("F32", [1], 0.0, 4)}, bytes(4)), "data_offsets"),
    "three offsets": (blob({"a": {**ONE["a"], "data_offsets": [0, 8, 8]}}, bytes(8)), "offsets"),
    "reversed offsets": (blob({"a": entry("F32", [1], 4, 0)}, bytes(4)), "data_offsets"),
    "negative offset": (blob({"a": entry("F32", [1], -4, 0)}, bytes(4)), "data_offsets"),
    "product overflow": (blob({"a": entry("F32", [BIG, 4], 0, 0)}), "more than 2.63 bytes"),
    "overflow hidden by 0": (blob({"a": entry("F32", [0, BIG, 4], 0, 0)}), "more than 2.63"),
    "too few bytes": (blob({"a": entry("F32", [2], 0, 4)}, bytes(4)), "needs 8 bytes.*span 4"),
    "too many bytes": (blob({"a": entry("F32", [1], 0, 8)}, bytes(8)), "needs 4 bytes.*span 8"),
    "half a byte": (blob({"a": entry("F4", [1], 0, 1)}, bytes(1)), "needs 0.5 bytes"),
    "leading hole": (blob({"a": entry("U8", [1], 1, 2)}, bytes(2)), "`a`.*hole after the header"),
    "hole": (
        blob({"a": U8, "b": entry("U8", [1], 2, 3)}, bytes(3)),
        "`b` in `x.safetensors` leaves a hole after `a`",
    ),
    "overlap": (
        blob({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, bytes(3)),
        "`b` in `x.safetensors` overlaps `a`",
    ),
    "same range": (blob({"a": U8, "b": U8}, bytes(1)), "overlaps"),
    "nul in name": (blob({"a\0b": U8}, bytes(1)), r"not plain text: `a\\x00b`"),
    "newline in name": (blob({"a\nb": U8}, bytes(1)), r"`a\\nb`"),
    "escape in name": (blob({"\x1b[31m": U8}, bytes(1)), r"`\\x1b\[31m`"),
    "bidi in name": (blob({"a\u202eb": U8}, bytes(1)), r"`a\\u202eb`"),
    "surrogate in name": (blob(SURROGATE, bytes(1)), r"`\\ud800`"),
    "empty name": (blob({"": U8}, bytes(1)), "not plain text"),
}

HOSTILE = [
    "../secret/x.safetensors",
    "/etc/x.safetensors",
    "\\x.safetensors",
    "C:x.safetensors",
    "C:\\x.safetensors",
    "\\\\server\\share\\x.safetensors",
    "..\\x.safetensors",
    "a/../../b.safetensors",
    "sub/x.safetensors",
    "x\0.safetensors",
    "x\n.safetensors",
    "",
    ".",
    "..",
    "x.bin",
    "\u202ex.safetensors",
]
