"""Parsing Python that a model wrote: nothing runs, and Python's remarks about its style stay out of our output."""

from __future__ import annotations

import ast
import warnings

UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def parse(text: str) -> list[ast.stmt]:
    """The statements of ``text``.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is no Python; `UNPARSABLE` names them all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text).body
