"""Options that several commands share, and how their texts become arguments of the API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ramerge._errors import ConfigError, OutputError

Config = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG.yml",
        help="A merge in mergekit's YAML; or give it by flags.",
        show_default=False,
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="MODEL",
        help="The agents' common origin: a directory, a .safetensors file or a Hub id[@revision].",
    ),
]
Agents = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        metavar="[NAME=]MODEL",
        help="A fine-tuned model; repeat for each, in the order of the arithmetic.",
    ),
]
MethodName = Annotated[
    str | None, typer.Option("--method", help="How to merge; `ramerge methods` lists them.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A method parameter, e.g., r=0.2; AGENT.KEY=VALUE for one agent. Repeatable.",
    ),
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="A named set of defaults, as `paper` or `mergekit`.")
]
OutDtype = Annotated[
    str | None,
    typer.Option(
        "--out-dtype",
        metavar="DTYPE",
        help="Store all tensors so (bfloat16, float32 ...). Default: as the base does.",
        show_default=False,
    ),
]
ShardSize = Annotated[
    str | None,
    typer.Option(
        "--shard-size",
        metavar="SIZE",
        help="Maximum size of an output file, e.g., 5GB.",
        show_default=False,
    ),
]
NonFinite = Annotated[
    str | None,
    typer.Option(
        "--nonfinite",
        metavar="POLICY",
        help="On NaN or infinity: error, keep_base or propagate. [default: error]",
        show_default=False,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace DIR as a whole, once the new model is complete."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="PATTERN",
        help="Tensors to copy from the base, by part of their name or glob. Repeatable.",
    ),
]
Extra = Annotated[
    str | None,
    typer.Option(
        "--extra",
        metavar="POLICY",
        help="On tensors that not all models have: error (default), drop, base (the base's where one lacks it) or keep.",
        show_default=False,
    ),
]
Vocabulary = Annotated[
    str | None,
    typer.Option(
        "--vocabulary",
        metavar="POLICY",
        help="On embeddings of unequal length: error (default), base (its rows), min (rows that all have) or union.",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        help="Worker threads. Default: one per core, at most 8.",
        show_default=False,
    ),
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory", metavar="SIZE", help="Budget for buffers, as 500MB. Never changes the result."
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option("--allow-pickle", help="Read .bin and .pt inputs, with a restricted unpickler."),
]
AllowRemoteCode = Annotated[
    bool, typer.Option("--allow-remote-code", help="Copy the base's Python files into the output.")
]
TokenizerFrom = Annotated[
    str | None,
    typer.Option(
        "--tokenizer-from",
        metavar="AGENT",
        help="Copy this agent's tokenizer files instead of the base's.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def check_writable(*files: Path | None) -> None:
    """Refuse files that could not be written after hours of work; None and ``-`` are always fine.

    Raises:
        OutputError: the directory is not there, or may not be written to.
    """
    for file in files:
        if file is None or str(file) == "-":
            continue
        directory = file.parent
        if not directory.is_dir():
            raise OutputError(
                f"`{file}`: there is no directory `{directory}`", hint="make it first"
            )
        if file.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
            raise OutputError(f"`{file}` cannot be written", hint="choose another file")


def job(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `ramerge.api` from a command's, which bear the same names.

    Raises:
        ConfigError: neither a configuration file nor a base and agents.
    """
    if given["config"] is None and not (given["base"] and given["agents"]):
        missing = "no --agent" if given["base"] else "neither a CONFIG.yml nor --base and --agent"
        raise ConfigError(
            f"nothing to merge: {missing} given",
            hint="name a CONFIG.yml, or --base B --agent A1 --agent A2",
        )
    rest = {"agents": given["agents"] or None, "exclude": given["exclude"] or ()}
    printing = {"dry_run", "as_json", "quiet"}
    return {k: v for k, v in given.items() if k not in printing} | rest
