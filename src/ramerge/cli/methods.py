"""`ramerge methods`: what can be merged by, generated from the functions themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ramerge._errors import ConfigError, nearest
from ramerge.cli import options as opt
from ramerge.cli.render import columns, emit_json

if TYPE_CHECKING:
    from ramerge.methods.registry import Method

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A method or one of its aliases.", show_default=False),
]


def methods(name: Name = None, *, as_json: opt.AsJson = False) -> None:
    """List the merge methods, or explain one and its parameters.

    Example: ramerge methods ram_plus
    """
    from ramerge.methods.registry import METHODS

    if name is None:
        listed = sorted(METHODS.values(), key=lambda method: method.name)
        if as_json:
            emit_json({method.name: method.summary for method in listed})
        else:
            typer.echo(columns([(method.name, method.summary) for method in listed]))
        return
    method = _find(name, METHODS)
    typer.echo(_describe(method))


def _find(name: str, registry: dict[str, Method]) -> Method:
    for method in registry.values():
        if name == method.name or name in method.aliases:
            return method
    close = nearest(name, registry)
    hint = f"did you mean `{close}`?" if close else "`ramerge methods` lists them"
    raise ConfigError(f"there is no merge method `{name}`", hint=hint)


def _describe(method: Method) -> str:
    rows = [("parameter", "default", "range", "meaning")]
    rows += [(p.name, str(p.default), str(p.range), p.meaning) for p in method.signature.values()]
    return f"{method.name}: {method.summary}\n{method.reference}\n\n{columns(rows)}"
