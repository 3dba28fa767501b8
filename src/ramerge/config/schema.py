"""The published JSON schema of merge files, for editors and for programs that write them.

It is made from the same signatures as the reader obeys. What a schema cannot say (names that must
be unique, filters that are never reached) the reader checks.
"""

from __future__ import annotations

import math

from ramerge._signature import MethodInfo, Methods, Parameter
from ramerge._types import Json
from ramerge.config.fields import FLOATS
from ramerge.config.mergekit import EXTRA, NONFINITE, VOCABULARY
from ramerge.config.settings import no_effect

_KINDS = {"float": "number", "int": "integer", "bool": "boolean", "str": "string", "path": "string"}
_TEXT: Json = {"type": "string", "minLength": 1}


def json_schema(methods: Methods) -> Json:
    """The schema of a merge file, JSON Schema draft-07 (what editors know best).

    Args:
        methods: every method with its signature; each gets its own rule for ``parameters``.
    """
    names = [*methods, *(alias for info in methods.values() for alias in info.aliases)]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ramerge merge file",
        "description": "mergekit's dialect, strict",
        "type": "object",
        "properties": _top(names),
        "required": ["merge_method"],
        "oneOf": [{"required": ["models"]}, {"required": ["slices"]}],
        "not": {"required": ["tokenizer", "tokenizer_source"]},
        "additionalProperties": False,
        "allOf": [_rule(info) for info in methods.values()],
        "definitions": _definitions(methods),
    }


def _top(names: list[str]) -> Json:
    nullable_text = {"type": ["string", "null"]}
    return {
        "merge_method": {"enum": names, "description": "see `ramerge methods`"},
        "preset": nullable_text | {"description": "named set of parameter values"},
        "base_model": {"anyOf": [{"$ref": "#/definitions/reference"}, {"type": "null"}]},
        "models": {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/model"}},
        "slices": {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/slice"}},
        "parameters": {"type": ["object", "null"]},
        "dtype": _dtype("output type where out_dtype is not given; arithmetic is always fp32"),
        "out_dtype": _dtype("output type; default: every tensor keeps the base's"),
        "tokenizer_source": {
            "anyOf": [{"$ref": "#/definitions/reference"}, {"type": "null"}],
            "description": "base, union, or one of the models",
        },
        "tokenizer": {"anyOf": [{"$ref": "#/definitions/tokenizer"}, {"type": "null"}]},
        "chat_template": nullable_text | {"description": "a name, or a Jinja template"},
        "nonfinite": {"enum": [*NONFINITE, None], "description": "what NaN and infinity do"},
        "extra": {"enum": [*EXTRA, None], "description": "tensors that not all models have"},
        "vocabulary": {"enum": [*VOCABULARY, None], "description": "embeddings of unequal length"},
        "exclude": {
            "anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}],
            "description": "tensors to copy from the base: parts of names, or globs",
        },
        "shard_size": {"type": ["string", "integer", "null"], "description": "such as 5GB"},
    }


def _dtype(meaning: str) -> Json:
    return {"enum": [*FLOATS, None], "description": meaning}


def _definitions(methods: Methods) -> Json:
    located = {
        "anyOf": [
            _TEXT,
            _object({"path": _TEXT, "revision": {"type": ["string", "null"]}}, ["path"]),
        ]
    }
    parameters = {"type": ["object", "null"]}
    source = {"model": {"$ref": "#/definitions/reference"}, "name": _TEXT, "parameters": parameters}
    bound = {"type": "integer", "minimum": 0}
    layers = {"type": "array", "items": [bound, bound], "minItems": 2, "maxItems": 2}
    part = _object({**source, "layer_range": layers}, ["model", "layer_range"])
    pieces = {"type": "array", "minItems": 1, "items": part}
    per_method = {f"{info.name}.all": _parameters(info, agent=False) for info in methods.values()}
    per_agent = {f"{info.name}.agent": _parameters(info, agent=True) for info in methods.values()}
    return {
        "reference": {"anyOf": [_TEXT, _object({"model": located, "lora": located}, ["model"])]},
        "model": _object(source, ["model"]),
        "slice": _object({"sources": pieces, "parameters": parameters}, ["sources"]),
        "tokenizer": _tokenizer(),
        **per_method,
        **per_agent,
    }


def _tokenizer() -> Json:
    reference = {"$ref": "#/definitions/reference"}
    token_id = {"type": "integer", "minimum": 0}
    other = {"kind": {"const": "model_token"}, "model": reference}
    origins = [
        reference,
        _object({"kind": {"const": "zero"}}, ["kind"]),
        _object({**other, "token": _TEXT}, ["kind", "model", "token"]),
        _object({**other, "token_id": token_id}, ["kind", "model", "token_id"]),
    ]
    rule = _object({"source": {"anyOf": origins}, "force": {"type": "boolean"}}, [])
    fields = {
        "source": reference,
        "tokens": {"type": ["object", "null"], "additionalProperties": rule},
        "pad_to_multiple_of": {"type": ["integer", "null"], "minimum": 1},
    }
    return _object(fields, [])


def _rule(info: MethodInfo) -> Json:
    """What holds where the file's method is ``info``."""
    shared, own = (
        {"$ref": f"#/definitions/{info.name}.all"},
        {"$ref": f"#/definitions/{info.name}.agent"},
    )
    listed = {"items": {"properties": {"parameters": own}}}
    pieces = {"items": {"properties": {"parameters": shared, "sources": listed}}}
    then: Json = {
        "properties": {
            "parameters": shared,
            "models": listed,
            "slices": pieces,
            "preset": {"enum": [*info.presets, None]},
        }
    }
    if info.base == "required":
        then["required"] = ["base_model"]
    names = {"enum": [info.name, *info.aliases]}
    return {"if": {"properties": {"merge_method": names}}, "then": then}


def _parameters(info: MethodInfo, *, agent: bool) -> Json:
    shown = {n: p for n, p in info.signature.items() if info.of_agent(p) or not agent}
    properties: Json = {name: _parameter(p) for name, p in shown.items()}
    properties |= {
        name: {"description": f"no effect: {why}"} for name, why in no_effect(info).items()
    }
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}


def _parameter(parameter: Parameter) -> Json:
    single = _single(parameter)
    about: Json = {"description": parameter.meaning} if parameter.meaning else {}
    if not parameter.required:
        about["default"] = _finite(parameter.default)
    if not parameter.per_tensor:
        return single | about
    gradient = {"type": "array", "minItems": 1, "items": single}
    plain = {"anyOf": [single, gradient]} if parameter.kind == "float" else single
    arm = _object({"filter": {"type": ["string", "null"]}, "value": plain}, ["value"])
    arms = {"type": "array", "minItems": 1, "items": arm}
    return {"anyOf": [plain, arm, arms], **about}


def _single(parameter: Parameter) -> Json:
    if parameter.choices:
        return {"enum": [*parameter.choices, *([None] if parameter.nullable else [])]}
    kind = _KINDS[parameter.kind]
    schema: Json = {"type": [kind, "null"] if parameter.nullable else kind}
    bounds = (
        ("exclusiveMinimum" if parameter.minimum_open else "minimum", parameter.minimum),
        ("exclusiveMaximum" if parameter.maximum_open else "maximum", parameter.maximum),
    )
    return schema | {k: bound for k, bound in bounds if bound is not None and math.isfinite(bound)}


def _finite(value: object) -> object:
    """JSON has no infinity."""
    return f"{value}" if isinstance(value, float) and not math.isfinite(value) else value


def _object(properties: Json, required: list[str]) -> Json:
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})
