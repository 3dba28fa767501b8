"""Flags and files are two spellings of the same job."""

import pytest

from helpers.config import METHODS
from ramerge._errors import ConfigError, MergeError, raise_problems
from ramerge.config.assignments import from_mapping, from_texts
from ramerge.config.flags import job_from_flags
from ramerge.config.mergekit import load, loads, read_job
from ramerge.config.override import Overrides, overridden
from ramerge.config.yaml import read_text


def assignments(settings):
    if isinstance(settings, dict):
        return from_mapping(settings)
    problems = []
    read = from_texts(settings, problems)
    raise_problems(problems)
    return read


def flags(settings=(), **given):
    given = {"base": "org/base", "method": "ram_plus", **given}
    return job_from_flags(methods=METHODS, settings=assignments(settings), **given)


def test_the_same_job_from_both():
    job = flags(
        agents=["coder=runs/a", "runs/tool"],
        settings=[
            "r=2e-1",
            "mask=exact",
            "coder.weight=[0, 1]",
            "tool.weight=[{filter: mlp, value: .5}]",
        ],
        preset="paper",
        out_dtype="bfloat16",
        nonfinite="keep_base",
        exclude=["embed"],
        shard_size="2GB",
    )
    assert job == loads(
        """
merge_method: ram_plus
preset: paper
base_model: org/base
models:
- {model: runs/a, name: coder, parameters: {weight: [0, 1]}}
- {model: runs/tool, parameters: {weight: {filter: mlp, value: 0.5}}}
parameters: {r: 0.2, mask: exact}
out_dtype: bfloat16
nonfinite: keep_base
exclude: [embed]
shard_size: 2000000000
""",
        METHODS,
    )


def test_few_flags():
    assert flags(agents=["a"]) == loads(
        "merge_method: ram_plus\nbase_model: org/base\nmodels: [{model: a}]", METHODS
    )


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (
            {"settings": ["r"]},
            "--set r: not KEY=VALUE",
            "for example --set r=0.2, or --set coder.weight=0.5 for one agent",
        ),
        (
            {"settings": [".r=1"]},
            "--set .r=1: not KEY=VALUE",
            "for example --set r=0.2, or --set coder.weight=0.5 for one agent",
        ),
        ({"settings": ["c.weight=1"]}, "--set c.weight=1: no agent `c`", "agents here are `a`"),
        ({"settings": ["r=1", "r=2"]}, "--set r=2: `r` is given twice, as `1` and `2`", None),
        ({"settings": ["q=1"]}, "flags --set: `ram_plus` has no parameter `q`", None),
        ({"settings": ["r=-1"]}, "--set r=-1: `r`: `-1` is out of range: >= 0", None),
        (
            {"settings": ["a.r=1"]},
            "--agent a: `r` of `ram_plus` is one for all agents together",
            "set it in the `parameters` of the whole file (--set r=…)",
        ),
        ({"settings": ["weight=[1"]}, "--set weight=[1:1:3: expected", None),
        (
            {"method": "ramplus"},
            "--method: unknown merge method `ramplus`",
            "did you mean `ram_plus`?",
        ),
        ({"out_dtype": "bf17"}, "--out-dtype: `out_dtype` is one of `bfloat16`", None),
        (
            {"base": None},
            "flags: `ram_plus` needs a `base_model`",
            "add `base_model: PATH`, the checkpoint that the agents were trained from",
        ),
        ({"agents": []}, "--agent: `models` is empty", None),
    ],
)
def test_errors_name_the_flag(given, message, hint):
    with pytest.raises(ConfigError) as error:
        flags(**{"agents": ["a"], **given})
    assert error.value.message.startswith(message.replace("flags --set", "--set"))
    assert hint is None or error.value.hint == hint


def test_names_with_dots_and_slashes():
    job = flags(agents=["v1.5=x", "runs/lr=1e-6"], settings=["v1.5.weight=2", "lr-1e-6.weight=3"])
    assert [a.parameters for a in job.agents] == [{"weight": 2.0}, {"weight": 3.0}]
    assert job.agents[1].source == "runs/lr=1e-6"


