"""What users call their models: sources, short names for agents, secrets taken out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ramerge._errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
RESERVED = frozenset({"base", "union"})  # words that mean something else where names stand

_SECRET = re.compile(
    r"(?i)([?&;](?:[\w-]*(?:token|key|secret|signature|password|credential)s?)=)[^&;@+]*"
)
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@(?=[^/?#]*)")


def without_credentials(source: str) -> str:
    """The source without user, password or token in a URL: what may be printed and written."""
    return _SECRET.sub(r"\1REMOVED", _USERINFO.sub(r"\1", source))


def split_named(text: str) -> tuple[str | None, str]:
    """``name=source`` or ``source``, as flags give agents.

    A name has no path separator, so that ``runs/lr=1e-6`` stays a source.

    Raises:
        ConfigError: what stands before the ``=`` can be no name, and the whole is no file.
    """
    name, equals, source = text.partition("=")
    if equals and source and NAME.fullmatch(name):
        return name, source
    if equals and source and name and "/" not in name and not Path(text).exists():
        hint = "names are made of letters, digits and `._-`, and start with a letter or digit"
        raise ConfigError(f"`{name}` is not a valid agent name (in `{text}`)", hint=hint)
    return None, text


def agent_names(sources: Sequence[str], given: Sequence[str | None]) -> tuple[str, ...]:
    """A short, unique name for every agent.

    A name that was given stays. Others are called after the last component of their path; where
    that is not unique, after as many components as it takes (``coder-huggingface``); the same
    source twice gets ``-2``, ``-3``.
    """
    taken = {name for name in given if name} | RESERVED
    parts = [_components(source) for source in sources]
    names = [name or _join(own, 1) for name, own in zip(given, parts, strict=True)]
    for depth in range(2, max(map(len, parts), default=0) + 1):
        clashes = {name for name, count in Counter(names).items() if count > 1} | taken
        for i, own in enumerate(parts):
            if given[i] is None and names[i] in clashes:
                names[i] = _join(own, depth)
    return tuple(_numbered(names, given, taken))


def _numbered(names: Iterable[str], given: Sequence[str | None], taken: set[str]) -> Iterable[str]:
    used = set(taken)
    for name, own in zip(names, given, strict=True):
        if own is not None:
            yield own
            continue
        unique, count = name, 1
        while unique in used:
            count += 1
            unique = f"{name}-{count}"
        used.add(unique)
        yield unique


def _join(parts: tuple[str, ...], depth: int) -> str:
    return "-".join(parts[-depth:])


def _components(source: str) -> tuple[str, ...]:
    """Telling components of a path or Hub id, last one last; never empty."""
    text = without_credentials(source).replace("\\", "/").rsplit("+", 1)[-1].split("?")[0]
    parts = [part for part in text.rstrip("/").split("/") if part not in {"", ".", ".."}]
    if parts:
        parts[-1] = re.sub(r"\.safetensors$", "", parts[-1].partition("@")[0])
    if len(parts) > 1 and parts[-1] == "model":
        parts.pop()  # a bare model.safetensors is called after its directory
    cached = [i for i, part in enumerate(parts) if part.startswith("models--")]
    if cached:  # Hub cache: models--org--name/snapshots/<commit>
        parts = parts[: cached[-1]] + parts[cached[-1]].split("--")[1:]
    clean = (re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-._") for part in parts)
    return tuple(part for part in clean if part) or ("agent",)
