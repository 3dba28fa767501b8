"""The header validator: accepts what the format allows, refuses each way of breaking it."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.hostile import BAD, ONE
from helpers.reading import blob, entry
from ramerge._errors import CorruptInputError
from ramerge._types import DType
from ramerge.models.formats.header import parse_header, read_header_of


def check(tmp_path, data: bytes):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    return read_header_of(path)


THREE = {
    "b": entry("F32", [1], 0, 4),
    "z": entry("F32", [0], 4, 4),
    "a": entry("F32", [1], 4, 8),
}
GOOD = {
    "one tensor": blob(ONE, bytes(8)),
    "no tensor": blob({}),
    "scalar": blob({"a": entry("F32", [], 0, 4)}, bytes(4)),
    "empty tensor": blob({"a": entry("F32", [0, 7], 0, 0)}),
    "empty among others": blob(THREE, bytes(8)),
    "metadata": blob({"__metadata__": {"format": "pt"}, **ONE}, bytes(8)),
    "metadata null": blob({"__metadata__": None, **ONE}, bytes(8)),
    "padded": blob(json.dumps(ONE).encode() + b"    ", bytes(8)),
    "not 8-aligned": blob(json.dumps(ONE).encode() + b" ", bytes(8)),
    "odd offset": blob({"a": entry("U8", [1], 0, 1), "b": entry("F32", [1], 1, 5)}, bytes(5)),
    "unordered": blob({"b": entry("U8", [1], 1, 2), "a": entry("U8", [1], 0, 1)}, bytes(2)),
    "packed 4 bit": blob({"a": entry("F4", [2], 0, 1)}, bytes(1)),
    "looks like a path": blob({"../../etc/x": entry("U8", [1], 0, 1)}, bytes(1)),
    "letters of any script": blob({"θ.重み": entry("U8", [1], 0, 1)}, bytes(1)),
}


@pytest.mark.parametrize("case", GOOD)
def test_sound_headers_are_accepted(tmp_path, case):
    header = check(tmp_path, GOOD[case])
    assert header.size == len(GOOD[case])


@pytest.mark.parametrize("case", BAD)
def test_broken_headers_are_refused_with_file_and_reason(tmp_path, case):
    data, reason = BAD[case]
    with pytest.raises(CorruptInputError, match=reason) as caught:
        check(tmp_path, data)
    assert "x.safetensors" in caught.value.message
    assert caught.value.exit_code == 3
    assert caught.value.message.isprintable()


def test_truncated_and_trailing_say_both_sizes(tmp_path):
    """A truncated download says how many bytes there are and how many are needed."""
    whole = blob(ONE, bytes(8))
    with pytest.raises(CorruptInputError, match=f"is {len(whole) - 3} bytes.*needs {len(whole)}"):
        check(tmp_path, whole[:-3])
    with pytest.raises(CorruptInputError, match=f"is {len(whole) + 1} bytes.*needs {len(whole)}"):
        check(tmp_path, whole + b"x")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"<!DOCTYPE html>\n<html>", "HTML page"),
        (b"\n <html lang=en>", "HTML page"),
        (b"GGUF\3\0\0\0", "GGUF"),
        (b"PK\3\4aaaaaaaaaaa", "torch.save"),
        (bytes(600), "zero bytes"),
    ],
)
def test_look_alikes_are_named(tmp_path, head, kind):
    with pytest.raises(CorruptInputError, match=kind):
        check(tmp_path, head)


@pytest.mark.parametrize(("count", "sound"), [(100_000, True), (1_000_000, False)])
def test_many_empty_tensors_do_not_hang(count, sound):
    """A legal header of a million empty tensors takes the library 15 s and 1 GB."""
    members = (f'"t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(count))
    text = "{" + ",".join(members) + "}"
    data = text.encode()
    begin = time.process_time()
    if sound:
        assert len(parse_header(data, 8 + len(text), "x").tensors) == count
    else:
        with pytest.raises(CorruptInputError, match="more than 100,000 tensors"):
            parse_header(data, 8 + len(text), "x")
    assert time.process_time() - begin < 5


def test_hostile_list_of_sizes_does_not_hang():
    sizes = "[" + ",".join(["1"] * 2_000_000) + "]"
    text = f'{{"a":{{"dtype":"F32","shape":{sizes},"data_offsets":[0,4]}}}}'
    with pytest.raises(CorruptInputError, match="short list of sizes") as caught:
        parse_header(text.encode(), 12 + len(text), "x")
    assert len(caught.value.message) < 500


DTYPES = st.sampled_from(["float32", "float16", "float64", "int64", "uint8", "bool"])
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, st.tuples(DTYPES, st.lists(st.integers(0, 5), max_size=4)), max_size=6)
)
def test_agrees_with_the_library(tmp_path_factory, tensors):
    """Everything the safetensors library writes is read, and read the same."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {k: rng.integers(0, 2, shape).astype(dtype) for k, (dtype, shape) in tensors.items()}
    path = tmp_path_factory.mktemp("hyp") / "x.safetensors"
    save_file(arrays, path, metadata={"k": "v"})
    header = read_header_of(path)
    raw = path.read_bytes()
    with safe_open(path, "np") as library:
        assert set(library.keys()) == set(header.tensors)
        for name, placed in header.tensors.items():
            theirs = library.get_tensor(name)
            assert placed.spec.shape == theirs.shape
            assert placed.spec.dtype is DType.parse(str(theirs.dtype))
            assert raw[placed.offset : placed.offset + placed.nbytes] == theirs.tobytes()
    assert header.metadata == {"k": "v"}


MUTABLE = json.dumps(
    {
        "__metadata__": {"f": "pt"},
        "a": entry("F32", [2, 3], 0, 24),
        "b": entry("BF16", [4], 24, 32),
    }
).encode()


def _mutate(mutant: bytearray, data) -> None:
    at = data.draw(st.integers(0, len(mutant) - 1))
    kind = data.draw(st.sampled_from(["flip", "set", "cut", "double", "digit"]))
    if kind == "flip":
        mutant[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "set":
        mutant[at] = data.draw(st.integers(0, 255))
    elif kind == "digit":
        mutant[at : at + 1] = str(data.draw(st.integers(-5, 2**65))).encode()
    elif kind == "cut":
        del mutant[at : at + data.draw(st.integers(1, 8))]
    else:
        mutant[at:at] = mutant[at : at + data.draw(st.integers(1, 40))]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_mutants_end_in_a_header_or_one_kind_of_error(data):
    """T1: changed bytes, cut and doubled ranges give a sound header or CorruptInputError."""
    mutant = bytearray(MUTABLE)
    for _ in range(data.draw(st.integers(1, 3))):
        _mutate(mutant, data)
    try:
        header = parse_header(bytes(mutant), 8 + len(mutant) + 32, "x")
    except CorruptInputError:
        return
    assert sum(p.nbytes for p in header.tensors.values()) == 32
