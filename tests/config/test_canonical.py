"""A job written as YAML reads back as an equal job."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.config import METHODS
from ramerge._types import DType
from ramerge.config.canonical import to_yaml
from ramerge.config.job import AgentJob, Filtered, Gradient, Job, Slice, SliceSource
from ramerge.config.mergekit import loads
from ramerge.config.vocabulary import TokenizerRules, TokenRule

text = st.text(min_size=1, max_size=12).filter(lambda t: t.strip() and t.rstrip("/") == t)
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = finite | st.lists(finite, min_size=1, max_size=3).map(lambda a: Gradient(tuple(a)))
patterns = text.filter(lambda t: t != "*")
arms = st.builds(
    lambda middle, last: (*middle, *last),
    st.lists(st.builds(Filtered, patterns, plain), min_size=1, max_size=2),
    st.lists(st.builds(Filtered, st.none(), plain), max_size=1),
)
weight = st.fixed_dictionaries({}, optional={"weight": plain | arms})
names = st.lists(
    st.from_regex(r"[a-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True),
    unique=True,
    min_size=1,
    max_size=4,
)


def agents(found):
    jobs = [
        st.builds(AgentJob, st.just(name), text.map(lambda t: f"m/{t}"), weight) for name in found
    ]
    return st.tuples(*jobs)


tokens = st.builds(TokenRule, text, force=st.booleans()) | st.builds(
    TokenRule, text, st.just("zero")
)
rules = st.builds(
    TokenizerRules,
    st.sampled_from(["base", "union"]),
    st.lists(tokens, unique_by=lambda rule: rule.token, max_size=3).map(tuple),
    st.none() | st.integers(1, 512),
)
jobs = st.builds(
    Job,
    base=st.just("org/base"),
    agents=names.filter(lambda n: not {"base", "union"} & set(n)).flatmap(agents),
    method=st.just("ram_plus"),
    parameters=st.fixed_dictionaries(
        {}, optional={"r": st.floats(0, 1e300), "mask": st.just("grid")}
    ),
    base_parameters=weight,
    preset=st.sampled_from([None, "paper"]),
    out_dtype=st.sampled_from([None, DType.BF16, DType.F32]),
    nonfinite=st.sampled_from(["error", "keep_base"]),
    shard_size=st.integers(1, 10**13),
    exclude=st.lists(text, max_size=2).map(tuple),
    tokenizer=st.none() | rules,
    chat_template=st.none() | st.just("chatml") | text.map(lambda t: "{{" + t),
)


@settings(max_examples=150, deadline=None)
@given(jobs)
def test_round_trip(job):
    written = to_yaml(job)
    written.encode()
    assert loads(written, METHODS) == job
    assert to_yaml(loads(written, METHODS)) == written


def test_how_it_looks():
    job = Job(
        base="org/base",
        agents=(
            AgentJob("coder", "https://u:p@host/coder", {"weight": Gradient((0.0, 1.0))}),
            AgentJob("t", "a b"),
        ),
        method="ram_plus",
        parameters={"r": 1e-05, "weight": (Filtered("mlp", 0.5), Filtered(None, 1.0))},
        preset="paper",
        out_dtype=DType.BF16,
        exclude=("*.bias",),
        tokenizer=TokenizerRules("union", (TokenRule("<|x|>", "model", "t", force=True),), 64),
    )
    assert (
        to_yaml(job)
        == """\
merge_method: ram_plus
preset: paper
base_model: org/base
models:
- model: "https://host/coder"
  name: coder
  parameters:
    weight: [0.0, 1.0]
- model: "a b"
  name: t
parameters:
  r: 1e-05
  weight:
  - filter: mlp
    value: 0.5
  - value: 1.0
out_dtype: bfloat16
tokenizer:
  source: union
  tokens:
    "<|x|>":
      source: t
      force: true
  pad_to_multiple_of: 64
exclude: ["*.bias"]
"""
    )


def test_sources_can_be_shortened():
    job = Job(base="/data/base", agents=(AgentJob("a", "/data/a"),), method="ram_plus")
    assert "/data" not in to_yaml(job, source=lambda s: s.rsplit("/", 1)[-1])


def test_slices_round_trip():
    job = Job(
        base="b",
        agents=(AgentJob("x", "org/x"),),
        method="slerp",
        parameters={"t": 0.5},
        slices=(
            Slice((SliceSource("base", 0, 2, "b"), SliceSource("x", 1, 3, "org/x")), {"t": 0.25}),
            Slice((SliceSource("x", 0, 1, "org/x"), SliceSource("base", 5, 6, "b"))),
        ),
    )
    assert loads(to_yaml(job), METHODS) == job


@pytest.mark.parametrize(
    "word",
    [
        "yes",
        "1",
        "1e5",
        "null",
        "",
        "a: b",
        "- x",
        "#",
        "\u2028",
        "\x85",
        "😀",
        "a\nb",
        "'",
        '"',
        "~",
    ],
)
def test_words_that_yaml_would_take_for_something_else(word):
    job = Job(
        base="b",
        agents=(AgentJob("x", "x"),),
        method="ram_plus",
        chat_template="{" + word,
        exclude=(f"p{word}",),
    )
    assert loads(to_yaml(job), METHODS) == job
