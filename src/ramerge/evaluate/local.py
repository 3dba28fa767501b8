"""A model that answers in this process, with transformers on CPU or GPU: for small models, without a server.

Requests with equal sampling are gathered for a moment and answered in one batch, padded on the left. Each row
of a batch has its own stream of noise, from its prompt's seed: what is drawn does not depend on its neighbours.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from ramerge._errors import ConfigError
from ramerge.evaluate.records import Answer, Prompt, Sampling, UnansweredError

GATHER_S = 0.02
BATCH = 16


class LocalModel:
    """Weights of a causal language model directory."""

    def __init__(self, directory: Path) -> None:
        """Load the model and its tokenizer.

        Raises:
            ConfigError: torch and transformers are missing, or the directory does not load.
        """
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
            from transformers.utils import logging
        except ImportError as error:
            raise ConfigError(
                "local models need torch and transformers", hint="pip install 'ramerge[torch]'"
            ) from error
        logging.disable_progress_bar()
        self.identity = fingerprint(directory)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(directory, padding_side="left")
            self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype="auto").to(
                device
            )
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"`{directory}` does not load as a language model: {error}"
            ) from error
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model.eval()
        self._waiting: list[tuple[Prompt, asyncio.Future[Answer]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def complete(self, prompt: Prompt) -> Answer:
        """See `Backend.complete`."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Drop the weights."""
        self._model = None

    async def _work(self) -> None:
        await asyncio.sleep(GATHER_S)
        while self._waiting:
            kind = _kind(self._waiting[0][0])
            same = [w for w in self._waiting if _kind(w[0]) == kind][:BATCH]
            self._waiting = [w for w in self._waiting if w not in same]
            try:
                answers = await asyncio.to_thread(self._generate, [prompt for prompt, _ in same])
            except Exception as error:
                why = str(error) if isinstance(error, UnansweredError) else repr(error)
                for _, future in same:
                    future.set_exception(UnansweredError(why))
                continue
            for (_, future), answer in zip(same, answers, strict=True):
                future.set_result(answer)

    def _generate(self, prompts: list[Prompt]) -> list[Answer]:
        import torch

        started = time.monotonic()
        sampling = prompts[0].sampling
        batch = self._tokenizer(
            [self._render(prompt) for prompt in prompts],
            return_tensors="pt",
            padding=True,
            # a template writes the first token itself
            add_special_tokens=bool(prompts[0].text) or not self._tokenizer.chat_template,
        )
        batch = {k: v.to(self._model.device) for k, v in batch.items() if k != "token_type_ids"}
        read = batch["input_ids"].shape[1]
        with torch.inference_mode():
            out = self._model.generate(
                **batch,
                pad_token_id=self._tokenizer.pad_token_id,
                max_new_tokens=self._room(read, sampling.max_tokens),
                do_sample=False,
                logits_processor=_draws(sampling, [p.seed for p in prompts], self._model.device),
                **self._stop(sampling),
            )
        lengths = batch["attention_mask"].sum(1).tolist()
        return [
            self._answer(row[read:], sampling.stop, length, started)
            for row, length in zip(out, lengths, strict=True)
        ]

    def _room(self, read: int, wanted: int) -> int:
        """New tokens that fit behind ``read`` ones.

        Raises:
            UnansweredError: none do.
        """
        most = getattr(self._model.config, "max_position_embeddings", None)
        if most is not None and read >= most:
            raise UnansweredError(f"the prompt has {read} tokens, the model takes {most}")
        return wanted if most is None else min(wanted, most - read)

    def _stop(self, sampling: Sampling) -> dict[str, Any]:
        if not sampling.stop:
            return {}
        return {"stop_strings": list(sampling.stop), "tokenizer": self._tokenizer}

    def _render(self, prompt: Prompt) -> str:
        if prompt.text:
            return prompt.text
        messages = [{"role": role, "content": text} for role, text in prompt.messages]
        if not self._tokenizer.chat_template:
            return "\n".join(text for _, text in prompt.messages)
        tools = json.loads(prompt.tools) if prompt.tools else None
        return str(
            self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True
            )
        )

    def _answer(
        self, row: Any, stop: tuple[str, ...], prompt_tokens: int, started: float
    ) -> Answer:
        ends = self._model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        tokens = row.tolist()
        length = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
        text = self._tokenizer.decode(tokens[:length], skip_special_tokens=True)
        cut = min((at for at in (text.find(s) for s in stop) if at >= 0), default=None)
        finished = length < len(tokens) or cut is not None
        return Answer(
            text=text if cut is None else text[:cut],
            finish="stop" if finished else "length",
            prompt_tokens=prompt_tokens,
            new_tokens=length,
            seconds=time.monotonic() - started,
        )


def _kind(prompt: Prompt) -> tuple[Sampling, bool]:
    """What the prompts of a batch have in common."""
    return prompt.sampling, bool(prompt.text)


def fingerprint(directory: Path) -> str:
    """What makes these weights themselves: name, size and time of change of every file."""
    files = sorted(p for p in directory.iterdir() if p.is_file())
    facts = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    return f"local:{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"


def _draws(sampling: Sampling, seeds: list[int], device: Any) -> Any:
    """What turns logits into a draw by their maximum: temperature, top-k, top-p, min-p, then Gumbel noise of each row's own."""
    import torch
    from transformers.generation import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    steps = LogitsProcessorList()
    if sampling.temperature == 0:
        return steps
    steps.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        steps.append(MinPLogitsWarper(sampling.min_p))
    streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def noisy(_: Any, scores: Any) -> Any:
        noise = torch.empty_like(scores, dtype=torch.float32)
        for row, stream in zip(noise, streams, strict=True):
            row.exponential_(generator=stream)
        return scores - noise.log()

    steps.append(noisy)
    return steps
