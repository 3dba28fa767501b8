"""A method's parameters as values: declared by code, obeyed by YAML, flags and help.

A merge method is a Python function; its keyword-only parameters are the only description of what
users may set:

    def ram_plus(
        *,
        r: Annotated[float, Doc("bonus per unit of overlap"), Ge(0)] = 0.1,
        scope: Annotated[Literal["model", "tensor"], Doc("where overlap is counted")] = "model",
        weight: Annotated[float, Doc("scale of an agent"), PerAgent, PerTensor] = 1.0,
    ) -> ...

`from_function` turns them into a `Signature`. It lies at the bottom, so that methods can build it
and config can read it.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Scalar = float | int | bool | str | None
Kind = Literal["float", "int", "bool", "str", "choice", "path"]


@dataclass(frozen=True, slots=True)
class Doc:
    """What a parameter means, in one line without a full stop."""

    text: str


@dataclass(frozen=True, slots=True)
class Ge:
    """At least ``bound``."""

    bound: float


@dataclass(frozen=True, slots=True)
class Gt:
    """More than ``bound``."""

    bound: float


@dataclass(frozen=True, slots=True)
class Le:
    """At most ``bound``."""

    bound: float


@dataclass(frozen=True, slots=True)
class Lt:
    """Less than ``bound``."""

    bound: float


@dataclass(frozen=True, slots=True)
class PerAgent:
    """Every agent may have its own value (``parameters`` under a model)."""


@dataclass(frozen=True, slots=True)
class PerTensor:
    """The value may depend on the tensor: filters and gradients."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a method.

    Attributes:
        name: as users write it (``lambda``, where Python has ``lambda_``).
        kind: type of the value; ``path`` names a file, ``choice`` is one of ``choices``.
        default: value when nothing is set; meaningless where ``required``.
        meaning: one line for help and docs.
        minimum: lower bound, or None.
        maximum: upper bound, or None.
        minimum_open: whether ``minimum`` itself is excluded.
        maximum_open: whether ``maximum`` itself is excluded.
        choices: the allowed words of a ``choice``.
        per_agent: may be set for one agent.
        per_tensor: may be a gradient over layers or depend on a filter.
        required: has no default.
        nullable: null is a legal value.
    """

    name: str
    kind: Kind
    default: Scalar = None
    meaning: str = ""
    minimum: float | None = None
    maximum: float | None = None
    minimum_open: bool = False
    maximum_open: bool = False
    choices: tuple[str, ...] = ()
    per_agent: bool = False
    per_tensor: bool = False
    required: bool = False
    nullable: bool = False

    @property
    def range(self) -> str:
        """Legal values in words: ``>= 0``, ``0 < x <= 1``, ``mean | sum``, or empty."""
        if self.kind == "bool":
            return "true | false"
        if self.choices:
            return " | ".join(self.choices)
        low, high = self.minimum, self.maximum
        below, above = "<" if self.minimum_open else "<=", "<" if self.maximum_open else "<="
        if low is not None and high is not None:
            return f"{low:g} {below} x {above} {high:g}"
        if low is not None:
            return f"{below.replace('<', '>')} {low:g}"
        return "" if high is None else f"{above} {high:g}"

    def fit(self, value: object) -> Scalar:
        """The value as this parameter's type (an int becomes a float where a float is wanted).

        Raises:
            ValueError: wrong type, out of range, or no such choice; says what is wanted.
        """
        if value is None and self.nullable:
            return None
        if self.kind == "bool":
            _want(isinstance(value, bool), value, "true or false")
            return typing.cast("bool", value)
        if self.kind in {"float", "int"}:
            return self._number(value)
        _want(isinstance(value, str) and value != "", value, self.range or f"a {self._noun}")
        if self.choices:
            _want(value in self.choices, value, self.range)
        return typing.cast("str", value)

    def _number(self, value: object) -> float | int:
        wanted = f"a number {self.range}".rstrip() if self.kind == "float" else "a whole number"
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise ValueError(f"{_show(value)} is not {wanted}")
        if self.kind == "int" and not float(value).is_integer():
            raise ValueError(f"{_show(value)} is not {wanted}")
        low, high = self.minimum, self.maximum
        too_low = low is not None and (value < low or (self.minimum_open and value == low))
        too_high = high is not None and (value > high or (self.maximum_open and value == high))
        if too_low or too_high or (math.isinf(value) and not self._allows_infinity(value)):
            raise ValueError(f"{_show(value)} is out of range: {self.range or 'finite numbers'}")
        return int(value) if self.kind == "int" else float(value)

    def _allows_infinity(self, value: float) -> bool:
        """Infinity must be asked for by a bound that is infinity (`alpha` of RAM+: no clipping)."""
        return value in {self.minimum, self.maximum} and self.kind == "float"

    @property
    def _noun(self) -> str:
        return "file name" if self.kind == "path" else "word"


Signature = Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """What may be said about a method without running it.

    Attributes:
        name: its name in YAML and on the command line.
        signature: its parameters.
        presets: named sets of parameter values.
        aliases: other names of it, and the preset each of them implies (or None).
        base: ``required`` or ``optional``: the base is what task vectors start from, and not an
            agent where a file lists it among the models. ``member``: there are no task vectors;
            a base listed among the models is one of them.
        min_agents: fewest agents.
        max_agents: most agents, or None.
        summary: one line for lists.
        ignored: parameters that other tools have for it, and why they do nothing here.
    """

    name: str
    signature: Signature
    presets: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    aliases: Mapping[str, str | None] = field(default_factory=dict)
    base: Literal["required", "optional", "member"] = "required"
    min_agents: int = 1
    max_agents: int | None = None
    summary: str = ""
    ignored: Mapping[str, str] = field(default_factory=dict)

    def of_agent(self, parameter: Parameter) -> bool:
        """Whether the parameter may stand at an agent; at an only agent, every parameter may."""
        return parameter.per_agent or self.max_agents == 1


Methods = Mapping[str, MethodInfo]


def from_function(function: Callable[..., object]) -> dict[str, Parameter]:
    """The signature that a function's keyword-only parameters declare, in their order.

    ``Literal`` gives choices, ``X | None`` a nullable, `pathlib.Path` a path, ``tuple[float, ...]``
    a parameter per agent; one without default is required. A trailing underscore (``lambda_``) is
    dropped from the name. Markers may be classes or instances: ``PerAgent`` or ``PerAgent()``.

    Raises:
        TypeError: an annotation that is none of these, or a default that does not fit its type.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = {}
    for name, item in inspect.signature(function).parameters.items():
        if item.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        parameter = _parameter(name, hints.get(name), item.default)
        parameters[parameter.name] = parameter
    return parameters


