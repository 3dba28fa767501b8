"""`ramerge verify`: does a directory still hold what its manifest says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramerge.cli import options as opt
from ramerge.cli.render import emit_json

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A directory that ramerge wrote.", show_default=False)
]


def verify(directory: Directory, *, as_json: opt.AsJson = False, quiet: opt.Quiet = False) -> None:
    """Recompute the checksums of a merged model and say what differs from its manifest.

    Example: ramerge verify ./merged
    """
    from ramerge import api

    report = api.verify(directory)
    if as_json:
        emit_json(report.to_json())
    elif not quiet:
        typer.echo(f"{directory}: verified")
