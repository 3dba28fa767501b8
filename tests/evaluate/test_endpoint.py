"""What no chat completion is asked for again, never scored."""

import asyncio
import json

import pytest

pytest.importorskip("aiohttp")

from helpers.evaluate import Reply, serving
from ramerge.evaluate.endpoint import UNREADABLE, Endpoint, _answer
from ramerge.evaluate.records import Prompt, Sampling

REPLY = '{"choices": [{"message": {"content": %s}}], "usage": {"prompt_tokens": %s}}'


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ('"x"', "1e999"),
        ("[" * 100_000 + "]" * 100_000, "1"),
        ("false", "1"),
        ("0", "1"),
        ("[]", "1"),
    ],
)
def test_garbage_is_unreadable(content, tokens):
    with pytest.raises(UNREADABLE):
        _answer(json.loads(REPLY % (content, tokens)), 0.0)


def test_no_content_is_an_empty_answer():
    assert _answer(json.loads(REPLY % ("null", "1")), 0.0).text == ""


def test_raw_text_is_continued_and_not_put_into_a_template():
    async def asked(url):
        endpoint = Endpoint(url)
        await endpoint.ready()
        prompt = Prompt(text="User: hi\nAssistant: ", sampling=Sampling(min_p=0.0, top_k=40))
        try:
            return await endpoint.complete(prompt)
        finally:
            await endpoint.close()

    with serving(lambda body: Reply("hello")) as (url, server):
        assert asyncio.run(asked(url)).text == "hello"
    (body,) = server.bodies
    assert (body["prompt"], body["min_p"], body["top_k"]) == ("User: hi\nAssistant: ", 0.0, 40)
    assert "messages" not in body
