"""Whole merges on disk: what is written, that it loads, that nothing but the inputs decides its bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import ramerge
from helpers import oracle
from helpers.models import read_tensors, save_agent, save_base, tree_bytes, write_tensors

AGENTS = {"coder": 0.05, "tools": 0.45, "memory": 0.55}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    base = save_base(root / "base")
    (base / "chat_template.jinja").write_bytes(b"{{ messages }}\r\n\xc3\xa9")
    (base / "tokenizer_config.json").write_text('{"a":  1}')
    (base / "notes.bin").write_bytes(b"x")
    agents = {
        n: save_agent(root / n, base, seed=i, density=d) for i, (n, d) in enumerate(AGENTS.items())
    }
    return base, agents


def merge(models, out, **options):
    base, agents = models
    return ramerge.merge(base=base, agents=agents, out=out, **{"method": "ram_plus", **options})


def test_the_merged_model_is_the_oracles(models, tmp_path):
    base, agents = models
    report = merge(models, tmp_path / "m")
    expected = oracle.merge(
        read_tensors(base), [read_tensors(a) for a in agents.values()], "ram_plus"
    )
    got = read_tensors(tmp_path / "m")
    assert got.keys() == expected.keys()
    for name, array in got.items():
        assert np.array_equal(array.view(np.uint16), expected[name].view(np.uint16)), name
    table = oracle.counts(read_tensors(base), [read_tensors(a) for a in agents.values()])
    assert [[a.changed, a.unique, a.shared] for a in report.agents] == table.tolist()
    assert [a.name for a in report.agents] == list(AGENTS)
    assert report.passes in {1, 2}


def test_it_loads_in_transformers_with_no_key_missing_and_generates(models, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    merge(models, tmp_path / "m")
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    tokens = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False)
    assert tokens.shape[1] >= 4


def test_side_files_are_the_bases_byte_for_byte(models, tmp_path):
    merge(models, tmp_path / "m")
    for name in (
        "chat_template.jinja",
        "tokenizer_config.json",
        "generation_config.json",
        "config.json",
    ):
        assert (tmp_path / "m" / name).read_bytes() == (models[0] / name).read_bytes(), name
    assert not (tmp_path / "m" / "notes.bin").exists()


def test_out_dtype_is_written_into_config(models, tmp_path):
    merge(models, tmp_path / "m", out_dtype="float32")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (config.get("dtype") or config.get("torch_dtype")) == "float32"
    assert {t.dtype for t in read_tensors(tmp_path / "m").values()} == {np.dtype(np.float32)}


def test_bytes_do_not_depend_on_threads_memory_or_the_inputs_shards(models, tmp_path):
    merge(models, tmp_path / "reference")
    reference = tree_bytes(tmp_path / "reference")
    base, agents = models
    for threads in (1, 2, 4):
        for memory in (None, "150KB"):
            merge(
                models,
                tmp_path / f"m{threads}{memory}",
                threads=threads,
                memory=memory if threads == 1 else None,
            )
            assert tree_bytes(tmp_path / f"m{threads}{memory}") == reference
    sharded = {
        n: write_tensors(tmp_path / "s" / n, read_tensors(a), shards=3) for n, a in agents.items()
    }
    ramerge.merge(base=base, agents=sharded, method="ram_plus", out=tmp_path / "sharded")
    ours = tree_bytes(tmp_path / "sharded")
    assert ours["model.safetensors"] == reference["model.safetensors"]


def test_bytes_do_not_depend_on_the_hash_seed_the_host_or_the_path(models, tmp_path):
    base, agents = models
    reference = None
    for i, seed in enumerate(("0", "1", "2")):
        out = tmp_path / f"place{i}" / "m"
        command = [
            sys.executable,
            "-m",
            "ramerge",
            "merge",
            "--base",
            str(base),
            "--out",
            str(out),
            "--quiet",
        ]
        for name, path in agents.items():
            command += ["--agent", f"{name}={path}"]
        subprocess.run(
            command, check=True, env={**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC{i}"}
        )
        reference = reference or tree_bytes(out)
        assert tree_bytes(out) == reference


def test_shards_of_the_output(models, tmp_path):
    merge(models, tmp_path / "one")
    merge(models, tmp_path / "many", shard_size=20_000)
    names = sorted(p.name for p in (tmp_path / "many").glob("*.safetensors"))
    assert len(names) > 2 and names[0] == f"model-00001-of-{len(names):05d}.safetensors"
    one, many = read_tensors(tmp_path / "one"), read_tensors(tmp_path / "many")
    assert all(np.array_equal(one[n].view(np.uint16), many[n].view(np.uint16)) for n in one)


def test_the_written_configuration_gives_the_same_model_again(models, tmp_path):
    base, agents = models
    merge(models, tmp_path / "m", parameters={"r": 0.2, "tools.weight": 0.5}, method="ram_plus")
    text = (tmp_path / "m" / "ramerge_config.yml").read_text()
    assert str(tmp_path) not in text and str(base.parent) not in text
    for name, path in (("base", base), *agents.items()):
        text = text.replace(f": {name}\n", f": {path}\n", 1)
    (tmp_path / "again.yml").write_text(text)
    ramerge.merge(tmp_path / "again.yml", out=tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "m" / "model.safetensors"
    ).read_bytes()


def test_manifest_says_what_was_done_and_verify_believes_it(models, tmp_path):
    report = merge(models, tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / "ramerge_manifest.json").read_text())
    assert manifest["method"] == "ram_plus" and manifest["passes"] == report.passes
    assert [i["name"] for i in manifest["inputs"]] == ["base", *AGENTS]
    for entry, path in zip(manifest["inputs"], (models[0], *models[1].values()), strict=True):
        import hashlib

        for file in entry["files"]:
            assert hashlib.sha256((path / file["name"]).read_bytes()).hexdigest() == file["sha256"]
    assert manifest["lambda"].keys() == AGENTS.keys()
    ramerge.verify(tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 4
    weights.write_bytes(data)
    with pytest.raises(ramerge.MergeError) as caught:
        ramerge.verify(tmp_path / "m")
    assert caught.value.exit_code == 10 and "model.safetensors" in str(caught.value)


def test_inputs_are_never_written_to(models, tmp_path):
    before = {p: tree_bytes(p) for p in (models[0], *models[1].values())}
    merge(models, tmp_path / "m")
    assert {p: tree_bytes(p) for p in before} == before


def test_excluded_tensors_stay_the_bases(models, tmp_path):
    report = merge(models, tmp_path / "m", exclude=["embed_tokens"])
    base, got = read_tensors(models[0]), read_tensors(tmp_path / "m")
    assert np.array_equal(
        got["model.embed_tokens.weight"].view(np.uint16),
        base["model.embed_tokens.weight"].view(np.uint16),
    )
    assert any("embed_tokens" in d for d in report.decisions)


def test_state_dicts_of_torch_tensors(models):
    import torch

    base = {n: torch.from_numpy(t.astype(np.float32)) for n, t in read_tensors(models[0]).items()}
    agents = [
        {n: torch.from_numpy(t.astype(np.float32)) for n, t in read_tensors(a).items()}
        for a in models[1].values()
    ]
    merged = ramerge.merge_state_dicts(base, agents, method="ram")
    arrays = oracle.merge(
        {n: t.numpy() for n, t in base.items()},
        [{n: t.numpy() for n, t in a.items()} for a in agents],
        "ram",
    )
    assert list(merged) == list(base)
    assert all(torch.equal(merged[n], torch.from_numpy(arrays[n])) for n in base)
    half = {n: t.to(torch.bfloat16) for n, t in base.items()}
    assert ramerge.merge_state_dicts(half, [half])["model.norm.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("swapped", ["base", "agent", "both"])
def test_byte_order_changes_no_number(swapped):
    def ordered(values, who):
        return np.array(values, ">f4" if swapped in {who, "both"} else "<f4")

    base, agent = {"w": ordered([1, 2], "base")}, {"w": ordered([3, 2], "agent")}
    assert ramerge.merge_state_dicts(base, [agent], method="ram")["w"].tolist() == [3, 2]


def test_awkward_tensors_are_merged_or_refused_by_name():
    import torch

    def dicts(k):
        return {"w": torch.ones(2) * k, "none": torch.empty(0, 4), "more": torch.empty(3, 0)}

    merged = ramerge.merge_state_dicts(dicts(1), [dicts(2)], method="ram")
    assert merged["w"].tolist() == [2, 2] and merged["none"].shape == (0, 4)
    rows = torch.arange(6.0).reshape(2, 3)
    learned = {"w": rows.T.clone().T.requires_grad_()}
    assert torch.equal(
        ramerge.merge_state_dicts({"w": rows * 0}, [learned], method="ram")["w"], rows
    )
    negative = torch.complex(torch.zeros(2), torch.ones(2)).conj().imag
    merged = ramerge.merge_state_dicts({"w": torch.ones(2)}, [{"w": negative}], method="ram")
    assert merged["w"].tolist() == [-1, -1]
    masked = np.ma.array(np.ones(2, np.float32), mask=[1, 0])
    for bad, why in ((torch.eye(2).to_sparse(), "layout"), (masked, "masked")):
        with pytest.raises(ramerge.MergeError, match=why):
            ramerge.merge_state_dicts({"w": torch.ones(2, 2)}, [{"w": bad}], method="ram")


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_are_at_least_one(threads):
    base = {"w": np.zeros(3, np.float32)}
    with pytest.raises(ramerge.MergeError, match="threads are too few"):
        ramerge.merge_state_dicts(base, [base], method="ram", threads=threads)


def test_plan_finds_all_problems_without_reading_data(models, tmp_path):
    base, agents = models
    plan = ramerge.plan(base=base, agents=agents, out=tmp_path / "m")
    assert plan.bytes_written == sum(t.nbytes for t in read_tensors(base).values())
    assert not (tmp_path / "m").exists()
    broken = read_tensors(agents["coder"])
    del broken["model.norm.weight"]
    write_tensors(tmp_path / "bad", broken)
    with pytest.raises(ramerge.MergeError) as caught:
        ramerge.plan(
            base=base,
            agents={"bad": tmp_path / "bad", "nowhere": tmp_path / "nowhere"},
            out=base / "inside",
        )
    assert caught.value.exit_code in {2, 3, 4}


def test_an_existing_output_is_not_touched(models, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "precious").write_text("x")
    with pytest.raises(ramerge.MergeError) as caught:
        merge(models, tmp_path / "m")
    assert caught.value.exit_code == 7
    assert tree_bytes(tmp_path / "m") == {"precious": b"x"}
    (tmp_path / "m" / "model.safetensors").write_text("an older model")
    merge(models, tmp_path / "m", overwrite=True)
    assert "precious" not in tree_bytes(tmp_path / "m")
