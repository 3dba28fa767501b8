"""Hostile and damaged inputs: refused in time, in bounds, by name; every flipped bit is found."""

from __future__ import annotations

import io
import json
import pickle
import random
import re
import shutil
import struct
import time
import zipfile

import pytest
from harness import can_trace, clear, merge_argv

from ramerge._errors import CorruptInputError, MergeError
from ramerge.models.formats.header import read_header_of

SECOND, MEGABYTES = 1.0, 200


def mutate(draw: random.Random, data: bytes) -> bytes:
    """One of five kinds of damage to the header of a file."""
    header = 8 + struct.unpack("<Q", data[:8])[0]
    mutant = bytearray(data)
    at = draw.randrange(header)
    kind = draw.randrange(5)
    if kind == 0:
        mutant[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del mutant[at : at + draw.randrange(1, 30)]
    elif kind == 2:
        mutant[at:at] = mutant[draw.randrange(8, header) :][: draw.randrange(1, 60)]
    elif kind == 3:
        numbers = list(re.finditer(rb"\d+", bytes(mutant[8:header])))
        number = draw.choice(numbers)
        value = draw.choice([b"0", b"-1", b"1e9", b"9223372036854775808", b"18446744073709551615",
                             b"1.0", b"true", b"[]", b"4294967296", b"31", b'"8"'])  # fmt: skip
        mutant[8 + number.start() : 8 + number.end()] = value
    else:
        mutant[at:] = b"" if draw.random() < 0.5 else mutant[at + draw.randrange(40) :]
    if kind in {1, 2, 3} and draw.random() < 0.7:  # keep the length right: reach the JSON
        mutant[:8] = struct.pack("<Q", header - 8 + len(mutant) - len(data))
    return bytes(mutant)


def test_header_mutants(models, tmp_path, size, record):
    """Refused as damaged, or accepted with exactly what the safetensors library reads."""
    from safetensors import safe_open

    draw = random.Random(3)
    data = (models / "base/model.safetensors").read_bytes()
    path = tmp_path / "x.safetensors"
    total = 20_000 if size == "full" else 1_000
    accepted, slowest = 0, 0.0
    for _ in range(total):
        path.write_bytes(mutate(draw, data))
        began = time.perf_counter()
        try:
            header = read_header_of(path)
        except CorruptInputError as error:
            assert "x.safetensors" in error.message
            assert error.message.isprintable()
        else:
            accepted += 1
            with safe_open(path, "np") as library:
                assert set(library.keys()) == set(header.tensors)
                for name, placed in header.tensors.items():
                    part = library.get_slice(name)
                    assert tuple(part.get_shape()) == placed.spec.shape
                    assert part.get_dtype() == placed.spec.dtype.name
        slowest = max(slowest, time.perf_counter() - began)
    assert slowest < SECOND
    if size == "full":
        text = f"0 crashes, slowest {1000 * slowest:.0f} ms; {accepted} accepted, all as the library reads them"
        record("4 hostile", "header mutants, 5 kinds", f"{total:,}", text)


def plan_argv(models, base) -> list[str]:
    return ["plan", f"--base={base}", f"--agent=a={models / 'coder'}"]


def hand_cases() -> dict[str, bytes]:
    """Named broken headers of `test_reading_header`, and the heaviest legal one."""
    from helpers.hostile import BAD

    return {name: data for name, (data, _) in BAD.items()}


def test_headers_broken_by_hand(server, models, tmp_path, size, record):
    cases = hand_cases()
    if size == "quick":
        cases = dict(list(cases.items())[::6])
    slowest = largest = 0.0
    for data in cases.values():
        path = tmp_path / "hand.safetensors"
        path.write_bytes(data)
        result = server.run(plan_argv(models, path))
        assert result.code == 3, result
        assert "hand.safetensors" in result.text
        assert all(line.isprintable() for line in result.text.split("\n")), result
        slowest, largest = max(slowest, result.seconds), max(largest, result.rss / 1000)
    assert slowest < SECOND + 0.5  # a whole process
    assert largest < MEGABYTES
    if size == "full":
        text = f"exit 3 naming the file; slowest {slowest:.2f} s, largest {largest:.0f} MB"
        record("4 hostile", "headers broken by hand, from the command line", f"{len(cases)}", text)


@pytest.mark.faults
def test_a_million_empty_tensors(tmp_path, record):
    """Legal, 59 MB of header; the library takes 15 s and 1 GB."""
    import multiprocessing
    import resource

    text = ",".join(
        f'"t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(10**6)
    )
    data = f"{{{text}}}".encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(data)) + data)

    def work(pipe) -> None:
        began = time.process_time()
        try:
            outcome = len(read_header_of(path).tensors)
        except CorruptInputError as error:
            outcome = error.message
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        pipe.send((outcome, time.process_time() - began, peak))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=work, args=(theirs,))
    child.start()
    outcome, seconds, peak = ours.recv()
    child.join()
    what, growth = outcome if isinstance(outcome, str) else "read", (peak - before) / 1000
    text = f"{what}: {seconds:.1f} s CPU, {growth:.0f} MB more than before"
    assert seconds < SECOND, text
    assert peak < 1000 * MEGABYTES + before, text
    record("4 hostile", "a header of 10^6 empty tensors, 59 MB", "1", text)


