"""The list of merge methods. Importing this module imports every method file, so that each registers itself."""

from __future__ import annotations

from ramerge._errors import ConfigError, nearest
from ramerge.methods import linear as _linear
from ramerge.methods import matrix as _matrix
from ramerge.methods import nearswap as _nearswap
from ramerge.methods import norm_matched as _norm_matched
from ramerge.methods import ram as _ram
from ramerge.methods import regions as _regions
from ramerge.methods import selective as _selective
from ramerge.methods import spherical as _spherical
from ramerge.methods import task_arithmetic as _task_arithmetic
from ramerge.methods.base import METHODS, Method
from ramerge.methods.names import lookup

__all__ = ["METHODS", "find"]
_ = (
    _linear, _matrix, _nearswap, _norm_matched, _ram, _regions, _selective, _spherical, _task_arithmetic,
)  # fmt: skip


def find(name: str) -> tuple[Method, str | None]:
    """The method called ``name``, and the preset that an alias stands for.

    Raises:
        ConfigError: no such method; the hint has the nearest name.
    """
    method = lookup(name, METHODS)
    if method is not None:
        return method
    close = nearest(name.lower(), [*METHODS, *(a for m in METHODS.values() for a in m.aliases)])
    hint = f"did you mean `{close}`?" if close else "`ramerge methods` lists them"
    raise ConfigError(f"unknown merge method `{name}`", hint=hint)
