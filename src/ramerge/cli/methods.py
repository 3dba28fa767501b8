"""`ramerge methods`: what can be merged by, generated from the functions themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramerge.cli import options as opt
from ramerge.cli.render import columns, emit_json

if TYPE_CHECKING:
    from ramerge._signature import Parameter
    from ramerge.methods.base import Method

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="A method, or another name for one.", show_default=False),
]


def methods(name: Name = None, *, as_json: opt.AsJson = False) -> None:
    """List the merge methods, or explain one and its parameters.

    Example: ramerge methods ram_plus
    """
    from ramerge.methods.groups import grouped
    from ramerge.methods.registry import METHODS, find

    if name is not None:
        method, _ = find(name)
        if as_json:
            emit_json(to_json(method))
        else:
            typer.echo(describe(method))
    elif as_json:
        emit_json({name: to_json(METHODS[name]) for name in sorted(METHODS)})
    else:
        width = max(map(len, METHODS))
        for title, names in grouped(METHODS):
            rows = [(name.ljust(width), _plain(METHODS[name].summary)) for name in names]
            typer.echo(f"{title}\n{_indented(columns(rows))}\n")


def describe(method: Method) -> str:
    """Everything about a method that its user may want to know, as text."""
    parts = [f"{method.title} ({method.name})\n{method.reference}", _plain(method.doc)]
    rows = [("parameter", "default", "range", "meaning")]
    rows += [
        (p.name, _default(p), p.range, p.meaning + ("; may differ by agent" if p.per_agent else ""))
        for p in method.signature.values()
    ]
    if len(rows) > 1:
        parts.append(columns(rows))
    presets = [
        (preset, ", ".join(f"{key}={value}" for key, value in values.items()))
        for preset, values in method.presets.items()
    ]
    if presets:
        parts.append("presets\n" + _indented(columns(presets)))
    if method.aliases:
        names = [f"{a} (preset {p})" if p else a for a, p in sorted(method.aliases.items())]
        parts.append("also called  " + ", ".join(names))
    if method.cost:
        parts.append(f"cost         {method.cost}")
    return "\n\n".join(parts)


def to_json(method: Method) -> dict[str, Any]:
    """A method for programs."""
    return {
        "name": method.name,
        "title": method.title,
        "summary": method.summary,
        "reference": method.reference,
        "parameters": {
            p.name: {
                "kind": p.kind,
                "default": p.default,
                "range": p.range,
                "meaning": p.meaning,
                "required": p.required,
                "per_agent": p.per_agent,
                "per_tensor": p.per_tensor,
            }
            for p in method.signature.values()
        },
        "presets": {name: dict(values) for name, values in method.presets.items()},
        "aliases": dict(method.aliases),
        "cost": method.cost,
    }


def _default(parameter: Parameter) -> str:
    """The default as YAML spells it."""
    if parameter.required:
        return "(required)"
    value = parameter.default
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def _plain(text: str) -> str:
    """A docstring's text for a terminal: its double back-ticks are single ones."""
    return text.replace("``", "`")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
