"""A model behind an OpenAI-compatible endpoint: vLLM, SGLang, llama.cpp, transformers serve.

The server applies the model's own chat template; tools are handed over as such, so each model family's own
format is used where the server knows it. The API key, if any, comes from ``OPENAI_API_KEY`` and is never
stored, printed or part of an error message.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ramerge._errors import ConfigError, HubError
from ramerge._types import Json
from ramerge.evaluate.records import Answer, Prompt, RetryableError, UnansweredError

RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
UNREADABLE = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
REFUSED = frozenset({401, 403, 404})  # no request to this endpoint can succeed


class Endpoint:
    """Chat completions, or continuations of raw text, by one served model."""

    def __init__(self, url: str, *, concurrency: int = 64, timeout_s: float = 600.0) -> None:
        """Connect lazily, inside a running event loop; `ready` looks whether anybody is there.

        Args:
            url: the API's root, ``http://host:8000/v1``; ``#name`` selects among several served models.
            concurrency: most open connections.
            timeout_s: longest wait for one answer.

        Raises:
            ConfigError: aiohttp is not installed, or the address holds a secret, which would end up in the report.
        """
        if "@" in url.partition("#")[0] or "?" in url:
            raise ConfigError(
                "an endpoint's address may hold neither a password nor a query",
                hint="put the key into OPENAI_API_KEY",
            )
        try:
            import aiohttp
        except ImportError as error:
            raise ConfigError(
                "endpoints need aiohttp", hint="pip install 'ramerge[eval]'"
            ) from error
        self._url, _, self._model = url.partition("#")
        self._url = self._url.rstrip("/")
        self.identity = f"{self._url}#{self._model}"
        key = self._key = os.environ.get("OPENAI_API_KEY", "")
        self._errors = (aiohttp.ClientError, TimeoutError)
        self._client = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=10.0),
            connector=aiohttp.TCPConnector(limit=concurrency),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    async def ready(self) -> None:
        """Find the served model.

        Raises:
            HubError: nobody answers, or the endpoint serves several models and none was chosen.
        """
        try:
            async with self._client.get(f"{self._url}/models") as response:
                served = [str(row["id"]) for row in json.loads(await response.read())["data"]]
        except (*self._errors, ValueError, KeyError, TypeError) as error:
            raise HubError(
                f"no OpenAI-compatible endpoint answers at `{self._url}`: {type(error).__name__}",
                hint="the address ends in /v1; is the server up?",
            ) from error
        if not self._model and len(served) == 1:
            self._model = served[0]
            self.identity = f"{self._url}#{self._model}"
        elif self._model not in served:
            wanted = (
                f"`{self._model}` is not served"
                if self._model
                else f"{len(served)} models are served"
            )
            raise HubError(
                f"{wanted} at `{self._url}`: {', '.join(served[:5]) or 'none'}",
                hint="name one: --model NAME=URL#SERVED",
            )

    async def complete(self, prompt: Prompt) -> Answer:
        """See `Backend.complete`."""
        started = time.monotonic()
        address = f"{self._url}/{'completions' if prompt.text else 'chat/completions'}"
        try:
            async with self._client.post(address, json=self._body(prompt)) as response:
                status, headers, body = response.status, response.headers, await response.read()
        except self._errors as error:
            raise RetryableError(f"{type(error).__name__} at {self._url}") from error
        shown = body[:1000].decode(errors="replace")
        shown = (shown.replace(self._key, "***") if self._key else shown)[:200]
        if status in REFUSED:
            raise HubError(f"`{self._url}` answers {status}", hint="is OPENAI_API_KEY set?")
        if status in RETRYABLE:
            raise RetryableError(f"HTTP {status}", after=_seconds(headers.get("Retry-After")))
        if status != 200:
            raise UnansweredError(f"HTTP {status}: {shown}")
        try:
            return _answer(json.loads(body), time.monotonic() - started)
        except UNREADABLE as error:
            raise RetryableError(f"the reply is no completion: {shown[:80]!r}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _body(self, prompt: Prompt) -> Json:
        sampling = prompt.sampling
        body: Json = {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": prompt.seed,
        }
        if prompt.text:
            body["prompt"] = prompt.text
        else:
            body["messages"] = [{"role": r, "content": text} for r, text in prompt.messages]
        for name in ("top_k", "min_p"):
            if (value := getattr(sampling, name)) is not None:
                body[name] = value
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if prompt.tools:
            body["tools"] = json.loads(prompt.tools)
        return body


def _answer(reply: Any, seconds: float) -> Answer:
    """Read a chat completion or a continuation; any surprise is an exception."""
    choice = reply["choices"][0]
    message = choice["message"] if "message" in choice else {"content": choice["text"]}
    text = message.get("content")
    text = "" if text is None else text
    if not isinstance(text, str):
        raise TypeError("content is not text")
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        text = f"<think>{reasoning}</think>{text}"
    calls = [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls") or []
    ]
    usage = reply.get("usage") or {}
    return Answer(
        text=text,
        finish=str(choice.get("finish_reason") or "stop"),
        calls=json.dumps(calls) if calls else "",
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        new_tokens=int(usage.get("completion_tokens") or 0),
        seconds=seconds,
    )


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None  # an HTTP date: fall back on our own pause
