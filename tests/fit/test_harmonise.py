"""Views that make models fit: moved names, packed experts, tied heads, vocabularies, extras."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from helpers.reading import model, read_all
from ramerge._types import DType
from ramerge.fit.harmonise import harmonise
from ramerge.models.open import open_checkpoint

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
RNG = np.random.default_rng(2)
BODY = RNG.standard_normal((3, 2)).astype(np.float32)
E = RNG.standard_normal((6, 4)).astype(np.float32)
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}


def said(harmony):
    """The sentences of its notices."""
    return [notice.message for notice in harmony.notices]


def saved(tmp_path, name, tensors, config=None):
    directory = model(tmp_path / name, {"model.norm.weight": BODY, **tensors}, config)
    return open_checkpoint(str(directory))


def numbers(checkpoint, name):
    spec = checkpoint.spec(name)
    kind = {"F32": np.float32, "BF16": ml_dtypes.bfloat16}[spec.dtype.name]
    return read_all(checkpoint, name).view(kind).reshape(spec.shape)


def fit(base, *agents, **options):
    names = [f"a{i}" for i in range(len(agents))]
    return harmonise(base, dict(zip(names, agents, strict=True)), **options)


def same_names(harmony):
    """Every model holds the base's tensors, no more, in one shape."""
    for agent in harmony.agents.values():
        assert agent.names() == harmony.base.names()
        for name in agent.names():
            assert agent.spec(name).shape == harmony.base.spec(name).shape


def test_equal_models_stay_as_they_are(tmp_path):
    base, agent = (saved(tmp_path, n, {EMBED: E, HEAD: E + 1}, UNTIED) for n in "ba")
    harmony = fit(base, agent)
    assert harmony.base is base
    assert harmony.agents["a0"] is agent
    assert (harmony.notices, harmony.problems, harmony.tied) == ([], [], None)


# --- tied heads, reports 1, 4, 5 -----------------------------------------------------------------


def test_spare_equal_head_is_left_out(tmp_path):
    """FSDP saved the tied head too; dropped because it is equal, and said."""
    base = saved(tmp_path, "b", {EMBED: E}, TIED)
    agent = saved(tmp_path, "a", {EMBED: E + 1, HEAD: E + 1}, TIED)
    harmony = fit(base, agent)
    same_names(harmony)
    assert HEAD not in harmony.base.names()
    assert harmony.tied is None
    assert harmony.equal == [("a0", HEAD, EMBED)]
    assert any("left out, tied" in d for d in said(harmony))


def test_diverged_head_unties_the_output(tmp_path):
    """The missing base head is its embedding, both are written, the flag says so."""
    base = saved(tmp_path, "b", {EMBED: E}, TIED)
    diverged = saved(tmp_path, "a", {EMBED: E, HEAD: E + 1}, TIED)
    tied = saved(tmp_path, "c", {EMBED: E + 2}, TIED)
    harmony = fit(base, diverged, tied)
    same_names(harmony)
    assert harmony.tied is False
    assert np.array_equal(numbers(harmony.base, HEAD), E)
    assert np.array_equal(numbers(harmony.agents["a0"], HEAD), E + 1)
    assert np.array_equal(numbers(harmony.agents["a1"], HEAD), E + 2)
    assert any("untied" in d and "`a0`" in d for d in said(harmony))


def test_head_that_differs_in_one_late_element(tmp_path):
    """A small head is compared in full; of a large one, evenly spaced places."""
    head = E.copy()
    head[-1, -1] += 1
    harmony = fit(
        saved(tmp_path, "b", {EMBED: E}, TIED), saved(tmp_path, "a", {EMBED: E, HEAD: head}, TIED)
    )
    assert harmony.tied is False


def test_base_that_stores_its_tied_head(tmp_path):
    """A tied tensor is counted once, so a stored copy of it leaves all models."""
    base = saved(tmp_path, "b", {EMBED: E, HEAD: E}, TIED)
    agent = saved(tmp_path, "a", {EMBED: E + 1}, TIED)
    harmony = fit(base, agent)
    same_names(harmony)
    assert HEAD not in harmony.base.names()
    assert harmony.equal == []  # the base's copy was compared in full
    assert read_all(harmony.base, HEAD).tobytes() == E.tobytes()


def test_base_whose_stored_head_is_not_its_embedding(tmp_path):
    base = saved(tmp_path, "b", {EMBED: E, HEAD: E - 1}, TIED)
    agent = saved(tmp_path, "a", {EMBED: E, HEAD: E - 2}, TIED)
    harmony = fit(base, agent)
    same_names(harmony)
    assert harmony.tied is False


