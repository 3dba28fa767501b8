"""Tool calls out of model text, in whatever form a model family writes them; nothing is ever evaluated.

BFCL's published decoder runs ``eval`` on arithmetic between arguments, so that a model can execute code by
answering ``f(a=1 + __import__("os").system("..."))``. This one gives the same results on calls without
running anything: arithmetic is done on number literals only.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from typing import Any

from ramerge._types import Json
from ramerge.evaluate.foreign import UNPARSABLE, parse
from ramerge.evaluate.records import Answer

Calls = list[dict[str, Json]]  # [{function name: {argument: value}}], as BFCL's checker takes them

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
LARGEST = 10**30  # numbers in arithmetic; 9**9**9 would never end
DEEPEST = 100_000  # characters of an answer that are parsed


def read_calls(answer: Answer) -> Calls | None:
    """The calls in an answer, or None where it holds none that can be read.

    Looks, in this order, for: calls that the server parsed, ``<tool_call>`` blocks (Qwen, Hermes, ToolRL), a JSON
    object or list with ``name`` and ``parameters`` or ``arguments`` (Llama), and ``[f(a=1), g()]`` (BFCL).
    """
    if answer.calls:
        return _from_objects([json.loads(answer.calls)])
    text = answer.final[:DEEPEST]
    if "<tool_call>" in text:
        blocks = re.findall(r"<tool_call>(.*?)(?:</tool_call>|$)", text, re.S)
        return _from_objects([piece for block in blocks for piece in _objects(block)])
    body = text.removeprefix("<|python_tag|>").strip("`\n ").removeprefix("json").strip()
    if body.startswith(("{", "[{")):
        return _from_objects(_objects(body))
    return from_python(text)


def from_python(text: str) -> Calls | None:
    """Calls written as Python, with or without the brackets around them."""
    body = text.strip("`\n ").removeprefix("python\n")
    body = body if body.startswith("[") else f"[{body}"
    body = body if body.endswith("]") else f"{body}]"
    try:
        (statement,) = parse(body.strip().strip("'"))
        if not isinstance(statement, ast.Expr):
            return None
        found = statement.value
        elements = found.elts if isinstance(found, ast.List | ast.Tuple) else [found]
        return [_call(element) for element in elements] or None
    except (*UNPARSABLE, TypeError, ArithmeticError):
        return None


def _call(node: ast.expr) -> dict[str, Json]:
    if not isinstance(node, ast.Call):
        raise TypeError("not a call")
    return {ast.unparse(node.func): {str(k.arg): _value(k.value) for k in node.keywords}}


def _value(node: ast.expr) -> Any:  # noqa: PLR0911
    match node:
        case ast.Constant(value=value):
            return "..." if value is Ellipsis else value
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as value)
        ):
            return -value if isinstance(node.op, ast.USub) else value
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Dict(keys=keys, values=values):
            return {
                _value(k): _value(v) for k, v in zip(keys, values, strict=True) if k is not None
            }
        case ast.BinOp():
            return _arithmetic(node)
        case ast.Name(id=name):
            return name
        case ast.Call(keywords=[]) | ast.Subscript():
            return ast.unparse(node)
        case ast.Call():
            return _call(node)
    raise TypeError(f"no value: {type(node).__name__}")


def _arithmetic(node: ast.expr) -> Any:
    """The value of an expression of numbers, or a string joined by ``+``.

    Raises:
        TypeError: anything else occurs in it.
    """
    if isinstance(node, ast.BinOp):
        left, right = _arithmetic(node.left), _arithmetic(node.right)
        if isinstance(left, str) or isinstance(right, str):
            if isinstance(node.op, ast.Add):
                return left + right
            raise TypeError("no arithmetic with text")
        if max(abs(left), abs(right)) > LARGEST or (
            isinstance(node.op, ast.Pow) and abs(right) > 64
        ):
            raise ArithmeticError("too large")
        return OPERATORS[type(node.op)](left, right)
    value = _value(node)
    if isinstance(value, str) and isinstance(node, ast.Constant):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    return value


def _objects(text: str) -> list[Any]:
    """Every JSON value in ``text``, one after the other; stops at the first thing that is not one."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip(" \n\r\t;,"))
        if at >= len(text):
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return [None]
        found.append(value)
    return found


def _from_objects(values: list[Any]) -> Calls | None:
    flat = [call for value in values for call in (value if isinstance(value, list) else [value])]
    calls: Calls = []
    for call in flat:
        if not isinstance(call, dict) or not isinstance(
            call.get("name") or call.get("function"), str
        ):
            return None
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                return None
        if not isinstance(arguments, dict):
            return None
        calls.append({call.get("name") or call["function"]: arguments})
    return calls or None
