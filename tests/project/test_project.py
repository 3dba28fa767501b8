"""What is shipped: the licence, one version, a typed package, a front door that opens quickly."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ramerge
from helpers.cli import child_environment
from ramerge.cli.app import available

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_licence_is_the_unaltered_apache_2_0():
    digest = hashlib.md5((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "3b83ef96387f14655fc854ddc3c6bd57"  # apache.org/licenses/LICENSE-2.0.txt
    assert PROJECT["license"] == "Apache-2.0"


def test_one_version():
    assert PROJECT["version"] == ramerge.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## (\S+)", changelog, flags=re.MULTILINE)[0]
    assert newest in {"Unreleased", ramerge.__version__}


def test_the_package_is_typed_and_has_its_program():
    assert (ROOT / "src/ramerge/py.typed").is_file()
    assert PROJECT["scripts"] == {"ramerge": "ramerge.cli:main"}


@pytest.mark.parametrize("module", ["ramerge", "ramerge.cli"])
def test_importing_the_front_door_loads_nothing_heavy(module):
    heavy = {"numba", "torch", "numpy", "pydantic"}
    script = f"import sys, {module}; print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=child_environment(),
    )
    assert done.stdout == "[]\n"


def test_every_command_and_option_is_in_the_reference():
    page = (ROOT / "docs/reference/cli.md").read_text()
    script = "import sys, make_cli; sys.stdout.write(make_cli.reference())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "docs",
        env=child_environment(),
    )
    for name in available():
        assert f"## ramerge {name}\n" in page
    option = r"(?<![\w-])--?[a-z][a-z-]*"
    missing = set(re.findall(option, done.stdout)) - set(re.findall(option, page))
    assert not missing, "run `make docs`"


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]),
    ids=lambda p: p.name,
)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_targets_named_in_the_docs_are_in_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        assert set(re.findall(r"make ([a-z-]+)", page.read_text())) - {"are"} <= targets


def test_the_readme_shows_what_the_demo_prints():
    """Times and rates apart, which no two runs share."""
    page = (ROOT / "README.md").read_text()
    shown = re.search(r"<!-- demo -->\n```text\n(.*?)```", page, flags=re.DOTALL)[1]
    script = "import sys, make_cli; sys.stdout.write(make_cli.demo_output())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "docs",
        env=child_environment(),
    )
    timeless = re.compile(r"[0-9.]+ s, [0-9.]+ [kMG]?B/s")
    assert timeless.sub("", done.stdout) == timeless.sub("", shown), "run `make docs`"
