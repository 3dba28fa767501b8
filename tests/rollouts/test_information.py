"""The Fisher estimator against gradients taken one text at a time, and through a whole merge."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ramerge
from helpers.models import read_tensors, save_agent, save_base
from ramerge.rollouts.fisher import estimate, read_texts


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("fisher")
    base = save_base(root / "base", dtype="float32")
    vocabulary = {chr(97 + i): i for i in range(26)} | {"?": 26}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(base)
    (root / "data.jsonl").write_text(
        "\n".join(json.dumps({"text": t}) for t in ("abcde", "fghij", "aabbc"))
    )
    return root


def test_the_empirical_diagonal_is_the_mean_squared_gradient(model):
    import torch
    from transformers import AutoModelForCausalLM

    estimate(model / "base", model / "data.jsonl", model / "e.safetensors", kind="empirical")
    network = AutoModelForCausalLM.from_pretrained(model / "base", dtype=torch.float32)
    total = {}
    for text in ("abcde", "fghij", "aabbc"):
        network.zero_grad()
        tokens = torch.tensor([ord(c) - 97 for c in text])
        logprobs = torch.log_softmax(network(tokens[None]).logits[0, :-1], -1)
        logprobs.gather(-1, tokens[1:, None]).sum().backward()
        for name, p in network.named_parameters():
            total[name] = total.get(name, 0) + p.grad.square() / 3
    got = read_tensors(model / "e.safetensors")
    assert got.keys() == {n for n, _ in network.named_parameters()}
    for name, array in got.items():
        np.testing.assert_allclose(array, total[name].numpy(), rtol=1e-4, atol=1e-10)


def test_the_true_diagonal_is_reproducible_and_not_the_empirical_one(model):
    for name in ("t1", "t2"):
        estimate(
            model / "base", model / "data.jsonl", model / f"{name}.safetensors", kind="true", seed=3
        )
    assert (model / "t1.safetensors").read_bytes() == (model / "t2.safetensors").read_bytes()
    estimate(model / "base", model / "data.jsonl", model / "e2.safetensors", kind="empirical")
    one, other = read_tensors(model / "t1.safetensors"), read_tensors(model / "e2.safetensors")
    assert any(not np.allclose(one[n], other[n]) for n in one)


def test_equalised_diagonals_have_length_one(model):
    estimate(model / "base", model / "data.jsonl", model / "q.safetensors", equalise=True)
    assert np.isclose(
        sum((t.astype(float) ** 2).sum() for t in read_tensors(model / "q.safetensors").values()),
        1.0,
        rtol=1e-4,
    )


def test_a_merge_uses_the_files(model, tmp_path):
    agents = {
        n: save_agent(model / n, model / "base", seed=i, density=0.5) for i, n in enumerate("ab")
    }
    for name, path in agents.items():
        for file in (model / "base").glob("tokenizer*"):
            (path / file.name).write_bytes(file.read_bytes())
        estimate(path, model / "data.jsonl", tmp_path / f"{name}.f.safetensors")
    ramerge.merge(
        base=model / "base", agents=agents, method="fisher", out=tmp_path / "m",
        parameters={f"{n}.fisher": str(tmp_path / f"{n}.f.safetensors") for n in agents},
    )  # fmt: skip
    f = [read_tensors(tmp_path / f"{n}.f.safetensors") for n in agents]
    values = [read_tensors(p) for p in agents.values()]
    for name, array in read_tensors(tmp_path / "m").items():
        w = [np.maximum(i[name], np.float32(1e-6)) for i in f]
        np.testing.assert_allclose(
            array, (w[0] * values[0][name] + w[1] * values[1][name]) / (w[0] + w[1]), rtol=2e-6
        )


def test_a_bad_line_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"words": 1}\n')
    with pytest.raises(ramerge.MergeError, match=r"line 2 of `x.jsonl`"):
        read_texts(tmp_path / "x.jsonl")
