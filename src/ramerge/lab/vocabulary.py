"""The alphabet of the miniature models: one token a character, the same in every task.

Characters keep the models small (the embedding is 4 % of the parameters) and need no tokenizer
training. The alphabet is written as an ordinary ``tokenizer.json``, so that transformers'
``AutoTokenizer`` encodes exactly like `encode`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

PAD, BOS, EOS = 0, 1, 2
SPECIAL = ("<pad>", "<s>", "</s>")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789CTMAR|+-*()=,;:?. "
TOKENS = (*SPECIAL, *CHARACTERS)
_INDEX = {token: index for index, token in enumerate(TOKENS)}


def encode(text: str) -> list[int]:
    """Token ids of a prompt: the beginning of the sequence, then one id a character."""
    return [BOS, *(_INDEX[c] for c in text)]


def encode_answer(text: str) -> list[int]:
    """Token ids of an answer: one id a character, then the end of the sequence."""
    return [*(_INDEX[c] for c in text), EOS]


def decode(ids: Iterable[int]) -> str:
    """Text up to the end of the sequence; other special tokens become ``?``, in no right answer."""
    text = []
    for index in ids:
        if index == EOS:
            break
        text.append(TOKENS[index] if index >= len(SPECIAL) else "?")
    return "".join(text)


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Prompts padded in front to ``[B, P]``, and the columns ``[B]`` where they begin."""
    width = max(map(len, prompts))
    starts = [width - len(p) for p in prompts]
    return [[PAD] * s + list(p) for s, p in zip(starts, prompts, strict=True)], starts


def write_tokenizer(directory: Path) -> None:
    """Write ``tokenizer.json`` and its side files as transformers reads them."""
    special = [
        {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, t in enumerate(SPECIAL)
    ]  # fmt: skip
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [begin, *({"Sequence": {"id": x, "type_id": 0}} for x in "AB")],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": _INDEX, "unk_token": "<pad>"},
    }  # fmt: skip
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    settings = {
        **names, "tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left",
        "model_max_length": 256,
    }  # fmt: skip
    for name, value in {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "special_tokens_map.json": names,
    }.items():
        (directory / name).write_text(
            json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8"
        )
