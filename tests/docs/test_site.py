"""The documentation site: it builds without a warning, loads nothing from elsewhere, and its search answers."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from ramerge.config.mergekit import loads
from ramerge.methods.registry import METHODS

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_merge_files_in_the_docs_are_read_by_the_strict_reader(page):
    methods = {name: method.info for name, method in METHODS.items()}
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for language, text in blocks:
        if language == "yaml" and "merge_method" in yaml.safe_load(text):
            assert loads(text, methods).method in METHODS


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(site):
    home = (site / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))"', home)
    api = (site / "reference" / "api.html").read_text()
    assert "ramerge.merge_state_dicts" in api and "out_dtype" in api


@pytest.mark.browser
def test_the_search_of_the_site_finds_a_method(site, browser):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/index.html?q=breadcrumbs"
        browser.call("POST", "/url", {"url": address})
        for _ in range(50):
            hits = browser.script(
                "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
            )
            if hits:
                break
            time.sleep(0.2)
        assert any("reference/methods.html" in hit for hit in hits)
    finally:
        server.shutdown()
