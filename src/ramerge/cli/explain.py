"""`ramerge explain`: a merge file in words, or how a merged model came to be, by its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ramerge._errors import ConfigError, CorruptInputError
from ramerge.cli import options as opt
from ramerge.cli.render import columns, emit_json, percent, size

What = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|DIR",
        help="A merge file, or a directory that ramerge wrote.",
        show_default=False,
    ),
]


def explain(what: What, *, as_json: opt.AsJson = False) -> None:
    """Say in words what a merge file means, or how a merged model came to be.

    A manifest is believed here; `ramerge verify` holds it against the files.

    Example: ramerge explain merge.yml
    """
    if not what.is_dir():
        if as_json:
            raise ConfigError(
                "--json is for directories", hint="ramerge plan --json reads a merge file"
            )
        typer.echo(explain_file(what))
        return
    manifest = read_manifest(what / "ramerge_manifest.json")
    if as_json:
        emit_json(manifest)
    else:
        typer.echo(describe(manifest, what))


def explain_file(path: Path) -> str:
    """A merge file in words: values and where they come from, output, differences to mergekit."""
    from ramerge.config.explain import explain as in_words
    from ramerge.config.mergekit import load
    from ramerge.methods.registry import METHODS

    methods = {name: method.info for name, method in METHODS.items()}
    job = load(path, methods)
    return in_words(job, methods[job.method]).rstrip()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest at ``path``.

    Raises:
        ConfigError: there is none.
        CorruptInputError: it is not what ramerge writes.
    """
    if not path.is_file():
        hint = "only directories that ramerge wrote have one"
        raise ConfigError(f"`{path.parent}` holds no `{path.name}`", hint=hint)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptInputError(f"`{path}` is not JSON: {error}") from error
    missing = {"ramerge", "method", "inputs", "probe", "output"} - set(manifest)
    if missing:
        raise CorruptInputError(f"`{path}` lacks `{min(missing)}`")
    return dict(manifest)


def describe(manifest: dict[str, Any], directory: Path) -> str:
    """The manifest as text: method, inputs, agents, decisions, output, and how to do it again."""
    settings = [
        (key, json.dumps(value).replace('"', "")) for key, value in manifest["parameters"].items()
    ]
    weights = sum(file["size"] for file in manifest["output"])
    sections = [
        ("method", columns([(manifest["method"], f"by ramerge {manifest['ramerge']}"), *settings])),
        ("inputs", columns([_input_row(entry) for entry in manifest["inputs"]])),
        ("agents", columns(_agent_rows(manifest), right=range(2, 7))),
        ("decisions", "\n".join(manifest["decisions"])),
        (
            "output",
            f"{manifest['tensors']:,} tensors, {len(manifest['output'])} files, {size(weights)}",
        ),
        (
            "again",
            f"ramerge merge {directory / 'ramerge_config.yml'} --out DIR  (beside its sources)",
        ),
    ]
    return "\n\n".join(
        f"{title}\n" + "\n".join(f"  {line}" for line in text.splitlines())
        for title, text in sections
        if text
    )


def _input_row(entry: dict[str, Any]) -> tuple[str, ...]:
    files = entry["files"]
    revision = f"@{entry['revision']}" if entry["revision"] else ""
    first = f"sha256 {files[0]['sha256'][:12]}..." if files else ""
    return (
        entry["role"],
        entry["name"],
        f"{entry['source']}{revision}",
        f"{len(files)} file(s)",
        first,
    )


def _agent_rows(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    total = max(manifest["probe"]["elements"], 1)
    rows: list[tuple[str, ...]] = [("agent", "dtype", "changed", "unique", "ρ", "λ", "λ stored")]
    for agent in manifest["probe"]["agents"]:
        numbers = (
            agent["rho"],
            manifest["lambda"][agent["name"]],
            manifest["lambda_effective"][agent["name"]],
        )
        shares = (percent(agent["density"]), percent(agent["unique"] / total))
        rows.append(
            (
                agent["name"],
                agent["dtype"],
                *shares,
                *("-" if n is None else f"{n:.4g}" for n in numbers),
            )
        )
    return rows
