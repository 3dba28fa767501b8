"""Make what some examples need beside the demo's models: adapters, Fisher files, an agent with tokens of its own.

Run `ramerge demo` first, then `python examples/prepare.py [DIR]`; needs `pip install 'ramerge[torch]'`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

# Imported for its effect: it teaches numpy BF16.
import ml_dtypes  # noqa: F401
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from ramerge.rollouts.fisher import estimate

RANK = 8
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TEXTS = {"coder": ["(3+4)*2=14", "7-2=5"], "tools": ["add(3,4)", "get(key)"]}


def adapter(base: Path, agent: Path, out: Path) -> None:
    """The agent's task vector as a LoRA adapter in PEFT's format: the closest matrices of rank 8."""
    origin, tuned = (load_file(d / "model.safetensors") for d in (base, agent))
    pairs = {}
    for name in (n for n in origin if n.removesuffix(".weight").endswith(MODULES)):
        change = tuned[name].astype(np.float32) - origin[name].astype(np.float32)
        u, s, vt = np.linalg.svd(change, full_matrices=False)
        key = f"base_model.model.{name.removesuffix('.weight')}"
        pairs[f"{key}.lora_A.weight"] = np.ascontiguousarray(vt[:RANK])
        pairs[f"{key}.lora_B.weight"] = np.ascontiguousarray(u[:, :RANK] * s[:RANK])
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(MODULES),
        "base_model_name_or_path": base.name,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2))
    save_file(pairs, out / "adapter_model.safetensors")


def chat_agent(agent: Path, out: Path) -> None:
    """A copy of the agent with two chat tokens, whose rows start out as those of its first two special tokens."""
    shutil.copytree(agent, out, dirs_exist_ok=True)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|user|>", "<|end|>")])
    tokenizer.save(str(out / "tokenizer.json"))
    tensors = load_file(out / "model.safetensors")
    rows = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = np.concatenate([rows[:size], rows[1:3]])
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"vocab_size": size + 2}, indent=2))


def fisher(agent: Path, texts: list[str], out: Path) -> None:
    """Fisher information of the agent on a few texts, as `ramerge fisher` estimates it."""
    out.parent.mkdir(exist_ok=True)
    data = out.with_suffix(".jsonl")
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    estimate(agent, data, out)


def main(demo: Path) -> None:
    """Write everything below ``demo``."""
    for name in ("coder", "tools"):
        adapter(demo / "base", demo / name, demo / "adapters" / name)
    chat_agent(demo / "coder", demo / "chat")
    for name, texts in TEXTS.items():
        fisher(demo / name, texts, demo / "fisher" / f"{name}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "demo-out"))
