"""`ramerge explain`: merge files in words, and merged models from their manifest alone."""

from __future__ import annotations

import json
import re

import pytest

from helpers.cli import expected_row
from ramerge.cli.app import run
from ramerge.miniature.demo import write_demo_set


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    """A merged model."""
    directory = tmp_path_factory.mktemp("explain")
    demo_set = write_demo_set(directory / "demo")
    out = directory / "merged"
    flags = [
        word for name, path in demo_set.agents.items() for word in ("--agent", f"{name}={path}")
    ]
    assert (
        run(
            [
                "merge",
                "--base",
                str(demo_set.base),
                *flags,
                "--set",
                "r=0.2",
                "--out",
                str(out),
                "-q",
            ]
        )
        == 0
    )
    return out


def test_it_names_method_inputs_and_every_agent_s_numbers(merged, capsys):
    assert run(["explain", str(merged)]) == 0
    printed = capsys.readouterr().out.splitlines()
    lines = [line.split() for line in printed]
    assert ["ram_plus", "by", "ramerge", "0.1.0"] in lines
    assert ["r", "0.2"] in lines
    (row,) = [line for line in printed if line.strip().startswith("tools   BF16")]
    models = {p.name: p for p in (merged.parent / "demo").iterdir() if p.is_dir()}
    changed, unique, _, rho, lam = expected_row(models, "tools", r=0.2)
    cells = re.split(r"  +", row.strip())
    assert cells[2:4] == [changed, unique]
    assert float(cells[4]) == pytest.approx(float(rho), rel=5e-3)
    assert float(cells[5]) == pytest.approx(float(lam), abs=1e-3)
    manifest = json.loads((merged / "ramerge_manifest.json").read_text())
    digest = manifest["inputs"][0]["files"][0]["sha256"]
    assert ["base", "base", "base", "1", "file(s)", "sha256", f"{digest[:12]}..."] in lines


def test_json_is_the_manifest(merged, capsys):
    assert run(["explain", str(merged), "--json"]) == 0
    manifest = json.loads((merged / "ramerge_manifest.json").read_text())
    assert json.loads(capsys.readouterr().out) == manifest


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (None, 2, "holds no `ramerge_manifest.json`"),
        ("{", 3, "is not JSON"),
        ("[]", 3, "lacks `inputs`"),
        ('{"ramerge": "0.1.0", "method": "ram"}', 3, "lacks `inputs`"),
    ],
)
def test_what_is_no_manifest_is_refused(content, code, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / "ramerge_manifest.json").write_text(content)
    assert run(["explain", str(tmp_path)]) == code
    assert message in capsys.readouterr().err


def test_a_merge_file_is_told_in_words(tmp_path, capsys):
    path = tmp_path / "merge.yml"
    path.write_text(
        "merge_method: ram_plus\nbase_model: org/base\nmodels: [{model: org/coder}]\n"
        "parameters: {r: 0.2}\n"
    )
    assert run(["explain", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("This merges 1 model with the method `ram_plus`.\n")
    assert "r = 0.2, from the file" in printed
    assert "alpha = 1, the default" in printed
    path.write_text("merge_method: ram_plus\nbase_mode: org/base\n")
    assert run(["explain", str(path)]) == 2
    assert "`base_model`" in capsys.readouterr().err
