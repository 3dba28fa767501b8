"""Diagonal Fisher information of a causal language model: how sure the model is of each of its weights.

F_i = E_x E_{y ~ p(y|x)} [(d log p(y|x) / d θ_i)²] (arXiv 2111.09832). ``true`` takes the inner expectation by sampling
labels from the model itself; ``empirical`` uses the text's own next tokens, which is cheaper and biased where the model
is wrong. Needs the `torch` extra.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from ramerge._errors import ConfigError, CorruptInputError

Kind = Literal["true", "empirical"]


def read_texts(path: Path, limit: int | None = None) -> list[str]:
    """Texts of a JSON-lines file: each line an object with ``text``, or ``prompt`` and ``completion``.

    Raises:
        CorruptInputError: a line is no such object; names the line.
    """
    texts = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                text = row["text"] if "text" in row else row["prompt"] + row["completion"]
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptInputError(
                    f"line {number} of `{path.name}` has neither `text` nor `prompt` and `completion`",
                    hint='one JSON object a line: {"text": "…"}',
                ) from error
            texts.append(str(text))
            if limit is not None and len(texts) == limit:
                break
    if not texts:
        raise CorruptInputError(f"`{path.name}` holds no texts")
    return texts


def estimate(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    kind: Kind = "true",
    limit: int | None = 256,
    length: int = 512,
    seed: int = 0,
    equalise: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Estimate the diagonal and write it as safetensors, with the model's own tensor names and shapes, in float32.

    Args:
        model: directory of a causal language model with its tokenizer.
        data: JSON-lines file (`read_texts`).
        out: file to write.
        kind: ``true`` or ``empirical``.
        limit: texts used at most.
        length: tokens of a text used at most.
        seed: of the sampled labels.
        equalise: scale the whole diagonal to length 1, so that agents of different loss scales weigh alike.
        progress: called with texts done and in all.

    Returns:
        Number of texts used.

    Raises:
        ConfigError: torch or transformers is not installed.
    """
    try:
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise ConfigError(
            "estimating Fisher information needs torch", hint='pip install "ramerge[torch]"'
        ) from None
    texts = read_texts(Path(data), limit)
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    total = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    used = 0
    for tokens in _tokenised(tokenizer, texts, length):
        network.zero_grad(set_to_none=True)
        logits = network(tokens[None]).logits[0, :-1]
        logprobs = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
        labels = drawn if kind == "true" else tokens[1:]
        logprobs.gather(-1, labels[:, None]).sum().backward()
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                total[name] += parameter.grad.detach().square()
        used += 1
        if progress:
            progress(used, len(texts))
    scale = 1.0 / max(used, 1)
    if equalise:
        norm = sum(float((t * scale).double().square().sum()) for t in total.values()) ** 0.5
        scale /= norm or 1.0
    save_file(
        {n: (t * scale).contiguous() for n, t in total.items()}, str(out), metadata={"format": "pt"}
    )
    return used


def _tokenised(tokenizer: Any, texts: list[str], length: int) -> Iterator[Any]:
    """Token ids of every text that has at least two."""
    for text in texts:
        tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=length).input_ids[
            0
        ]
        if len(tokens) > 1:
            yield tokens
