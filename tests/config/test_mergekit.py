"""mergekit's files become jobs; what is not understood is refused by line and nearest name."""

from dataclasses import replace

import pytest

from helpers.config import METHODS
from ramerge._errors import ConfigError, MergeError, ProblemsError
from ramerge._types import DType
from ramerge.config.job import AgentJob, Filtered, Gradient, Job, Slice, SliceSource
from ramerge.config.mergekit import from_mapping, load, loads
from ramerge.config.vocabulary import TokenizerRules, TokenRule

HEAD = "merge_method: ram_plus\nbase_model: org/base\n"
MODELS = "models:\n- model: runs/coder\n- model: runs/tool\n"


def read(text, file="m.yml"):
    return loads(text, METHODS, file=file)


def problems(text):
    with pytest.raises(MergeError) as error:
        read(text)
    found = error.value
    assert found.exit_code == 2
    return list(found.problems) if isinstance(found, ProblemsError) else [found]


def only(text):
    (problem,) = problems(text)
    return problem.message, problem.hint


def test_the_whole_of_a_usual_file():
    job = read("""
merge_method: ties
base_model: mistralai/Mistral-7B-v0.1
models:
  - model: mistralai/Mistral-7B-v0.1   # no parameters needed
  - model: org/instruct@abc123
    parameters:
      density: [1, 0.7, 0.1]
      weight: 1
  - model: org/math
    name: maths
    parameters:
      density: .33
      weight:
        - filter: mlp
          value: 0.5
        - value: 0
parameters:
  normalize: true
  int8_mask: true
  lambda: 1e-1
dtype: float16
""")
    assert job == Job(
        base="mistralai/Mistral-7B-v0.1",
        method="ties",
        agents=(
            AgentJob(
                "instruct",
                "org/instruct@abc123",
                {"density": Gradient((1.0, 0.7, 0.1)), "weight": 1.0},
            ),
            AgentJob(
                "maths",
                "org/math",
                {"density": 0.33, "weight": (Filtered("mlp", 0.5), Filtered(None, 0.0))},
            ),
        ),
        parameters={"normalize": True, "lambda": 0.1},
        out_dtype=DType.F16,
    )
    assert job.notes == (
        "`dtype` is the output's: arithmetic is fp32 always, rounded once at the end",
        "`int8_mask` has no effect: masks take one bit an agent as it is",
    )


def test_ints_become_floats_so_that_equal_files_give_equal_jobs():
    job = read(HEAD + MODELS + "parameters: {r: 1, alpha: 2}")
    assert job.parameters == {"r": 1.0, "alpha": 2.0}
    assert all(type(v) is float for v in job.parameters.values())


def test_every_key_of_our_own():
    job = read(
        HEAD
        + MODELS
        + """
preset: paper
nonfinite: keep_base
exclude: [embed_tokens, "*.bias"]
shard_size: 2GiB
out_dtype: bfloat16
"""
    )
    assert (job.preset, job.nonfinite, job.exclude) == (
        "paper",
        "keep_base",
        ("embed_tokens", "*.bias"),
    )
    assert (job.shard_size, job.out_dtype) == (2 * 2**30, DType.BF16)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("5GB", 5 * 10**9),
        ("500M", 5 * 10**8),
        ("1.5G", 1_500_000_000),
        ("1 KiB", 1024),
        (7, None),
        ("7B", 7),
        (7_000_000, 7_000_000),
        ("2t", 2 * 10**12),
        ("100k", 100_000),
        ("1e9", None),
        ("5XB", None),
        ("-1GB", None),
        (0, None),
        (True, None),
        ("i", None),
        ("[1]", None),
    ],
)
def test_shard_sizes(size, count):
    text = HEAD + MODELS + f"shard_size: {str(size).lower() if isinstance(size, bool) else size}"
    if count is None:
        assert only(text)[0].startswith("m.yml:6:13: `shard_size`")
    else:
        assert read(text).shard_size == count


def test_aliases_imply_presets():
    job = read(HEAD.replace("ram_plus", "ramplus_tl") + MODELS)
    assert (job.method, job.preset) == ("ram_plus", "mergekit")
    assert read(HEAD.replace("ram_plus", "ramplus_tl") + MODELS + "preset: mergekit") == job
    message, hint = only(HEAD.replace("ram_plus", "ramplus_tl") + MODELS + "preset: paper")
    assert message == "m.yml:6:9: `ramplus_tl` already means preset `mergekit`, not `paper`"
    assert hint == "`merge_method: ram_plus` with `preset: paper`"


