"""From what the user wrote to something that answers: an address is an endpoint, a directory is local weights."""

from __future__ import annotations

from pathlib import Path

from ramerge._errors import ConfigError
from ramerge.evaluate.endpoint import Endpoint
from ramerge.evaluate.records import Backend


async def connect(source: str, *, concurrency: int, timeout_s: float) -> Backend:
    """Open ``source``.

    Raises:
        ConfigError: it is neither an address nor a directory.
        HubError: the endpoint does not answer.
    """
    if source.startswith(("http://", "https://")):
        endpoint = Endpoint(source, concurrency=concurrency, timeout_s=timeout_s)
        try:
            await endpoint.ready()
        except BaseException:
            await endpoint.close()
            raise
        return endpoint
    if not Path(source).is_dir():
        raise ConfigError(
            f"model `{source}` is neither an http address nor a directory",
            hint="--model NAME=http://host:8000/v1 or --model NAME=./model",
        )
    from ramerge.evaluate.local import LocalModel

    return LocalModel(Path(source))
