"""The published JSON schema accepts what the reader accepts, and refuses the usual mistakes."""

import json

import fastjsonschema
import pytest

from helpers.config import METHODS
from ramerge._errors import MergeError
from ramerge.config.mergekit import KEYS, from_mapping
from ramerge.config.schema import json_schema

SCHEMA = json_schema(METHODS)
VALID = fastjsonschema.compile(SCHEMA)
HEAD = {"merge_method": "ram_plus", "base_model": "b"}
MODELS = {"models": [{"model": "x"}]}
LAYERS = {"layer_range": [0, 2]}

GOOD = [
    {**HEAD, **MODELS},
    {
        **HEAD,
        **MODELS,
        "parameters": {"r": 0.2, "mask": "exact", "int8_mask": True, "weight": [0, 1]},
    },
    {
        **HEAD,
        "models": [
            {"model": "x", "name": "n", "parameters": {"weight": {"filter": "a", "value": 1}}}
        ],
    },
    {**HEAD, "models": [{"model": {"model": {"path": "x", "revision": "r"}, "lora": "l"}}]},
    {
        **HEAD,
        **MODELS,
        "parameters": None,
        "preset": "paper",
        "out_dtype": "bfloat16",
        "dtype": None,
    },
    {**HEAD, **MODELS, "shard_size": "5GB", "exclude": ["a"], "nonfinite": "keep_base"},
    {**HEAD, **MODELS, "tokenizer_source": "union", "chat_template": "chatml"},
    {**HEAD, **MODELS, "tokenizer": {"tokens": {"t": {"source": {"kind": "zero"}, "force": True}}}},
    {"merge_method": "ramplus_tl", "base_model": "b", **MODELS},
    {
        "merge_method": "ties",
        "base_model": "b",
        **MODELS,
        "parameters": {
            "density": [{"filter": "a", "value": [0, 1]}, {"value": 0.5}],
            "normalize": {"value": True},
        },
    },
    {"merge_method": "linear", **MODELS, "parameters": {"normalize": False}},
    {"merge_method": "passthrough", "slices": [{"sources": [{"model": "x", **LAYERS}]}]},
    {
        "merge_method": "slerp",
        "base_model": "b",
        "parameters": {"t": 0.5},
        "slices": [
            {
                "sources": [{"model": "x", **LAYERS}, {"model": "b", **LAYERS}],
                "parameters": {"t": 1},
            }
        ],
    },
]
BAD = [
    {**HEAD},
    {**MODELS},
    {"merge_method": "ram_plus", **MODELS},
    {**HEAD, **MODELS, "dtyp": "float16"},
    {**HEAD, **MODELS, "slices": [{"sources": [{"model": "x", **LAYERS}]}]},
    {"merge_method": "tie", "base_model": "b", **MODELS},
    {**HEAD, **MODELS, "parameters": {"rr": 1}},
    {**HEAD, **MODELS, "parameters": {"r": -1}},
    {**HEAD, **MODELS, "parameters": {"alpha": 0}},
    {**HEAD, **MODELS, "parameters": {"r": [0, 1]}},
    {**HEAD, **MODELS, "parameters": {"mask": "exakt"}},
    {**HEAD, "models": [{"model": "x", "parameters": {"r": 1}}]},
    {**HEAD, "models": [{"model": "x", "weight": 1}]},
    {**HEAD, "models": []},
    {**HEAD, **MODELS, "preset": "papr"},
    {**HEAD, **MODELS, "out_dtype": "int8"},
    {**HEAD, **MODELS, "tokenizer": {}, "tokenizer_source": "base"},
    {"merge_method": "passthrough", "slices": [{"sources": [{"model": "x"}]}]},
]


@pytest.mark.parametrize("document", GOOD)
def test_both_accept(document):
    VALID(document)
    from_mapping(document, METHODS)


@pytest.mark.parametrize("document", BAD)
def test_both_refuse(document):
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        VALID(document)
    with pytest.raises(MergeError):
        from_mapping(document, METHODS)


def test_it_knows_every_key_and_is_json():
    assert set(SCHEMA["properties"]) == set(KEYS)
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA


def test_parameters_carry_meaning_and_default():
    r = SCHEMA["definitions"]["ram_plus.all"]["properties"]["r"]
    assert r == {"type": "number", "minimum": 0, "description": "bonus", "default": 0.1}
