"""The face: instant help, errors that say the way out, exit codes that scripts can trust."""

from __future__ import annotations

import subprocess
import sys

import pytest

from helpers.cli import child_environment, ramerge
from ramerge import __version__
from ramerge._errors import IncompatibleError, MergeError, ProblemsError
from ramerge.cli.app import COMMANDS, available, load, run
from ramerge.cli.errors import guarded
from ramerge.methods.registry import METHODS

HEAVY = (
    "numba",
    "numpy",
    "pydantic",
    "torch",
    "transformers",
    "rich",
    "yaml",
    "huggingface_hub",
    "plotly",
)


def test_help_lists_every_command_and_loads_nothing_heavy():
    script = (
        "import sys, contextlib, io\n"
        "from ramerge.cli.app import run\n"
        "out = io.StringIO()\n"
        "with contextlib.redirect_stdout(out): code = run(['--help'])\n"
        f"print(code, sorted(set(sys.modules) & set({HEAVY!r})), out.getvalue())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=child_environment(),
    )
    assert done.stdout.startswith("0 [] Usage: ramerge")
    for name, entry in available().items():
        assert f"  {name} " in done.stdout
        assert entry.summary in done.stdout


@pytest.mark.parametrize("name", available())
def test_every_command_has_help_and_an_example(name):
    done = ramerge(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: ramerge {name}")
    assert "Example: ramerge" in done.stdout or "Commands:" in done.stdout


def test_the_table_of_commands_names_real_functions():
    for name in available():
        assert load(name).name == name or COMMANDS[name].attribute == "app"


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option):
    assert ramerge(option).stdout == f"ramerge {__version__}\n"


@pytest.mark.parametrize("name", ["RAM+", "ram+", "ram_plus", "Ram-Plus"])
def test_a_method_is_found_by_the_name_that_a_person_types(name):
    assert ramerge("methods", name).stdout.startswith("RAM+ (ram_plus)")


def test_no_arguments_is_help(capsys):
    assert run([]) == 0
    assert "Usage: ramerge" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["mrege"], "there is no command `mrege`", "did you mean `merge`?"),
        (
            ["merge", "--out", "x"],
            "nothing to merge: neither a CONFIG.yml nor --base and --agent given",
            "name a CONFIG.yml, or --base B --agent A1 --agent A2",
        ),
        (
            ["merge", "--base", "b", "--agent", "a", "--set", "r", "--out", "x"],
            "--set r: not KEY=VALUE",
            "for example --set r=0.2, or --set coder.weight=0.5 for one agent",
        ),
        (
            ["merge", "--base", "b", "--agent", "a", "--extra", "dorp", "--out", "x"],
            "--extra: `extra` is one of `error`, `drop`, `base`, `keep`, not `dorp`",
            "did you mean `drop`?",
        ),
        (
            ["plan", "--base", "b", "--agent", "a", "--vocabulary", "onion"],
            "--vocabulary: `vocabulary` is one of `error`, `base`, `min`, `union`, not `onion`",
            "did you mean `union`?",
        ),
        (
            ["merge", "--base", "b", "--agent", "a"],
            "missing option '--out' / '-o'",
            "name the output directory with --out DIR",
        ),
    ],
)
def test_usage_errors_are_exit_2_with_a_way_out(arguments, message, hint, capsys):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == f"error: {message}\n\nhint: {hint}\n"
    assert captured.out == ""


def fail_with(error):
    def command():
        raise error

    return command


def test_a_merge_error_ends_with_its_own_code_message_and_hint(capsys):
    error = IncompatibleError("`w` is [2] in agent `a` but [3] in the base", hint="train it again")
    assert guarded(fail_with(error), debug=False) == 4
    assert capsys.readouterr().err == (
        "error: `w` is [2] in agent `a` but [3] in the base\n\nhint: train it again\n"
    )


def test_several_problems_come_together_each_with_its_hint(capsys):
    problems = ProblemsError([IncompatibleError("first", hint="do this"), MergeError("second")])
    assert guarded(fail_with(problems), debug=False) == 4
    assert capsys.readouterr().err == "error: 2 problems\n  first\n    hint: do this\n  second\n"


def test_an_unexpected_error_is_one_line_and_a_traceback_only_on_request(capsys):
    assert guarded(fail_with(ZeroDivisionError("division\nby zero")), debug=False) == 1
    quiet = capsys.readouterr().err
    assert quiet.splitlines()[0] == "error: unexpected ZeroDivisionError: division by zero"
    assert "Traceback" not in quiet
    assert guarded(fail_with(ZeroDivisionError("division")), debug=True) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_failing_file_is_exit_6_and_named(capsys):
    assert guarded(fail_with(PermissionError(13, "Permission denied", "there/x")), debug=False) == 6
    assert capsys.readouterr().err.startswith("error: permission denied `there/x`\n")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signals_unwind_and_end_with_their_code(name, code):
    script = (
        "import os, signal, sys, time\n"
        "from ramerge.cli.errors import guarded\n"
        "def command():\n"
        "    try:\n"
        f"        os.kill(os.getpid(), signal.{name}); time.sleep(30)\n"
        "    finally:\n"
        "        print('unwound')\n"
        "sys.exit(guarded(command, debug=False))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == code
    assert done.stdout == "unwound\n"
    assert done.stderr.startswith("error: stopped by ")
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_complaint():
    reader = subprocess.Popen(
        f"{sys.executable} -m ramerge merge --help | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    out, err = reader.communicate()
    assert out.strip() in {"0", "141"}  # 0 when help was written before the reader left
    assert err == ""


def test_colour_only_on_a_terminal_and_never_with_no_color():
    assert "\x1b" not in ramerge("mrege", FORCE_COLOR="1").stderr


def test_methods_are_listed_in_groups_without_markup():
    listed = ramerge("methods").stdout
    titles = [line for line in listed.splitlines() if line and not line.startswith(" ")]
    assert titles[0] == "The RAM family" and titles[-1] == "Controls"
    assert [name for name in METHODS if f"\n  {name} " not in listed] == []
    assert "``" not in listed + ramerge("methods", "fisher").stdout
