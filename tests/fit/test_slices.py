"""Slices: names of the output's tensors and where each comes from."""

import numpy as np
import pytest

from helpers.config import METHODS
from ramerge._errors import ConfigError, IncompatibleError, MergeError
from ramerge.config.mergekit import loads
from ramerge.fit.slices import Place, is_embedding, layer_config, plan_slices, streams
from ramerge.models.memory import MemoryCheckpoint
from ramerge.models.views.stacked import StackedCheckpoint


def model(layers, *extra):
    inner = [f"model.layers.{i}.{t}.weight" for i in range(layers) for t in ("attn.q", "mlp.up")]
    return [*inner, "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", *extra]


STACK = loads(
    """
merge_method: passthrough
slices:
- sources: [{model: org/x, layer_range: [0, 3]}]
- sources: [{model: org/y, layer_range: [1, 3]}]
- sources: [{model: org/x, layer_range: [2, 3]}]
""",
    METHODS,
)


def test_a_stack_of_layers():
    plan = plan_slices(STACK, {"x": model(3), "y": model(4)})
    places = {t.name: t.places for t in plan.tensors}
    assert len(places) == 3 + 2 * 6
    assert places["model.embed_tokens.weight"] == (Place("x", "model.embed_tokens.weight"),)
    assert places["model.layers.3.mlp.up.weight"] == (Place("y", "model.layers.1.mlp.up.weight"),)
    assert places["model.layers.5.attn.q.weight"] == (Place("x", "model.layers.2.attn.q.weight"),)
    assert plan.origins == (("x", 0), ("x", 1), ("x", 2), ("y", 1), ("y", 2), ("x", 2))


def test_norm_and_head_come_from_the_last_slice():
    job = loads(
        """
merge_method: passthrough
slices:
- sources: [{model: x, layer_range: [0, 1]}]
- sources: [{model: y, layer_range: [0, 1]}]
""",
        METHODS,
    )
    plan = plan_slices(job, {"x": model(1), "y": model(1)})
    outside = {t.name: t.places[0].model for t in plan.tensors if "layers" not in t.name}
    assert outside == {
        "model.embed_tokens.weight": "x",
        "model.norm.weight": "y",
        "lm_head.weight": "y",
    }


def test_depth_runs_through_each_slice():
    plan = plan_slices(STACK, {"x": model(3), "y": model(4)})
    depths = {t.name.split(".attn")[0]: t.depth for t in plan.tensors if "attn" in t.name}
    assert list(depths.values()) == [0, 0.5, 1, 0, 1, 1]
    assert {t.depth for t in plan.tensors if "layers" not in t.name} == {0}


SLERP = loads(
    """
merge_method: slerp
base_model: b
slices:
- sources: [{model: b, layer_range: [0, 2]}, {model: x, layer_range: [1, 3]}]
- sources: [{model: y, layer_range: [0, 1]}, {model: b, layer_range: [2, 3]}]
parameters: {t: 0.5}
""",
    METHODS,
)


def test_streams_are_whole_models():
    found = {"base": model(3), "x": model(3), "y": model(1)}
    plan = plan_slices(SLERP, found)
    whole = streams(SLERP, plan)
    assert set(whole.base) == set(whole.agents[0]) == set(model(3)) and len(whole.agents) == 1
    assert {p.model for p in whole.base.values()} == {"base"}
    agent = whole.agents[0]
    assert agent["model.layers.1.attn.q.weight"] == Place("x", "model.layers.2.attn.q.weight")
    assert agent["model.layers.2.attn.q.weight"] == Place("y", "model.layers.0.attn.q.weight")
    assert agent["lm_head.weight"].model == "y" and agent["model.embed_tokens.weight"].model == "x"


