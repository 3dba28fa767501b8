"""The miniature set: shipped as it was trained, never written over anything else, and merged by one command."""

from __future__ import annotations

import hashlib
import json

import pytest

from ramerge._errors import OutputBusyError
from ramerge.cli.app import run
from ramerge.miniature.demo import AGENTS, write_demo_set


def test_the_models_are_those_that_the_provenance_names(tmp_path):
    demo_set = write_demo_set(tmp_path / "demo")
    provenance = json.loads((tmp_path / "demo" / "provenance.json").read_text())
    for name, digest in provenance["sha256"].items():
        data = (tmp_path / "demo" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest, name
    assert tuple(demo_set.agents) == tuple(AGENTS)
    for name, task in AGENTS.items():
        assert (demo_set.agents[name] / "model.safetensors").is_file()
        assert demo_set.accuracy[name][task] > demo_set.accuracy["base"][task] + 0.2


def test_a_demo_replaces_a_demo_only_when_told_and_nothing_else_ever(tmp_path):
    write_demo_set(tmp_path / "demo")
    with pytest.raises(OutputBusyError, match="holds an earlier demo"):
        write_demo_set(tmp_path / "demo")
    write_demo_set(tmp_path / "demo", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(OutputBusyError, match="not an earlier demo"):
        write_demo_set(tmp_path / "mine", overwrite=True)


def test_the_command_merges_what_it_wrote(tmp_path, capsys):
    out = tmp_path / "demo"
    assert run(["demo", "--out", str(out)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["solves", "coding", "tools", "memory"] in lines
    assert [line for line in lines if line[:2] == ["wrote", f"{out}/merged:"]]
    assert run(["verify", str(out / "merged")]) == 0
    assert run(["demo", "--out", str(out)]) == 7
    assert run(["demo", "--out", str(out), "--overwrite", "--quiet"]) == 0
    capsys.readouterr()
    assert run(["demo", "--out", str(out), "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["elements"] == 102_272


def test_transformers_loads_the_merged_model_and_generates(tmp_path):
    transformers = pytest.importorskip("transformers")
    assert run(["demo", "--out", str(tmp_path / "demo"), "--quiet"]) == 0
    merged = tmp_path / "demo" / "merged"
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        merged, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    prompt = tokenizer("1+2", return_tensors="pt", return_token_type_ids=False)
    assert model.generate(**prompt, max_new_tokens=4, do_sample=False).shape[1] > 3


def test_the_shipped_agents_merge_to_the_same_bytes_everywhere(tmp_path):
    """Golden digest of the demo's output: changes only with a change of results, which the changelog names."""
    import hashlib

    import ramerge

    demo = write_demo_set(tmp_path / "demo")
    ramerge.merge(base=demo.base, agents=demo.agents, method="ram_plus", out=tmp_path / "merged")
    digest = hashlib.sha256((tmp_path / "merged" / "model.safetensors").read_bytes()).hexdigest()
    assert digest == "c5e2bd71503121d586e1ac6bb6fb02f0f04f38dd74044a6f9885369f7348398d"
