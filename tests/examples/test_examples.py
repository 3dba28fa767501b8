"""Every file of examples/ does what its two lines say, on the demo's models."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import fastjsonschema
import numpy as np
import pytest
import yaml

import ramerge
from helpers.models import read_tensors
from ramerge.miniature.demo import write_demo_set

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.yml"))


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    root = tmp_path_factory.mktemp("examples")
    write_demo_set(root / "demo-out")
    prepare = runpy.run_path(str(EXAMPLES / "prepare.py"))
    prepare["main"](root / "demo-out")
    return root


@pytest.fixture
def merged(work, monkeypatch, tmp_path):
    monkeypatch.chdir(work)

    def merge(name):
        report = ramerge.merge(EXAMPLES / f"{name}.yml", out=tmp_path / name)
        assert ramerge.verify(tmp_path / name).tensors == report.tensors
        return report, read_tensors(tmp_path / name)

    return merge


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_each_file_has_its_schema_and_two_lines_of_explanation(file):
    lines = file.read_text().splitlines()
    location = re.fullmatch(r"# yaml-language-server: \$schema=(.*)", lines[0])[1]
    schema = json.loads((EXAMPLES / location).read_text())
    fastjsonschema.compile(schema)(yaml.safe_load(file.read_text()))
    assert [line.startswith("# ") for line in lines[1:4]] == [True, True, False]


def test_the_overview_lists_every_file():
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {f.name for f in EXAMPLES.iterdir() if f.suffix in {".yml", ".ipynb"}}


def test_ram_plus_scales_each_agent(merged):
    report, _ = merged("ram_plus")
    assert [a.name for a in report.agents] == ["coder", "tools", "memory"]
    assert all(1 < a.lam <= 1.2 for a in report.agents)


def test_the_mergekit_file_needs_no_change(merged):
    report, tensors = merged("mergekit")
    assert report.method == "ties"
    assert {str(t.dtype) for t in tensors.values()} == {"bfloat16"}


def test_adapters_count_as_agents(merged):
    report, _ = merged("lora")
    changed = {a.name: a.density for a in report.agents}
    assert changed["coder"] > 0.01 and changed["tools"] > 0.01 and changed["memory"] > 0.4


def test_fisher_lies_between_the_agents(merged, work):
    _, tensors = merged("fisher")
    coder, tools = (read_tensors(work / "demo-out" / name) for name in ("coder", "tools"))
    name = "model.layers.0.mlp.up_proj.weight"
    ours, low, high = (
        x.astype(np.float32)
        for x in (tensors[name], np.minimum(coder[name], tools[name]), np.maximum(coder[name], tools[name]))
    )  # fmt: skip
    assert np.all((low <= ours) & (ours <= high)) and np.any((low < ours) & (ours < high))


def test_slices_stack_three_layers(merged, work):
    _, tensors = merged("slices")
    tools = read_tensors(work / "demo-out" / "tools")
    top = {n for n in tensors if n.startswith("model.layers.2.")}
    assert top and not any(n.startswith("model.layers.3.") for n in tensors)
    for name in top:
        source = tools[name.replace("layers.2.", "layers.1.")]
        assert tensors[name].tobytes() == source.tobytes()


def test_gradients_weigh_early_and_late_layers_differently(merged, work):
    _, tensors = merged("gradients")
    demo = work / "demo-out"
    base, coder, tools = (read_tensors(demo / n) for n in ("base", "coder", "tools"))
    for layer, weights in ((0, (0.2, 1.0)), (1, (1.0, 0.2))):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        origin, *agents = (m[name].astype(np.float32) for m in (base, coder, tools))
        expected = origin + sum(
            np.float32(w) * (a - origin) for w, a in zip(weights, agents, strict=True)
        )
        assert np.array_equal(tensors[name], expected.astype(tensors[name].dtype))


def test_the_union_has_the_tokens_of_both(merged, work, tmp_path):
    from tokenizers import Tokenizer

    _, tensors = merged("tokenizer_union")
    vocabulary = Tokenizer.from_file(str(tmp_path / "tokenizer_union" / "tokenizer.json"))
    chat = read_tensors(work / "demo-out" / "chat")["model.embed_tokens.weight"]
    for token in ("<|user|>", "<|end|>"):
        i = vocabulary.token_to_id(token)
        assert i >= 57 and np.array_equal(tensors["model.embed_tokens.weight"][i], chat[i])


def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    execute = pytest.importorskip("nbconvert.preprocessors").ExecutePreprocessor
    notebook = nbformat.read(EXAMPLES / "merge.ipynb", as_version=4)
    execute(timeout=300).preprocess(notebook, {"metadata": {"path": str(tmp_path)}})
    assert (tmp_path / "merged" / "ramerge_manifest.json").is_file()
    shown = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    assert any("text/html" in o.get("data", {}) for o in shown)
