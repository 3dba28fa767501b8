"""A function's keyword-only parameters are the description of what users may set."""

import math
from pathlib import Path
from typing import Annotated, Literal

import pytest

from ramerge._signature import Doc, Ge, Gt, Le, Lt, PerAgent, PerTensor, defaults, from_function


def method(
    base: object,
    *,
    r: Annotated[float, Doc("bonus per unit of overlap"), Ge(0)] = 0.1,
    alpha: Annotated[float, Gt(0), Le(math.inf)] = 1.0,
    p: Annotated[float, Gt(0), Lt(1)] = 0.5,
    shared: Annotated[Literal["mean", "sum"], Doc("rule")] = "mean",
    weight: Annotated[float, PerAgent, PerTensor()] = 1.0,
    scales: tuple[float, ...] = 1.0,  # type: ignore[assignment]
    seed: int = 0,
    normalize: bool = True,
    fisher: Annotated[Path, Doc("a file"), PerAgent],
    fraction: float | None = None,
    lambda_: float = 1.0,
) -> None: ...


SIGNATURE = from_function(method)


def test_names_kinds_and_order():
    kinds = {name: p.kind for name, p in SIGNATURE.items()}
    assert kinds == {
        "r": "float",
        "alpha": "float",
        "p": "float",
        "shared": "choice",
        "weight": "float",
        "scales": "float",
        "seed": "int",
        "normalize": "bool",
        "fisher": "path",
        "fraction": "float",
        "lambda": "float",
    }
    assert (list(kinds)[:2], list(kinds)[-1]) == (["r", "alpha"], "lambda")


def test_facts():
    assert SIGNATURE["r"].meaning == "bonus per unit of overlap"
    assert SIGNATURE["weight"].per_agent and SIGNATURE["weight"].per_tensor
    assert SIGNATURE["scales"].per_agent and not SIGNATURE["r"].per_agent
    assert SIGNATURE["fisher"].required and not SIGNATURE["r"].required
    assert SIGNATURE["fraction"].nullable
    assert "fisher" not in defaults(SIGNATURE) and defaults(SIGNATURE)["shared"] == "mean"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r", ">= 0"),
        ("p", "0 < x < 1"),
        ("shared", "mean | sum"),
        ("normalize", "true | false"),
        ("seed", ""),
    ],
)
def test_range_in_words(name, text):
    assert SIGNATURE[name].range == text


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("r", 1, 1.0),
        ("alpha", math.inf, math.inf),
        ("seed", 3.0, 3),
        ("shared", "sum", "sum"),
        ("fraction", None, None),
    ],
)
def test_fit_accepts(name, given, taken):
    value = SIGNATURE[name].fit(given)
    assert value == taken and type(value) is type(taken)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("r", -1, "`-1` is out of range: >= 0"),
        ("r", True, "true is not a number >= 0"),
        ("r", "x", "`x` is not a number >= 0"),
        ("r", None, "null is not a number >= 0"),
        ("r", math.nan, "`nan` is not a number >= 0"),
        ("r", math.inf, "`inf` is out of range: >= 0"),
        ("p", 1, "`1` is out of range: 0 < x < 1"),
        ("seed", 1.5, "`1.5` is not a whole number"),
        ("seed", math.inf, "`inf` is not a whole number"),
        ("normalize", 1, "`1` is not true or false"),
        ("normalize", "yes", "`yes` is not true or false"),
        ("shared", "average", "`average` is not mean | sum"),
        ("fisher", "", "`` is not a file name"),
    ],
)
def test_fit_refuses(name, given, text):
    with pytest.raises(ValueError) as error:
        SIGNATURE[name].fit(given)
    assert str(error.value) == text


def test_a_default_must_fit_its_own_parameter():
    def wrong(*, r: Annotated[float, Ge(0)] = -1.0) -> None: ...

    with pytest.raises(TypeError, match=r"default of `r`: `-1\.0` is out of range"):
        from_function(wrong)


def test_unsupported_annotation():
    def wrong(*, r: dict = {}) -> None: ...  # noqa: B006

    with pytest.raises(TypeError, match="unsupported type"):
        from_function(wrong)