def test_slices_that_merge_different_numbers():
    job = loads(
        """
merge_method: linear
slices:
- sources: [{model: x, layer_range: [0, 1]}, {model: y, layer_range: [0, 1]}]
- sources: [{model: x, layer_range: [0, 1]}]
""",
        METHODS,
    )
    with pytest.raises(ConfigError, match="slice 2 merges 1 agent, slice 1 2 agents"):
        streams(job, plan_slices(job, {"x": model(1), "y": model(1)}))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (model(3), model(2), "slice 2 takes layers [1, 3] of agent `y`, which has 2"),
        (
            model(3),
            [*model(4), "visual.blocks.0.w"],
            "agent `y` has 2 stacks of layers (`model.layers`, `visual.blocks`), not 1",
        ),
        (["a"], model(4), "agent `x` has 0 stacks of layers (none), not 1"),
    ],
)
def test_refusals(x, y, message):
    with pytest.raises(IncompatibleError) as error:
        plan_slices(STACK, {"x": x, "y": y})
    assert error.value.message == message


def test_layers_with_other_tensors():
    names = {"base": model(3), "x": [*model(3), "model.layers.2.attn.q.bias"], "y": model(1)[1:]}
    with pytest.raises(MergeError) as error:
        plan_slices(SLERP, names)
    assert [p.message for p in error.value.problems] == [
        "layer 2 of agent `x` has `attn.q.bias`, layer 1 of the base has not",
        "layer 2 of the base has `attn.q.weight`, layer 0 of agent `y` has not",
    ]


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("model.embed_tokens.weight", True),
        ("transformer.wte.weight", True),
        ("transformer.wpe.weight", True),
        ("bert.embeddings.LayerNorm.weight", True),
        ("transformer.word_embeddings_layernorm.bias", True),
        ("tok_embeddings.weight", True),
        ("shared.weight", True),
        ("gpt_neox.embed_in.weight", True),
        ("embed_out.weight", False),
        ("lm_head.weight", False),
        ("model.norm.weight", False),
        ("transformer.ln_f.bias", False),
        ("score.weight", False),
        ("model.embedded.weight", False),
    ],
)
def test_what_lies_before_the_layers(name, before):
    assert is_embedding(name) is before


def test_config_of_the_stack():
    plan = plan_slices(STACK, {"x": model(3), "y": model(4)})
    x = {"num_hidden_layers": 3, "layer_types": ["a", "b", "c"], "hidden_size": 3, "eos": [1, 2]}
    y = {"num_hidden_layers": 4, "layer_types": ["d", "e", "f", "g"]}
    assert layer_config(x, {"x": x, "y": y}, plan) == {
        "num_hidden_layers": 6,
        "layer_types": ["a", "b", "c", "e", "f", "c"],
    }
    nested = {"text_config": x}
    assert layer_config(nested, {"x": nested, "y": y}, plan)["num_hidden_layers"] == 6
    assert layer_config({"n_layer": 6}, {"x": {}, "y": {}}, plan) == {}


def test_a_stacked_checkpoint_reads_under_other_names():
    one = MemoryCheckpoint({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, "one")
    two = MemoryCheckpoint({"b": np.arange(4, dtype=np.float16)}, "two")
    stack = StackedCheckpoint({"y": (two, "b"), "x": (one, "a"), "z": (one, "a")}, like=one)
    assert stack.names() == ("x", "y", "z") and stack.source == "one"
    assert (stack.spec("z").name, stack.spec("z").shape) == ("z", (2, 3))
    out = np.empty(8, np.uint8)
    stack.read("z", 2, 4, out)
    assert out.view(np.float32).tolist() == [2, 3]
    with pytest.raises(KeyError):
        stack.spec("a")


def test_files_of_a_stack_keep_apart(tmp_path):
    from safetensors.numpy import save_file

    from ramerge.models.open import open_checkpoint

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        save_file({"a": np.ones(3, np.float32)}, tmp_path / name / "model.safetensors")
    one, two = (open_checkpoint(str(tmp_path / n)) for n in ("one", "two"))
    stack = StackedCheckpoint({"x": (one, "a"), "y": (two, "a")}, like=one)
    assert [f.name for f in stack.files()] == ["1/model.safetensors", "2/model.safetensors"]
    assert stack.extent("y").file == "2/model.safetensors"
    alone = StackedCheckpoint({"x": (one, "a")}, like=one)
    assert alone.files() == one.files() and alone.extent("x") == one.extent("a")
