"""stories260K from llama2.c's files to an ordinary Hugging Face directory.

The public checkpoint comes as two binary files: ``stories260K.bin`` (seven integers, then fp32
arrays, each weight of all layers in one block) and ``tok512.bin`` (a sentencepiece vocabulary with
scores). Two things differ from transformers: the rotary code turns neighbouring pairs of a head
there and its halves here, so the rows of queries and keys are reordered; and merges are not stored,
so they are read off the vocabulary, a piece with a higher score being merged first.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramerge._errors import ConfigError
from ramerge.lab.model import Shape, Weights, save

MODEL, VOCABULARY = "stories260K.bin", "tok512.bin"
_SPECIAL = ("<unk>", "<s>", "</s>")
_SPACE = "▁"


def convert(source: Path, target: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write the model of ``source`` as a Hugging Face directory; it came in fp32.

    Raises:
        ConfigError: a file is missing, or is no llama2.c model with tied embeddings.
    """
    for name in (MODEL, VOCABULARY):
        if not (source / name).is_file():
            raise ConfigError(
                f"`{source}` holds no {name}", hint="give the directory of stories260K's two files"
            )
    shape, weights = read_model(source / MODEL)
    pieces = read_vocabulary(source / VOCABULARY, shape.vocabulary)

    def tokenizer(directory: Path) -> None:
        write_tokenizer(pieces, shape.positions, directory)

    save(weights, shape, target, dtype, tokenizer)
    return target


def read_model(path: Path) -> tuple[Shape, Weights]:
    """Shape and fp32 weights under transformers' names.

    Raises:
        ConfigError: the sizes do not add up to the file's length, or the head is not tied.
    """
    raw = path.read_bytes()
    hidden, inner, layers, heads, groups, vocabulary, positions = struct.unpack_from("<7i", raw)
    if vocabulary <= 0:
        raise ConfigError(f"`{path}` has an output head of its own, which this lab does not know")
    shape = Shape(vocabulary, hidden, inner, layers, heads, groups, positions)
    sizes = shape.tensors()
    codes = positions * shape.head  # cosines and sines of the rotary code: computed here
    expected = 28 + 4 * (sum(int(np.prod(s)) for s in sizes.values()) + codes)
    if len(raw) != expected:
        raise ConfigError(f"`{path}` has {len(raw)} bytes, its sizes ask for {expected}")
    values = np.frombuffer(raw, "<f4", offset=28)
    weights, at = {}, 0
    for name in _file_order(shape):
        count = int(np.prod(sizes[name]))
        weights[name] = torch.from_numpy(values[at : at + count].copy()).view(sizes[name])
        at += count
    return shape, {name: _halves(name, weights[name], shape) for name in sizes}


def _file_order(shape: Shape) -> Iterator[str]:
    """Names in the order of the file: weight by weight, and each of all layers."""
    yield "model.embed_tokens.weight"
    for kind in (
        "input_layernorm",
        *(f"self_attn.{x}_proj" for x in "qkvo"),
        "post_attention_layernorm",
        *(f"mlp.{x}_proj" for x in ("gate", "down", "up")),
    ):
        for layer in range(shape.layers):
            yield f"model.layers.{layer}.{kind}.weight"
    yield "model.norm.weight"


def _halves(name: str, weight: Tensor, shape: Shape) -> Tensor:
    """Queries and keys with the even rows of each head first, then the odd ones."""
    if "q_proj" not in name and "k_proj" not in name:
        return weight
    pairs = weight.view(-1, shape.head // 2, 2, shape.hidden)
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def read_vocabulary(path: Path, count: int) -> list[tuple[str, float]]:
    """Pieces and scores in the order of their ids; a space is ``▁``, as sentencepiece has it."""
    raw = path.read_bytes()
    pieces, at = [], 4
    for _ in range(count):
        score, length = struct.unpack_from("<fi", raw, at)
        text = raw[at + 8 : at + 8 + length].decode("utf-8")
        pieces.append((text.replace(" ", _SPACE), score))
        at += 8 + length
    return [(special, 0.0) for special in _SPECIAL] + pieces[len(_SPECIAL) :]


def write_tokenizer(pieces: list[tuple[str, float]], positions: int, directory: Path) -> None:
    """Write the vocabulary as ``tokenizer.json`` and its side files."""
    vocabulary = {text: index for index, (text, _) in enumerate(pieces)}
    special = [
        {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, t in enumerate(_SPECIAL)
    ]  # fmt: skip
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": _SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [begin, *({"Sequence": {"id": x, "type_id": 0}} for x in "AB")],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
            "vocab": vocabulary, "merges": merges(pieces),
        },
    }  # fmt: skip
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    settings: dict[str, Any] = {
        **names, "tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left",
        "model_max_length": positions,
    }  # fmt: skip
    for name, value in {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "special_tokens_map.json": names,
    }.items():
        text = json.dumps(value, indent=1, ensure_ascii=False)
        (directory / name).write_text(text + "\n", "utf-8")


def merges(pieces: list[tuple[str, float]]) -> list[list[str]]:
    """Pairs of pieces that make another piece, those with the highest score first."""
    known = {text: index for index, (text, _) in enumerate(pieces)}
    found = [
        (-score, known[text[:at]], known[text[at:]])
        for text, score in pieces[len(_SPECIAL) :]
        for at in range(1, len(text))
        if text[:at] in known and text[at:] in known
    ]
    return [[pieces[left][0], pieces[right][0]] for _, left, right in sorted(found)]