def defaults(signature: Signature) -> dict[str, Scalar]:
    """Default values of all parameters that have one."""
    return {name: p.default for name, p in signature.items() if not p.required}


def _parameter(name: str, hint: Any, default: object) -> Parameter:
    markers: tuple[Any, ...] = ()
    if typing.get_origin(hint) is typing.Annotated:
        hint, *rest = typing.get_args(hint)
        markers = tuple(marker() if isinstance(marker, type) else marker for marker in rest)
    hint, nullable = _without_none(hint)
    hint, many = _without_sequence(hint)
    kind, choices = _kind(name, hint)
    fields: dict[str, Any] = {"per_agent": True} if many else {}
    for marker in markers:
        fields |= _facts(marker)
    required = default is inspect.Parameter.empty
    parameter = Parameter(
        name.rstrip("_"), kind, choices=choices, nullable=nullable, required=required, **fields
    )
    if required:
        return parameter
    try:
        value = parameter.fit(str(default) if isinstance(default, Path) else default)
    except ValueError as error:
        raise TypeError(f"default of `{name}`: {error}") from error
    return Parameter(**(_as_dict(parameter) | {"default": value}))


def _facts(marker: object) -> dict[str, Any]:
    match marker:
        case Doc(text):
            return {"meaning": text}
        case Ge(bound) | Gt(bound):
            return {"minimum": bound, "minimum_open": isinstance(marker, Gt)}
        case Le(bound) | Lt(bound):
            return {"maximum": bound, "maximum_open": isinstance(marker, Lt)}
        case PerAgent():
            return {"per_agent": True}
        case PerTensor():
            return {"per_tensor": True}
    return {}


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in {typing.Union, types.UnionType}:
        return hint, False
    rest = [arm for arm in typing.get_args(hint) if arm is not type(None)]
    return (rest[0], True) if len(rest) == 1 else (hint, False)


def _without_sequence(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in {tuple, Sequence}:
        return typing.get_args(hint)[0], True
    return hint, False


def _kind(name: str, hint: Any) -> tuple[Kind, tuple[str, ...]]:
    if typing.get_origin(hint) is Literal:
        return "choice", typing.get_args(hint)
    kinds: dict[Any, Kind] = {float: "float", int: "int", bool: "bool", str: "str", Path: "path"}
    if hint not in kinds:
        raise TypeError(f"parameter `{name}` has the unsupported type {hint!r}")
    return kinds[hint], ()


def _as_dict(parameter: Parameter) -> dict[str, Any]:
    return {field: getattr(parameter, field) for field in Parameter.__dataclass_fields__}


def _want(fits: bool, value: object, wanted: str) -> None:  # noqa: FBT001
    if not fits:
        raise ValueError(f"{_show(value)} is not {wanted}")


def _show(value: object) -> str:
    """A value as YAML would spell it."""
    words: dict[Any, str] = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else f"`{value}`"
