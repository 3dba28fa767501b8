"""The model card: front matter that the Hub reads, and text that nothing can break out of."""

import shutil
from html.parser import HTMLParser
from types import SimpleNamespace

import huggingface_hub
import pytest
import yaml

from ramerge import api
from ramerge.miniature.demo import write_demo_set
from ramerge.models.files import public_source
from ramerge.output.base_card import kept_metadata
from ramerge.output.card import escaped, model_card

METHOD = SimpleNamespace(name="ram_plus", title="RAM+", reference="arXiv 2601.13572")
HOSTILE = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "javascript:alert(1)",
    "[click](javascript:alert(1))", "![x](http://evil/x.png)", "---\nlicense: mit\n---", "```\nx",
    "a | b | c", "\x1b[31mred", "\x1b]8;;http://evil\x07link\x1b]8;;\x07", "\u202eevil", "{{7*7}}",
    "{% raw %}", "=cmd|' /C calc'!A0", "`code`", "# heading", "*bold*", "http://evil.example",
    "www.evil.example", "user@evil.example", "a\nb", "<!-- x", "&lt;b&gt;", "$x$", "@someone",
]  # fmt: skip


def summary(name="coder", **changes):
    values = {
        "name": name, "dtype": "BF16", "density": 0.0321, "unique": 12_345, "shared": 678,
        "rho": 0.0549, "lam": 1.00549, "lam_effective": 1.0031,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def card(
    base="org/base", agents=(("org/coder", "coder"),), config="merge_method: ram_plus\n", **kw
):
    return model_card(
        {
            "base": base,
            "agents": [{"source": s, "summary": summary(n, **kw)} for s, n in agents],
            "method": METHOD,
            "parameters": {"r": 0.1, "scope": "model"},
            "config": config,
        }
    )


def front_matter(text):
    assert text.startswith("---\n")
    return yaml.safe_load(text[4:].partition("\n---\n")[0])


def test_the_front_matter_names_what_has_the_form_of_a_hub_id():
    text = card("org/base@0123abc", [("org/coder", "a"), ("local-dir", "b"), ("hf:me/tools", "c")])
    assert front_matter(text) == {
        "base_model": ["org/base", "org/coder", "me/tools"],
        "base_model_relation": "merge",
        "library_name": "transformers",
        "tags": ["merge", "ramerge", "ram_plus"],
    }


def test_without_hub_ids_there_is_no_base_model():
    assert "base_model" not in front_matter(card("base", [("coder", "coder")]))


def test_the_table_has_the_numbers():
    assert "| coder | org/coder | BF16 | 3.21% | 12,345 | 678 | 0.0549 | 1.005 | 1.003 |" in card()
    assert "| 678 | – |" in card(rho=None, lam=None, lam_effective=None)


def test_methods_without_a_lambda_have_no_column_for_it():
    text = card(lam=None, lam_effective=None)
    assert "λ" not in text and "| ρ |" in text


def test_the_card_links_to_no_page_of_the_package():
    assert "pypi.org" not in card() and "](" not in card()


BASE_CARD = """---
license: apache-2.0
language: [en, de]
pipeline_tag: text-generation
library_name: transformers
license_link: https://example.org/LICENSE
tags: [chat]
datasets: [org/data]
---
# Base
"""


def test_licence_language_and_task_of_the_base_are_kept(tmp_path):
    (tmp_path / "README.md").write_text(BASE_CARD)
    kept = kept_metadata(tmp_path)
    assert kept == {
        "license": "apache-2.0",
        "license_link": "https://example.org/LICENSE",
        "language": ["en", "de"],
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
    }


@pytest.mark.parametrize(
    "text",
    ["", "# no front matter", "---\n[unclosed\n---\n", "---\n- a list\n---\n", "---\nlicense: {a: b}\n---\n",
     "---\nlicense: '<script>'\n---\n", "---\nlicense: !!python/object:os.system x\n---\n",
     "---\nlicense: " + "[" * 20_000 + "\n---\n"],
)  # fmt: skip
def test_a_strange_card_of_the_base_gives_nothing(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    assert kept_metadata(tmp_path) == {}


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_names_are_as_the_user_wrote_them(tmp_path, monkeypatch):
    stored = tmp_path / "model_weights"
    stored.mkdir()
    (tmp_path / "coder").symlink_to(stored)
    monkeypatch.chdir(tmp_path)
    assert public_source(str(tmp_path / "coder")) == "coder"
    assert public_source("./coder") == "coder" and public_source("coder/") == "coder"
    assert public_source("org/name@main") == "org/name@main"


@pytest.mark.parametrize(("folder", "name"), [("org--base-7b", "org/base-7b"), ("gpt2", "gpt2")])
def test_a_snapshot_of_the_hub_cache_is_a_model_and_a_commit(folder, name):
    path = f"/home/someone/hub/models--{folder}/snapshots/{COMMIT}"
    assert public_source(path) == public_source(f"{path}/") == f"{name}@{COMMIT}"


@pytest.mark.parametrize("method", ["ram_plus", "ties", "gram"])
def test_the_hub_s_own_reader_takes_the_card(tmp_path, method):
    set_ = write_demo_set(tmp_path / "demo")
    snapshot = tmp_path / "hub" / "models--org--base" / "snapshots" / COMMIT
    shutil.copytree(set_.base, snapshot)
    (snapshot / "README.md").write_text(BASE_CARD)
    api.merge(base=snapshot, agents=set_.agents, method=method, out=tmp_path / "out")
    read = huggingface_hub.ModelCard((tmp_path / "out" / "README.md").read_text())
    assert read.data.base_model == ["org/base"]
    assert read.data.license == "apache-2.0" and read.data.language == ["en", "de"]
    assert read.data.to_dict()["base_model_relation"] == "merge"
    assert ("λ" in read.text) is (method == "ram_plus")
    assert f"org/base@{COMMIT}" in read.text and "AutoModelForCausalLM" in read.text


def test_the_configuration_is_repeated():
    assert "```yaml\nmerge_method: ram_plus\n```" in card()


class Elements(HTMLParser):
    """Collects what a browser would take for markup."""

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)

    handle_endtag = handle_startendtag = lambda self, *a: self.found.append(a)
    handle_comment = handle_decl = handle_pi = lambda self, data: self.found.append(data)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text):
    whole = card(text, [(text, text)])
    assert front_matter(whole) == front_matter(card("base", [("coder", "coder")]))
    assert whole.count("\n") == card("base", [("coder", "coder")]).count("\n")
    parser = Elements()
    parser.feed(whole)
    assert parser.found == []
    assert not any((ord(c) < 32 and c != "\n") or c in "\u202e\u2028" for c in whole)
    row = next(line for line in whole.splitlines() if "| BF16 |" in line)
    assert row.count("|") == 10
    for sign in "[]`<>*!@":
        assert sign not in escaped(text)


@pytest.mark.parametrize("text", ["x: '```'\n", "```\nescape\n````\n"])
def test_a_configuration_cannot_close_its_block(text):
    lines = card(config=text).splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith("yaml") and line[0] == "`")
    fence = lines[start].removesuffix("yaml")
    assert lines.count(fence) == 1
    inside = lines[start + 1 : lines.index(fence)]
    assert inside == text.splitlines()