@pytest.mark.parametrize("text", ["r", "=1", "r=", " = ", "coder.=1"])
def test_malformed_assignments_are_refused(text):
    with pytest.raises(ConfigError, match=r"^--set .*: not KEY=VALUE"):
        assignments([text])


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-5", 1e-5), ("3", 3), (".5", 0.5), ("true", True), ("True", True), ("null", None), ("inf", "inf"), (".inf", float("inf")),
     ("exact", "exact"), ("'3'", "3"), ("/data/a b#c", "/data/a b#c"), ("a: b", "a: b"), ("*x", "*x")],
)  # fmt: skip
def test_a_value_is_what_it_would_be_in_a_file(text, value):
    (read,) = assignments([f"key={text}"])
    assert read.value.value == value and type(read.value.value) is type(value)


def test_several_problems():
    with pytest.raises(MergeError) as error:
        flags(agents=["a"], settings=["q.weight=1", "b.weight=1"])
    assert len(error.value.problems) == 2


def test_programs_give_values_and_names():
    job = flags(
        agents={"coder": "runs/a", "tool": "runs/b"},
        settings={"r": 0.2, "coder.weight": [0, 1], "tool.weight": {"filter": "mlp", "value": 2}},
    )
    assert job == flags(
        agents=["coder=runs/a", "tool=runs/b"],
        settings=["r=0.2", "coder.weight=[0,1]", "tool.weight={filter: mlp, value: 2}"],
    )
    with pytest.raises(ConfigError, match=r"^parameters: `r`: `x` is not a number"):
        flags(agents=["a"], settings={"r": "x"})


def test_flags_beside_a_file(tmp_path):
    text = "merge_method: ram_plus\nbase_model: b\nmodels: [{model: a}]\n"
    (tmp_path / "m.yml").write_text(text + "exclude: norm\nout_dtype: float16\n")
    given = {"out_dtype": "bfloat16", "shard_size": "1GB", "exclude": ["embed"], "nonfinite": None}
    job = load(tmp_path / "m.yml", METHODS, overrides=Overrides(top=given))
    assert job == loads(
        text + "exclude: [norm, embed]\nout_dtype: bfloat16\nshard_size: 1GB", METHODS
    )
    with pytest.raises(ConfigError, match=r"^--out-dtype: `out_dtype` is one of"):
        load(tmp_path / "m.yml", METHODS, overrides=Overrides(top={"out_dtype": "bf17"}))


FILE = """
merge_method: ram_plus
base_model: b
models:
- {model: b}
- {model: runs/a, name: coder, parameters: {weight: 0.5}}
- {model: runs/tool}
parameters: {r: 0.3, mask: exact}
"""


def beside(settings=(), **given):
    problems = []
    given = Overrides(settings=assignments(settings), **given)
    tree = overridden(read_text(FILE), given, problems)
    raise_problems(problems)
    return read_job(tree, METHODS)


def test_settings_beside_a_file_win_at_every_level():
    job = beside(settings=["r=0.1", "weight=2"])
    assert job.parameters == {"r": 0.1, "mask": "exact", "weight": 2.0}
    assert [a.parameters for a in job.agents] == [{}, {}]
    job = beside(settings=["coder.weight=3", "tool.weight=[0, 1]"])
    assert job.agents[0].parameters == {"weight": 3.0}
    assert job.agents[1].parameters["weight"].anchors == (0.0, 1.0)
    assert job.parameters == {"r": 0.3, "mask": "exact"}


def test_method_base_and_agents_beside_a_file():
    job = beside(method="ramplus_tl", base="other", agents=[("coder", "runs/new")])
    assert (job.method, job.preset, job.base) == ("ram_plus", "mergekit", "other")
    assert [(a.name, a.source) for a in job.agents] == [
        ("coder", "runs/new"),
        ("tool", "runs/tool"),
    ]
    assert job.agents[0].parameters == {"weight": 0.5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"settings": ["q.weight=1"]}, "--set q.weight=1: the file has no agent `q`"),
        ({"agents": [("code", "x")]}, "--agent code=x: the file has no agent `code`"),
        ({"agents": [(None, "x")]}, "--agent x: a model beside a merge file needs a name"),
        ({"settings": ["r=-1"]}, "--set r=-1: `r`: `-1` is out of range: >= 0"),
        ({"method": "tis"}, "--method: unknown merge method `tis`"),
    ],
)
def test_errors_beside_a_file_name_the_flag(given, message):
    with pytest.raises(ConfigError) as error:
        beside(**given)
    assert error.value.message == message
