"""The table of commands, and a group that imports a command's module only to run it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ramerge._errors import ConfigError, nearest
from ramerge.cli.errors import guarded


class Entry(NamedTuple):
    """Where a command lives and the line that `ramerge --help` shows for it."""

    module: str
    attribute: str  # a plain function, or a typer.Typer with commands of its own
    summary: str


COMMANDS = {
    "merge": Entry("ramerge.cli.merge", "merge", "Merge agents into one model"),
    "plan": Entry(
        "ramerge.cli.plan", "plan", "Show what a merge would do and every problem it would hit"
    ),
    "init": Entry("ramerge.cli.init", "init", "Write a merge file for the models at hand"),
    "verify": Entry("ramerge.cli.verify", "verify", "Check a merged model against its manifest"),
    "methods": Entry(
        "ramerge.cli.methods", "methods", "List the merge methods, or one method's parameters"
    ),
    "demo": Entry(
        "ramerge.cli.demo", "demo", "Merge a miniature base and three agents, without network"
    ),
    "explain": Entry(
        "ramerge.cli.explain",
        "explain",
        "Say what a merge file will do, or how a merged model came to be",
    ),
    "probe": Entry("ramerge.cli.probe", "probe", "Measure what training changed, agent by agent"),
    "doctor": Entry("ramerge.cli.doctor", "doctor", "Check that agents are what they claim to be"),
    "fisher": Entry(
        "ramerge.cli.fisher", "fisher", "Estimate the Fisher information that `fisher` merges by"
    ),
    "evaluate": Entry(
        "ramerge.cli.evaluate", "evaluate", "Score models on the paper's suites, with intervals"
    ),
    "compare": Entry("ramerge.cli.compare", "compare", "Put evaluations into one table"),
    "lab": Entry("ramerge.lab.cli", "app", "Run the miniature study"),
}


@cache
def available() -> dict[str, Entry]:
    """The commands whose module is installed, in the order of the table; imports none of them."""
    return {name: entry for name, entry in COMMANDS.items() if find_spec(entry.module) is not None}


def load(name: str) -> Any:
    """The click command called ``name``.

    Raises:
        ConfigError: there is no such command.
    """
    entry = available().get(name)
    if entry is None:
        close = nearest(name, available())
        hint = f"did you mean `{close}`?" if close else "`ramerge --help` lists the commands"
        raise ConfigError(f"there is no command `{name}`", hint=hint)
    target = getattr(import_module(entry.module), entry.attribute)
    if isinstance(target, typer.Typer):
        target.rich_markup_mode = None
        return get_command(target)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(target)
    return get_command(single)


class LazyGroup(TyperGroup):
    """`ramerge`: knows its commands by name and summary alone."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Names of the commands, most used first."""
        return list(available())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import and return one command."""
        return load(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the list of commands from the table, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in available().items()])


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: ramerge merge --base ./base --agent ./coder --agent ./tools --out ./merged",
)


def _show_version(value: bool | None) -> None:  # noqa: FBT001
    if value:
        from ramerge import __version__

        typer.echo(f"ramerge {__version__}")
        raise typer.Exit


@app.callback()
def ramerge(
    *,
    version: Annotated[
        bool | None,
        typer.Option(
            "--version",
            "-V",
            help="Print the version and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback with an error; may stand anywhere.")
    ] = False,
) -> None:
    """Merge RL-trained agents that share one base into a single generalist."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code; never raises.

    Args:
        arguments: what follows the program's name.
    """
    debug = "--debug" in arguments
    words = [word for word in arguments if word != "--debug"] or ["--help"]

    def invoke() -> None:
        command = get_command(app)
        with command.make_context("ramerge", words) as context:
            command.invoke(context)

    to_stdout = "--json" in words and (words[0] != "probe" or "-" in words)
    return guarded(invoke, debug=debug, as_json=to_stdout)
