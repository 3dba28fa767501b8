"""Which files an output carries, and the few bytes of them that change."""

from __future__ import annotations

import json
import os

import pytest

from ramerge._errors import SecurityError
from ramerge._types import DType
from ramerge.output.sidefiles import config_for_output, generation_config_problems, side_files

COPIED = [
    "LICENSE",
    "NOTICE.txt",
    "added_tokens.json",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "1_Pooling/config.json",
    "modules.json",
]
DROPPED = [
    "README.md",
    ".gitattributes",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "adapter_config.json",
    "trainer_state.json",
    "optimizer.pt",
    "ramerge_manifest.json",
    "original/params.json",
    "checkpoint-5/config.json",
]


def fill(directory, names) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def test_every_side_file_and_nothing_else(tmp_path):
    """Chat templates in each form, generation config, all kept."""
    fill(tmp_path, COPIED + DROPPED)
    found = side_files(tmp_path)
    assert {f.name for f in found.files} == set(COPIED)
    assert [f.name for f in found.files] == sorted(f.name for f in found.files)
    assert all(f.size == 2 for f in found.files)
    assert found.rewritten == {}
    assert found.notices == ()
    assert side_files(None).files == ()


def test_unknown_files_are_listed(tmp_path):
    fill(tmp_path, ["config.json", "imatrix.dat", "plot.png"])
    (notice,) = side_files(tmp_path).notices
    assert notice.code == "side-files-left-out"
    assert "`imatrix.dat`, `plot.png`" in notice.message


def test_code_is_left_out_and_references_to_it_removed(tmp_path):
    """Config keys have bypassed trust_remote_code; a copy forwards them."""
    config = '{\n  "auto_map": {"AutoModel": "x.Y"},\n  "model_type": "z",\n  "b": [1,  2]\n}\n'
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "tokenizer_config.json").write_text('{"a": 1, "auto_map": {"x": ["p", null]}}')
    fill(tmp_path, ["modeling_x.py", "training_args.bin", "data.pkl", "run.sh"])
    found = side_files(tmp_path)
    assert {f.name for f in found.files} == {"config.json", "tokenizer_config.json"}
    assert found.rewritten == {
        "config.json": b'{\n  "model_type": "z",\n  "b": [1,  2]\n}\n',
        "tokenizer_config.json": b'{"a": 1}',
    }
    assert {n.code for n in found.notices} == {"code-not-copied", "remote-code-removed"}
    trusted = side_files(tmp_path, allow_remote_code=True)
    names = {"config.json", "tokenizer_config.json", "modeling_x.py"}
    assert {f.name for f in trusted.files} == names
    assert trusted.rewritten == {}


def test_only_remote_code_keys_in_a_config(tmp_path):
    text = '{"auto_map": 1, "_attn_implementation_internal": "org/kernel" }'
    (tmp_path / "config.json").write_text(text)
    assert json.loads(side_files(tmp_path).rewritten["config.json"]) == {}


def test_side_file_that_links_out_is_refused(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (tmp_path / "m").mkdir()
    os.symlink(secret, tmp_path / "m" / "tokenizer.json")
    with pytest.raises(SecurityError, match="link out"):
        side_files(tmp_path / "m")


# --- config.json -----------------------------------------------------------------------------

CONFIG = """{
    "architectures": ["X"],
  "torch_dtype" :  "float32", "rope": {"dtype": "float32"},
  "zeta": 1e-05,
  "text_config": {"dtype": "float32", "hidden": 7},
  "vision_config": {"torch_dtype": "float16"}
}
"""


def test_dtype_is_corrected_and_nothing_else_moves():
    """Config says one dtype, tensors are another. Order, spacing and 1e-05 stay."""
    out = config_for_output(CONFIG.encode(), DType.BF16).decode()
    expected = CONFIG.replace('"torch_dtype" :  "float32"', '"torch_dtype" :  "bfloat16"')
    expected = expected.replace('{"dtype": "float32", "hidden"', '{"dtype": "bfloat16", "hidden"')
    assert out == expected


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_both_spellings(key):
    out = json.loads(config_for_output(json.dumps({key: "float32"}).encode(), DType.F16))
    assert out == {key: "float16"}


def test_no_dtype_stays_no_dtype_and_nested_alone_is_corrected():
    assert config_for_output(b'{"a": 1}', DType.F16) == b'{"a": 1}'
    out = config_for_output(b'{"text_config": {"dtype": "float32"}}', DType.BF16)
    assert json.loads(out) == {"text_config": {"dtype": "bfloat16"}}


def test_attention_override_is_dropped():
    """CVE-2026-4372: a name in config.json that makes a loader run code."""
    text = b'{"a": 1, "_attn_implementation_internal": "evil/kernel", "b": 2}'
    assert config_for_output(text, None) == b'{"a": 1, "b": 2}'


def test_tied_flag_follows_the_tensors():
    """Never both heads under tie_word_embeddings: true."""
    assert json.loads(config_for_output(b'{"tie_word_embeddings": true}', None, tied=False)) == {
        "tie_word_embeddings": False
    }
    assert json.loads(config_for_output(b'{"a": 1}', None, tied=False)) == {
        "tie_word_embeddings": False,
        "a": 1,
    }
    nested = b'{"text_config": {"tie_word_embeddings": true}}'
    assert json.loads(config_for_output(nested, None, tied=False)) == {
        "tie_word_embeddings": False,
        "text_config": {"tie_word_embeddings": False},
    }


@pytest.mark.parametrize("text", ['{"é": "ü\\u00e9", "torch_dtype": "float32"}', "{ }", "{}"])
def test_odd_but_valid_configs(text):
    out = config_for_output(text.encode(), DType.BF16, tied=True)
    assert json.loads(out)["tie_word_embeddings"] is True


# --- generation_config.json ------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        {"do_sample": False, "temperature": 0.6},
        {"top_p": 0.9},
        {"top_k": 20, "do_sample": None},
        {"early_stopping": True},
        {"num_beams": 1, "length_penalty": 2.0},
        {"pad_token_id": -1},
        {"min_p": 0.1},
        {"do_sample": True, "temperature": 0.6, "top_k": 3},
        {"eos_token_id": [1, 2], "temperature": 1.0, "top_k": 50},
        {"num_beams": 4, "length_penalty": 2.0},
    ],
)
def test_strict_generation_config_is_found_before_the_merge(tmp_path, content):
    """What transformers refuses on saving is what is warned of, and only that."""
    from transformers import GenerationConfig

    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    found = generation_config_problems(tmp_path)
    try:
        GenerationConfig(**content).validate(strict=True)
        refused = False
    except ValueError:
        refused = True
    assert bool(found) == refused
    if refused:
        assert found[0].code == "generation-config-strict"


def test_generation_config_that_is_absent_or_broken(tmp_path):
    assert generation_config_problems(tmp_path) == ()
    (tmp_path / "generation_config.json").write_text("{")
    assert generation_config_problems(tmp_path)[0].code == "generation-config-broken"
