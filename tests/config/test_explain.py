"""`explain` says in plain words what a file does, and where mergekit differs."""

import pytest

from helpers.config import METHODS
from ramerge.config.explain import explain, in_words
from ramerge.config.job import Filtered, Gradient
from ramerge.config.mergekit import loads


def told(text):
    job = loads(text, METHODS)
    return explain(job, METHODS[job.method])


def test_a_whole_explanation():
    assert (
        told("""
merge_method: ramplus_tl
base_model: https://user:pw@host/base
models:
- model: runs/coder
- model: runs/tool
  parameters: {weight: [{filter: mlp, value: 0.5}, {value: [0, 1]}]}
parameters: {r: 0.2}
dtype: bfloat16
exclude: [embed_tokens]
""")
        == """\
This merges 2 models with the method `ram_plus`, preset `mergekit`.
The base is https://host/base.
Agent `coder` is runs/coder.
Agent `tool` is runs/tool.

Parameters:
  - r = 0.2, from the file (bonus)
  - alpha = 0.2, from the preset `mergekit` (clip)
  - epsilon = 1e-05, the default (mask)
  - mask = abs, the default (mask kind)
  - scope = tensor, from the preset `mergekit` (counted over)
  - weight = 1, the default (scale of the agent); 0.5 in tensors named `…mlp…`, 0 in the first layer
    to 1 in the last in all others for agent `tool`

Output:
  - every tensor as bfloat16
  - tokenizer and side files of the base, byte for byte
  - copied from the base and not merged: tensors that fit `embed_tokens`
  - NaN or infinity anywhere stops the merge

Notes:
  - `dtype` is the output's: arithmetic is fp32 always, rounded once at the end

Unlike mergekit:
  - arithmetic is fp32 from exact inputs and rounded once; mergekit computes in the inputs' type, or
    in `dtype`
  - `epsilon` meets fp32 differences; mergekit rounds both to the inputs' type
  - `weight` of an agent is obeyed; mergekit's `ram` has none and ignores it
  - tensors that are missing, unknown or of another shape are errors, never dropped
"""
    )


def test_scope_over_the_model_is_a_difference():
    head = "merge_method: {}\nbase_model: b\nmodels: [{{model: x}}]"
    assert "whole model" in told(head.format("ram_plus"))
    assert "whole model" not in told(head.format("ramplus_tl"))
    assert "seed, agent" in told(head.format("ties"))


def test_slices_are_told_layer_by_layer():
    text = told("""
merge_method: slerp
base_model: org/b
slices:
- sources: [{model: org/b, layer_range: [0, 4]}, {model: org/x, layer_range: [2, 6]}]
  parameters: {t: 0.25}
- sources: [{model: org/b, layer_range: [4, 5]}, {model: org/x, layer_range: [6, 7]}]
parameters: {t: 0.5}
""")
    assert "This stacks layers of 1 model with the method `slerp`." in text
    assert "Layers 0 to 3 of the output: 0 to 3 of the base merged with 2 to 5 of `x`." in text
    assert "Layer 4 of the output: 4 of the base merged with 6 of `x`." in text
    assert "t = 0.5, from the file (0 is the base); 0.25 for slice 1" in text


def test_tokenizers_are_told():
    text = told("""
merge_method: linear
models: [{model: x}, {model: y}]
tokenizer:
  source: union
  tokens:
    <a>: {source: x, force: true}
    <b>: {source: {kind: model_token, model: y, token_id: 5}}
    <c>: {source: {kind: zero}}
  pad_to_multiple_of: 64
chat_template: "{{ x }}"
nonfinite: keep_base
""")
    for line in (
        "a tokenizer with the tokens of all models; the base's tokens keep their ids",
        "embedding rows padded to a multiple of 64",
        "token `<a>`: the row of `x`, in every model",
        "token `<b>`: the row of id 5 in `y`, in models that lack it",
        "token `<c>`: zeros, in models that lack it",
        "chat template as the file has it",
        "where the result would be NaN or infinity, the base's value is kept",
        "embedding rows beyond the last token are kept; mergekit cuts them off",
    ):
        assert f"  - {line}\n" in text


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (0.5, "0.5"),
        (1.0, "1"),
        (1e-5, "1e-05"),
        (True, "true"),
        (None, "null"),
        ("mean", "mean"),
        (3, "3"),
        (Gradient((0.4,)), "0.4"),
        (
            Gradient((0.0, 0.5, 0.3, 1.0)),
            "0 in the first layer through 0.5, then 0.3 to 1 in the last",
        ),
        ((Filtered("a", 1.0),), "1 in tensors named `…a…`"),
    ],
)
def test_values_in_words(setting, words):
    assert in_words(setting) == words


@pytest.mark.parametrize("name", ["ram_plus", "ties", "linear", "passthrough"])
def test_lines_are_short(name):
    text = told(f"merge_method: {name}\nbase_model: {'b' * 60}\nmodels: [{{model: {'x' * 60}}}]")
    assert max(map(len, text.splitlines())) <= 100
