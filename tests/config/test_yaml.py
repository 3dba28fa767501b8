"""The YAML reader: numbers are numbers, traps are refused, every error has a place."""

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramerge._errors import ConfigError, MergeError
from ramerge.config.yaml import MAX_BYTES, Node, Where, from_value, read_file, read_text, scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E-5", 1e-5),
        ("1e5", 1e5),
        (".5", 0.5),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("+1.5e+3", 1500.0),
        ("0", 0),
        ("-0", 0),
        ("7", 7),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("-12", -12),
        ("0.10", 0.1),
        ("0e0", 0.0),
        ("true", True),
        ("True", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
        ("-.inf", float("-inf")),
    ],
)
def test_plain_scalars(text, value):
    found = scalar(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "no",
        "on",
        "off",
        "y",
        "Yes",
        "010",
        "-007",
        "00.5",
        "0x1F",
        "0o7",
        "1:30",
        "2024-01-01",
        "1__0",
        "_1",
        "1_",
        "1e",
        "e5",
        ".",
        "-",
        "+",
        "1.2.3",
        "1,5",
        "inf",
        "nan",
        "NaN",
        "1e-5x",
        "1e999",
        "١٢",
    ],
)
def test_what_is_not_a_number_or_boolean_stays_text(text):
    assert scalar(text) == text


def test_quoted_scalars_are_text():
    tree = read_text("a: '1'\nb: \"true\"\nc: |\n  null\n").value
    assert [tree[k].value for k in "abc"] == ["1", "true", "null\n"]


def test_places_count_from_one():
    tree = read_text("a: 1\nbb:\n  - x\n  -  y: 2\n", file="m.yml")
    assert str(tree.keys["bb"]) == "m.yml:2:1"
    second = tree.value["bb"].value[1]
    assert str(second.keys["y"]) == "m.yml:4:6" and str(second.value["y"].where) == "m.yml:4:9"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yml:3:1: key `a` stands twice; the first is in line 1"),
        ("{a: 1, a: 2}", "f.yml:1:8: key `a` stands twice; the first is in line 1"),
        ("a: &x 1\n", "f.yml:1:4: anchor `&x`: anchors and aliases are refused"),
        ("a: *x\n", "f.yml:1:4: alias `*x`: write the value out"),
        (
            "a: !!python/object:os.system {}\n",
            "f.yml:1:4: tag `!!python/object:os.system`: tags are refused",
        ),
        ("a: !mine 1\n", "f.yml:1:4: tag `!mine`: tags are refused"),
        ("a: !!str 1\n", "f.yml:1:4: tag `!!str`: tags are refused"),
        ("<<: {a: 1}\n", "f.yml:1:1: merge keys (`<<`) are refused"),
        ("%YAML 1.1\n---\na: 1\n", "f.yml:1:1: directives (`%`) have no meaning here"),
        ("? [1, 2]\n: 3\n", "f.yml:1:3: a list cannot be a key"),
        ("a: 1\n---\nb: 2\n", "f.yml:2:1: a second document begins"),
        ("a:\n\tb: 1\n", "f.yml:2:1: found character '\\t' that cannot start any token"),
        ("a: [1,\n", "f.yml:2:1: expected the node content, but found '<stream end>'"),
        ("a: b: c\n", "f.yml:1:5: mapping values are not allowed here"),
        ("a: 1\nb: \x01\n", "f.yml:2:4: control character"),
        (b"a: 1\nb: \xff\n", "f.yml:2:4: not UTF-8 text"),
        ("", "f.yml: the file is empty"),
        ("# nothing\n", "f.yml: the file is empty"),
        (
            "a: 1\n" + "# " + "x" * MAX_BYTES,
            f"f.yml: larger than {MAX_BYTES} bytes, so not a merge configuration",
        ),
    ],
)
def test_refusals(text, message):
    with pytest.raises(ConfigError) as error:
        read_text(text, file="f.yml")
    assert error.value.message == message and error.value.exit_code == 2


def test_all_refusals_come_at_once():
    with pytest.raises(MergeError) as error:
        read_text("a: &x 1\nb: *x\nc: !t 2\na: 3\n")
    assert len(error.value.problems) == 4 and error.value.exit_code == 2


