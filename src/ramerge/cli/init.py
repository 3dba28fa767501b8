"""`ramerge init`: a commented merge file for the models at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ramerge._errors import ConfigError, OutputBusyError
from ramerge.cli import options as opt

SCHEMA = "merge.schema.json"


def init(
    *,
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR]...",
            help="Models, or one directory that holds them. Default: the current one.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="DIR", help="The base; by default recognised by probing."),
    ] = None,
    method: Annotated[str, typer.Option("--method", help="How to merge.")] = "ram_plus",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The merge file to write.")
    ] = Path("merge.yml"),
) -> None:
    """Write a commented merge file for models on this machine, and the schema for your editor beside it.

    Example: ramerge init runs --out merge.yml
    """
    from ramerge.config.schema import json_schema
    from ramerge.methods.registry import METHODS, find
    from ramerge.planning.suggest import find_base, merge_file, models_below

    places = models or [Path()]
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"`{place}` is not a directory", hint="name directories of models")
    found = [m for place in places for m in models_below(place)]
    origin = base or find_base(found)
    agents = [m for m in found if m.resolve() != origin.resolve()]
    if not agents:
        listed = ", ".join(f"`{place}`" for place in places)
        raise ConfigError(
            f"no agents in {listed}", hint="name a directory that holds base and agents"
        )
    if out.exists():
        raise OutputBusyError(f"`{out}` exists", hint="name another file with --out")
    opt.check_writable(out)
    name = find(method)[0].name
    text = merge_file(str(origin), [str(agent) for agent in agents], name, SCHEMA)
    out.write_text(text, encoding="utf-8")
    schema = json_schema({name: method.info for name, method in METHODS.items()})
    out.with_name(SCHEMA).write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
    typer.echo(f"wrote {out}: base {origin}, agents {', '.join(str(a) for a in agents)}")
    typer.echo(f"next  ramerge plan {out}")