# --- paths ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not can_trace(), reason="strace cannot trace here")
def test_weight_map_paths(server, models, tmp_path, size, record):
    """Refused before anything outside is opened."""
    from helpers.hostile import HOSTILE

    (tmp_path / "secret").mkdir()
    shutil.copy(models / "base/model.safetensors", tmp_path / "secret/x.safetensors")
    names = HOSTILE if size == "full" else HOSTILE[::5]
    for i, name in enumerate(names):
        directory = tmp_path / f"m{i}"
        directory.mkdir()
        index = {"metadata": {}, "weight_map": {"model.norm.weight": name}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        trace = tmp_path / "trace"
        result = server.traced(
            plan_argv(models, directory), ["-e", "trace=open,openat", "-o", str(trace)]
        )
        assert result.code == 8, (name, result)
        assert "secret" not in trace.read_text()
        assert all(line.isprintable() for line in result.text.split("\n"))
    if size == "full":
        record("4 hostile", "weight_map entries that lead outside", f"{len(names)}",
               "exit 8 before anything outside is opened (strace openat)")  # fmt: skip


def test_a_hub_cache_works(server, models, tmp_path, size, record):
    repo = tmp_path / "models--org--name"
    snapshot = repo / "snapshots/0123abcd"
    (repo / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, path in enumerate(sorted((models / "base").iterdir())):
        shutil.copy(path, repo / f"blobs/blob{i}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob{i}")
    result = server.run(plan_argv(models, snapshot))
    assert result.code == 0, result
    if size == "full":
        record("4 hostile", "a real Hub cache layout (links to ../../blobs)", "1", "read")


# --- pickles -------------------------------------------------------------------------------------

MARK = "marker-of-code-that-ran"


class Run:
    """Runs a command when unpickled."""

    def __init__(self, place):
        self.command = f"touch {place}"

    def __reduce__(self):
        import os

        return os.system, (self.command,)


def archive(members: dict[str, bytes], compression=zipfile.ZIP_STORED) -> bytes:
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return room.getvalue()


def pickles(place) -> dict[str, bytes]:
    """Twelve ways to smuggle code or too much memory into a pickled checkpoint."""
    shell = f"touch {place}".encode()
    reduce = pickle.dumps(Run(place), protocol=2)
    stacked = pickle.dumps(Run(place), protocol=4)
    inst = b"(S'" + shell + b"'\nios\nsystem\n."
    obj = b"(cos\nsystem\nS'" + shell + b"'\no."
    build = b"c__main__\n__dict__\n}S'x'\n" + reduce[2:-1] + b"sb."
    getattribute = b"cbuiltins\ngetattr\n(cos\n__dict__\nS'get'\ntR."
    memo = b"cos\nsystem\np0\n0g0\n(S'" + shell + b"'\ntR."
    return {
        "REDUCE": archive({"archive/data.pkl": reduce}),
        "STACK_GLOBAL": archive({"archive/data.pkl": stacked}),
        "INST": inst,
        "OBJ": obj,
        "BUILD": build,
        "getattr chain": getattribute,
        "memo": memo,
        "legacy": pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + reduce,
        "nested zip": archive({"archive/data.pkl": archive({"archive/data.pkl": reduce})}),
        "deflate bomb": archive({"archive/data.pkl": bytes(1 << 26)}, zipfile.ZIP_DEFLATED),
        "truncated": archive({"archive/data.pkl": reduce})[:-30],
        "NUL in a name": archive({"archive/data\0.pkl": reduce}),
    }


def test_pickles(server, models, tmp_path, size, record):
    """None runs anything, allowed or not; without `--allow-pickle` all are refused as such."""
    place = tmp_path / MARK
    largest = 0
    cases = pickles(place)
    for name, data in cases.items():
        for form in ("directory", "file"):
            directory = tmp_path / f"{name.replace(' ', '-')}-{form}"
            directory.mkdir()
            (directory / "config.json").write_text("{}")
            (directory / "pytorch_model.bin").write_bytes(data)
            base = directory if form == "directory" else directory / "pytorch_model.bin"
            result = server.run(plan_argv(models, base))
            assert result.code in {4, 8}, (name, result)
            allowed = server.run([*plan_argv(models, base), "--allow-pickle"])
            assert allowed.code in {3, 4, 8}, (name, allowed)
            largest = max(largest, result.rss)
            assert not place.exists(), name
    if size == "full":
        record("4 hostile", "pickles, as file and in a directory", f"{len(cases)}",
               f"refused, nothing ran; {largest / 1000:.0f} MB at most")  # fmt: skip


# --- YAML ----------------------------------------------------------------------------------------

BOMBS = {
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join('*' + chr(97 + i) for _ in range(9))}]\n"
        for i in range(9)
    ),
    "recursive alias": "&a [*a]\n",
    "depth": "[" * 100_000,
    "maps in depth": "{a: " * 50_000,
    "python object": "!!python/object/apply:os.system ['touch " + MARK + "']\n",
    "local tag": "merge_method: !x ram\n",
    "duplicate keys": "merge_method: ram\nmerge_method: ties\n",
    "merge keys": "a: &x {b: 1}\nc: {<<: *x}\n",
    "100,000 keys": "".join(f"k{i}: 1\n" for i in range(100_000)),
    "a long line": "merge_method: " + "x" * 1_000_000 + "\n",
    "NUL": "merge_method: ra\0m\n",
    "two documents": "merge_method: ram\n---\nmerge_method: ties\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_bombs(server, tmp_path, size, name, record):
    path = tmp_path / "bomb.yml"
    path.write_text(BOMBS[name])
    result = server.run(["plan", path])
    assert result.code == 2, result.text[:2000]
    assert "bomb.yml" in result.text
    assert result.seconds < 5 * SECOND, result.seconds
    assert result.rss < 1000 * MEGABYTES * 2, result.rss
    assert not (tmp_path / MARK).exists()
    if size == "full":
        record("4 hostile", f"YAML: {name}", "1",
               f"exit 2 in {result.seconds:.2f} s, {result.rss / 1000:.0f} MB")  # fmt: skip