@pytest.mark.parametrize(
    "bomb", ["[" * 100_000, "- " * 100_000 + "1", "{a: " * 100_000, "? " * 100_000]
)
def test_depth_bombs_end_early(bomb):
    started = time.process_time()
    with pytest.raises(ConfigError, match="nested deeper than 24 levels"):
        read_text(bomb)
    assert time.process_time() - started < 2


def test_an_alias_bomb_never_unfolds():
    levels = [f"l{i}: &l{i} [" + ", ".join([f"*l{i - 1}"] * 9) + "]" for i in range(1, 9)]
    with pytest.raises(MergeError) as error:
        read_text("l0: &l0 x\n" + "\n".join(levels))
    assert len(error.value.problems) == 9 + 8 * 9


def test_byte_order_mark_and_windows_lines():
    tree = read_text("\ufeffa: 1\r\nb: 2\r\n".encode()).value
    assert {k: n.value for k, n in tree.items()} == {"a": 1, "b": 2}


def test_files(tmp_path):
    with pytest.raises(ConfigError, match="no configuration file"):
        read_file(tmp_path / "none.yml")
    with pytest.raises(ConfigError, match="no configuration file"):
        read_file(tmp_path)
    (tmp_path / "m.yml").write_text("a: [")
    with pytest.raises(ConfigError, match=r"^m\.yml:1:5: "):
        read_file(tmp_path / "m.yml")


def test_trees_from_python_values(tmp_path):
    tree = from_value(
        {"a": (1, np.float32(0.5)), "b": None, "c": tmp_path, "d": True}, Where("here")
    )
    assert plain(tree) == {"a": [1, 0.5], "b": None, "c": str(tmp_path), "d": True}
    with pytest.raises(ConfigError, match="here: a set cannot be part of a configuration"):
        from_value({"a": {1}}, Where("here"))


def plain(node: Node):
    if isinstance(node.value, dict):
        return {k: plain(v) for k, v in node.value.items()}
    return [plain(v) for v in node.value] if isinstance(node.value, tuple) else node.value


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
trees = st.recursive(
    scalars,
    lambda t: st.lists(t, max_size=4) | st.dictionaries(st.text(), t, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1), trees, min_size=1))
def test_json_is_read_as_json(tree):
    """JSON in double quotes is YAML, but for merge keys; every value comes back as itself."""
    import json

    text = json.dumps(tree, ensure_ascii=True)
    if "<<" in text or "\\ud" in text or len(text) > 900:
        return  # surrogate pairs are JSON's alone; a key over 1024 characters is no key in YAML
    if text.count("[") + text.count("{") < 20:
        assert plain(read_text(text)) == json.loads(text)


CORPUS = [
    (
        "merge_method: ties\nbase_model: b\nmodels:\n- model: a\n"
        "  parameters: {density: [1, 0.7, 0.1]}\ndtype: float16\n"
    ),
    (
        "slices:\n  - sources:\n      - model: a\n        layer_range: [0, 40]\n"
        "parameters:\n  t:\n    - filter: mlp\n      value: 1\n"
    ),
    "a: 'x'\nb: \"y\\n\"\nc: |\n  t\n? d\n: e\n",
]
PIECES = [
    "&a ",
    "*a",
    "!!int ",
    "<<: ",
    "---\n",
    "\t",
    "[",
    "]",
    "{",
    "}",
    ": ",
    "- ",
    "\n",
    "'",
    '"',
    "%",
    "#",
    "|",
    ">",
    "?",
    "\x00",
    "\x85",
    "\u2028",
    "1e5",
    "@",
    "`",
    ",",
    "\ufeff",
    "é",
    "\ud7ff",
    "😀",
]


@pytest.mark.parametrize("seed", range(8))
def test_mutated_files_are_read_or_refused(seed):
    """Whatever the text, the answer is a tree or a MergeError, never another exception."""
    rng = random.Random(seed)
    for _ in range(60):
        text = rng.choice(CORPUS)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(text) + 1)
            cut = rng.choice([0, 0, 1, 5])
            text = text[:at] + rng.choice(PIECES) * rng.choice([1, 1, 3]) + text[at + cut :]
        try:
            node = read_text(text)
        except MergeError as error:
            assert error.exit_code == 2
        else:
            assert isinstance(node, Node)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data):
    try:
        read_text(data)
    except MergeError as error:
        assert error.exit_code == 2
