"""Fixtures of the fault bench; in full, every test leaves a row for docs/evidence/reliability.md."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from harness import Server, merge_argv, model_set


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A tiny BF16 set."""
    return model_set(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def server(models, tmp_path_factory):
    """A warm process that forks a child per command."""
    work = tmp_path_factory.mktemp("server")
    server = Server(merge_argv(models, work / "warm"), work / "logs")
    yield server
    server.close()


@pytest.fixture
def record(request):
    """Put a row into the table: what was tested, how often, and what came of it."""

    def put(group: str, test: str, figure: str, outcome: str) -> None:
        folder = os.environ.get("RAMERGE_FAULTS_RESULTS")
        if folder:
            row = {"group": group, "test": test, "figure": figure, "outcome": outcome}
            name = "".join(c if c.isalnum() else "-" for c in request.node.nodeid)
            path = Path(folder) / f"{group}-{name[-100:]}.json"
            rows = json.loads(path.read_text()) if path.exists() else []
            path.write_text(json.dumps([*rows, row]))

    return put


QUICK, FULL = "quick", "full"


def pytest_generate_tests(metafunc):
    """`size` is quick in `make test` and full in `make faults`."""
    if "size" in metafunc.fixturenames:
        metafunc.parametrize("size", [QUICK, pytest.param(FULL, marks=pytest.mark.faults)])
