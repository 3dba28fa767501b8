"""Asking with a bound on what is under way, retries with back-off, and a store that is asked first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from ramerge.evaluate.records import Answer, Backend, Prompt, RetryableError, UnansweredError
from ramerge.evaluate.store import Store

LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How hard a model is asked.

    Attributes:
        concurrency: most requests under way.
        attempts: tries per request.
        timeout_s: longest wait for one answer.
        first_wait_s: pause after the first failure; doubles with each, with jitter.
    """

    concurrency: int = 64
    attempts: int = 5
    timeout_s: float = 600.0
    first_wait_s: float = 0.5


class Asker:
    """Answers prompts for one model: from the store, or from its backend and then into the store."""

    def __init__(
        self,
        backend: Backend,
        store: Store,
        pace: Pace,
        *,
        answered: Callable[[Answer], None] = lambda answer: None,  # noqa: ARG005
    ) -> None:
        """Args as named.

        Args:
            backend: who answers.
            store: where answers live.
            pace: bounds and retries.
            answered: told of every answer that was not in the store.
        """
        self._backend = backend
        self._store = store
        self._slots = asyncio.Semaphore(pace.concurrency)
        self._pace = pace
        self._answered = answered
        self._under_way: dict[str, asyncio.Task[Answer]] = {}

    async def ask(self, prompt: Prompt) -> Answer:
        """The answer to ``prompt``; two equal prompts make one request.

        Raises:
            UnansweredError: every attempt failed.
        """
        key = prompt.key(self._backend.identity)
        stored = self._store.get(key)
        if stored is not None:
            return stored
        if key not in self._under_way:
            self._under_way[key] = asyncio.create_task(self._fetch(key, prompt))
            self._under_way[key].add_done_callback(lambda _: self._under_way.pop(key))
        return await self._under_way[key]

    async def _fetch(self, key: str, prompt: Prompt) -> Answer:
        async with self._slots:
            answer = await self._with_retries(prompt)
            self._store.put(key, self._backend.identity, prompt, answer)
        self._answered(answer)
        return answer

    async def _with_retries(self, prompt: Prompt) -> Answer:
        for attempt in range(1, self._pace.attempts + 1):
            try:
                return await self._backend.complete(prompt)
            except RetryableError as error:
                if attempt == self._pace.attempts:
                    raise UnansweredError(f"{error} ({attempt} attempts)") from error
                wait = self._pace.first_wait_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311
                await asyncio.sleep(min(error.after or wait, LONGEST_WAIT_S))
        raise AssertionError("attempts is at least 1")