def test_dtype_and_out_dtype():
    job = read(HEAD + MODELS + "dtype: float32\nout_dtype: bfloat16")
    assert job.out_dtype is DType.BF16
    assert "`dtype` has no effect beside `out_dtype`" in job.notes[0]
    assert read(HEAD + MODELS + "dtype: null").out_dtype is None
    assert only(HEAD + MODELS + "dtype: bfloat61") == (
        "m.yml:6:8: `dtype` is one of `bfloat16`, `float16`, `float32`, `float64`, not `bfloat61`",
        "did you mean `bfloat16`?",
    )


def test_the_base_under_models():
    listed = "models:\n- model: org/base\n  parameters: {weight: 0.5}\n- model: a\n"
    job = read(HEAD + listed)
    assert [a.name for a in job.agents] == ["a"] and job.base_parameters == {"weight": 0.5}
    assert job.notes == ("`weight` of the base has no effect in `ram_plus`: its task vector is 0",)
    member = read(HEAD.replace("ram_plus", "linear") + listed)
    assert [a.source for a in member.agents] == ["org/base", "a"] and member.base == "org/base"
    twice = only(HEAD + "models:\n- model: org/base\n- model: org/base/\n- model: a\n")
    assert twice[0] == "m.yml:5:3: the base `org/base` stands twice under `models`"


def test_a_method_without_base():
    job = read("merge_method: linear\nmodels: [{model: a}, {model: b}]")
    assert job.base is None
    assert only("merge_method: ram_plus\nmodels: [{model: a}]") == (
        "m.yml:1:1: `ram_plus` needs a `base_model`",
        "add `base_model: PATH`, the checkpoint that the agents were trained from",
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("dtyp: float16", "m.yml:6:1: unknown key `dtyp` in the file", "did you mean `dtype`?"),
        (
            "parameter: {r: 1}",
            "m.yml:6:1: unknown key `parameter` in the file",
            "did you mean `parameters`?",
        ),
        (
            "r: 0.2",
            "m.yml:6:1: unknown key `r` in the file",
            "it is a parameter: indent it under `parameters`",
        ),
        (
            "parameters: {rr: 1}",
            "m.yml:6:14: `ram_plus` has no parameter `rr`",
            "did you mean `r`?",
        ),
        (
            "parameters:\n  alpa: 1",
            "m.yml:7:3: `ram_plus` has no parameter `alpa`",
            "did you mean `alpha`?",
        ),
        (
            "parameters: {lambda: 1}",
            "m.yml:6:14: `ram_plus` has no parameter `lambda`",
            "its parameters: `r`, `alpha`, `epsilon`, `mask`, `scope`, `weight`",
        ),
        ("parameters: [1]", "m.yml:6:13: `parameters` is a mapping, not a list", None),
        ("parameters: {r: -1}", "m.yml:6:17: `r`: `-1` is out of range: >= 0", None),
        ("parameters: {r: '1'}", "m.yml:6:17: `r`: `1` is not a number >= 0", None),
        ("parameters: {r: true}", "m.yml:6:17: `r`: true is not a number >= 0", None),
        ("parameters: {r: .nan}", "m.yml:6:17: `r`: `nan` is not a number >= 0", None),
        ("parameters: {r:}", "m.yml:6:16: `r`: null is not a number >= 0", None),
        (
            "parameters: {mask: exakt}",
            "m.yml:6:20: `mask`: `exakt` is not abs | exact | grid",
            "did you mean `exact`?",
        ),
        (
            "parameters: {r: [0, 1]}",
            "m.yml:6:17: `r` cannot be a list",
            "a list means a value that changes from layer to layer",
        ),
        ("parameters: {r: [{value: 1}]}", "m.yml:6:18: `r` has one value for all tensors", None),
        ("parameters: {weight: []}", "m.yml:6:22: the list of `weight` is empty", None),
        ("parameters: {weight: [1, x]}", "m.yml:6:26: `weight`: `x` is not a number", None),
        (
            "parameters: {weight: [1, [2]]}",
            "m.yml:6:26: `weight` is a single value here, not a list",
            None,
        ),
        (
            "parameters: {weight: {filter: a}}",
            "m.yml:6:22: an arm of `weight` has no `value`",
            None,
        ),
        (
            "parameters: {weight: {pattern: a, value: 1}}",
            "m.yml:6:23: unknown key `pattern` in `weight`",
            "older files say `pattern`; the key is `filter`",
        ),
        (
            "parameters: {weight: [{value: 1}, {filter: a, value: 2}]}",
            "m.yml:6:35: this arm of `weight` is never reached",
            "the first arm that fits wins: put the one without `filter` last",
        ),
        (
            "parameters: {weight: [{filter: a, value: 1}, 2]}",
            "m.yml:6:46: an arm of `weight` is `value` and `filter`, not `2`",
            None,
        ),
        (
            "parameters: {weight: {filter: [a], value: 1}}",
            "m.yml:6:31: `filter` of `weight` is part of a tensor name, not a list",
            None,
        ),
        ("preset: papr", "m.yml:6:9: `ram_plus` has no preset `papr`", "did you mean `paper`?"),
        (
            "nonfinite: ignore",
            "m.yml:6:12: `nonfinite` is one of `error`, `keep_base`, `propagate`, not `ignore`",
            None,
        ),
        ("exclude: ['']", "m.yml:6:11: a pattern of `exclude` is a text, not ``", None),
        (
            "modules: {}",
            "m.yml:6:1: unknown key `modules` in the file",
            "models of several modules are merged as a whole: list them under `models`",
        ),
        (
            "name: x",
            "m.yml:6:1: unknown key `name` in the file",
            "only mergekit-multi has it: one file a merge, and name its output in the next",
        ),
        (
            "slices: []",
            "m.yml:1:1: a file has either `models` or `slices`",
            "`models` are whole models, `slices` are ranges of layers",
        ),
    ],
)
def test_refusals(text, message, hint):
    assert only(HEAD + MODELS + text) == (message, hint)


