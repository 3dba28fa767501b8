"""`ramerge evaluate`: score models on the paper's suites."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ramerge._errors import ConfigError, TaskFailuresError
from ramerge.cli import options as opt
from ramerge.cli.compare import printable, show
from ramerge.cli.render import say, seconds

if TYPE_CHECKING:
    from ramerge.evaluate.runner import Estimate, Step
QUIET_S = 30.0  # between lines of progress where nobody watches a terminal


def evaluate(
    *,
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            metavar="NAME=URL|DIR",
            help="Address ending in /v1, or model directory; repeatable.",
        ),
    ],
    suite: Annotated[
        str,
        typer.Option(
            "--suite", help="Comma-separated: coding, tool, memory, math, search, ifeval, lab."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Answers and report; an existing run is resumed."
        ),
    ] = Path("evaluation"),
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Rows of each data set.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="SET=FILE", help="A local data set; may be repeated."),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="Answers per coding problem.")
    ] = 4,
    tool_format: Annotated[
        str,
        typer.Option(
            "--tool-format", help="prompt (BFCL's own), template (the model's) or toolrl."
        ),
    ] = "prompt",
    hotpot_docs: Annotated[
        str, typer.Option("--hotpot-docs", help="Documents per context.")
    ] = "50,100",
    squad_tokens: Annotated[
        str, typer.Option("--squad-tokens", help="Tokens per context.")
    ] = "32768,65536",
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="FILE", help="tokenizer.json that counts tokens."),
    ] = None,
    merge_time: Annotated[
        list[str] | None,
        typer.Option("--merge-time", metavar="NAME=SECONDS", help="For the Pareto front."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Requests under way.")
    ] = 64,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds for one answer.")
    ] = 600.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take, and stop.")
    ] = False,
    json_output: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Score models on the paper's suites, with intervals, and write a report.

    Example: ramerge evaluate --model base=http://localhost:8000/v1 --suite math --limit 200 --out scores
    """
    from ramerge.evaluate.asking import Pace
    from ramerge.evaluate.records import Options
    from ramerge.evaluate.runner import run

    report = run(
        _named(model, "--model"),
        [name.strip() for name in suite.split(",") if name.strip()],
        out=out,
        options=Options(
            limit=limit,
            data=_named(data or [], "--data"),
            samples=samples,
            tool_format=tool_format,
            hotpot_docs=_numbers(hotpot_docs, "--hotpot-docs"),
            squad_tokens=_numbers(squad_tokens, "--squad-tokens"),
            tokenizer=None if tokenizer is None else str(tokenizer),
        ),
        pace=Pace(concurrency=concurrency, timeout_s=timeout),
        merge_seconds={n: _number(v) for n, v in _named(merge_time or [], "--merge-time").items()},
        estimated=(lambda found: None) if quiet else _say_estimate,  # noqa: ARG005
        progress=(lambda step: None) if quiet else _progress(),  # noqa: ARG005
        dry_run=dry_run,
    )
    if dry_run:
        return
    show(report, as_json=json_output)
    if not quiet:
        say("note", f"wrote {out / 'report.html'}")
    if report.errors:
        raise TaskFailuresError(
            f"{report.errors} tasks got no answer; their cells are incomplete",
            hint="run the same command again",
        )


def _named(pairs: list[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise ConfigError(f"`{option} {pair}` is not NAME=VALUE")
        if not name.isprintable():
            raise ConfigError(f"`{printable(name)}` is no name: it holds control characters")
        if name in found:
            raise ConfigError(f"`{option}` names `{name}` twice")
        found[name] = value
    return found


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"`{option} {text}` is not a list of numbers") from error
    if min(found) < 1:
        raise ConfigError(f"`{option} {text}` has a number below 1")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"`--merge-time` is `{text}`, not seconds") from error


def _say_estimate(found: Estimate) -> None:
    pace = (
        ""
        if found.seconds is None
        else f", about {seconds(found.seconds)} at the pace of those before"
    )
    say(
        "note",
        f"{found.model}: {found.tasks} tasks, at most {found.requests} requests and {found.tokens:,} new tokens; "
        f"{found.stored} answers stored already{pace}",
    )


def _progress() -> Callable[[Step], None]:
    """What shows how far an evaluation is: one line that changes on a terminal, a line now and then elsewhere."""
    began: dict[str, float] = {}
    shown: dict[str, float] = {}

    def show_step(step: Step) -> None:
        passed = time.monotonic() - began.setdefault(step.model, time.monotonic())
        left = seconds(passed * (step.total - step.done) / step.done) if step.done else "?"
        text = f"{step.model}: {step.done}/{step.total} tasks, {step.asked} requests, {left} left"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text}\x1b[K" + "\n" * (step.done == step.total))
            sys.stderr.flush()
        elif passed > shown.get(step.model, 0.0) + QUIET_S:
            shown[step.model] = passed
            say("note", text)

    return show_step
