"""A 70B-shaped set without the disk: sparse files, whose holes read as zeros.

Four models of 141 GB (apparent) each. The output is kept sparse by the bench, which leaves pieces
of zeros unwritten and the room unreserved; everything else is the real merge.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from harness import AGENTS, clear

HIDDEN, INNER, KEYS, VOCABULARY = 8192, 28_672, 1024, 128_256
LAYERS = int(os.environ.get("RAMERGE_FAULTS_LAYERS", "80"))  # fewer for a look at the bench itself
SHARD = 4_700_000_000
CHANGED = ("model.layers.0.self_attn.q_proj.weight", "model.norm.weight")
MEGABYTES = 300


def shapes(layers: int):
    """Names and shapes of a Llama of 70B."""
    yield "lm_head.weight", (VOCABULARY, HIDDEN)
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for i in range(layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (HIDDEN,)
        yield p + "mlp.down_proj.weight", (HIDDEN, INNER)
        yield p + "mlp.gate_proj.weight", (INNER, HIDDEN)
        yield p + "mlp.up_proj.weight", (INNER, HIDDEN)
        yield p + "post_attention_layernorm.weight", (HIDDEN,)
        yield p + "self_attn.k_proj.weight", (KEYS, HIDDEN)
        yield p + "self_attn.o_proj.weight", (HIDDEN, HIDDEN)
        yield p + "self_attn.q_proj.weight", (HIDDEN, HIDDEN)
        yield p + "self_attn.v_proj.weight", (KEYS, HIDDEN)


def sparse_model(directory: Path, layers: int, values: dict[str, np.ndarray]) -> int:
    """Shards of nothing but holes, and ``values`` at the start of some tensors; apparent bytes."""
    directory.mkdir(parents=True)
    config = {"model_type": "llama", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config))
    shards: list[list] = [[]]
    room = 0
    for name, shape in sorted(shapes(layers)):
        nbytes = 2 * int(np.prod(shape))
        if room + nbytes > SHARD:
            shards.append([])
            room = 0
        shards[-1].append((name, shape, nbytes))
        room += nbytes
    weight_map, total = {}, 0
    for i, tensors in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        header, at = {}, 0
        for name, shape, nbytes in tensors:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
            weight_map[name] = file
            at += nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (directory / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name, entry in header.items():
                if name in values:
                    out.seek(8 + len(text) + entry["data_offsets"][0])
                    out.write(values[name].tobytes())
            out.truncate(8 + len(text) + at)
        total += at
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def changed_values(seed: int, share: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        n: np.where(rng.random(4096) < share, rng.integers(1, 9, 4096) / 8, 0).astype(ml_dtypes.bfloat16)
        for n in CHANGED
    }  # fmt: skip


def averaged(agents) -> dict[str, np.ndarray]:
    """What RAM makes of the changed values, where the base is zero: the contributors' mean."""
    result = {}
    for name in CHANGED:
        stack = np.stack([a[name].astype(np.float32) for a in agents])
        count = np.maximum((stack != 0).sum(0), 1)
        result[name] = (stack.sum(0) / count).astype(ml_dtypes.bfloat16)
    return result


@pytest.fixture(scope="module")
def giants(tmp_path_factory):
    root = tmp_path_factory.mktemp("giants")
    values = {n: changed_values(i, 0.4) for i, n in enumerate(AGENTS)}
    total = sparse_model(root / "base", LAYERS, {})
    for name in AGENTS:
        sparse_model(root / name, LAYERS, values[name])
    return root, values, total


def argv(root, command, *more):
    agents = [f"--agent={n}={root / n}" for n in AGENTS]
    return [command, f"--base={root / 'base'}", *agents, "--method=ram", *more]


def test_plan(server, giants, size, record):
    root, _, total = giants
    result = server.run(argv(root, "plan"))
    assert result.code == 0, result
    assert result.seconds < 5
    assert result.rss < 1000 * MEGABYTES
    if size == "full":
        record("8 scale", f"plan of 4 × {total / 1e9:.0f} GB", "1",
               f"{result.seconds:.1f} s, {result.rss / 1000:.0f} MB")  # fmt: skip


