"""Tokenizers and slices through the real engine: it merges them like any other models."""

import json
from functools import partial

import numpy as np
import pytest

from helpers.tokenizer_files import bpe, read, save_model, with_special
from ramerge.config.mergekit import loads
from ramerge.config.resolve import values
from ramerge.fit.inputs import prepare
from ramerge.methods.registry import METHODS as REGISTRY
from ramerge.models.memory import MemoryCheckpoint, MemorySink
from ramerge.output.sidefiles import config_with
from ramerge.planning.plan import plan
from ramerge.run import engine, threads

METHODS = {name: method.info for name, method in REGISTRY.items()}
BASE = bpe()
SIZE = BASE.get_vocab_size()
EMBED = "model.embed_tokens.weight"


def merged(inputs, chunk=131_072):
    made = plan(inputs, REGISTRY[inputs.job.method], {})
    sink = MemorySink(made.layout.specs())
    engine.merge(made, sink, run=partial(threads.run, threads=2), chunk=chunk)
    return sink.arrays({name: np.zeros(0) for name in inputs.base.names()})


@pytest.mark.parametrize("chunk", [1024, 131_072])
def test_union_through_the_engine(tmp_path, chunk):
    """A token of one agent keeps that agent's row; other rows merge as ever."""
    base = save_model(tmp_path / "base", BASE, seed=1)
    chat = save_model(tmp_path / "chat", with_special(BASE, "<|im_start|>"), seed=1)
    tool = save_model(tmp_path / "tool", with_special(BASE, "<|tool|>"), seed=2)
    job = loads(
        f"""
merge_method: ram
base_model: {tmp_path}/base
models: [{{model: {tmp_path}/chat}}, {{model: {tmp_path}/tool}}]
tokenizer: {{source: union, pad_to_multiple_of: 64}}
""",
        METHODS,
    )
    inputs = prepare(job, base, {"chat": chat, "tool": tool})
    result = merged(inputs, chunk)
    rows = -(-(SIZE + 2) // 64) * 64
    assert result[EMBED].shape == (rows, 4) and inputs.config == {"vocab_size": rows}
    assert np.array_equal(result[EMBED][SIZE], read(chat, EMBED)[SIZE])
    assert np.array_equal(result[EMBED][SIZE + 1], read(tool, EMBED)[SIZE])
    assert np.array_equal(result["lm_head.weight"][SIZE + 1], read(tool, "lm_head.weight")[SIZE])
    assert not result[EMBED][SIZE + 2 :].any()
    assert np.array_equal(read(chat, EMBED)[:SIZE], read(base, EMBED)), (
        "so tool's changes are unique"
    )
    assert np.array_equal(result[EMBED][:SIZE], read(tool, EMBED)[:SIZE])


def stack(layers, seed):
    rng = np.random.default_rng(seed)
    names = [f"model.layers.{i}.{t}.weight" for i in range(layers) for t in ("q", "up")]
    names += [EMBED, "model.norm.weight", "lm_head.weight"]
    model = MemoryCheckpoint(
        {n: rng.normal(size=(3, 5)).astype(np.float32) for n in names}, f"m{seed}"
    )
    model.config = {
        "num_hidden_layers": layers,
        "layer_types": [f"{seed}.{i}" for i in range(layers)],
    }
    return model


def test_slices_through_the_engine():
    """With one agent, RAM gives the agent: here the stack of the agents' layers."""
    job = loads(
        """
merge_method: ram
base_model: b
slices:
- sources: [{model: b, layer_range: [0, 2]}, {model: x, layer_range: [1, 3]}]
  parameters: {epsilon: 0}
- sources: [{model: y, layer_range: [0, 1]}, {model: b, layer_range: [1, 2]}]
parameters: {mask: exact}
""",
        METHODS,
    )
    models = {"x": stack(3, 1), "y": stack(1, 2)}
    inputs = prepare(job, stack(2, 0), models)
    assert list(inputs.agents) == ["x+y"] and inputs.job.agents[0].source == "x + y"
    result = merged(inputs)
    expected = {"0": ("x", 1), "1": ("x", 2), "2": ("y", 0)}
    for out, (model, layer) in expected.items():
        for tail in ("q", "up"):
            original = read(models[model], f"model.layers.{layer}.{tail}.weight")
            assert np.array_equal(result[f"model.layers.{out}.{tail}.weight"], original)
    assert np.array_equal(result[EMBED], read(models["x"], EMBED))
    assert np.array_equal(result["lm_head.weight"], read(models["y"], "lm_head.weight"))
    assert inputs.config == {"num_hidden_layers": 3, "layer_types": ["0.0", "0.1", "2.0"]}
    first, last = (inputs.pieces[f"model.layers.{i}.q.weight"] for i in (1, 2))
    ram = METHODS["ram"]
    assert values(inputs.job, ram, "x", 0, first)["epsilon"] == 0
    assert values(inputs.job, ram, "x", 0, last)["epsilon"] == 1e-5
    assert inputs.depths["model.layers.1.q.weight"] == inputs.depths["model.layers.2.q.weight"] == 1


def test_without_tokenizer_and_slices_models_pass_through():
    job = loads("merge_method: ram\nbase_model: b\nmodels: [{model: y}, {model: x}]", METHODS)
    base, models = stack(2, 0), {"x": stack(2, 1), "y": stack(2, 2)}
    inputs = prepare(job, base, models)
    assert inputs.base is base and list(inputs.agents) == ["y", "x"] and inputs.job is job
    assert inputs.agents["x"] is models["x"] and inputs.files == {} and inputs.config == {}


@pytest.mark.parametrize(
    ("config", "changes", "expected"),
    [
        ('{"a": 1}', {}, '{"a": 1}'),
        (
            '{\n  "vocab_size": 10,\n  "x": 1.50\n}\n',
            {"vocab_size": 64},
            '{\n  "vocab_size": 64,\n  "x": 1.50\n}\n',
        ),
        ("{}", {"n": [1, None]}, '{"n": [1, null]}'),
        ('{\n  "x": 1\n}', {"eos_token_id": 5}, '{\n  "eos_token_id": 5,\n  "x": 1\n}'),
        (
            '{"vocab_size": 3, "text_config": {"vocab_size": 3, "e": 1}, "v": {"vocab_size": 3}}',
            {"vocab_size": 4, "e": 2},
            '{"vocab_size": 4, "text_config": {"vocab_size": 4, "e": 2}, "v": {"vocab_size": 3}}',
        ),
        (
            '{"vocab_size": 9, "text_config": {"vocab_size": 3}}',
            {"vocab_size": 4},
            '{"vocab_size": 9, "text_config": {"vocab_size": 4}}',
        ),
        ('{"text_config": {}}', {"vocab_size": 4}, '{"text_config": {"vocab_size": 4}}'),
    ],
)
def test_config_with(config, changes, expected):
    written = config_with(config.encode(), changes).decode()
    assert written == expected and isinstance(json.loads(written), dict)
