"""Whatever stands in a file: a job that round-trips, or an error with exit code 2 and a place."""

import random
import re
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.config import METHODS
from ramerge._errors import MergeError, ProblemsError
from ramerge.config.canonical import to_yaml
from ramerge.config.explain import explain
from ramerge.config.mergekit import KEYS, from_mapping, loads
from ramerge.config.resolve import values

WORDS = [
    *METHODS, "ramplus_tl", "base", "union", "a", "b", "org/x@r+l", "mlp", "*", "5GB", "bfloat16",
    "paper", "error", "chatml", "{{ x }}", "", " ", "yes", "exact", "model_token", "zero",
]  # fmt: skip
NAMES = [
    *KEYS, "model", "name", "filter", "value", "sources", "layer_range", "source", "tokens",
    "force", "kind", "token", "token_id", "path", "revision", "lora", "weight", "density",
    "r", "mask", "t", "lambda", "int8_mask", "pad_to_multiple_of", "fisher", "scale", "dtyp",
]  # fmt: skip
scalars = st.sampled_from(
    [None, True, False, 0, 1, -1, 3, 0.5, 1e-5, float("inf"), float("nan"), *WORDS]
)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=10,
)
models = st.lists(
    st.fixed_dictionaries({"model": scalars}, optional={"parameters": trees, "name": scalars}),
    max_size=3,
)
documents = st.fixed_dictionaries(
    {"merge_method": st.sampled_from([*METHODS, "ramplus_tl"])},
    optional={key: trees for key in KEYS if key not in {"merge_method", "models", "base_model"}}
    | {"models": models | trees, "base_model": scalars},
)


def check(read):
    try:
        job = read()
    except MergeError as error:
        problems = error.problems if isinstance(error, ProblemsError) else [error]
        assert all(p.exit_code == 2 and p.message and not p.message.endswith(".") for p in problems)
        return None
    info = METHODS[job.method]
    again = loads(to_yaml(job), METHODS)
    assert again == job
    assert explain(job, info)
    try:
        values(job, info, "model.layers.0.mlp.w", 0.5)
    except MergeError as error:
        assert "is not set for tensor" in error.message
    return job


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents)
def test_any_tree(document):
    check(lambda: from_mapping(document, METHODS))


FILES = [
    """\
merge_method: ties
base_model: b
models:
- model: x
  parameters:
    density: [1, 0.7]
    weight:
    - filter: mlp
      value: 0.5
    - value: 0
- model: y
parameters: {lambda: 0.5}
dtype: float16
""",
    """\
merge_method: slerp
base_model: b
slices:
- sources:
  - {model: b, layer_range: [0, 4]}
  - {model: x, layer_range: [2, 6]}
  parameters: {t: 0.25}
parameters: {t: [0, 1]}
""",
    """\
merge_method: ram_plus
preset: paper
base_model: b
models: [{model: x, name: n}]
tokenizer:
  source: union
  tokens:
    <x>: {source: n, force: true}
shard_size: 5GB
exclude: [embed]
nonfinite: error
""",
]


@pytest.mark.parametrize("seed", range(6))
def test_edited_files(seed):
    """Tokens exchanged, dropped or doubled, as typing errors do it; some files still are jobs."""
    rng = random.Random(seed)
    jobs = 0
    for _ in range(80):
        tokens = re.findall(r"\w+|\s+|[^\w\s]", rng.choice(FILES))
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(tokens))
            others = [rng.choice(tokens), rng.choice(WORDS), rng.choice(NAMES)]
            tokens[at] = rng.choice(["", tokens[at] * 2, *others])
        jobs += check(partial(loads, "".join(tokens), METHODS)) is not None
    assert 10 < jobs < 80
