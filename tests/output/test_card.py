"""The model card: front matter that the Hub reads, and text that nothing can break out of."""

from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import yaml

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
    assert "| – | – | – |" in card(rho=None, lam=None, lam_effective=None)


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
