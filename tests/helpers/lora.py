"""Tiny bases, random adapters saved by PEFT, and PEFT's own merge of them."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.reading import read_all, save
from ramerge._types import DType
from ramerge.models.open import open_checkpoint

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")


def build(kind: str, *, tie: bool = False):
    """A tiny base model in fp32, randomly initialised, saved by transformers."""
    import transformers

    torch.manual_seed(3)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, tie_word_embeddings=tie
        )
    else:
        config = transformers.Qwen2Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tie,
        )
    return transformers.AutoModelForCausalLM.from_config(config).float()


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("bases")
    made = {}
    for kind, tie in (("qwen", False), ("qwen", True), ("gpt2", False)):
        name = f"{kind}-tied" if tie else kind
        made[name] = (build(kind, tie=tie), root / name)
        made[name][0].save_pretrained(root / name)
    return made


def adapt(bases, tmp_path, base="qwen", names=None, **options):
    """A random adapter on a base, saved by PEFT; returns its directory and PEFT's own merge."""
    options = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **options}
    wrapped = peft.get_peft_model(copy.deepcopy(bases[base][0]), peft.LoraConfig(**options))
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn_like(parameter) * 0.1
                parameter.copy_(parameter + noise if "magnitude" in name else noise)
    directory = tmp_path / "adapter"
    wrapped.save_pretrained(directory)
    merged = wrapped.merge_and_unload()
    return directory, {k: v.numpy() for k, v in merged.state_dict().items()}


def agent(bases, directory: Path, base="qwen"):
    return open_checkpoint(f"{bases[base][1]}+{directory}")


def values(checkpoint, name: str) -> np.ndarray:
    spec = checkpoint.spec(name)
    assert spec.dtype is DType.F32
    return read_all(checkpoint, name).view(np.float32).reshape(spec.shape)


def assert_parity(checkpoint, merged, *, at_least: int) -> None:
    """All tensors as PEFT merged them, and at least so many of them changed."""
    base = checkpoint._base
    changed = 0
    for name in checkpoint.names():
        ours = values(checkpoint, name)
        np.testing.assert_allclose(ours, merged[name], rtol=2e-6, atol=2e-7, err_msg=name)
        changed += name in base.names() and not np.array_equal(ours, values(base, name))
    assert changed >= at_least


def rewritten(directory: Path, change=None, **config) -> None:
    """Change an adapter in place: its tensors by ``change(dict)``, its configuration by key."""
    from safetensors.numpy import load_file

    path = directory / "adapter_model.safetensors"
    if change is not None:
        tensors = load_file(path)
        save(path, change(tensors))
    at = directory / "adapter_config.json"
    at.write_text(json.dumps({**json.loads(at.read_text()), **config}))


def renamed(old: str, new: str):
    return lambda tensors: {k.replace(old, new): v for k, v in tensors.items()}
