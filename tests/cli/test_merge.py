"""The main job from the command line: report, errors and their codes, interruption, verify."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal

import numpy as np
import pytest

from helpers.cli import expected_row, write_bf16
from ramerge.cli.app import run
from ramerge.cli.progress import ProgressBar
from ramerge.miniature.demo import write_demo_set


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Base and agents of the demo set, by name."""
    demo_set = write_demo_set(tmp_path_factory.mktemp("set") / "demo")
    return {"base": demo_set.base, **demo_set.agents}


def flags(models, *names):
    """`--base` and `--agent` options for some of the agents."""
    agents = [word for name in names for word in ("--agent", f"{name}={models[name]}")]
    return ["--base", str(models["base"]), *agents]


def merge_of(base, agent, out):
    """The command that merges one agent."""
    return ["merge", "--base", str(base), "--agent", str(agent), "--out", str(out)]


def copy_of(directory, to, **tensors):
    """A copy of a model; tensors given as ``name=(shape, bits)`` replace all of its weights."""
    shutil.copytree(directory, to)
    if tensors:
        write_bf16(to / "model.safetensors", **tensors)
    return to


def contents(directory):
    """Every file of a directory with its bytes."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_a_merge_prints_a_row_per_agent_and_what_it_wrote(models, tmp_path, capsys):
    out = tmp_path / "merged"
    command = ["merge", *flags(models, "coder", "tools", "memory"), "--method", "ram_plus"]
    assert run([*command, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].split() == [
        "agent",
        "dtype",
        "changed",
        "unique",
        "shared",
        "ρ",
        "λ",
        "λ",
        "stored",
        "lost",
    ]
    assert [line.split()[0] for line in lines[1:4]] == ["coder", "tools", "memory"]
    for name, line in zip(("coder", "tools", "memory"), lines[1:4], strict=True):
        assert re.split(r"  +", line)[2:7] == expected_row(models, name)
    assert re.match(r"ram_plus: 102,272 elements, [12] pass(es)? over 1.6 MB, ", lines[4])
    assert lines[5] == f"wrote {out}: 20 tensors, 204.5 kB, verified"
    assert printed.err.startswith("warning: ")
    assert "lost to rounding to BF16" in printed.err


def test_json_is_one_object_and_nothing_else(models, tmp_path, capsys):
    out = tmp_path / "merged"
    assert run(["merge", *flags(models, "coder", "tools"), "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert printed.err == ""
    assert report["method"] == "ram_plus"
    assert report["elements"] == 102_272
    assert report["output"] == str(out)
    assert [agent["name"] for agent in report["agents"]] == ["coder", "tools"]
    coder, tools = report["agents"]
    assert coder["shared"] == tools["shared"] == coder["changed"] - coder["unique"]


def test_quiet_says_nothing(models, tmp_path, capsys):
    assert run(["merge", *flags(models, "coder"), "--out", str(tmp_path / "m"), "--quiet"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_flags_and_file_are_the_same_job(models, tmp_path):
    given = tmp_path / "merge.yml"
    agents = "\n".join(f"  - model: {models[name]}" for name in ("coder", "tools"))
    given.write_text(
        f"merge_method: ram_plus\nbase_model: {models['base']}\nmodels:\n{agents}\n"
        "parameters: {r: 0.2}\n"
    )
    assert run(["merge", str(given), "--out", str(tmp_path / "a"), "--quiet"]) == 0
    command = ["merge", *flags(models, "coder", "tools"), "--method", "ram_plus", "--set", "r=0.2"]
    assert run([*command, "--out", str(tmp_path / "b"), "--quiet"]) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_an_agent_s_own_parameter(models, tmp_path):
    command = ["merge", *flags(models, "coder", "tools"), "--set", "coder.weight=0"]
    assert run([*command, "--out", str(tmp_path / "a"), "--quiet"]) == 0
    command = ["merge", *flags(models, "tools"), "--out", str(tmp_path / "b"), "--quiet"]
    assert run(command) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("command", ["plan", "merge"])
def test_a_plan_says_what_would_happen_and_writes_nothing(command, models, tmp_path, capsys):
    out = tmp_path / "merged"
    words = [command, *flags(models, "coder", "tools"), "--out", str(out)]
    assert run([*words, *(["--dry-run"] if command == "merge" else [])]) == 0
    printed = capsys.readouterr().out
    assert "agent tools" in printed
    assert "20 of 20 tensors, 102,272 elements" in printed
    assert "204.5 kB in 1 file" in printed
    assert "of buffers" in printed
    assert "a pass at 1 GB/s" in printed
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_7_and_overwrite_replaces_a_model_whole(models, tmp_path, capsys):
    out = tmp_path / "merged"
    command = ["merge", *flags(models, "coder"), "--out", str(out), "--quiet"]
    assert run(command) == 0
    (out / "notes.txt").write_text("mine")
    assert run(command) == 7
    assert "--overwrite" in capsys.readouterr().err
    assert run([*command, "--overwrite"]) == 0
    assert "notes.txt" not in contents(out)


def test_what_is_no_model_is_never_overwritten(models, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    command = ["merge", *flags(models, "coder"), "--out", str(tmp_path), "--overwrite"]
    assert run(command) == 7
    assert "does not look like a model" in capsys.readouterr().err
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


def test_an_output_inside_an_input_is_2(models, capsys):
    command = ["merge", *flags(models, "coder"), "--out", str(models["base"] / "merged")]
    assert run(command) == 2
    assert "lies in the input" in capsys.readouterr().err


def test_a_missing_model_is_3(tmp_path, models, capsys):
    gone = tmp_path / "gone"
    command = merge_of(models["base"], gone, tmp_path / "m")
    assert run(command) == 3
    assert f"error: agent `gone`: `{gone}` does not exist\n" in capsys.readouterr().err


def test_a_truncated_model_is_3_and_leaves_nothing(models, tmp_path, capsys):
    agent = copy_of(models["coder"], tmp_path / "cut")
    weights = agent / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    command = merge_of(models["base"], agent, tmp_path / "m")
    assert run(command) == 3
    assert "`model.safetensors` is 206607 bytes, its header needs 206608" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_wrong_shape_is_4_with_both_shapes(models, tmp_path, capsys):
    weights = {"w": ((2, 3), np.zeros(6, np.uint16))}
    base = copy_of(models["base"], tmp_path / "base", **weights)
    agent = copy_of(models["base"], tmp_path / "agent", w=((3, 2), np.zeros(6, np.uint16)))
    command = merge_of(base, f"odd={agent}", tmp_path / "m")
    assert run(command) == 4
    message = capsys.readouterr().err
    for part in ("`w`", "[2, 3]", "[3, 2]", "`odd`"):
        assert part in message


def test_nan_is_5_and_names_model_tensor_and_place(models, tmp_path, capsys):
    clean, broken = np.full(6, 0x3F80, np.uint16), np.full(6, 0x3F80, np.uint16)
    broken[4] = 0x7FC0
    base = copy_of(models["base"], tmp_path / "base", w=((2, 3), clean))
    agent = copy_of(models["base"], tmp_path / "agent", w=((2, 3), broken))
    command = merge_of(base, f"sick={agent}", tmp_path / "m")
    assert run(command) == 5
    message = capsys.readouterr().err
    for part in ("`w`", "`sick`", "not finite", "element 4"):
        assert part in message
    assert not (tmp_path / "m").exists()
    assert run([*command, "--nonfinite", "keep_base", "--quiet"]) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_merge_goes_on_to_the_same_bytes(
    number, code, models, tmp_path, capsys, monkeypatch
):
    command = ["merge", *flags(models, "coder", "tools", "memory"), "--out"]
    assert run([*command, str(tmp_path / "whole"), "--quiet"]) == 0
    steps = iter(range(1000))

    def stop_in_the_second_pass(bar, step):
        if next(steps) == 30:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "__call__", stop_in_the_second_pass)
        assert run([*command, str(tmp_path / "cut")]) == code
    message = capsys.readouterr().err
    assert "note: finished tensors are kept; the same command with --resume goes on" in message
    assert "error: stopped by " in message
    assert not (tmp_path / "cut").exists()
    assert run([*command, str(tmp_path / "cut"), "--resume"]) == 0
    assert re.search(
        r"note: resumed: [1-9]\d* of 20 tensors were finished", capsys.readouterr().err
    )
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "whole"]


def test_verify_accepts_what_was_written_and_names_what_differs(models, tmp_path, capsys):
    out = tmp_path / "merged"
    assert run(["merge", *flags(models, "coder"), "--out", str(out), "--quiet"]) == 0
    assert run(["verify", str(out)]) == 0
    assert f"{out}: verified" in capsys.readouterr().out
    weights = out / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert run(["verify", str(out)]) == 10
    assert "`model.safetensors`" in capsys.readouterr().err


def test_verify_of_a_directory_that_ramerge_did_not_write_is_10(models, capsys):
    assert run(["verify", str(models["base"])]) == 10
    assert "ramerge_manifest.json" in capsys.readouterr().err


def test_methods_print_each_parameter_with_meaning_default_and_range(capsys):
    assert run(["methods"]) == 0
    assert {"ram", "ram_plus", "ram_soft"} <= {
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line
    }
    assert run(["methods", "ramplus_tl", "--json"]) == 0
    method = json.loads(capsys.readouterr().out)
    assert method["name"] == "ram_plus"
    assert method["parameters"]["r"]["default"] == 0.1
    assert run(["methods", "ram_plus"]) == 0
    printed = capsys.readouterr().out
    for name, parameter in method["parameters"].items():
        (line,) = [x for x in printed.splitlines() if x.startswith(f"{name} ")]
        assert parameter["meaning"] in line
        assert parameter["range"] in line
    assert run(["methods", "ram_pls"]) == 2
    assert "did you mean `ram_plus`?" in capsys.readouterr().err


def test_set_reads_truth_values_and_filters_like_a_file(models, tmp_path):
    values = [
        "--method=task_arithmetic",
        "--set=normalize=True",
        "--set=weight={filter: mlp, value: 2}",
    ]
    assert (
        run(["merge", *flags(models, "coder", "tools"), *values, "--out", str(tmp_path / "flags")])
        == 0
    )
    (tmp_path / "m.yml").write_text(
        f"merge_method: task_arithmetic\nbase_model: {models['base']}\n"
        f"models: [{{model: {models['coder']}, name: coder}}, {{model: {models['tools']}, name: tools}}]\n"
        "parameters: {normalize: true, weight: {filter: mlp, value: 2}}\n"
    )
    assert run(["merge", str(tmp_path / "m.yml"), "--out", str(tmp_path / "file")]) == 0
    weights = "model.safetensors"
    assert (tmp_path / "flags" / weights).read_bytes() == (tmp_path / "file" / weights).read_bytes()


def test_flags_beside_a_file_are_what_the_manifest_records(models, tmp_path):
    (tmp_path / "m.yml").write_text(
        f"merge_method: ram_plus\nbase_model: {models['base']}\n"
        f"models: [{{model: {models['coder']}, name: coder}}, {{model: nowhere, name: tools}}]\n"
        "parameters: {r: 0.3}\n"
    )
    beside = ["--set=r=0.2", "--set=coder.weight=0.5", f"--agent=tools={models['tools']}"]
    assert run(["merge", str(tmp_path / "m.yml"), *beside, "--out", str(tmp_path / "out")]) == 0
    manifest = json.loads((tmp_path / "out" / "ramerge_manifest.json").read_text())
    assert manifest["parameters"]["r"] == 0.2
    plain = [*flags(models, "coder", "tools"), "--set=r=0.2", "--set=coder.weight=0.5"]
    assert run(["merge", *plain, "--out", str(tmp_path / "plain")]) == 0
    one, other = (tmp_path / d / "model.safetensors" for d in ("out", "plain"))
    assert one.read_bytes() == other.read_bytes()
