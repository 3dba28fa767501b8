"""BFCL, single turn: call the right functions with the right arguments, or none where none fits.

Scored by bfcl-eval's own AST checker; rows come from its wheel. Its declared dependencies (every vendor's
SDK) are not needed: it is installed with ``--no-deps``, and the one module that imports them is replaced,
while the checker is imported, by the one fact the checker asks of it. What a model wrote is decoded by
`calls`, which does not evaluate anything.
"""

from __future__ import annotations

import json
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramerge._errors import ConfigError, CorruptInputError
from ramerge._types import Json
from ramerge.evaluate import rows
from ramerge.evaluate.records import Ask, Options, Prompt, Sampling, Score, Task
from ramerge.evaluate.suites.calls import Calls, read_calls

DOMAIN = "tool"
SOURCES: dict[str, rows.Source | None] = {"bfcl": None}
CATEGORIES = (
    "live_parallel",
    "live_parallel_multiple",
    "parallel",
    "parallel_multiple",
    "simple_python",
    "multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_relevance",
    "live_irrelevance",
)
SAMPLING = Sampling(temperature=0.001, max_tokens=2048)
FORMATS = ("prompt", "template", "toolrl")
PIN = "bfcl-eval==2026.3.23"
INSTALL = f"pip install 'ramerge[eval]' && pip install --no-deps {PIN}"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}

PROMPT = """You are an expert in composing functions.You are given a question and a set of possible functions. \
Based on the question, you will need to make one or more function/tool calls to achieve the purpose. \
If none of the functions can be used, point it out. If the given question lacks the parameters required by the \
function, also point it out.

You should only return the function calls in your response.

If you decide to invoke any of the function(s), you MUST put it in the format of \
[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)].  \
You SHOULD NOT include any other text in the response.

At each turn, you should try your best to complete the tasks requested by the user within the current turn. Continue \
to output functions to call until you have fulfilled the user's request to the best of your ability. Once you have no \
more functions to call, the system will consider the current turn complete and proceed to the next turn or task.

Here is a list of functions in json format that you can invoke.
{functions}
"""
TOOLRL = """You are a helpful assistant that can use tools. Tools, one JSON object a line:
{functions}

First think inside <think> and </think>. To use tools, write one JSON object a line, with "name" and "parameters", \
inside <tool_call> and </tool_call>. If no tool fits, answer inside <response> and </response>.
"""


def load(options: Options) -> list[Task]:
    """One task a question of each category that there is a file for.

    Raises:
        ConfigError: bfcl-eval is not installed, or an unknown tool format.
    """
    if options.tool_format not in FORMATS:
        raise ConfigError(f"tool format `{options.tool_format}` is none of {', '.join(FORMATS)}")
    directory = Path(options.data["bfcl"]) if "bfcl" in options.data else _wheel()
    checker()
    found = [c for c in CATEGORIES if _file(directory, c).is_file()]
    if not found:
        raise ConfigError(f"`{directory}` holds no BFCL_v4_*.json")
    return [task for category in found for task in _tasks(category, directory, options)]


def _tasks(category: str, directory: Path, options: Options) -> list[Task]:
    questions = rows.read(_file(directory, category), options.limit)
    gold = {}
    if "relevance" not in category:
        gold = {
            r["id"]: r["ground_truth"]
            for r in rows.read(_file(directory / "possible_answer", category), None)
        }
    missing = [q["id"] for q in questions if gold and q["id"] not in gold]
    if missing:
        raise CorruptInputError(f"BFCL question `{missing[0]}` has no possible answer")
    return [
        Task(
            column=f"BFCL {category}",
            domain=DOMAIN,
            item=str(question["id"]),
            requests=1,
            tokens=SAMPLING.max_tokens,
            solve=partial(solve, question, gold.get(question["id"]), category, options.tool_format),
        )
        for question in questions
    ]


async def solve(
    question: Json, gold: list[Json] | None, category: str, form: str, ask: Ask
) -> Score:
    """Ask, decode, check."""
    answer = await ask(prompt(question, form))
    calls = read_calls(answer)
    if calls and form == "template":
        names = {_plain(f["name"]): f["name"] for f in question["function"]}
        calls = [{names.get(name, name): a for name, a in call.items()} for call in calls]
    flags = ("truncated",) * answer.truncated + ("malformed",) * (
        calls is None and gold is not None
    )
    right = judge(question, gold, category, calls)
    return Score(
        {"accuracy": (float(right), 1.0)}, prediction=answer.calls or answer.final, flags=flags
    )


def judge(question: Json, gold: list[Json] | None, category: str, calls: Calls | None) -> bool:
    """Whether ``calls`` are right: for the (ir)relevance categories, whether there are any."""
    if gold is None:
        return bool(calls) == category.endswith("live_relevance")
    if not calls:
        return False
    try:
        return bool(checker()(question["function"], calls, gold, category)["valid"])
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError):
        return False  # the checker trusts the shape of its input; a model's arguments may have any


def prompt(question: Json, form: str) -> Prompt:
    """The question in one of the `FORMATS`."""
    messages = [(m["role"], m["content"]) for m in question["question"][0]]
    if form == "template":
        tools = [{"type": "function", "function": _openai(f)} for f in question["function"]]
        return Prompt(tuple(messages), SAMPLING, tools=json.dumps(tools))
    if form == "toolrl":
        system = TOOLRL.format(functions="\n".join(map(json.dumps, question["function"])))
    else:
        system = PROMPT.format(functions=json.dumps(question["function"], indent=4))
    if messages[0][0] == "system":
        system, messages = f"{system}\n\n{messages[0][1]}", messages[1:]
    return Prompt((("system", system), *messages), SAMPLING)


def _openai(function: Json) -> Json:
    return {
        **function,
        "name": _plain(function["name"]),
        "parameters": _schema(function["parameters"]),
    }


def _plain(name: str) -> str:
    return name.replace(".", "_")  # OpenAI's protocol allows no dots in a function's name


def _schema(value: Any) -> Any:
    """BFCL's type names as JSON schema's."""
    if isinstance(value, dict):
        return {
            k: TYPES.get(v, v) if k == "type" and isinstance(v, str) else _schema(v)
            for k, v in value.items()
        }
    return [_schema(v) for v in value] if isinstance(value, list) else value


def _file(directory: Path, category: str) -> Path:
    return directory / f"BFCL_v4_{category}.json"


def _wheel() -> Path:
    spec = find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("suite `tool` needs bfcl-eval, without its dependencies", hint=INSTALL)
    return Path(spec.submodule_search_locations[0], "data")


@cache
def checker() -> Callable[[list[Json], Calls, list[Json], str], Json]:
    """bfcl-eval's checker for Python calls: (functions, calls, possible answers, category) -> ``{"valid", ...}``.

    Raises:
        ConfigError: it is not installed.
    """
    name = "bfcl_eval.constants.model_config"
    stub = types.ModuleType(name)
    facts = types.SimpleNamespace(underscore_to_dot=False)
    stub.MODEL_CONFIG_MAPPING = defaultdict(lambda: facts)  # type: ignore[attr-defined]
    before = sys.modules.get(name)
    sys.modules[name] = stub
    try:
        from bfcl_eval.constants.enums import Language
        from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    except ImportError as error:
        raise ConfigError(f"bfcl-eval does not import: {error}", hint=INSTALL) from error
    finally:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before

    def check(functions: list[Json], calls: Calls, gold: list[Json], category: str) -> Json:
        found: Json = ast_checker(functions, calls, gold, Language.PYTHON, category, "any")
        return found

    return check
