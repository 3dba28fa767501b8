"""Fixtures of more than one folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest


class Browser:
    """The few WebDriver calls that a test needs, over chromedriver's HTTP interface."""

    def __init__(self, port):
        self.root = f"http://127.0.0.1:{port}"
        options = {
            "binary": shutil.which("chromium"),
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--no-first-run",
            ],
        }
        capabilities = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        reply = self.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.root += f"/session/{reply['sessionId']}"

    def call(self, verb, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.root + path, data=data, method=verb, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())["value"]

    def script(self, text):
        return self.call("POST", "/execute/sync", {"script": text, "args": []})


@pytest.fixture
def browser():
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs Debian's chromium and chromium-driver")
    port = 20000 + os.getpid() % 20000
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(50):
            try:
                found = Browser(port)
                break
            except OSError:
                time.sleep(0.2)
        yield found
        found.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """All checkpoints, made once by two processes."""
    out = tmp_path_factory.mktemp("trainers")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            Path(__file__).parent / "programs" / "make_trainer_checkpoints.py",
            out,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out