def test_untied_base_and_tied_agent(tmp_path):
    base = saved(tmp_path, "b", {EMBED: E, HEAD: E + 1}, UNTIED)
    agent = saved(tmp_path, "a", {EMBED: E + 3}, TIED)
    harmony = fit(base, agent)
    same_names(harmony)
    assert harmony.tied is None
    assert np.array_equal(numbers(harmony.agents["a0"], HEAD), E + 3)


def test_untied_agent_without_head_is_a_problem(tmp_path):
    """Model, tensor and the way out, not a KeyError."""
    base = saved(tmp_path, "b", {EMBED: E, HEAD: E + 1}, UNTIED)
    agent = saved(tmp_path, "a", {EMBED: E + 3}, UNTIED)
    (problem,) = fit(base, agent).problems
    assert "agent `a0` lacks 1 of the base's 3 tensors: `lm_head.weight`" in problem.message
    assert problem.exit_code == 4


# --- vocabularies, reports 7, 8, 9 ---------------------------------------------------------------


def vocabulary(tmp_path, rows, **options):
    models = []
    for i, n in enumerate(rows):
        values = np.full((n, 4), i + 1, np.float32)
        models.append(saved(tmp_path, f"m{i}", {EMBED: values, HEAD: values * 10}, UNTIED))
    return fit(*models, **options)


def test_unequal_rows_are_an_error_by_default(tmp_path):
    """Both numbers, exit 4; nothing is ever re-initialised."""
    problems = vocabulary(tmp_path, (8, 6)).problems
    assert len(problems) == 2
    assert "unequal numbers of rows: 8 in the base, 6 in agent `a0`" in problems[0].message
    assert "--vocabulary" in problems[0].hint


def test_policy_base_keeps_the_padded_rows(tmp_path):
    """Rows 0..5 from the agent, the padded rest is the base's."""
    harmony = vocabulary(tmp_path, (8, 6, 9), vocabulary="base")
    same_names(harmony)
    assert numbers(harmony.agents["a0"], EMBED)[:, 0].tolist() == [2] * 6 + [1] * 2
    assert numbers(harmony.agents["a1"], HEAD)[:, 0].tolist() == [30] * 8
    assert harmony.vocab_size is None
    assert harmony.problems == []


def test_policy_min(tmp_path):
    harmony = vocabulary(tmp_path, (8, 6, 9), vocabulary="min")
    same_names(harmony)
    assert harmony.base.spec(EMBED).shape == (6, 4)
    assert harmony.vocab_size == 6


def test_policy_union(tmp_path):
    """Added tokens are kept from the agent that has them."""
    harmony = vocabulary(tmp_path, (6, 8, 9), vocabulary="union")
    same_names(harmony)
    assert harmony.vocab_size == 9
    assert numbers(harmony.base, EMBED)[:, 0].tolist() == [1] * 6 + [2] * 2 + [3]
    assert numbers(harmony.agents["a0"], EMBED)[:, 0].tolist() == [2] * 8 + [3]
    assert numbers(harmony.agents["a1"], EMBED)[:, 0].tolist() == [3] * 9


def test_rows_of_unequal_dtype_widen_exactly(tmp_path):
    base = saved(tmp_path, "b", {EMBED: E}, UNTIED)
    short = E[:4].astype(ml_dtypes.bfloat16)
    agent = saved(tmp_path, "a", {EMBED: short}, UNTIED)
    harmony = fit(base, agent, vocabulary="base")
    assert harmony.agents["a0"].spec(EMBED).dtype is DType.F32
    expected = np.concatenate([short.astype(np.float32), E[4:]])
    assert np.array_equal(numbers(harmony.agents["a0"], EMBED), expected)
    out = np.empty(4 * 7, np.uint8)
    harmony.agents["a0"].read(EMBED, 13, 20, out)
    assert out.view(np.float32).tolist() == expected.ravel()[13:20].tolist()


# --- extras, reports 45, 32, 48 ------------------------------------------------------------------

TOWER = {"visual.blocks.0.proj.weight": BODY * 2}


@pytest.mark.parametrize("extra", ["error", "drop", "base", "keep"])
def test_tensors_that_only_an_agent_has(tmp_path, extra):
    """Value heads and towers; always listed."""
    base = saved(tmp_path, "b", {}, {})
    agents = saved(tmp_path, "a", TOWER, {}), saved(tmp_path, "c", {}, {})
    harmony = fit(base, *agents, extra=extra)
    texts = [p.message for p in harmony.problems] + said(harmony)
    assert any("`visual.blocks.0.proj.weight`" in text for text in texts)
    assert bool(harmony.problems) == (extra == "error")
    if extra != "error":
        same_names(harmony)
        assert (next(iter(TOWER)) in harmony.base.names()) == (extra == "keep")
    if extra == "keep":
        for checkpoint in (harmony.base, *harmony.agents.values()):
            assert np.array_equal(numbers(checkpoint, next(iter(TOWER))), BODY * 2)


