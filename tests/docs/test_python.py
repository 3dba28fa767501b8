"""The examples of docs/guides/python.md run as they stand, and reports show themselves in a line or a frame."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ramerge
from ramerge.miniature.demo import write_demo_set

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    write_demo_set(work / "demo-out")
    return work


def test_every_example_runs_in_the_order_of_the_page(demo, monkeypatch, capsys):
    monkeypatch.chdir(demo)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names: dict = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    assert "('coder', 2.859" in printed and "merge_method: ties" in printed
    assert "ok coder derived" in printed
    assert (demo / "probe.json").is_file() and (demo / "merged" / "model.safetensors").is_file()
    assert set(names["merged"]) == set(names["base"])


def test_reports_are_short_in_a_shell_and_a_page_in_a_notebook(demo):
    models = {"base": demo / "demo-out" / "base", "agents": {"coder": demo / "demo-out" / "coder"}}
    report = ramerge.probe(**models)
    assert "coder" in repr(report) and repr(report).count("\n") < 6
    assert (
        report._repr_html_().startswith("<iframe srcdoc=") and "<script" not in report._repr_html_()
    )
    assert repr(ramerge.plan(**models)).startswith("Plan(ram_plus of coder: ")
    with pytest.raises(ramerge.MergeError, match="cannot be written"):
        report.save_json(demo / "nowhere" / "x.json")
