"""The values of parameters: scalars, gradients over layers, and choices by tensor name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from ramerge._errors import ConfigError, MergeError, nearest
from ramerge._signature import MethodInfo, Parameter, Scalar
from ramerge.config.job import Filtered, Gradient, Setting
from ramerge.config.yaml import Node

Level = Literal["all", "agent"]
NO_EFFECT: Mapping[str, str] = {"int8_mask": "masks take one bit an agent as it is"}


def did_you_mean(word: str, choices: Iterable[str], otherwise: str | None = None) -> str | None:
    """A hint with the nearest of ``choices``, or ``otherwise``."""
    close = nearest(word, choices)
    return f"did you mean `{close}`?" if close else otherwise


def read_settings(
    node: Node | None, info: MethodInfo, level: Level, problems: list[MergeError]
) -> dict[str, Setting]:
    """The ``parameters`` mapping of all agents or of one; what is wrong goes to ``problems``.

    Parameters of mergekit that have no effect here are left out; `without_effect` finds them.
    """
    if node is None or node.value is None:
        return {}
    if not isinstance(node.value, dict):
        problems.append(node.error(f"`parameters` is a mapping, not {node.kind}"))
        return {}
    settings: dict[str, Setting] = {}
    for name, value in node.value.items():
        parameter = info.signature.get(name)
        if name in no_effect(info):
            continue
        if parameter is None:
            problems.append(_unknown(node, name, info))
        elif level == "agent" and not info.of_agent(parameter):
            hint = f"set it in the `parameters` of the whole file (--set {name}=…)"
            message = f"`{name}` of `{info.name}` is one for all agents together"
            problems.append(node.key_error(name, message, hint=hint))
        else:
            settings |= _collected(name, parameter, value, problems)
    return settings


def without_effect(node: Node | None, info: MethodInfo) -> dict[str, str]:
    """Names in a ``parameters`` mapping that are accepted without effect, and why."""
    if node is None or not isinstance(node.value, dict):
        return {}
    reasons = no_effect(info)
    return {name: reasons[name] for name in node.value if name in reasons}


def no_effect(info: MethodInfo) -> dict[str, str]:
    """Parameters of other tools that the method accepts without effect, and why they have none."""
    return {n: why for n, why in {**NO_EFFECT, **info.ignored}.items() if n not in info.signature}


def read_setting(parameter: Parameter, node: Node) -> Setting:
    """One value: a scalar, a list of numbers (gradient), or arms with ``filter`` and ``value``.

    Raises:
        ConfigError: it does not fit the parameter.
    """
    if isinstance(node.value, dict):
        return (_arm(parameter, node),)
    if isinstance(node.value, tuple) and any(isinstance(n.value, dict) for n in node.value):
        return _arms(parameter, node)
    return _plain(parameter, node)


def _collected(
    name: str, parameter: Parameter, node: Node, problems: list[MergeError]
) -> dict[str, Setting]:
    try:
        return {name: read_setting(parameter, node)}
    except ConfigError as error:
        problems.append(error)
        return {}


def _plain(parameter: Parameter, node: Node) -> Scalar | Gradient:
    if isinstance(node.value, tuple):
        return _gradient(parameter, node)
    return _scalar(parameter, node)


def _gradient(parameter: Parameter, node: Node) -> Gradient:
    assert isinstance(node.value, tuple)
    if not parameter.per_tensor or parameter.kind != "float":
        hint = "a list means a value that changes from layer to layer"
        raise node.error(f"`{parameter.name}` cannot be a list", hint=hint)
    if not node.value:
        raise node.error(f"the list of `{parameter.name}` is empty")
    anchors = (_scalar(parameter, item) for item in node.value)
    return Gradient(tuple(float(anchor) for anchor in anchors if anchor is not None))


def _scalar(parameter: Parameter, node: Node) -> Scalar:
    if isinstance(node.value, dict | tuple):
        raise node.error(f"`{parameter.name}` is a single value here, not {node.kind}")
    plain_text = parameter.kind in {"str", "path", "choice"} and node.value is not None
    try:
        return parameter.fit(node.text if plain_text else _number(parameter, node))
    except ValueError as error:
        hint = did_you_mean(node.text, parameter.choices) if parameter.choices else None
        raise node.error(f"`{parameter.name}`: {error}", hint=hint) from None


def _number(parameter: Parameter, node: Node) -> object:
    """The value; ``inf`` without YAML's dot is infinity where a number is wanted, and a word elsewhere."""
    if parameter.kind == "float" and node.text in {"inf", "+inf", "-inf"}:
        return float(node.text)
    return node.value


def _arms(parameter: Parameter, node: Node) -> tuple[Filtered, ...]:
    assert isinstance(node.value, tuple)
    arms = tuple(_arm(parameter, item) for item in node.value)
    for arm, following in zip(arms, node.value[1:], strict=False):
        if arm.pattern is None:
            hint = "the first arm that fits wins: put the one without `filter` last"
            raise following.error(f"this arm of `{parameter.name}` is never reached", hint=hint)
    return arms


def _arm(parameter: Parameter, node: Node) -> Filtered:
    if not parameter.per_tensor:
        raise node.error(f"`{parameter.name}` has one value for all tensors")
    if not isinstance(node.value, dict):
        raise node.error(f"an arm of `{parameter.name}` is `value` and `filter`, not {node.kind}")
    for key in node.value:
        if key not in {"value", "filter"}:
            older = "older files say `pattern`; the key is `filter`" if key == "pattern" else None
            hint = older or did_you_mean(key, ("value", "filter"), "keys are `value` and `filter`")
            raise node.key_error(key, f"unknown key `{key}` in `{parameter.name}`", hint=hint)
    if "value" not in node.value:
        raise node.error(f"an arm of `{parameter.name}` has no `value`")
    return Filtered(
        _pattern(parameter, node.value.get("filter")), _plain(parameter, node.value["value"])
    )


def _pattern(parameter: Parameter, node: Node | None) -> str | None:
    if node is None or node.value is None or node.text == "*":
        return None
    if isinstance(node.value, dict | tuple) or not node.text:
        raise node.error(
            f"`filter` of `{parameter.name}` is part of a tensor name, not {node.kind}"
        )
    return node.text


def _unknown(node: Node, name: str, info: MethodInfo) -> ConfigError:
    listed = ", ".join(f"`{n}`" for n in info.signature) or "none"
    hint = did_you_mean(name, info.signature, f"its parameters: {listed}")
    return node.key_error(name, f"`{info.name}` has no parameter `{name}`", hint=hint)
