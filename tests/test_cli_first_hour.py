"""What a newcomer runs into in the first hour, and what is said about it."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import ramerge
from ramerge.cli.app import run
from ramerge.demo import write_demo_set


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Base and agents of the demo set, by name."""
    demo_set = write_demo_set(tmp_path_factory.mktemp("set") / "demo")
    return {"base": demo_set.base, **demo_set.agents}


def flags(models, *names):
    return ["--base", str(models["base"]), *(f"--agent={n}={models[n]}" for n in names)]


def test_extra_and_vocabulary_are_part_of_the_job_and_of_its_record(models, tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    ramerge.merge(
        base=models["base"], agents={"a": models["coder"]}, extra="base", vocabulary="min", out=one
    )
    recorded = (one / "ramerge_config.yml").read_text()
    assert "extra: base\n" in recorded and "vocabulary: min\n" in recorded
    for source in (models["base"], models["coder"]):
        shutil.copytree(source, tmp_path / source.name)
    merge_file = tmp_path / "again.yml"
    merge_file.write_text(recorded)
    monkeypatch.chdir(tmp_path)
    assert run(["merge", str(merge_file), "--out", str(two), "--quiet"]) == 0
    assert (two / "model.safetensors").read_bytes() == (one / "model.safetensors").read_bytes()
    assert (two / "ramerge_config.yml").read_text() == recorded


def test_gradients_and_filters_are_recorded_as_they_were_given(models):
    job = {
        "merge_method": "slerp",
        "base_model": str(models["base"]),
        "models": [{"model": str(models["base"])}, {"model": str(models["coder"])}],
        "parameters": {"t": [{"filter": "self_attn", "value": [0, 0.5, 1]}, {"value": 0.5}]},
    }
    expected = [{"filter": "self_attn", "value": [0.0, 0.5, 1.0]}, {"value": 0.5}]
    assert ramerge.plan(job).parameters["t"] == expected
    job |= {"merge_method": "task_arithmetic", "models": [
        {"model": str(models["coder"]), "parameters": {"weight": [0, 1]}},
        {"model": str(models["tools"]), "parameters": {"weight": 0.3}},
    ]}  # fmt: skip
    job["parameters"] = {}
    assert ramerge.plan(job).parameters["weight"] == [[0.0, 1.0], 0.3]


def test_a_plan_knows_where_nobody_may_write(models, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
    command = ["plan", *flags(models, "coder"), "--out", str(tmp_path / "deep" / "x")]
    assert run(command) == 6
    assert f"`{tmp_path}` may not be written to" in capsys.readouterr().err


def test_files_that_cannot_be_written_are_said_before_the_work(
    models, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("ramerge.engine.stream", lambda *a, **k: pytest.fail("work was done"))
    lost = str(tmp_path / "nowhere" / "x.html")
    assert run(["probe", *flags(models, "coder"), "--html", lost]) == 6
    assert "there is no directory" in capsys.readouterr().err
    out = tmp_path / "out"
    assert run(["merge", *flags(models, "coder"), "--out", str(out), "--report", lost]) == 6
    assert not out.exists()
    assert run(["probe", *flags(models, "coder"), "--against", "tise"]) == 2
    assert "did you mean `ties`" in capsys.readouterr().err


def test_dilution_is_printed_too(models, capsys):
    assert (
        run(["probe", *flags(models, "coder", "tools"), "--against", "linear,ram", "--quiet"]) == 0
    )
    assert run(["probe", *flags(models, "coder", "tools"), "--against", "linear,ram"]) == 0
    rows = {
        line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line
    }
    assert float(rows["ram"][0]) == pytest.approx(1, abs=1e-3)
    assert float(rows["linear"][0]) == pytest.approx(0.5, abs=0.05)


def test_one_agent_twice_is_allowed_and_said(models):
    plan = ramerge.plan(base=models["base"], agents={"a": models["coder"], "b": models["coder"]})
    assert any("`a` and `b` are the same files" in text for text in plan.warnings)


def test_a_lambda_that_rounding_takes_is_said(models, tmp_path):
    agents = {n: models[n] for n in ("coder", "tools", "memory")}
    kept = ramerge.merge(base=models["base"], agents=agents, out=tmp_path / "kept")
    assert not any("rounding takes" in text for text in kept.warnings)
    small = {"r": 1e-4}
    lost = ramerge.merge(
        base=models["base"], agents=agents, parameters=small, out=tmp_path / "lost"
    )
    assert any("rounding takes most of λ" in text for text in lost.warnings)


def test_defaults_that_mergekit_has_otherwise_are_said_of_a_file(models, tmp_path, capsys):
    file = tmp_path / "m.yml"
    sources = {"base_model": str(models["base"]), "models": [{"model": str(models["coder"])}]}
    file.write_text(json.dumps({"merge_method": "ties", **sources}))
    assert run(["plan", str(file)]) == 0
    said = capsys.readouterr().err
    assert "`density` is not given: 0.2 here, 1.0 in mergekit" in said
    assert "`trim` is not given: model here, tensor in mergekit" in said
    assert run(["explain", str(file)]) == 0
    assert "`trim` is not given" in capsys.readouterr().out
    given = {"density": 0.5, "trim": "tensor"}
    file.write_text(json.dumps({"merge_method": "ties", **sources, "parameters": given}))
    assert run(["plan", str(file)]) == 0
    assert "is not given" not in capsys.readouterr().err
