"""Chat templates: chosen, written to one place, and checked against the vocabulary."""

import json

import jinja2
import pytest

from helpers.config import METHODS
from helpers.tokenizer_files import bpe, save_model, with_special
from ramerge._errors import ConfigError
from ramerge.config import tokenizer
from ramerge.config.mergekit import loads
from ramerge.fit.inputs import prepare
from ramerge.fit.tokenizer.chat import TEMPLATES, chosen_template, read_template, with_template

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


def render(name, **given):
    return jinja2.Template(TEMPLATES[name]).render(
        messages=TALK, bos_token="<s>", eos_token="</s>", **given
    )


def test_chatml():
    assert render("chatml", add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama3():
    assert (
        render("llama3", add_generation_prompt=True)
        == "<s>"
        + "".join(
            f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n{m['content']}<|eot_id|>"
            for m in TALK
        )
        + "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_alpaca():
    assert render("alpaca") == (
        "Be brief.\n\n### Instruction:\nHi\n\n### Response:\nHello</s>\n\n### Instruction:\nBye\n\n"
    )


def test_every_name_that_files_may_use_is_there():
    assert {"auto", *TEMPLATES} == set(tokenizer.TEMPLATES)


def model(path, *, jinja=None, config=None):
    path.mkdir()
    if jinja is not None:
        (path / "chat_template.jinja").write_text(jinja)
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_where_templates_are_found(tmp_path):
    named = [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]
    a = model(tmp_path / "a", jinja="J", config={"chat_template": "C"})
    b = model(tmp_path / "b", config={"chat_template": named})
    c = model(tmp_path / "c", config={"chat_template": "C"})
    d = model(tmp_path / "d", config={})
    assert [read_template(x) for x in (a, b, c, d, None)] == ["J", "D", "C", None, None]


def test_auto_takes_the_one_that_most_have(tmp_path):
    paths = [model(tmp_path / f"{i}", jinja=j) for i, j in enumerate(["A", "B", "B", None])]
    assert chosen_template("auto", paths) == "B"
    assert chosen_template("auto", [*paths[:2], None]) == "A"
    assert chosen_template("chatml", []) == TEMPLATES["chatml"]
    assert chosen_template("{{ x }}", []) == "{{ x }}"
    with pytest.raises(ConfigError, match="no model has a chat template"):
        chosen_template("auto", paths[3:])


def test_only_one_template_is_left():
    files, notices = with_template("T", b'{"chat_template": "old", "eos_token": "x"}')
    assert files["chat_template.jinja"] == b"T" and notices == ()
    assert json.loads(files["tokenizer_config.json"]) == {"eos_token": "x"}
    assert set(with_template("T", b'{"eos_token": "x"}')[0]) == {"chat_template.jinja"}
    assert set(with_template("T", None)[0]) == {"chat_template.jinja"}


def test_special_tokens_that_are_not_there():
    _, (notice,) = with_template(TEMPLATES["chatml"], None, ["<|im_end|>"])
    assert notice.code == "template-tokens-missing" and "`<|im_start|>`" in notice.message


def test_prepared_with_a_union(tmp_path):
    base = bpe()
    models = {
        "base": save_model(tmp_path / "base", base),
        "a": save_model(tmp_path / "a", with_special(base, "<|im_start|>", "<|im_end|>")),
    }
    (tmp_path / "base" / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    text = (
        f"merge_method: ram_plus\nbase_model: {tmp_path}/base\nmodels: [{{model: {tmp_path}/a}}]\n"
    )
    text += "chat_template: chatml\n"
    plain = prepare(loads(text, METHODS), models["base"], {"a": models["a"]})
    assert set(plain.files) == {"chat_template.jinja", "tokenizer_config.json"}
    assert [n.code for n in plain.notices] == ["template-tokens-missing"]
    union = prepare(
        loads(text + "tokenizer_source: union", METHODS), models["base"], {"a": models["a"]}
    )
    assert union.files["chat_template.jinja"] == TEMPLATES["chatml"].encode()
    assert union.files["tokenizer_config.json"] == b"{}\n" and isinstance(
        union.files["tokenizer.json"], bytes
    )
    assert "chat_template.jinja" not in union.dropped
    assert [n.code for n in union.notices] == ["tokens-added"]