@pytest.mark.parametrize(
    ("models", "message", "hint"),
    [
        (
            "- model: a\n  weights: 1",
            "m.yml:5:3: unknown key `weights` in an entry of `models`",
            "keys here are `model`, `name`, `parameters`",
        ),
        (
            "- model: a\n  parameters:\n  weight: 1",
            "m.yml:6:3: unknown key `weight` in an entry of `models`",
            "it is a parameter: indent it under `parameters`",
        ),
        (
            "- model: a\n  parameters: {r: 1}",
            "m.yml:5:16: `r` of `ram_plus` is one for all agents together",
            "set it in the `parameters` of the whole file (--set r=…)",
        ),
        ("- a", "m.yml:4:3: an entry of `models` is a mapping with `model`", "write `- model: a`"),
        ("- name: a", "m.yml:4:3: `model` is missing: the path or Hub id", None),
        ("- model:", "m.yml:4:9: a model is a text, not nothing", None),
        (
            "- model: {model: {pth: a}}",
            "m.yml:4:19: unknown key `pth` in a model",
            "did you mean `path`?",
        ),
        (
            "- model: {model: a, override_architecture: L}",
            "m.yml:4:21: unknown key `override_architecture` in a model",
            "the tensors' names in the files decide",
        ),
        (
            "- {model: a, name: x}\n- {model: b, name: x}",
            "m.yml:5:3: the name `x` is taken at m.yml:4:3",
            None,
        ),
        (
            "- {model: a, name: base}",
            "m.yml:4:3: `base` cannot name an agent",
            "letters, digits, `.`, `_` and `-`; not `base` or `union`",
        ),
        (
            "  model: a",
            "m.yml:4:3: `models` is a list, not a mapping",
            "every item begins with `- `",
        ),
        ("  []", "m.yml:4:3: `models` is empty", None),
    ],
)
def test_models_refused(models, message, hint):
    assert only(HEAD + "models:\n" + models) == (message, hint)


def test_methods_refused():
    assert only("merge_method: tie\nmodels: [{model: a}]") == (
        "m.yml:1:15: unknown merge method `tie`",
        "did you mean `ties`?",
    )
    assert only("merge_method: zzz") == (
        "m.yml:1:15: unknown merge method `zzz`",
        "`ramerge methods` lists them",
    )
    assert only("models: []")[0] == "m.yml:1:1: `merge_method` is missing"
    assert only("- a")[0] == "m.yml:1:1: a merge configuration is a mapping, not a list"


def test_number_of_agents():
    slerp = "merge_method: slerp\nbase_model: b\nparameters: {t: 0.5}\nmodels:\n"
    assert [a.name for a in read(slerp + "- model: b\n- model: a").agents] == ["a"]
    assert only(slerp + "- model: a\n- model: c")[0] == (
        "m.yml:5:1: `slerp` merges 1 agent, not counting the base; here are 2"
    )
    assert only("merge_method: fisher\nmodels: [{model: a, parameters: {fisher: f}}]")[0] == (
        "m.yml:2:9: `fisher` merges at least 2 agents, not counting the base; here are 1"
    )


