"""Finding a method by the name that a person types: `RAM+`, `Task-Arithmetic` and `ram_plus` are names too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar


class _Named(Protocol):
    @property
    def aliases(self) -> Mapping[str, str | None]: ...


Info = TypeVar("Info", bound=_Named)


def lookup(name: str, methods: Mapping[str, Info]) -> tuple[Info, str | None] | None:
    """The method called ``name`` and the preset that an alias stands for; None where there is none.

    Exact names and aliases go first, then the same in lower case, with ``-`` as ``_`` and ``+`` as ``_plus``.
    """
    plain = name.strip().lower().replace("-", "_").replace(" ", "_").replace("+", "_plus")
    for spelling in (name, plain):
        if spelling in methods:
            return methods[spelling], None
        for method in methods.values():
            if spelling in method.aliases:
                return method, method.aliases[spelling]
    return None
