"""What travels between suites, backends and the report: prompts, answers, tasks, outcomes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from ramerge._types import Json


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is drawn; part of the key under which it is stored.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus.
        top_k: None leaves it to the server; not part of OpenAI's protocol, so only sent when set.
        min_p: likewise.
        max_tokens: most new tokens.
        stop: strings that end an answer (and are not part of it).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int = 2048
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to a model.

    Attributes:
        messages: (role, text) in order, for the model's chat template.
        sampling: how to answer.
        sample: 0, 1, ... where the same question is asked several times.
        tools: function descriptions for the model's own chat template, as a JSON list ("" for none).
        text: raw text to continue, without a chat template; ``messages`` and ``tools`` are empty then.
    """

    messages: tuple[tuple[str, str], ...] = ()
    sampling: Sampling = Sampling()
    sample: int = 0
    tools: str = ""
    text: str = ""

    @property
    def seed(self) -> int:
        """Of the draw: differs between prompts, so that their luck is independent, and not between models."""
        return int(self.key("")[:8], 16) >> 1

    def key(self, model: str) -> str:
        """SHA-256 of the request as ``model`` gets it: equal requests have equal keys."""
        how = self.sampling
        drawn = (how.temperature, how.top_p, how.top_k, how.min_p, how.max_tokens, how.stop)
        parts = [model, self.messages, self.text, drawn, self.sample, self.tools]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said.

    Attributes:
        text: the answer as written, reasoning included.
        finish: "stop", "length" (cut off) or whatever else the server says.
        calls: tool calls that the server parsed, ``[{"name", "arguments"}]`` as JSON ("" for none).
        prompt_tokens: as counted by the server, 0 if it does not say.
        new_tokens: likewise.
        seconds: from request to answer.
    """

    text: str
    finish: str = "stop"
    calls: str = ""
    prompt_tokens: int = 0
    new_tokens: int = 0
    seconds: float = 0.0

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut off by the token budget."""
        return self.finish == "length"

    @property
    def final(self) -> str:
        """The text after the reasoning: "" where the reasoning never ended."""
        if "</think>" in self.text:
            return self.text.rpartition("</think>")[2].strip()
        return "" if self.text.lstrip().startswith("<think>") else self.text.strip()


class UnansweredError(Exception):
    """A request got no answer, after all retries; its task counts as an error, not as wrong."""


class Backend(Protocol):
    """Whatever can answer: an endpoint, or weights in this process."""

    identity: str  # what makes this model itself; part of every stored key

    async def complete(self, prompt: Prompt) -> Answer:
        """Answer once, without retries.

        Raises:
            RetryableError: asking again may help.
            UnansweredError: it will not.
        """
        ...

    async def close(self) -> None:
        """Free what it holds."""
        ...


class RetryableError(Exception):
    """One attempt failed. ``after``: seconds that the server asked to wait, or None."""

    def __init__(self, message: str, *, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


Ask = Callable[[Prompt], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one task.

    Attributes:
        metrics: name -> (hits, out of); the first is the column's main one. A mean over tasks is the sum
            of the hits over the sum of the trials, which covers per-prompt and per-instruction scores alike.
        prediction: what was scored, for whoever reads the outcomes.
        flags: what happened on the way: "truncated", "malformed", "timeout", "crash", ...
    """

    metrics: Mapping[str, tuple[float, float]]
    prediction: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a suite, ready to be asked.

    Attributes:
        column: the data set's name in the table.
        domain: what its column is averaged under.
        item: identifies the row within its column.
        requests: how many requests it makes at most.
        tokens: most new tokens over all of them.
        solve: asks and scores.
    """

    column: str
    domain: str
    item: str
    requests: int
    tokens: int
    solve: Callable[[Ask], Awaitable[Score]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A task's score, or the reason why there is none (``error``)."""

    column: str
    domain: str
    item: str
    score: Score | None = None
    error: str = ""

    def as_json(self) -> Json:
        """As stored in ``outcomes.jsonl``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Options:
    """What a suite may be told. Data paths: name of a data set -> local file or directory.

    Attributes:
        limit: most rows of each data set, None for all.
        data: local sources; a data set that is not named here comes from the Hub.
        samples: answers per coding problem, and generated unit tests per problem (N of Best-of-N).
        tool_format: "prompt" (BFCL's own), "template" (the model's chat template) or "toolrl".
        hotpot_docs: documents per context of RULER-HotpotQA.
        squad_tokens: tokens per context of RULER-SQuAD.
        tokenizer: a ``tokenizer.json`` that counts tokens for chunks and contexts; None estimates.
        max_turns: searches per question.
        seed: of the contexts that are built.
        memory_mb: memory of a model-written program.
    """

    limit: int | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    samples: int = 4
    tool_format: str = "prompt"
    hotpot_docs: tuple[int, ...] = (50, 100)
    squad_tokens: tuple[int, ...] = (32768, 65536)
    tokenizer: str | None = None
    max_turns: int = 4
    seed: int = 0
    memory_mb: int = 1024
