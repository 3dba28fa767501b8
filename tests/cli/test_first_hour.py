"""What a newcomer runs into in the first hour, and what is said about it."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ramerge
from ramerge.cli.app import run
from ramerge.miniature.demo import write_demo_set


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
    monkeypatch.setattr("ramerge.run.engine.stream", lambda *a, **k: pytest.fail("work was done"))
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


def test_errors_are_json_too(models, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert run(["merge", *flags(models, "coder"), "--method", "tise", "--out", out, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["error"]
    assert (told["exit_code"], told["kind"]) == (2, "ConfigError")
    assert "did you mean `ties`" in told["hint"]
    assert run(["merge", *flags(models, "coder"), "--out", out, "--quiet"]) == 0
    for name, at in (("model.safetensors", -1), ("config.json", 0)):
        file = tmp_path / "out" / name
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
    assert run(["verify", out, "--json"]) == 10
    captured = capsys.readouterr()
    told = json.loads(captured.out)["error"]
    messages = " ".join(p["message"] for p in told["problems"])
    assert "model.safetensors" in messages and "config.json" in messages
    assert captured.err.startswith("error: "), "people read stderr as before"


def test_one_shard_and_another_size_are_named_as_such(models, tmp_path, capsys):
    shard = tmp_path / "model-00001-of-00003.safetensors"
    tensors = load_file(str(models["base"] / "model.safetensors"))
    some = dict(sorted(tensors.items())[:3])
    save_file(some, str(shard))
    command = ["plan", "--base", str(shard), f"--agent=a={models['coder']}"]
    assert run(command) == 4
    assert "is one file of several: give its directory" in capsys.readouterr().err
    smaller = {
        n: np.ascontiguousarray(t[..., : t.shape[-1] // 2])
        for n, t in tensors.items() if "layers.1" not in n
    }  # fmt: skip
    save_file(smaller, str(tmp_path / "small.safetensors"))
    command = ["plan", "--base", str(models["base"]), f"--agent=a={tmp_path}/small.safetensors"]
    assert run(command) == 4
    said = capsys.readouterr().err
    assert "a model of another size" in said and "--extra" not in said


def test_hints_do_not_lead_in_circles(models, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("not a model")
    command = ["merge", *flags(models, "coder"), "--out", str(tmp_path / "full")]
    assert run(command) == 7
    said = capsys.readouterr().err
    assert "holds `thesis.txt`" in said and "--overwrite" not in said


def test_a_second_path_after_agent_is_not_mistaken_for_a_merge_file(models, capsys):
    base, coder, tools = (str(models[n]) for n in ("base", "coder", "tools"))
    assert run(["plan", "--base", base, "--agent", coder, tools]) == 2
    assert "is a directory, not a merge file\n\nhint: repeat --agent" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "meant"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_short_names_of_dtypes(models, given, meant, tmp_path):
    ramerge.merge(
        base=models["base"], agents=[models["coder"]], out_dtype=given, out=tmp_path / "o"
    )
    assert f"out_dtype: {meant}\n" in (tmp_path / "o" / "ramerge_config.yml").read_text()


def test_methods_in_capitals_are_recognised(models, capsys):
    assert run(["plan", *flags(models, "coder"), "--method", "TIES"]) == 0
    assert "method       ties (" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["m.yml", "out"], "--out"),
        (["m.yml"], "name the output directory"),
        (["m.yml", "--out", "x", "--cuda"], "limited by the disk"),
        (["m.yml", "--out", "x", "--lazy-unpickle"], "--allow-pickle"),
        (["m.yml", "--out", "x", "--out-shard-size", "5B"], "--shard-size 5GB"),
        (["m.yml", "--out", "x", "--set", "r", "=", "0.2"], "no spaces around `=`"),
        (["--base", "b", "--agent", "a", "b", "c", "--out", "x"], "repeat --agent"),
    ],
)
def test_habits_from_mergekit_are_answered_with_what_to_write(words, hint, capsys):
    assert run(["merge", *words]) == 2
    assert hint in capsys.readouterr().err.partition("hint:")[2]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["doctor"], "name them: --base ./base --agent"),
        (["plan", "nofile.yml"], "name a merge file"),
        (["verify", "nowhere"], "there is no directory `nowhere`"),
        (["plan", "--base=B", "--agent=my coder=C"], "`my coder` is not a valid agent name"),
        (["plan", "--base=B", "--agent=a=C", "--method=fisher"], "--set a.fisher=…"),
        (["plan", "--base=B", "--agent=a=C", "--set=a.r=1"], "(--set r=…)"),
    ],
)
def test_slips_of_the_first_hour_are_told_the_way_out(
    models, command, said, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    places = {"B": str(models["base"]), "C": str(models["coder"])}
    words = [w[:-1] + places[w[-1]] if w[-2:] in {"=B", "=C"} else w for w in command]
    assert run(words) in {2, 10}
    assert said in capsys.readouterr().err
