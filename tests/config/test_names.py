"""Agents' names and what is taken out of sources before they are printed."""

import pytest

from ramerge.config.sources import agent_names, split_named, without_credentials


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["org/coder", "org/tool@abc"], ["coder", "tool"]),
        (["./runs/coder/", "../tool"], ["coder", "tool"]),
        (
            ["runs/coder/huggingface", "runs/tool/huggingface"],
            ["coder-huggingface", "tool-huggingface"],
        ),
        (["a/x/hf", "b/x/hf", "c/y"], ["a-x-hf", "b-x-hf", "y"]),
        (["a", "a", "a"], ["a", "a-2", "a-3"]),
        (["x/base", "base"], ["x-base", "base-2"]),
        (["org/m+loras/math@v2"], ["math"]),
        (["dir/agent1.safetensors", "other/model.safetensors"], ["agent1", "other"]),
        (["hub/models--org--name/snapshots/0a1b2c"], ["name"]),
        (["/", "."], ["agent", "agent-2"]),
        (["C:\\runs\\coder"], ["coder"]),
        (["modèle naïf"], ["mod-le-na-f"]),
        (["https://user:pw@host/org/coder?token=x"], ["coder"]),
    ],
)
def test_default_names(sources, names):
    assert list(agent_names(sources, [None] * len(sources))) == names


def test_given_names_stay():
    assert agent_names(["x/a", "y/b", "b"], ["b", None, None]) == ("b", "y-b", "b-2")


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("coder=org/x", ("coder", "org/x")),
        ("org/x", (None, "org/x")),
        ("runs/lr=1e-6", (None, "runs/lr=1e-6")),
        ("a=b=c", ("a", "b=c")),
        ("=x", (None, "=x")),
        ("x=", (None, "x=")),
    ],
)
def test_split_named(text, pair):
    assert split_named(text) == pair


@pytest.mark.parametrize(
    ("source", "safe"),
    [
        ("https://user:secret@host/org/m", "https://host/org/m"),
        ("https://hf_abc@host/org/m@main", "https://host/org/m@main"),
        ("https://host/m?token=abc&x=1", "https://host/m?token=REMOVED&x=1"),
        ("https://host/m?X-Amz-Signature=abc", "https://host/m?X-Amz-Signature=REMOVED"),
        ("org/m@main+org/lora@v1", "org/m@main+org/lora@v1"),
        ("./a b/c@d", "./a b/c@d"),
    ],
)
def test_credentials(source, safe):
    assert without_credentials(source) == safe