@pytest.mark.faults
def test_probe(server, giants, tmp_path, record):
    """Every changed element is found among 70 billion, in the memory of a small model."""
    root, values, total = giants
    agents = [f"--agent={n}={root / n}" for n in AGENTS]
    written = tmp_path / "probe.json"
    result = server.run(
        ["probe", f"--base={root / 'base'}", *agents, f"--json={written}", "--quiet"]
    )
    assert result.code == 0, result
    assert result.rss < 1000 * MEGABYTES, result.rss
    report = json.loads(written.read_text())
    assert report["elements"] == total // 2
    for agent in report["agents"]:
        changed = sum(np.count_nonzero(v) for v in values[agent["name"]].values())
        assert agent["changed"] == changed
    record("8 scale", f"probe of 4 × {total / 1e9:.0f} GB", "1",
           f"counts exact; {result.seconds / 60:.0f} min, {result.rss / 1000:.0f} MB")  # fmt: skip


@pytest.mark.faults
def test_no_room_is_said_before_anything_is_made(server, giants, tmp_path, record):
    root, _, total = giants
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    if free > total:
        pytest.skip("the disk is large enough")
    result = server.run(argv(root, "merge", f"--out={tmp_path / 'out'}", "--quiet"))
    assert result.code == 6, result
    assert f"{free // 10**9:,}"[:2] in result.text
    assert not list(tmp_path.glob("out*"))
    record("8 scale", f"merge of 4 × {total / 1e9:.0f} GB onto too small a disk", "1",
           f"exit 6 in {result.seconds:.1f} s, bytes needed and free named")  # fmt: skip


def first_values(directory: Path, name: str) -> np.ndarray:
    """The first 4096 elements of a tensor."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    with (directory / index["weight_map"][name]).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        file.seek(8 + length + entry["data_offsets"][0])
        return np.frombuffer(file.read(8192), ml_dtypes.bfloat16)


@pytest.mark.faults
def test_merge_stop_and_resume(server, giants, tmp_path, record):
    """Interrupted after a while, killed later, resumed to the end; memory stays small."""
    root, values, total = giants
    out = tmp_path / "out"
    command = argv(root, "merge", f"--out={out}", "--quiet", "--resume")
    began = time.monotonic()
    rss, runs, wait, finished = 0, 0, 10.0, 0
    stops = [signal.SIGINT, signal.SIGKILL, signal.SIGTERM]
    while True:
        pid, log = server.start(command, sparse=True)
        if runs < len(stops):
            time.sleep(wait)
            os.kill(pid, stops[runs])
            stopped = time.monotonic()
        result = server.wait(pid, log)
        rss = max(rss, result.rss)
        if result.code == 0:
            break
        assert result.code in {130, 143, -9}, result
        assert time.monotonic() - stopped < 10, "stopping is quick"
        assert not out.exists()
        journals = list(out.parent.glob("out.partial-*/.ramerge_journal.jsonl"))
        lines = journals[0].read_text().count("\n") - 1 if journals else 0
        assert lines >= finished, "nothing finished is lost"
        finished, runs = lines, runs + 1
    assert rss < 1000 * MEGABYTES, rss
    expected = averaged(values.values())
    for name in CHANGED:
        got = first_values(out, name)[: expected[name].size]
        assert (got.view(np.uint16) == expected[name].view(np.uint16)).all(), name
    used = sum(p.stat().st_blocks * 512 for p in out.iterdir())
    assert used < 100e6, "the output is sparse too"
    minutes = (time.monotonic() - began) / 60
    name = f"merge of 4 × {total / 1e9:.0f} GB, stopped by SIGINT, SIGKILL, SIGTERM, and resumed"
    record("8 scale", name, f"{runs} stops",
           f"right values; {rss / 1000:.0f} MB at most; {minutes:.0f} min in all")  # fmt: skip
    clear(out)
