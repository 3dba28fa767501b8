"""What no chat completion is asked for again, never scored."""

import json

import pytest

from ramerge.evaluate.endpoint import UNREADABLE, _answer

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