def test_required_parameters():
    assert only("merge_method: slerp\nbase_model: b\nmodels: [{model: a}]") == (
        "`slerp` needs `t`, which is not set for agent `a`",
        "0 is the base (0 <= x <= 1): --set a.t=…",
    )
    text = "merge_method: fisher\nmodels:\n- {model: a, parameters: {fisher: f.safetensors}}\n"
    text += "- {model: b}\n- {model: c}"
    assert only(text)[0] == "`fisher` needs `fisher`, which is not set for agent `b`, `c`"


def test_all_problems_at_once():
    found = problems("""
merge_method: ties
dtyp: float16
models:
- model: a
  weight: 1
- model: b
  parameters: {densty: 2, weight: x}
parameters: {normalize: yes}
out_dtype: int8
""")
    assert [p.message.split(": ")[0] for p in found] == [
        "m.yml:3:1",
        "m.yml:2:1",
        "m.yml:6:3",
        "m.yml:8:16",
        "m.yml:8:35",
        "m.yml:9:25",
        "m.yml:10:12",
    ]


def test_references_as_mappings():
    job = read(
        HEAD
        + "models:\n"
        + "- model: {model: {path: org/a, revision: 1e5}, lora: {path: org/l, revision: v1}}\n"
    )
    assert job.agents[0].source == "org/a@1e5+org/l@v1" and job.agents[0].name == "l"


def test_slices():
    job = read("""
merge_method: passthrough
slices:
  - sources:
    - model: org/orca
      layer_range: [0, 24]
  - sources:
    - model: org/platy
      layer_range: [20, 40]
      parameters: {scale: 0.5}
""")
    assert [a.name for a in job.agents] == ["orca", "platy"]
    assert job.slices == (
        Slice((SliceSource("orca", 0, 24, "org/orca"),)),
        Slice((SliceSource("platy", 20, 40, "org/platy", {"scale": 0.5}),)),
    )


def test_slices_with_a_base():
    job = read("""
merge_method: slerp
base_model: org/a
slices:
  - sources:
    - {model: org/a, layer_range: [0, 4]}
    - {model: org/b, layer_range: [0, 4]}
    parameters: {t: 0.25}
parameters: {t: 0.5}
""")
    assert [a.name for a in job.agents] == ["b"]
    assert job.slices == (
        Slice((SliceSource("base", 0, 4, "org/a"), SliceSource("b", 0, 4, "org/b")), {"t": 0.25}),
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{model: a}", "m.yml:5:5: a source needs `layer_range`: [first, one past the last]"),
        ("{model: a, layer_range: [1]}", "m.yml:5:29: `layer_range` is two numbers, not 1"),
        ("{model: a, layer_range: [4, 4]}", "m.yml:5:29: `layer_range` [4, 4] holds no layer"),
        (
            "{model: a, layer_range: [-1, 4]}",
            "m.yml:5:30: a bound of `layer_range` is a whole number >= 0, not `-1`",
        ),
        (
            "{model: a, layer_range: [0, 2]}\n  - {model: b, layer_range: [0, 3]}",
            "m.yml:4:3: sources of a slice differ in their number of layers: a 2, b 3",
        ),
        (
            "{model: a, layer_range: [0, 2]}\n  - {model: a, layer_range: [2, 4]}",
            "m.yml:6:5: `a` stands twice in one slice",
        ),
    ],
)
def test_slices_refused(source, message):
    assert only(f"merge_method: linear\nslices:\n# one\n- sources:\n  - {source}\n")[0] == message


def test_tokenizers():
    text = HEAD + MODELS
    assert read(text).tokenizer is None
    assert read(text + "tokenizer_source: union").tokenizer == TokenizerRules("union")
    assert read(text + "tokenizer_source: org/base").tokenizer == TokenizerRules("base")
    assert read(text + "tokenizer_source: runs/tool/").tokenizer == TokenizerRules("tool")
    assert read(text + "tokenizer_source: model:runs/tool").tokenizer == TokenizerRules("tool")
    assert only(text + "tokenizer_source: runs/tol") == (
        "m.yml:6:19: `runs/tol` is not one of the models in this merge",
        "did you mean `runs/tool`?",
    )
    both = only(text + "tokenizer_source: base\ntokenizer: {source: base}")
    assert both[0] == "m.yml:6:1: `tokenizer_source` and `tokenizer` exclude each other"


