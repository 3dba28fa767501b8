"""Formats that are not read, recognised by their files, each with the way out."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import NamedTuple

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError, SecurityError
from ramerge.models.base import Checkpoint
from ramerge.models.files import shown
from ramerge.models.formats.safetensors import INDEX, SINGLE

UNQUANTISED = "merge the unquantised models, then quantise the result"
_LORA = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B)\b|\.base_layer\.")
ALLOW_PICKLE = "pass --allow-pickle to read it; no code in it is run"
TO_SAFETENSORS = "save the model as safetensors with `model.save_pretrained(DIR)`"


class _Rule(NamedTuple):
    """Files that give a format away, the error and its words; ``{}`` is the directory."""

    patterns: tuple[str, ...]
    error: type[MergeError]
    text: str
    hint: str


# Order matters: the first rule that matches speaks.
_RULES = (
    _Rule(
        ("adapter_model.safetensors", "adapter_config.json", "adapter_model.bin"),
        IncompatibleError,
        "{} is an adapter (LoRA), not a model",
        "as an agent it is merged onto the base; as a base write `MODEL+ADAPTER`",
    ),
    _Rule(
        ("model_world_size_*_rank_*.pt",),
        SecurityError,
        "{} is a raw verl FSDP checkpoint, whose files are Python pickles",
        f"{ALLOW_PICKLE}, or run `python -m verl.model_merger merge` on it first",
    ),
    _Rule(
        (".metadata", "*.distcp"),
        SecurityError,
        "{} is a torch distributed checkpoint (DCP), whose files are Python pickles",
        ALLOW_PICKLE,
    ),
    _Rule(
        ("zero_pp_rank_*", "global_step*", "mp_rank_*", "bf16_zero_pp_rank_*", "zero_to_fp32.py"),
        IncompatibleError,
        "{} is a DeepSpeed checkpoint",
        "run its own `python zero_to_fp32.py . OUT` first",
    ),
    _Rule(
        ("iter_*", "latest_checkpointed_iteration.txt", "common.pt"),
        IncompatibleError,
        "{} is a Megatron checkpoint",
        "export it to Hugging Face format with the trainer that wrote it",
    ),
    _Rule(("*.gguf",), IncompatibleError, "{} holds a GGUF model, which is quantised", UNQUANTISED),
    _Rule(
        ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt"),
        SecurityError,
        "{} holds Python pickles",
        f"{ALLOW_PICKLE}, or {TO_SAFETENSORS}",
    ),
    _Rule(
        ("tf_model.h5", "flax_model.msgpack", "*.onnx", "rust_model.ot"),
        IncompatibleError,
        "{} holds weights of another framework only",
        TO_SAFETENSORS,
    ),
    _Rule(
        ("model-*-of-*.safetensors",),
        CorruptInputError,
        f"{{}} holds shards but no {INDEX}",
        "the download is incomplete: fetch the model again",
    ),
    _Rule(
        ("consolidated*.safetensors",),
        IncompatibleError,
        "{} holds Mistral's consolidated layout only, whose tensors have other names",
        "use the Hugging Face layout of the same model",
    ),
    _Rule(
        ("*.safetensors",),
        CorruptInputError,
        f"{{}} holds safetensors files, but neither {SINGLE} nor {INDEX}",
        "give the file itself instead of the directory",
    ),
)


def refusal(names: set[str], directory: Path, source: str) -> MergeError:
    """Why a directory cannot be read, and what to do.

    Args:
        names: everything the directory holds.
        directory: where it is.
        source: what the user called it.
    """
    for rule in _RULES:
        if any(fnmatch.fnmatch(name, pattern) for name in names for pattern in rule.patterns):
            return rule.error(rule.text.format(shown(source)), hint=rule.hint)
    nested = sorted(name for name in names if _has_weights(directory / name))
    if nested:
        found = ", ".join(map(shown, nested[:5]))
        return IncompatibleError(
            f"{shown(source)} holds no weights, but {found} inside it does",
            hint=f"name one of them, for example {shown(Path(source) / nested[-1])}",
        )
    if not names:
        return CorruptInputError(f"{shown(source)} is an empty directory")
    return CorruptInputError(
        f"{shown(source)} holds no {SINGLE} and no {INDEX}",
        hint="give the directory that `save_pretrained` wrote, or a .safetensors file",
    )


def refuse_unmerged(checkpoint: Checkpoint) -> None:
    """Raise if a model holds adapter tensors: it was saved before the two were merged.

    Raises:
        IncompatibleError: names the first such tensor.
    """
    for name in checkpoint.names():
        if _LORA.search(name):
            raise IncompatibleError(
                f"{shown(checkpoint.source)} holds an adapter that was not merged: {shown(name)}",
                hint="export the adapter itself, and give it as `MODEL+ADAPTER`",
            )


def _has_weights(path: Path) -> bool:
    return path.is_dir() and any(
        (path / name).exists() for name in (SINGLE, INDEX, "adapter_model.safetensors")
    )
