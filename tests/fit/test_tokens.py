"""Tokenizers, special tokens and chat templates compared before a merge."""

from __future__ import annotations

import json

import numpy as np
import pytest

from helpers.reading import model
from ramerge._errors import CorruptInputError
from ramerge.fit.configs import check_configs
from ramerge.fit.tokenizer.tokens import chat_template, check_tokens, special_ids, token_ids
from ramerge.models.open import open_checkpoint
from ramerge.output.sidefiles import side_files

WORDS = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4}


def saved(tmp_path, name, files=None, config=None, rows=8):
    directory = model(
        tmp_path / name,
        {"model.embed_tokens.weight": np.ones((rows, 2), np.float32)},
        config or {},
    )
    for file, content in (files or {}).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / file).write_text(text)
    return open_checkpoint(str(directory))


def tokenizer(vocab, added=()):
    return {"tokenizer.json": {"model": {"vocab": vocab}, "added_tokens": list(added)}}


def test_ids_from_every_kind_of_file(tmp_path):
    added = [{"content": "<x>", "id": 5}]
    kinds = {
        "fast": tokenizer(WORDS, added),
        "unigram": tokenizer([[t, -1.0] for t in WORDS], added),
        "slow": {"vocab.json": WORDS, "added_tokens.json": {"<x>": 5}},
        "bert": {"vocab.txt": "\n".join(WORDS) + "\n", "added_tokens.json": {"<x>": 5}},
    }
    for name, files in kinds.items():
        assert token_ids(saved(tmp_path, name, files).directory) == {**WORDS, "<x>": 5}, name
    assert token_ids(saved(tmp_path, "none").directory) is None
    assert token_ids(None) is None


def test_ids_as_the_tokenizers_library_gives_them(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.train_from_iterator(
        ["low lower lowest", "new newer"], tokenizers.trainers.BpeTrainer(vocab_size=40)
    )
    trained.add_special_tokens(["<|end|>"])
    trained.save(str(tmp_path / "tokenizer.json"))
    assert token_ids(tmp_path) == trained.get_vocab(with_added_tokens=True)


def test_permuted_ids_are_refused(tmp_path):
    """Same size, other ids, the first five differing tokens."""
    base = saved(tmp_path, "b", tokenizer(WORDS))
    permuted = {"<s>": 0, "</s>": 1, "a": 3, "b": 4, "c": 2}
    found = check_tokens(base, {"x": saved(tmp_path, "a", tokenizer(permuted))})
    (problem,) = found.problems
    assert problem.exit_code == 4
    assert "agent `x` gives 3 tokens other ids" in problem.message
    assert "`a` is 3 not 2, `b` is 4 not 3, `c` is 2 not 4" in problem.message
    many = {f"t{i:03}": i for i in range(100)}
    turned = {t: (i + 1) % 100 for t, i in many.items()}
    base, agent = (
        saved(tmp_path, n, tokenizer(v), rows=100) for n, v in (("c", many), ("d", turned))
    )
    (problem,) = check_tokens(base, {"x": agent}).problems
    assert problem.message.count(" not ") == 5
    assert "100 tokens" in problem.message


def test_added_tokens_are_listed(tmp_path):
    """Tokens of one agent only, listed."""
    base = saved(tmp_path, "b", tokenizer(WORDS))
    added = [{"content": f"<new{i}>", "id": 5 + i} for i in range(3)]
    found = check_tokens(base, {"x": saved(tmp_path, "a", tokenizer(WORDS, added))})
    assert found.problems == ()
    (notice,) = found.notices
    assert notice.code == "tokens-added"
    assert notice.tensors == ("<new0>", "<new1>", "<new2>")
    assert "`<new0>` (5)" in notice.message


def test_ids_without_a_row(tmp_path):
    """Token ids 64000 and 64001 with 64000 rows."""
    added = [{"content": "<x>", "id": 8}, {"content": "<y>", "id": 9}]
    (problem,) = check_tokens(saved(tmp_path, "b", tokenizer(WORDS, added)), {}).problems
    assert "2 tokens of the base have no row in `model.embed_tokens.weight`, which has 8" in (
        problem.message
    )


def test_fewer_tokens_than_rows_is_fine(tmp_path):
    """Padded embeddings are normal."""
    assert check_tokens(saved(tmp_path, "b", tokenizer(WORDS)), {}).problems == ()


def test_end_of_sequence_across_files_and_models(tmp_path):
    """Base eos 1; the agent's generation_config has [1, 4]."""
    files = {
        **tokenizer(WORDS),
        "tokenizer_config.json": {"eos_token": {"content": "</s>"}, "bos_token": "<s>"},
        "generation_config.json": {"eos_token_id": 1},
    }
    base = saved(tmp_path, "b", files, {"eos_token_id": 1})
    assert special_ids(base, token_ids(base.directory)) == {
        "bos_token": {"tokenizer_config.json": (0,)},
        "eos_token": {
            "tokenizer_config.json": (1,),
            "generation_config.json": (1,),
            "config.json": (1,),
        },
        "pad_token": {},
    }
    changed = {**files, "generation_config.json": {"eos_token_id": [1, 4]}}
    (notice,) = check_tokens(base, {"x": saved(tmp_path, "a", changed)}).notices
    assert notice.code == "special-tokens"
    assert "[1, 4] in `generation_config.json` of agent `x` but [1] in the base's" in notice.message


def test_files_of_one_model_that_disagree(tmp_path):
    files = {"generation_config.json": {"eos_token_id": 4}}
    base = saved(tmp_path, "b", files, {"text_config": {"eos_token_id": 1}})
    (notice,) = check_tokens(base, {}).notices
    assert (
        "different ids for `eos_token`: [4] in `generation_config.json`, [1] in" in notice.message
    )


def test_chat_templates(tmp_path):
    """The .jinja file overrides the JSON, and both forms may disagree."""
    both = {"chat_template.jinja": "A", "tokenizer_config.json": {"chat_template": "B"}}
    base = saved(tmp_path, "b", both)
    assert chat_template(base.directory) == "A"
    (notice,) = check_tokens(base, {}).notices
    assert "two chat templates that differ" in notice.message
    one = saved(tmp_path, "c", {"chat_template.json": {"chat_template": "A"}})
    assert check_tokens(one, {}).notices == ()
    assert chat_template(one.directory) == "A"
    other = saved(tmp_path, "d", {"chat_template.jinja": "C"})
    (notice,) = check_tokens(one, {"x": other}).notices
    assert "agent `x` was trained with another chat template" in notice.message


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.json": {"model": {"vocab": {"a": "1"}}}},
        {"tokenizer.json": {"model": {"vocab": {"a": True}}}},
        {"tokenizer.json": "{"},
        {"tokenizer.json": "[]"},
    ],
)
def test_broken_tokenizer_files(tmp_path, files):
    base = saved(tmp_path, "b", files)
    with pytest.raises(CorruptInputError, match=r"tokenizer\.json"):
        check_tokens(base, {})


