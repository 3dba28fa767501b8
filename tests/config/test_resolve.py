"""Settings become plain numbers, tensor by tensor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.config import METHODS
from ramerge._errors import ConfigError
from ramerge.config import resolve as r
from ramerge.config.job import Filtered, Gradient
from ramerge.config.mergekit import loads

Q = "model.layers.2.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("depth", "value"),
    [(0, 0), (0.125, 0.25), (0.25, 0.5), (0.5, 0.3), (0.75, 0.7), (1, 1), (0.875, 0.85)],
)
def test_gradients_are_linear_between_anchors(depth, value):
    assert r.resolve(Gradient((0, 0.5, 0.3, 0.7, 1)), Q, depth) == pytest.approx(value, abs=1e-15)


def test_one_anchor_is_a_constant():
    assert r.resolve(Gradient((0.4,)), Q, 0.7) == 0.4


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=6), st.floats(0, 1))
def test_gradients_stay_between_their_anchors(anchors, depth):
    value = r.resolve(Gradient(tuple(anchors)), Q, depth)
    span = max(map(abs, anchors)) * 1e-15
    assert min(anchors) - span <= value <= max(anchors) + span


@pytest.mark.parametrize("i", range(5))
def test_anchors_are_exact(i):
    anchors = (0.1, 0.7, 0.2, 0.9, 0.3)
    assert r.resolve(Gradient(anchors), Q, i / 4) == anchors[i]


def test_first_filter_that_fits_wins():
    setting = (
        Filtered("self_attn", 0.1),
        Filtered("q_proj", 0.2),
        Filtered(None, Gradient((0.0, 1.0))),
    )
    assert r.resolve(setting, Q, 0.5) == 0.1
    assert r.resolve(setting, "model.q_proj", 0.5) == 0.2
    assert r.resolve(setting, "model.layers.1.mlp.up_proj.weight", 0.5) == 0.5
    assert r.resolve(setting[:2], "model.norm.weight", 0.5) is r.SILENT


def job(text):
    return loads("merge_method: ties\nbase_model: b\n" + text, METHODS)


def test_precedence_agent_over_file_over_default():
    merge = job("""
models:
- {model: x, parameters: {weight: [{filter: q_proj, value: 3}]}}
- {model: y, parameters: {density: 1}}
parameters: {weight: 2, lambda: 0.5}
""")
    info = METHODS["ties"]
    assert r.values(merge, info, Q) == {
        "density": (0.2, 1.0),
        "weight": (3.0, 2.0),
        "lambda": 0.5,
        "normalize": False,
        "seed": 0,
    }
    assert r.values(merge, info, "norm")["weight"] == (2.0, 2.0)


def test_preset_between_file_and_default():
    text = "merge_method: ramplus_tl\nbase_model: b\nmodels: [{model: x}]\nparameters: {alpha: 0.7}"
    found = r.values(loads(text, METHODS), METHODS["ram_plus"], Q)
    assert (found["alpha"], found["scope"], found["r"]) == (0.7, "tensor", 0.1)


def test_slices_come_first():
    merge = loads(
        """
merge_method: linear
slices:
- sources:
  - {model: x, layer_range: [0, 2], parameters: {weight: 5}}
  - {model: y, layer_range: [1, 3]}
  parameters: {weight: 4, normalize: false}
- sources: [{model: y, layer_range: [3, 4]}]
parameters: {weight: 3}
""",
        METHODS,
    )
    info = METHODS["linear"]
    assert r.values(merge, info, Q, 0.0, merge.slices[0]) == {
        "weight": (5.0, 4.0),
        "normalize": False,
    }
    assert r.values(merge, info, Q, 0.0, merge.slices[1]) == {"weight": (3.0,), "normalize": True}


def test_a_required_value_that_no_filter_gives():
    text = "merge_method: slerp\nbase_model: b\nmodels: [{model: x}]\n"
    text += "parameters: {t: [{filter: mlp, value: 1}]}"
    merge = loads(text, METHODS)
    assert r.values(merge, METHODS["slerp"], "mlp.w") == {"t": 1.0}
    with pytest.raises(ConfigError, match=r"`t` is not set for tensor `norm` \(the file\)"):
        r.values(merge, METHODS["slerp"], "norm")


def test_base_value():
    text = "merge_method: ties\nbase_model: b\n"
    text += "models: [{model: b, parameters: {weight: 9}}, {model: x}]"
    merge = loads(text, METHODS)
    assert r.base_value(merge, METHODS["ties"], "weight", Q) == 9.0
    assert r.base_value(merge, METHODS["ties"], "density", Q) == 0.2


def test_layers_for_multi_token_prediction_do_not_shift_a_gradient():
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(3)]
    names += [f"visual.blocks.{i}.attn.qkv.weight" for i in range(2)]
    config = {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    assert list(r.depths(names, config).values()) == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert list(r.depths(names, {"text_config": config}).values())[:3] == [0.0, 1.0, 1.0]
    assert list(r.depths(names, {"num_hidden_layers": 3}).values())[:3] == [0.0, 0.5, 1.0]


def test_depths():
    names = ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"]
    names += [f"model.layers.{i}.mlp.experts.7.w" for i in range(5)]
    names += [f"visual.blocks.{i}.w" for i in (0, 1, 2)] + [
        "blocks.0.w",
        "h.10.x",
        "h.2.x",
        "7",
        "a.3",
    ]
    found = r.depths(names)
    assert (
        found["model.embed_tokens.weight"]
        == found["lm_head.weight"]
        == found["model.norm.weight"]
        == 0
    )
    assert [found[f"model.layers.{i}.mlp.experts.7.w"] for i in range(5)] == [0, 0.25, 0.5, 0.75, 1]
    assert [found[f"visual.blocks.{i}.w"] for i in range(3)] == [0, 0.5, 1]
    assert (found["blocks.0.w"], found["h.10.x"], found["h.2.x"]) == (1, 1, 0.2)
    assert r.layer_of("model.layers.12.x") == ("model.layers", 12)
    assert r.layer_of("layers.v2.x") is None


def test_excluded():
    assert r.excluded(("embed",), "model.embed_tokens.weight")
    assert r.excluded(("*.bias",), "a.bias") and not r.excluded(("*.bias",), "a.bias.x")
    assert not r.excluded((), "a")


def test_unused_filters():
    merge = job("""
models: [{model: x, parameters: {weight: [{filter: q_prj, value: 3}, {filter: mlp, value: 1}]}}]
exclude: [embed, "*.bias"]
""")
    assert r.unused_filters(merge, [Q, "model.layers.0.mlp.w", "model.embed"]) == (
        "q_prj",
        "*.bias",
    )


def test_an_only_agent_may_carry_every_parameter():
    text = "merge_method: slerp\nbase_model: b\nmodels: [{model: x, parameters: {t: [0, 1]}}]"
    assert r.values(loads(text, METHODS), METHODS["slerp"], Q, 0.25) == {"t": 0.25}
    text = "merge_method: slerp\nbase_model: b\nslices:\n- sources:\n"
    text += "  - {model: b, layer_range: [0, 2]}\n"
    text += "  - {model: x, layer_range: [0, 2], parameters: {t: 0.75}}\n"
    assert r.values(loads(text, METHODS), METHODS["slerp"], Q) == {"t": 0.75}
