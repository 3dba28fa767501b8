"""Every registered method can be configured: file, flags, schema, canonical form."""

import fastjsonschema
import pytest

from ramerge._signature import defaults
from ramerge.config.canonical import to_mapping, to_yaml
from ramerge.config.mergekit import find_method, from_mapping, loads
from ramerge.config.resolve import values
from ramerge.config.schema import json_schema
from ramerge.config.yaml import Where, from_value
from ramerge.methods.registry import METHODS as REGISTRY

METHODS = {name: method.info for name, method in REGISTRY.items()}
VALID = fastjsonschema.compile(json_schema(METHODS))
EXAMPLE = {"float": 0.5, "int": 1, "bool": True, "str": "x", "path": "f.safetensors"}


def document(info):
    """A file that sets every parameter of a method."""
    count = info.min_agents
    given = {}
    for name, p in info.signature.items():
        value = p.choices[0] if p.choices else EXAMPLE[p.kind]
        given[name] = value if p.default is None else p.default
    return {
        "merge_method": info.name,
        "base_model": "base",
        "models": [{"model": f"agent{i}"} for i in range(count)],
        "parameters": given,
    }


@pytest.mark.parametrize("info", METHODS.values(), ids=lambda i: i.name)
def test_a_method_is_configured_by_its_signature(info):
    tree = document(info)
    VALID(tree)
    job = from_mapping(tree, METHODS)
    assert job.method == info.name
    assert loads(to_yaml(job), METHODS) == job
    VALID(to_mapping(job))
    assert set(values(job, info, "model.norm.weight")) == set(info.signature)
    assert set(defaults(info.signature)) <= set(info.signature)
    assert all(p.meaning for p in info.signature.values()), "help needs a meaning"


@pytest.mark.parametrize("info", METHODS.values(), ids=lambda i: i.name)
def test_presets_set_parameters_of_the_method(info):
    for name, preset in info.presets.items():
        for parameter, value in preset.items():
            assert info.signature[parameter].fit(value) == value, (name, parameter)
    for alias, preset in info.aliases.items():
        found = find_method(from_value(alias, Where("test")), METHODS)
        assert found == (info, preset)
        assert preset is None or preset in info.presets
