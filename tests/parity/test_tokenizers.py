"""mergekit reads the same files: values, slices and vocabularies must agree with its results.

The arithmetic here is two lines of numpy, so that only configuration is compared.
"""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from helpers.config import METHODS
from helpers.tokenizer_files import bpe, read, with_merges, with_special
from ramerge.config.mergekit import loads
from ramerge.config.resolve import values
from ramerge.fit.inputs import prepare
from ramerge.models.open import open_checkpoint

pytestmark = pytest.mark.slow
pytest.importorskip("mergekit")
BASE = bpe()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Four tiny Llamas: a base, two with chat markers, one with a tokenizer trained on."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("models")
    tokenizers = {
        "base": BASE,
        "a": with_special(BASE, "<|x|>"),
        "b": with_special(BASE, "<|y|>", "<|x|>"),
        "c": with_merges(BASE, ("z", "q"), ("zq", "x")),
    }
    for seed, (name, tokenizer) in enumerate(tokenizers.items()):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=16, intermediate_size=24,
            num_hidden_layers=5, num_attention_heads=2, num_key_value_heads=1,
        )  # fmt: skip
        model = LlamaForCausalLM(config).float()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        model.save_pretrained(root / name)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
        fast.save_pretrained(root / name)
    return root


def theirs(text, out):
    import yaml
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    run_merge(MergeConfiguration.model_validate(yaml.safe_load(text)), str(out), MergeOptions())
    return open_checkpoint(str(out))


def ours(text):
    job = loads(text, METHODS)
    info = METHODS[job.method]
    base = open_checkpoint(job.base) if job.base else None
    inputs = prepare(job, base, {a.name: open_checkpoint(a.source) for a in job.agents})
    result = {}
    for name in inputs.base.names():
        tensors = np.stack([read(agent, name) for agent in inputs.agents.values()])
        given = values(job, info, name, inputs.depths[name], inputs.pieces.get(name))
        weights = np.array(given["weight"] if job.method == "linear" else given["scale"])
        total = weights.sum() if job.method == "linear" else 1
        result[name] = np.tensordot(weights, tensors, 1) / total
    return result, inputs


def ids(file):
    return (
        Tokenizer.from_str(file.decode())
        if isinstance(file, bytes)
        else Tokenizer.from_file(str(file))
    ).get_vocab()


LINEAR = """
merge_method: linear
base_model: {0}/base
models:
- {{model: {0}/base, parameters: {{weight: 1}}}}
- {{model: {0}/a, parameters: {{weight: [1, 3, 2]}}}}
- model: {0}/b
  parameters:
    weight: [{{filter: mlp, value: 0.5}}, {{filter: norm, value: [1, 2]}}, {{value: 2}}]
- {{model: {0}/c, parameters: {{weight: {{filter: embed, value: 7}}}}}}
parameters: {{weight: 0.25}}
dtype: float32
"""
UNION = "tokenizer: {source: union}\n"
RULES = """
tokenizer:
  source: {0}/b
  tokens:
    <|x|>: {{source: {0}/b, force: true}}
    <|n|>: {{source: {{kind: model_token, model: {0}/a, token: <|end|>}}}}
    the: {{source: {{kind: zero}}, force: true}}
  pad_to_multiple_of: 64
"""


@pytest.mark.parametrize("tokenizer", [UNION, RULES], ids=["union", "rules"])
def test_values_and_vocabularies(models, tmp_path, tokenizer):
    text = (LINEAR + tokenizer.replace("{source: union}", "{{source: union}}")).format(models)
    expected, (result, inputs) = theirs(text, tmp_path / "out"), ours(text)
    mine, other = ids(inputs.files["tokenizer.json"]), ids(tmp_path / "out" / "tokenizer.json")
    assert mine.keys() == other.keys()
    order = [other[token] for token in mine]
    for name in expected.names():
        there, here = read(expected, name), result[name]
        if name in {"model.embed_tokens.weight", "lm_head.weight"}:
            assert there.shape == here.shape
            there, here = there[order], here[list(mine.values())]
        assert np.allclose(there, here, rtol=1e-5, atol=1e-5), name


def test_slices(models, tmp_path):
    text = f"""
merge_method: passthrough
slices:
- sources: [{{model: {models}/a, layer_range: [0, 3], parameters: {{scale: [1, 2]}}}}]
- sources: [{{model: {models}/b, layer_range: [2, 3]}}]
  parameters: {{scale: [{{filter: mlp, value: 3}}, {{value: [1, 5]}}]}}
- sources: [{{model: {models}/b, layer_range: [3, 5]}}]
dtype: float32
"""
    expected, (result, inputs) = theirs(text, tmp_path / "out"), ours(text)
    assert expected.names() == tuple(sorted(result))
    for name in expected.names():
        assert np.allclose(read(expected, name), result[name], rtol=1e-6, atol=1e-6), name
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["num_hidden_layers"] == inputs.config["num_hidden_layers"] == 6
