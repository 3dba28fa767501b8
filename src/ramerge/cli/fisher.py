"""`ramerge fisher`: the diagonal Fisher information of a model, for merging by `fisher`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ramerge._errors import ConfigError
from ramerge.cli import options as opt
from ramerge.cli.render import say


def fisher(
    *,
    model: Annotated[
        Path,
        typer.Option("--model", metavar="DIR", help="A causal language model with its tokenizer."),
    ],
    data: Annotated[
        Path, typer.Option("--data", metavar="FILE.jsonl", help="Texts: one JSON object a line.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Safetensors file to write.")
    ],
    kind: Annotated[
        str, typer.Option("--kind", help="true (labels sampled from the model) or empirical.")
    ] = "true",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Texts used at most.")] = 256,
    length: Annotated[
        int, typer.Option("--length", min=2, help="Tokens of a text used at most.")
    ] = 512,
    seed: Annotated[int, typer.Option("--seed", help="Of the sampled labels.")] = 0,
    equalise: Annotated[
        bool, typer.Option("--equalise", help="Scale the diagonal to length 1.")
    ] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Estimate the diagonal Fisher information of a model on texts like those it was trained for.

    Example: ramerge fisher --model ./coder --data code.jsonl --out coder.fisher.safetensors
    """
    from ramerge.rollouts.fisher import estimate

    if kind not in {"true", "empirical"}:
        raise ConfigError(f"`--kind {kind}` is neither true nor empirical")
    if out.exists():
        raise ConfigError(f"`{out}` exists", hint="choose another --out")
    chosen: Any = kind
    used = estimate(
        model, data, out, kind=chosen, limit=limit, length=length, seed=seed, equalise=equalise
    )
    if not quiet:
        say("note", f"wrote {out} from {used} texts")
