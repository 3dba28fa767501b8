"""Equal inputs, equal bytes: whatever the threads, chunks, output shards and hash seed."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from harness import Server, clear, digest, load, model_set, save

from ramerge.methods.registry import METHODS

NAMES = tuple(f"agent{i}" for i in range(8))
THREADS = (1, 2, 4)
CHUNKS = {"1k": 1024, "4k": 4096, "64k": 65_536, "whole": 1 << 20}  # elements; tensors have 82 k
SHARDS = ("1GB", "200kB", "90kB")
SEEDS = range(6)
AGENTS = (2, 3, 5, 8)
WHOLE_GRID = ("ram", "ram_plus", "ram_soft")  # the others meet hash seeds and shards in turn


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Eight agents with an auxiliary file each, and a warm process for every hash seed."""
    work = tmp_path_factory.mktemp("grid")
    root = model_set(work / "models", scale=40, agents=NAMES)
    rng = np.random.default_rng(1)
    for name in NAMES:
        tensors = load(root / name / "model.safetensors")
        extra = {n: rng.random(a.shape).astype(np.float32) for n, a in tensors.items()}
        save(root / f"{name}.fisher.safetensors", extra)
    warm = [
        "merge",
        f"--base={root}/base",
        f"--agent={root}/agent0",
        f"--out={work}/warm",
        "--quiet",
    ]
    servers: dict[int, Server] = {}

    def server(seed: int) -> Server:
        if seed not in servers:
            given = {"PYTHONHASHSEED": str(seed)}
            servers[seed] = Server(warm, work / f"logs{seed}", given=given)
        return servers[seed]

    yield server, root, work / "out"
    for running in servers.values():
        running.close()


def argv(root, out, method, agents, threads, chunk, shard):
    """The command of one cell of the grid."""
    info = METHODS[method]
    values = (
        {"t": "0.3"} if info.signature.get("t") is not None and info.signature["t"].required else {}
    )
    values |= (
        {f"{n}.{info.auxiliary}": f"{root}/{n}.fisher.safetensors" for n in agents}
        if info.auxiliary
        else {}
    )
    memory = (
        threads
        * (len(agents) * (2 if info.auxiliary else 1) + 2)
        * (4 if info.auxiliary else 2)
        * CHUNKS[chunk]
    )
    return [
        "merge", f"--base={root}/base", *(f"--agent={n}={root}/{n}" for n in agents),
        f"--method={method}", *(f"--set={k}={v}" for k, v in values.items()), f"--out={out}",
        f"--threads={threads}", f"--memory={memory}B", f"--shard-size={shard}", "--quiet",
    ]  # fmt: skip


def cells(method, size):
    """(agents, shard, threads, chunk, seed) of the grid."""
    info = METHODS[method]
    counts = [n for n in AGENTS if info.min_agents <= n <= (info.max_agents or 8)] or [
        info.min_agents
    ]
    cells = list(itertools.product(counts, THREADS, CHUNKS))
    if method in WHOLE_GRID:
        grid = [(n, shard, t, c) for n, t, c in cells for shard in SHARDS]
    else:  # each count of agents meets every shard size in turn
        grid = [(n, SHARDS[i % 3], t, c) for i, (n, t, c) in enumerate(cells)]
    if size == "quick":
        grid = [(counts[0], "1GB", 1, "whole"), (counts[-1], "90kB", 1, "1k"),
                (counts[0], "1GB", 2, "1k"), (counts[-1], "90kB", 4, "4k")]  # fmt: skip
    for i, cell in enumerate(grid):
        every = method in WHOLE_GRID and size == "full"
        turn = i % (2 if size == "quick" else len(SEEDS))
        for seed in SEEDS if every else [turn]:
            yield *cell, seed


def tensors_of(out):
    """CRC-32 of every tensor, from the manifest."""
    return tuple(
        sorted(json.loads((out / "ramerge_manifest.json").read_text())["tensor_crc32"].items())
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_grid(bench, size, method, record):
    server, root, out = bench
    if size == "quick" and method != "ram_plus":
        pytest.skip("in the full bench")
    whole: dict[tuple, str] = {}
    values: dict[int, tuple] = {}
    runs = 0
    for count, shard, threads, chunk, seed in cells(method, size):
        agents = NAMES[:count]
        result = server(seed).run(argv(root, out, method, agents, threads, chunk, shard))
        assert result.code == 0, (method, count, result)
        cell = (count, shard, threads, chunk, seed)
        assert whole.setdefault((count, shard), digest(out)) == digest(out), cell
        assert values.setdefault(count, tensors_of(out)) == tensors_of(out), cell
        clear(out)
        runs += 1
    if size == "full":
        seeds = "6 hash seeds each" if method in WHOLE_GRID else "hash seeds, shard sizes in turn"
        record("6 determinism", f"`{method}`, {len(values)} counts of agents, {seeds}", f"{runs} runs",
               f"{len(whole)} outputs (agents × shard size), one SHA-256 each over all files")  # fmt: skip
