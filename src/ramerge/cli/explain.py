"""`ramerge explain`: how a merged model came to be, read from the manifest beside its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ramerge._errors import ConfigError, CorruptInputError
from ramerge.cli import options as opt
from ramerge.cli.render import columns, emit_json, percent, size

Subject = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG.yml|DIR",
        help="A merge file, or a directory that ramerge wrote.",
        show_default=False,
    ),
]

AGAIN = (
    "ramerge merge {} --out DIR, where the models lie (local ones are named by their directories)"
)


def explain(subject: Subject, *, as_json: opt.AsJson = False) -> None:
    """Say in plain words what a merge file will do, or how a merged model came to be.

    Of a file: what each key means, and where we differ from mergekit and why. Of a directory: it reads
    the manifest and believes it; `ramerge verify` holds the manifest against the files.

    Example: ramerge explain merge.yml
    """
    if not subject.is_dir():
        _explain_file(subject, as_json=as_json)
        return
    directory = subject
    manifest = read_manifest(directory / "ramerge_manifest.json")
    if as_json:
        emit_json(manifest)
    else:
        typer.echo(describe(manifest, directory))


def _explain_file(path: Path, *, as_json: bool) -> None:
    from ramerge.config.canonical import to_mapping
    from ramerge.config.explain import explain as in_words
    from ramerge.config.mergekit import load
    from ramerge.methods.registry import METHODS

    job = load(path, {name: method.info for name, method in METHODS.items()})
    if as_json:
        emit_json(to_mapping(job))
    else:
        typer.echo(in_words(job, METHODS[job.method].info))


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
        ("again", AGAIN.format(directory / "ramerge_config.yml")),
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
    rows: list[tuple[str, ...]] = [("agent", "dtype", "changed", "unique", "ρ", "λ", "λ stored")]
    for agent in manifest["probe"]["agents"]:
        numbers = (
            agent["rho"],
            manifest["lambda"][agent["name"]],
            manifest["lambda_effective"][agent["name"]],
        )
        shares = (percent(agent["density"]), percent(agent["unique"] / max(agent["changed"], 1)))
        rows.append(
            (
                agent["name"],
                agent["dtype"],
                *shares,
                *("-" if n is None else f"{n:.4g}" for n in numbers),
            )
        )
    return rows