# --- flipped bits --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def merged(server, models, tmp_path_factory):
    out = tmp_path_factory.mktemp("merged") / "out"
    result = server.run(merge_argv(models, out, "--shard-size=8kB"))
    assert result.code == 0, result
    return out


def tensor_at(path, byte):
    """Name of the tensor that a byte lies in; None for the header and for other files."""
    if path.suffix != ".safetensors":
        return None
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if start + entry["data_offsets"][0] <= byte < start + entry["data_offsets"][1]:
            return name
    return None


def flip(path, bit):
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def test_flipped_bits_in_an_output(server, merged, size, record):
    """By `verify`: every one is found, the file is named, and the tensor where there is one."""
    from ramerge.output.verify import verify

    draw = random.Random(4)
    files = [p for p in sorted(merged.rglob("*")) if p.is_file() and "manifest" not in p.name]
    total = 1_000 if size == "full" else 60
    named = 0
    for i in range(total):
        path = files[i % len(files)]
        bit = draw.randrange(path.stat().st_size * 8)
        tensor = tensor_at(path, bit // 8)
        flip(path, bit)
        with pytest.raises(MergeError) as caught:
            verify(merged)
        assert caught.value.exit_code == 10
        assert f"`{path.relative_to(merged)}`" in str(caught.value)
        if tensor:
            assert f"`{tensor}`" in str(caught.value)
            named += 1
        flip(path, bit)
    assert server.run(["verify", merged]).code == 0
    flip(files[-1], 77)
    result = server.run(["verify", merged])
    flip(files[-1], 77)
    assert (result.code, files[-1].name in result.text) == (10, True), result
    if size == "full":
        text = f"all found, file named; tensor named for all {named} that lay in one"
        record("4 hostile", "single bits flipped in an output, `verify`", f"{total:,}", text)


def test_flipped_bits_in_an_input(server, models, merged, tmp_path, size, record):
    """An input that ramerge wrote has a manifest: the merge itself finds the flipped bit."""
    draw = random.Random(5)
    base = shutil.copytree(merged, tmp_path / "base")
    shards = sorted(base.glob("*.safetensors"))
    out = tmp_path / "out"
    argv = ["merge", f"--base={base}", f"--agent=a={models / 'coder'}", f"--out={out}", "--quiet",
            "--set", "epsilon=0"]  # fmt: skip
    total = 1_000 if size == "full" else 30
    named = codes = 0
    for i in range(total):
        path = shards[i % len(shards)]
        bit = draw.randrange(path.stat().st_size * 8)
        tensor = tensor_at(path, bit // 8)
        flip(path, bit)
        result = server.run(argv)
        flip(path, bit)
        assert result.code in {3, 4, 5}, (path.name, bit, result)
        if tensor:
            assert f"`{tensor}`" in result.text, (bit, result)
            named += 1
        assert path.name in result.text or result.code in {4, 5}, result
        codes += result.code == 3
        assert not out.exists()
        clear(out)
    if size == "full":
        text = (f"all found before anything is published: {codes} × exit 3, {total - codes} × not finite "
                f"or another tensor name; tensor named for all {named} that lay in one")  # fmt: skip
        record(
            "4 hostile",
            "single bits flipped in an input with a manifest, `merge`",
            f"{total:,}",
            text,
        )
