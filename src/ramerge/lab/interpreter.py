"""A safe interpreter for the programs that models write: integer arithmetic on ``x``, nothing else.

Programs are parsed, never executed by Python: what is not in the short list below has no meaning
here, so there is nothing to escape to. Size and depth are bounded by the length of a program.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable

MAX_LENGTH = 64
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def evaluate(program: str, x: int) -> int | None:
    """The program's value at ``x``; None when it is no program."""
    if len(program) > MAX_LENGTH:
        return None
    match parse(program):
        case [ast.Expr(value=expression)]:
            try:
                return _value(expression, x)
            except (ValueError, RecursionError):
                return None
    return None


def parse(text: str) -> list[ast.stmt] | None:
    """Statements of a text as Python's parser sees them, without running any; None when it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # the parser's advice is for people
            return ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, x: int) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id="x"):
            return x
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, x)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, x), _value(right, x))
    raise ValueError("not in the language")
