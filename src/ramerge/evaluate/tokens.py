"""Counting tokens and cutting text by them: exactly with a ``tokenizer.json``, else four characters a token."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from ramerge._errors import ConfigError

CHARACTERS = 4  # English text and the large vocabularies of today: 3.5 to 4.5


class Tokens(Protocol):
    """Something that counts."""

    def count(self, text: str) -> int:
        """Tokens of ``text``."""
        ...

    def pieces(self, text: str, size: int) -> list[str]:
        """``text`` cut into pieces of at most ``size`` tokens; joined they are the text again."""
        ...


class Estimated:
    """Four characters a token, cut after white space."""

    def count(self, text: str) -> int:
        """See `Tokens`."""
        return -(-len(text) // CHARACTERS)

    def pieces(self, text: str, size: int) -> list[str]:
        """See `Tokens`."""
        found, at, most = [], 0, size * CHARACTERS
        while len(text) - at > most:
            cut = text.rfind(" ", at, at + most) + 1
            end = cut if cut > at else at + most
            found.append(text[at:end])
            at = end
        return [*found, text[at:]]


class Exact:
    """A model's own tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """See `Tokens`."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def pieces(self, text: str, size: int) -> list[str]:
        """See `Tokens`."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        starts = [0, *(offsets[i][0] for i in range(size, len(offsets), size)), len(text)]
        return [text[a:b] for a, b in pairwise(starts)]


def counter(path: str | None) -> Tokens:
    """What counts: the tokenizer in ``path``, or an estimate.

    Raises:
        ConfigError: no such file, or `tokenizers` is missing.
    """
    if path is None:
        return Estimated()
    if not Path(path).is_file():
        raise ConfigError(f"there is no tokenizer `{path}`")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            "--tokenizer needs `tokenizers`", hint="pip install tokenizers"
        ) from error
    return Exact(Tokenizer.from_file(path))
