"""Whole merges of models that do not come in the plain form, or do not quite fit each other."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import ramerge
from helpers.lora import adapt, bases  # noqa: F401 - `bases` is a fixture
from helpers.reading import model, read_all
from ramerge._errors import MergeError
from ramerge.models.open import open_checkpoint

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def merged(tmp_path, base, agents, **options):
    report = ramerge.merge(
        base=str(base),
        agents={f"a{i}": str(a) for i, a in enumerate(agents)},
        method="ram",
        out=tmp_path / "out",
        **options,
    )
    return report, tmp_path / "out"


def small(**options):
    config = transformers.Qwen2Config(
        **{
            "vocab_size": 32,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            **options,
        }
    )
    torch.manual_seed(4)
    return transformers.AutoModelForCausalLM.from_config(config)


def changed(directory, out, change, **config):
    """A copy of a saved model with changed tensors and config values."""
    from safetensors.numpy import load_file

    shutil.copytree(directory, out)
    tensors = change(load_file(out / "model.safetensors"))
    model(out, tensors)
    path = out / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return out


def loaded(directory):
    found, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True
    )
    assert not any(info.get(k) for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return found


@pytest.fixture
def tied(tmp_path):
    small().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_diverged_head_is_written_and_loads_untied(tmp_path, tied):
    """Both heads in the file, the flag false, and transformers agrees."""
    agent = changed(tied, tmp_path / "a", lambda t: {**t, HEAD: t[EMBED] + 1})
    report, out = merged(tmp_path, tied, [agent])
    config = json.loads((out / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert any("untied" in text for text in report.decisions)
    result = loaded(out)
    head = result.get_output_embeddings().weight
    assert torch.allclose(head, result.get_input_embeddings().weight + 1)


def test_spare_equal_head_leaves_the_output_tied(tmp_path, tied):
    agent = changed(tied, tmp_path / "a", lambda t: {**t, EMBED: t[EMBED] + 1, HEAD: t[EMBED] + 1})
    _, out = merged(tmp_path, tied, [agent])
    assert HEAD not in open_checkpoint(str(out)).names()
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True
    loaded(out)


def test_head_that_differs_where_the_sample_does_not_look(tmp_path):
    """The full comparison of the engine finds what the sample of the plan missed."""
    small(vocab_size=12_800).save_pretrained(tmp_path / "base")

    def change(tensors):
        head = tensors[EMBED].copy()
        head.ravel()[1500] += 1  # samples lie at every 3200th element, 1024 long
        return {**tensors, HEAD: head}

    agent = changed(tmp_path / "base", tmp_path / "a", change)
    with pytest.raises(MergeError, match="differs from its") as caught:
        merged(tmp_path, tmp_path / "base", [agent])
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("policy", "rows"), [("base", 32), ("min", 28), ("union", 36)])
def test_vocabulary_policies_give_models_that_load(tmp_path, tied, policy, rows):
    def shortened(tensors):
        return {**tensors, EMBED: tensors[EMBED][:28] + 1}

    def enlarged(tensors):
        more = np.full((4, 16), 7, np.float32)
        return {**tensors, EMBED: np.concatenate([tensors[EMBED], more])}

    agents = [
        changed(tied, tmp_path / "a", shortened, vocab_size=28),
        changed(tied, tmp_path / "b", enlarged, vocab_size=36),
    ]
    with pytest.raises(MergeError, match="32 in the base, 28 in agent `a0`, 36 in agent `a1`"):
        merged(tmp_path, tied, agents)
    _, out = merged(tmp_path, tied, agents, vocabulary=policy)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == rows
    weight = loaded(out).get_input_embeddings().weight
    assert weight.shape == (rows, 16)
    if policy == "union":
        assert weight[32:].eq(7).all()


def test_value_head_is_listed_and_kept_or_left_out(tmp_path, tied):
    agent = changed(
        tied, tmp_path / "a", lambda t: {**t, "v_head.summary.weight": np.ones((1, 16), np.float32)}
    )
    with pytest.raises(MergeError, match=r"v_head\.summary\.weight"):
        merged(tmp_path, tied, [agent])
    report, out = merged(tmp_path, tied, [agent], extra="drop")
    assert any("`v_head.summary.weight`" in text for text in report.decisions)
    assert "v_head.summary.weight" not in open_checkpoint(str(out)).names()
    loaded(out)
    _, out = merged(tmp_path, tied, [agent], extra="keep", overwrite=True)
    assert "v_head.summary.weight" in open_checkpoint(str(out)).names()


def test_lora_agents_merge_as_the_materialised_ones(bases, tmp_path):  # noqa: F811
    """Bit for bit in fp32, and the same as adapters given as MODEL+ADAPTER."""
    base = bases["qwen"][1]
    agents, full = [], []
    for i in range(3):
        directory, _ = adapt(bases, tmp_path / f"l{i}", lora_alpha=4 + i)
        agents.append(directory)
        checkpoint = open_checkpoint(f"{base}+{directory}")
        tensors = {
            n: read_all(checkpoint, n).view(np.float32).reshape(checkpoint.spec(n).shape)
            for n in checkpoint.names()
        }
        full.append(model(tmp_path / f"f{i}", tensors))
    results = [
        merged(tmp_path / kind, base, given)[1]
        for kind, given in (
            ("lora", agents),
            ("plus", [f"{base}+{a}" for a in agents]),
            ("full", full),
        )
    ]
    first, *others = [(out / "model.safetensors").read_bytes() for out in results]
    assert all(other == first for other in others)


def test_trainer_shards_give_the_bytes_of_the_hf_checkpoint(made, tmp_path):
    """verl-style FSDP shards and DCP: the same output as the HF form of the same weights."""
    base = changed(
        made / "hf", tmp_path / "base", lambda t: {k: v * np.float32(0.9) for k, v in t.items()}
    )
    kinds = ["hf", "fsdp1", "fsdp2", "sharded_tensor", "hsdp", "dcp_flat"]
    outputs = []
    for kind in kinds:
        _, out = merged(tmp_path / kind, base, [made / kind], allow_pickle=True)
        outputs.append((out / "model.safetensors").read_bytes())
    assert all(output == outputs[0] for output in outputs)


def test_all_kinds_of_problems_come_in_one_answer(tmp_path, tied):
    """Nothing is found late."""
    tokens = {"model": {"vocab": {"a": 0, "b": 1}}}
    (tied / "tokenizer.json").write_text(json.dumps(tokens))
    agent = changed(
        tied,
        tmp_path / "a",
        lambda t: {**t, "score.weight": np.ones((1, 16), np.float32)},
        model_type="llama",
        architectures=["LlamaForSequenceClassification"],
    )
    tokens["model"]["vocab"] = {"a": 1, "b": 0}
    (agent / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(MergeError) as caught:
        ramerge.plan(base=str(tied), agents={"x": str(agent)}, method="ram")
    text = str(caught.value)
    for part in ("score.weight", "`llama`", "ForSequenceClassification", "other ids"):
        assert part in text
    assert caught.value.exit_code == 4