@pytest.mark.parametrize("extra", ["error", "drop", "base", "keep"])
def test_tensors_that_only_the_base_has(tmp_path, extra):
    """A base with a tower, a text-only agent."""
    harmony = fit(saved(tmp_path, "b", TOWER, {}), saved(tmp_path, "a", {}, {}), extra=extra)
    assert bool(harmony.problems) == (extra in {"error", "drop"})
    if not harmony.problems:
        same_names(harmony)
        assert np.array_equal(numbers(harmony.agents["a0"], next(iter(TOWER))), BODY * 2)


def test_buffers_are_copied_and_said(tmp_path):
    """inv_freq in the base, or in one agent, only."""
    freq = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    harmony = fit(saved(tmp_path, "b", freq, {}), saved(tmp_path, "a", {}, {}))
    same_names(harmony)
    assert "using the base's" in said(harmony)[0]
    harmony = fit(saved(tmp_path, "c", {}, {}), saved(tmp_path, "d", freq, {}))
    same_names(harmony)
    assert "left out of agent `a0`" in said(harmony)[0]


def test_another_architecture(tmp_path):
    base = open_checkpoint(str(model(tmp_path / "b", {"x.weight": BODY, "y.weight": BODY})))
    agent = open_checkpoint(str(model(tmp_path / "a", {"z.weight": BODY})))
    problems = fit(base, agent).problems
    assert "lacks 2 of the base's 2 tensors" in problems[0].message
    assert "`z.weight`" in problems[0].hint


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("language_model.model.layers.0.q.weight", "model.language_model.layers.0.q.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("visual.blocks.0.q.weight", "model.visual.blocks.0.q.weight"),
        ("bert.encoder.layer.0.q.weight", "encoder.layer.0.q.weight"),
        ("h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.weight"),
    ],
)
def test_moved_wrappers_are_matched_and_said(tmp_path, ours, theirs):
    for one, other in ((ours, theirs), (theirs, ours)):
        base = open_checkpoint(str(model(tmp_path / "b", {one: E, "norm.weight": BODY})))
        agent = open_checkpoint(str(model(tmp_path / "a", {other: E + 1, "norm.weight": BODY})))
        harmony = fit(base, agent)
        same_names(harmony)
        assert harmony.problems == []
        assert np.array_equal(numbers(harmony.agents["a0"], one), E + 1)
        assert f"`{other}` for `{one}`" in said(harmony)[0]


def test_names_are_not_matched_across_shapes_or_when_ambiguous(tmp_path):
    base = open_checkpoint(str(model(tmp_path / "b", {"model.q.weight": E})))
    agent = open_checkpoint(str(model(tmp_path / "a", {"transformer.q.weight": E[:2]})))
    assert fit(base, agent).problems
    both = {"transformer.q.weight": E, "bert.q.weight": E}
    agent = open_checkpoint(str(model(tmp_path / "c", both)))
    assert fit(base, agent).problems


def test_packed_experts_are_unpacked(tmp_path):
    """transformers 5 packs the experts of a layer; a base saved before does not."""
    gate, up = RNG.standard_normal((2, 3, 5, 4)).astype(np.float32)  # experts, inner, hidden
    down = RNG.standard_normal((3, 4, 5)).astype(np.float32)
    stem = "model.layers.0.mlp.experts"
    single = {}
    for i in range(3):
        single[f"{stem}.{i}.gate_proj.weight"] = gate[i]
        single[f"{stem}.{i}.up_proj.weight"] = up[i]
        single[f"{stem}.{i}.down_proj.weight"] = down[i]
    packed = {
        f"{stem}.gate_up_proj": np.concatenate([gate, up], axis=1) + 1,
        f"{stem}.down_proj": down + 1,
    }
    base = open_checkpoint(str(model(tmp_path / "b", single)))
    agent = open_checkpoint(str(model(tmp_path / "a", packed)))
    harmony = fit(base, agent)
    same_names(harmony)
    for name, value in single.items():
        assert np.array_equal(numbers(harmony.agents["a0"], name), value + 1), name
    packed[f"{stem}.down_proj"] = down[:, :, :4]
    agent = open_checkpoint(str(model(tmp_path / "c", packed)))
    assert fit(base, agent).problems
