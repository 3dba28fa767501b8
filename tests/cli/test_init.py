"""`ramerge init` tells base from agents and writes a file that merges them."""

from __future__ import annotations

import json
import shutil

import fastjsonschema
import pytest
import yaml

from helpers.cli import ramerge
from ramerge.miniature.demo import write_demo_set


@pytest.fixture
def runs(tmp_path):
    """The demo's models, under names that give nothing away."""
    demo = write_demo_set(tmp_path / "demo")
    runs = tmp_path / "runs"
    for letter, model in zip(
        "abcd",
        [demo.agents["coder"], demo.agents["tools"], demo.base, demo.agents["memory"]],
        strict=True,
    ):
        shutil.copytree(model, runs / letter)
    return runs


def init(*arguments):
    done = ramerge("init", *arguments)
    return done.returncode, done.stdout + done.stderr


def test_the_base_is_recognised_and_the_file_plans(runs, tmp_path):
    code, text = init(runs, "--out", tmp_path / "merge.yml")
    assert code == 0, text
    written = (tmp_path / "merge.yml").read_text()
    job = yaml.safe_load(written)
    assert job["base_model"] == str(runs / "c")
    assert [m["model"] for m in job["models"]] == [str(runs / x) for x in "abd"]
    assert written.startswith("# yaml-language-server: $schema=merge.schema.json\n")
    fastjsonschema.compile(json.loads((tmp_path / "merge.schema.json").read_text()))(job)
    assert ramerge("plan", tmp_path / "merge.yml").returncode == 0


def test_two_models_alone_do_not_say_which_is_the_base(runs, tmp_path):
    code, text = init(runs / "a", runs / "c", "--out", tmp_path / "m.yml")
    assert code == 2 and "--base" in text and not (tmp_path / "m.yml").exists()
    code, _ = init(runs / "a", "--base", runs / "c", "--out", tmp_path / "m.yml")
    assert code == 0
    assert yaml.safe_load((tmp_path / "m.yml").read_text())["base_model"] == str(runs / "c")


def test_an_adapter_names_its_base(runs, tmp_path):
    adapter = runs / "e"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/c"}')
    code, text = init(runs / "c", adapter, runs / "a", "--out", tmp_path / "m.yml")
    assert code == 0 and f"base {runs / 'c'}, agents {adapter}, {runs / 'a'}" in text


def test_an_existing_file_is_not_replaced(runs, tmp_path):
    (tmp_path / "m.yml").write_text("mine")
    code, _ = init(runs, "--out", tmp_path / "m.yml")
    assert code == 7 and (tmp_path / "m.yml").read_text() == "mine"


def test_a_directory_without_models_is_refused(tmp_path):
    code, text = init(tmp_path)
    assert code == 2 and "hint:" in text
