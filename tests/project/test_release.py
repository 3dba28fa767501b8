"""What makes the project one that others can run and release: CI, lock file, image, metadata that agree with each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CI = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


def steps(job):
    return [step.get("run", "") for step in CI["jobs"][job]["steps"]]


def test_public_ci_runs_the_gate_of_the_project():
    assert ".ci/run" in steps("gate")


def test_ci_covers_every_python_version_that_the_package_claims():
    prefix = "Programming Language :: Python :: "
    claimed = {c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)}
    gate = CI["jobs"]["gate"]["steps"][1]["with"]["python-version"]
    assert claimed == {gate, *CI["jobs"]["linux"]["strategy"]["matrix"]["python"]}


def test_only_platforms_that_are_claimed_can_fail_ci():
    claimed = {c for c in PROJECT["classifiers"] if c.startswith("Operating System")}
    assert claimed == {"Operating System :: POSIX :: Linux"}
    for job in CI["jobs"].values():
        assert job.get("continue-on-error", False) is not job["runs-on"].startswith("ubuntu")


def test_ci_calls_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {
        name
        for job in CI["jobs"]
        for run in steps(job)
        for name in re.findall(r"make (?:-C \S+ )?([a-z-]+)", run)
    }
    assert called and called <= targets


@pytest.mark.parametrize("form", ["bug", "format", "method"])
def test_issue_forms_ask_for_what_they_require(form):
    page = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{form}.yml").read_text())
    assert page["name"] and page["description"]
    fields = [field for field in page["body"] if field["type"] in {"input", "textarea"}]
    assert fields == page["body"] and len({f["id"] for f in fields}) == len(fields)
    assert any(f.get("validations", {}).get("required") for f in fields)


def test_the_citation_names_version_and_licence_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"]


def test_the_lock_file_points_at_the_public_index_only():
    text = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r'registry = "([^"]+)"', text)) == {"https://pypi.org/simple"}
    hosts = set(re.findall(r'url = "(https?://[^/"]+)', text))
    assert hosts == {"https://files.pythonhosted.org"}


def test_the_image_runs_without_root_and_copies_what_the_build_needs():
    text = (ROOT / "Dockerfile").read_text()
    final = text.split("FROM ")[-1]
    user = re.findall(r"^USER (\d+)", final, re.MULTILINE)
    assert user and user[-1] != "0"
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }
    copied = {
        name
        for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE)
        for name in line.split()
    }
    assert copied == kept and all((ROOT / name).exists() for name in kept)


def test_everything_that_the_sdist_lists_exists():
    include = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in include:
        assert (ROOT / name).exists(), name


def test_pre_commit_runs_the_linters_of_make_lint():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    tools = {re.search(r"\$\(BIN\)/([\w-]+)", line)[1] for line in lint.splitlines()}
    assert {hook["entry"].split()[0].rpartition("/")[2] for hook in hooks} == tools


def test_generated_files_are_not_tracked():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    assert not re.search(r"^(dist|site|\.venv|demo-out)/", tracked.stdout, re.MULTILINE)