def test_token_rules():
    job = read(
        HEAD
        + MODELS
        + """
tokenizer:
  tokens:
    <|im_start|>: {source: runs/coder}
    <|eot|>: {source: {kind: model_token, model: tool, token: "</s>"}, force: true}
    <|x|>: {source: {kind: model_token, model: base, token_id: 7}}
    <|z|>: {source: {kind: zero}}
    <|d|>: {force: true}
  pad_to_multiple_of: 64
"""
    )
    assert job.tokenizer == TokenizerRules(
        "union",
        (
            TokenRule("<|im_start|>", "model", "coder"),
            TokenRule("<|eot|>", "model_token", "tool", source_token="</s>", force=True),
            TokenRule("<|x|>", "model_token", "base", source_id=7),
            TokenRule("<|z|>", "zero"),
            TokenRule("<|d|>", force=True),
        ),
        64,
    )


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ("{sorce: base}", "m.yml:6:13: unknown key `sorce` in `tokenizer`"),
        (
            "{pad_to_multiple_of: 0}",
            "m.yml:6:33: `pad_to_multiple_of` is a whole number >= 1, not `0`",
        ),
        (
            "{tokens: {x: {source: {kind: model_token, model: base}}}}",
            "m.yml:6:34: `source` of `x` needs `model` and one of `token` and `token_id`",
        ),
        (
            "{tokens: {x: {source: {kind: nil}}}}",
            "m.yml:6:41: `kind` is one of `model_token`, `zero`, not `nil`",
        ),
        ("{tokens: {x: {force: 1}}}", "m.yml:6:33: `force` is `true` or `false`, not `1`"),
        (
            "{tokens: {x: {source: other}}}",
            "m.yml:6:34: `other` is not one of the models in this merge",
        ),
    ],
)
def test_tokenizers_refused(tokenizer, message):
    assert only(HEAD + MODELS + f"tokenizer: {tokenizer}")[0] == message


def test_chat_templates():
    assert read(HEAD + MODELS + "chat_template: chatml").chat_template == "chatml"
    assert read(HEAD + MODELS + "chat_template: '{{ x }}'").chat_template == "{{ x }}"
    assert only(HEAD + MODELS + "chat_template: exaone")[0] == (
        "m.yml:6:16: the chat template `exaone` is not built in"
    )
    assert only(HEAD + MODELS + "chat_template: chatlm")[0].startswith(
        "m.yml:6:16: `chat_template` is `auto`, "
    )


def test_from_mapping_and_load(tmp_path):
    document = {
        "merge_method": "ram_plus",
        "base_model": "org/base",
        "parameters": {"r": 0.2},
        "models": [{"model": tmp_path / "a"}, {"model": "b", "parameters": {"weight": [0, 1]}}],
    }
    job = from_mapping(document, METHODS)
    assert job.agents[0].source == str(tmp_path / "a")
    assert job.agents[1].parameters == {"weight": Gradient((0.0, 1.0))}
    (tmp_path / "m.yml").write_text(HEAD + MODELS)
    assert load(tmp_path / "m.yml", METHODS) == read(HEAD + MODELS)
    with pytest.raises(ConfigError, match=r"^parameters of merge: `ram_plus` has no parameter `q`"):
        from_mapping({**document, "parameters": {"q": 1}}, METHODS, where="parameters of merge")


def test_notes_are_no_part_of_equality():
    job = read(HEAD + MODELS)
    assert replace(job, notes=("x",)) == job


def test_messages_cannot_disturb_a_terminal():
    message, _ = only(HEAD + MODELS + '"a\\e[31m\\nb\\u202e": 1')
    assert message == r"m.yml:6:1: unknown key `a\x1b[31m\nb\u202e` in the file"
    message, hint = only(HEAD + MODELS + 'preset: "\\e]0;x"')
    assert "\x1b" not in message and "\x1b" not in (hint or "")


def test_slices_have_what_the_method_needs():
    def slerp(sources):
        head = "merge_method: slerp\nbase_model: b\nparameters: {t: 1}\nslices:\n"
        return f"{head}- sources: [{sources}]"

    layers = "layer_range: [0, 1]"
    base, x, y = (f"{{model: {m}, {layers}}}" for m in "bxy")
    assert len(read(slerp(f"{base}, {x}")).slices) == 1
    assert [p.message for p in problems(slerp(f"{x}, {y}"))] == [
        "m.yml:5:3: `slerp` merges 1 agent, not counting the base; here are 2",
        "m.yml:5:3: `slerp` needs the base in every slice",
    ]
    assert (
        only(slerp(base))[0]
        == "m.yml:5:3: `slerp` merges 1 agent, not counting the base; here are 0"
    )


@pytest.mark.parametrize("text", ["slices: []", "slices:\n- sources: []", "models: []"])
def test_empty_lists(text):
    assert only(f"merge_method: linear\n{text}")[0].endswith("` is empty")
