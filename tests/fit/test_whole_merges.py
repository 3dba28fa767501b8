"""Tokenizers, slices and chat templates in whole merges, from a file to a verified directory."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from helpers.tokenizer_files import bpe, read, save_model, with_special
from ramerge import api
from ramerge.models.open import open_checkpoint

BASE = bpe()
SIZE = BASE.get_vocab_size()
EMBED = "model.embed_tokens.weight"


@pytest.fixture
def models(tmp_path):
    save_model(tmp_path / "base", BASE, seed=1, rows=SIZE)
    save_model(tmp_path / "chat", with_special(BASE, "<|im_start|>", "<|im_end|>"), seed=2)
    save_model(tmp_path / "tool", with_special(BASE, "<|tool|>"), seed=3)
    (tmp_path / "base" / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (tmp_path / "base" / "vocab.json").write_text("{}")
    return tmp_path


def test_union_and_template(models, tmp_path):
    (tmp_path / "m.yml").write_text(f"""
merge_method: ram
base_model: {models}/base
models: [{{model: {models}/chat}}, {{model: {models}/tool}}]
tokenizer: {{source: union, pad_to_multiple_of: 8}}
chat_template: chatml
""")
    report = api.merge(tmp_path / "m.yml", out=tmp_path / "out")
    rows = -(-(SIZE + 3) // 8) * 8
    out = open_checkpoint(str(tmp_path / "out"))
    assert out.spec(EMBED).shape == (rows, 4) and out.config["vocab_size"] == rows
    assert np.array_equal(
        read(out, EMBED)[SIZE + 2], read(open_checkpoint(str(models / "tool")), EMBED)[SIZE]
    )
    assert (
        Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).token_to_id("<|tool|>")
        == SIZE + 2
    )
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text()) == {}
    assert "<|im_start|>" in (tmp_path / "out" / "chat_template.jinja").read_text()
    assert not (tmp_path / "out" / "vocab.json").exists()
    assert any("3 more tokens" in text for text in (*report.warnings, *report.decisions))
    assert api.verify(tmp_path / "out").tensors == len(out.names())


def test_a_stack_verifies_and_says_what_it_is(models, tmp_path):
    (tmp_path / "m.yml").write_text(f"""
merge_method: passthrough
slices:
- sources: [{{model: {models}/chat, layer_range: [0, 1]}}]
- sources: [{{model: {models}/base, layer_range: [0, 1]}}]
- sources: [{{model: {models}/chat, layer_range: [0, 1]}}]
tokenizer_source: {models}/chat
""")
    api.merge(tmp_path / "m.yml", out=tmp_path / "out")
    out, chat, base = (open_checkpoint(str(tmp_path / n)) for n in ("out", "chat", "base"))
    for layer, model in enumerate((chat, base, chat)):
        assert np.array_equal(read(out, f"model.layers.{layer}.w"), read(model, "model.layers.0.w"))
    assert np.array_equal(read(out, EMBED), read(chat, EMBED))
    manifest = json.loads((tmp_path / "out" / "ramerge_manifest.json").read_text())
    assert [i["source"] for i in manifest["inputs"] if i["role"] == "agent"] == ["chat + base"]
    assert api.verify(tmp_path / "out").tensors == len(out.names())
    written = (tmp_path / "out" / "ramerge_config.yml").read_text()
    assert "layer_range: [0, 1]" in written and str(tmp_path) not in written


def test_the_real_parser_of_transformers_loads_the_union(models, tmp_path):
    transformers = pytest.importorskip("transformers")
    (models / "base" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "old"}'
    )
    (tmp_path / "m.yml").write_text(f"""
merge_method: ram
base_model: {models}/base
models: [{{model: {models}/chat}}]
tokenizer_source: union
chat_template: chatml
""")
    api.merge(tmp_path / "m.yml", out=tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "the task"}], tokenize=True)
    ids = ids["input_ids"] if not isinstance(ids, list) else ids
    assert [ids[0], ids[-2]] == [SIZE, SIZE + 1]