def test_tokenizer_of_an_agent(tmp_path):
    """--tokenizer-from: tokenizer and chat template from an agent, all else from the base."""
    base = saved(
        tmp_path,
        "b",
        {**tokenizer(WORDS), "merges.txt": "b", "generation_config.json": {}, "LICENSE": "l"},
    )
    agent = saved(
        tmp_path,
        "a",
        {**tokenizer({"z": 0}), "chat_template.jinja": "C", "generation_config.json": {}},
    )
    found = side_files(base.directory, tokenizer_from=agent.directory)
    origin = {f.name: f.path.parent for f in found.files}
    assert origin == {
        "LICENSE": base.directory,
        "chat_template.jinja": agent.directory,
        "config.json": base.directory,
        "generation_config.json": base.directory,
        "tokenizer.json": agent.directory,
    }


# --- config.json -------------------------------------------------------------------------------


def test_config_of_another_model(tmp_path):
    """Config says 80 tokens, the tensors have 64 rows."""
    (problem,) = check_configs(
        saved(tmp_path, "b", config={"vocab_size": 80}, rows=64), {}
    ).problems
    assert "a vocab_size of 80, but `model.embed_tokens.weight` has 64 rows" in problem.message
    assert check_configs(saved(tmp_path, "c", config={"vocab_size": 8}), {}).problems == ()
    assert check_configs(saved(tmp_path, "d"), {}).problems == ()


def test_other_head_or_model_type(tmp_path):
    """A reward model among the agents."""
    base = saved(tmp_path, "b", config={"architectures": ["Qwen2ForCausalLM"], "model_type": "q"})
    reward = {"architectures": ["Qwen2ForSequenceClassification"], "model_type": "q"}
    (problem,) = check_configs(base, {"x": saved(tmp_path, "a", config=reward)}).problems
    assert (
        "`ForSequenceClassification` in agent `x` but `ForCausalLM` in the base" in problem.message
    )
    other = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (problem,) = check_configs(base, {"x": saved(tmp_path, "c", config=other)}).problems
    assert "model_type is `llama`" in problem.message
    same = {"architectures": ["Qwen2ForCausalLM"], "model_type": "q"}
    found = check_configs(base, {"x": saved(tmp_path, "d", config=same), "y": saved(tmp_path, "e")})
    assert (found.problems, found.notices) == ((), ())


def test_other_hyperparameters_are_noticed(tmp_path):
    base = saved(tmp_path, "b", config={"rope_theta": 10000.0, "rms_norm_eps": 1e-6})
    agent = saved(tmp_path, "a", config={"text_config": {"rope_theta": 1e6, "rms_norm_eps": 1e-6}})
    (notice,) = check_configs(base, {"x": agent}).notices
    assert notice.code == "config-differs"
    assert "`rope_theta` is `1000000.0` not `10000.0`" in notice.message
    assert "rms_norm_eps" not in notice.message
