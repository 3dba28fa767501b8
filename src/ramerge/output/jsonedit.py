"""Changing a few values of a JSON text in place: order, layout and all other bytes stay."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

_SPACE = re.compile(r"[ \t\r\n]*")


class Member(NamedTuple):
    """Positions of one ``"key": value`` in the text: of the key, of the value, and past its end."""

    key: str
    begin: int
    value: int
    end: int


def skip(text: str, at: int) -> int:
    """The first position from ``at`` on that is not white space."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def members(text: str, brace: int) -> list[Member]:
    """Members of the object that opens at ``brace``. The text must be valid JSON."""
    decoder = json.JSONDecoder()
    found: list[Member] = []
    at = skip(text, brace + 1)
    while text[at] != "}":
        key, after = decoder.raw_decode(text, at)
        value = skip(text, skip(text, after) + 1)  # past the colon
        _, end = decoder.raw_decode(text, value)
        found.append(Member(key, at, value, end))
        at = skip(text, end)
        if text[at] == ",":
            at = skip(text, at + 1)
    return found


def edit(
    text: str,
    values: Mapping[str, str],
    drop: tuple[str, ...] = (),
    brace: int | None = None,
) -> str:
    """``text`` with members of one object replaced or dropped.

    Args:
        text: valid JSON.
        values: key to the JSON text of its new value; keys that the object lacks are ignored.
        drop: keys to remove.
        brace: where the object opens; None for the outermost.
    """
    found = members(text, skip(text, 0) if brace is None else brace)
    kept = [m.begin for m in found if m.key not in drop]
    for i in reversed(range(len(found))):
        member = found[i]
        if member.key in drop:
            text = _cut(text, found, i, after_kept=any(b < member.begin for b in kept))
        elif member.key in values:
            text = text[: member.value] + values[member.key] + text[member.end :]
    return text


def _cut(text: str, found: list[Member], i: int, *, after_kept: bool) -> str:
    """Remove member ``i`` and the comma before it, or after it where none is kept before."""
    if after_kept:
        return text[: found[i - 1].end] + text[found[i].end :]
    if i + 1 < len(found):
        comma = text.index(",", found[i].end)
        return text[: found[i].begin] + text[skip(text, comma + 1) :]
    return text[: found[i].begin] + text[found[i].end :]
