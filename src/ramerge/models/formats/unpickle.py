"""A reader of pickles that cannot run anything.

A pickle is a program. This interpreter knows the few opcodes that torch writes, and the objects
that they may name are markers: no class or function of Python is ever looked up. What a program
would call is compared with a table of torch's own constructors; any other name ends the reading,
and is reported. There is no allow-list to get around, because nothing is there that could be
called.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramerge._errors import CorruptInputError, MergeError, SecurityError
from ramerge.models.files import shown

MAX_PICKLE = 64_000_000  # bytes of program, not of tensors


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle refers to; never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Opaque:
    """An object of a class that we do not have: how it was made, and its attributes."""

    kind: Global
    args: tuple[Any, ...] = ()
    state: Any = None

    def get(self, name: str, position: int | None = None) -> Any:
        """Attribute ``name``, or constructor argument ``position``; None where there is neither."""
        for part in self.state if isinstance(self.state, tuple) else (self.state,):
            if isinstance(part, Mapping) and name in part:
                return part[name]
        if position is not None and position < len(self.args):
            return self.args[position]
        return None


Builder = Callable[..., Any]
_CONSTANTS = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING",
})  # fmt: skip
_EMPTY: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}


@dataclass(slots=True)
class _Machine:
    """Stack, marks and memo of one pickle."""

    builders: Mapping[str, Builder]
    persistent: Callable[[Any], Any]
    name: str
    stack: list[Any] = field(default_factory=list)
    marks: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, op: str, arg: Any) -> None:
        """One opcode."""
        if op in _CONSTANTS:
            self.stack.append(arg)
        elif op in _EMPTY:
            self.stack.append(_EMPTY[op]())
        elif op in {"BINPUT", "LONG_BINPUT", "MEMOIZE"}:
            self.memo[len(self.memo) if op == "MEMOIZE" else arg] = self.stack[-1]
        elif op in {"BINGET", "LONG_BINGET"}:
            self.stack.append(self.memo[arg])
        elif op == "MARK":
            self.marks.append(self.stack)
            self.stack = []
        elif op in {"PROTO", "FRAME", "STOP"}:
            pass
        else:
            self._combine(op, arg)

    def _combine(self, op: str, arg: Any) -> None:
        """Opcodes that take values off the stack."""
        stack = self.stack
        match op:
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                n = int(op[-1])
                stack[-n:] = [tuple(stack[-n:])]
            case "TUPLE":
                self.stack = [*self.marks.pop(), tuple(stack)]
            case "LIST":
                self.stack = [*self.marks.pop(), stack]
            case "APPEND" | "SETITEM":
                self._extend(stack.pop() if op == "APPEND" else (stack.pop(-2), stack.pop()))
            case "APPENDS" | "ADDITEMS" | "SETITEMS":
                self._extend_all(op)
            case "POP":
                stack.pop()
            case _:
                self._object(op, arg)

    def _object(self, op: str, arg: Any) -> None:
        """Opcodes about names and objects; any other is refused."""
        stack = self.stack
        match op:
            case "GLOBAL":
                stack.append(self._global(*arg.split(" ", 1)))
            case "STACK_GLOBAL":
                name = stack.pop()
                stack.append(self._global(stack.pop(), name))
            case "REDUCE":
                args = stack.pop()
                stack.append(self._call(stack.pop(), args))
            case "NEWOBJ":
                args = stack.pop()
                stack.append(Opaque(stack.pop(), args))
            case "BUILD":
                self._build(stack.pop())
            case "BINPERSID":
                stack.append(self.persistent(stack.pop()))
            case _:
                raise SecurityError(f"{shown(self.name)} uses the pickle opcode {op}, unlike torch")

    def _extend(self, item: Any) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            target[item[0]] = item[1]
        elif isinstance(target, list):
            target.append(item)
        else:
            raise TypeError("items for something that is no container")

    def _extend_all(self, op: str) -> None:
        items, self.stack = self.stack, self.marks.pop()
        target = self.stack[-1]
        if op == "ADDITEMS":
            target.update(items)
        for item in zip(items[::2], items[1::2], strict=True) if op == "SETITEMS" else items:
            if op != "ADDITEMS":
                self._extend(item)

    def _global(self, module: Any, name: Any) -> Global:
        found = Global(str(module), str(name))
        if str(found) in self.builders or f"{found.module}.".startswith("torch."):
            return found
        raise SecurityError(
            f"{shown(self.name)} is a pickle that refers to {shown(found)}",
            hint="such a file can run code when torch reads it: do not load it anywhere",
        )

    def _call(self, what: Any, args: Any) -> Any:
        builder = self.builders.get(str(what)) if isinstance(what, Global) else None
        if builder is None:
            raise SecurityError(
                f"{shown(self.name)} is a pickle that calls {shown(what)}",
                hint="such a file can run code when torch reads it: do not load it anywhere",
            )
        return builder(*args)

    def _build(self, state: Any) -> None:
        target = self.stack[-1]
        if isinstance(target, Opaque):
            target.state = state
        elif not isinstance(
            target, dict
        ):  # an OrderedDict's own attributes (`_metadata`) are dropped
            raise TypeError("a state for something that has none")


def load(
    data: bytes,
    builders: Mapping[str, Builder],
    *,
    persistent: Callable[[Any], Any],
    name: str,
) -> Any:
    """The value of a pickle.

    Args:
        data: the program.
        builders: what each callable name stands for; other names of torch are markers.
        persistent: what a persistent id stands for.
        name: what messages call the file.

    Raises:
        SecurityError: it refers to anything else, or uses opcodes that torch does not write.
        CorruptInputError: it is not a well-formed pickle.
    """
    if len(data) > MAX_PICKLE:
        raise CorruptInputError(f"the pickle in {shown(name)} is {len(data)} bytes long")
    machine = _Machine(builders, persistent, name)
    try:
        for op, arg, _ in pickletools.genops(data):
            machine.step(op.name, arg)
        (value,) = machine.stack
    except MergeError:
        raise
    except Exception as error:  # a broken program can fail in any way
        raise CorruptInputError(f"{shown(name)} is not a well-formed pickle ({error})") from None
    return value
