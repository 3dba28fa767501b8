"""Inputs are hashed while they are read, and held against what their origin says of them."""

import hashlib
import os
import random
import shutil
import threading
import time
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.writing import content, write_model
from ramerge._errors import CorruptInputError
from ramerge.models.base import Extent
from ramerge.models.formats.safetensors import open_directory
from ramerge.output.hashing import InputHashes, OrderedHasher, hash_file, longest_ascent


def feed(hashes, checkpoint, names, stream=0, step=100):
    """As the engine does: every tensor in pieces, in order."""
    for name in names:
        spec = checkpoint.spec(name)
        for start in range(0, max(spec.elements, 1), step):
            stop = min(start + step, spec.elements)
            data = np.empty((stop - start) * spec.dtype.itemsize, np.uint8)
            checkpoint.read(name, start, stop, data)
            hashes(stream, name, start, data)


@pytest.mark.parametrize("shard_size", [10**9, 5000])
@pytest.mark.parametrize("order", ["all", "some", "none", "backwards"])
def test_digests_are_those_of_the_files(tmp_path, shard_size, order):
    write_model(tmp_path / "in", shard_size=shard_size)
    model = open_directory(tmp_path / "in", source="in", config=None)
    names = {"all": model.names(), "some": model.names()[1::2], "none": ()}.get(order)
    names = model.names()[::-1] if names is None else names
    hashes = InputHashes([model, model], [names, names])
    feed(hashes, model, names)
    feed(hashes, model, names, stream=1)
    for files in hashes.finish():
        assert [(f.name, f.size, f.sha256) for f in files] == [
            (f.name, *hash_file(f.path)) for f in model.files()
        ]
    model.close()


@given(st.lists(st.integers(0, 30), max_size=12))
def test_the_longest_ascent(values):
    found = longest_ascent(values)
    assert all(values[a] < values[b] and a < b for a, b in pairwise(found))
    best = max(
        (n for n in range(len(values) + 1)
         for some in combinations(values, n) if all(a < b for a, b in pairwise(some))),
        default=0,
    )  # fmt: skip
    assert len(found) == best


def test_pieces_from_many_threads_are_put_in_order(tmp_path):
    data = random.Random(0).randbytes(100_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    extents = [
        Extent("file", 1000, 40_000),
        Extent("file", 41_000, 0),
        Extent("file", 50_000, 49_000),
    ]
    pieces = [(at, min(at + 777, e.offset + e.nbytes)) for e in extents
              for at in range(e.offset, e.offset + e.nbytes, 777)]  # fmt: skip
    hasher, turn = OrderedHasher(path, extents), iter(pieces)
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                piece = next(turn, None)
            if piece is None:
                return
            time.sleep(random.random() / 2000)
            hasher.update(piece[0], np.frombuffer(data[slice(*piece)], np.uint8))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert hasher.finish() == (len(data), hashlib.sha256(data).hexdigest())


def test_who_waits_for_a_failed_predecessor_is_woken(tmp_path):
    (tmp_path / "file").write_bytes(bytes(100))
    hasher = OrderedHasher(tmp_path / "file", [Extent("file", 0, 100)])
    waiting = threading.Thread(target=hasher.update, args=(50, np.zeros(50, np.uint8)))
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive()
    hasher.abort()
    waiting.join(5)
    assert not waiting.is_alive()


def finish(directory):
    model = open_directory(directory, source="agent", config=None)
    try:
        return InputHashes([model], [()]).finish()
    finally:
        model.close()


def test_a_flipped_bit_in_an_input_with_a_manifest_is_named(tmp_path):
    write_model(tmp_path / "in")
    assert finish(tmp_path / "in")
    path = tmp_path / "in/model.safetensors"
    data = bytearray(path.read_bytes())
    data[data.index(content()["f.weight"].tobytes()) + 99] ^= 16
    path.write_bytes(data)
    with pytest.raises(CorruptInputError) as caught:
        finish(tmp_path / "in")
    assert "`model.safetensors` of `agent` is damaged in tensor `f.weight`" in str(caught.value)
    (tmp_path / "in/ramerge_manifest.json").unlink()
    assert finish(tmp_path / "in")


def test_a_damaged_manifest_of_an_input_is_not_passed_over(tmp_path):
    write_model(tmp_path / "in")
    (tmp_path / "in/ramerge_manifest.json").write_text("{")
    with pytest.raises(CorruptInputError, match=r"ramerge_manifest\.json"):
        finish(tmp_path / "in")


def test_the_hub_cache_names_files_by_their_digest(tmp_path):
    write_model(tmp_path / "in")
    repo = tmp_path / "models--org--name"
    snapshot = repo / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    _, sha = hash_file(tmp_path / "in/model.safetensors")
    blob = repo / "blobs" / sha
    shutil.copy(tmp_path / "in/model.safetensors", blob)
    (snapshot / "model.safetensors").symlink_to(f"../../blobs/{sha}")
    assert finish(snapshot)[0][0].sha256 == sha
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(CorruptInputError, match="the Hub has another SHA-256"):
        finish(snapshot)


@pytest.mark.parametrize("how", ["written to", "replaced"])
def test_an_input_that_changes_meanwhile_is_noticed(tmp_path, how):
    write_model(tmp_path / "in")
    path = tmp_path / "in/model.safetensors"
    model = open_directory(tmp_path / "in", source="agent", config=None)
    hashes = InputHashes([model], [()])
    if how == "replaced":
        shutil.copy2(path, tmp_path / "new")
        (tmp_path / "new").replace(path)
    else:
        os.utime(path, ns=(1, 1))
    with pytest.raises(CorruptInputError, match="changed while it was read"):
        hashes.finish()
    model.close()
