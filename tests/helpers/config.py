"""A handful of methods whose signatures show every kind of parameter; nothing here merges."""

from pathlib import Path
from typing import Annotated, Literal

from ramerge._signature import Doc, Ge, Gt, Le, MethodInfo, PerAgent, PerTensor, from_function

Weight = Annotated[float, Doc("scale of the agent"), PerAgent, PerTensor]
Density = Annotated[float, Doc("fraction kept"), Ge(0), Le(1), PerAgent, PerTensor]


def ram_plus(
    *,
    r: Annotated[float, Doc("bonus"), Ge(0)] = 0.1,
    alpha: Annotated[float, Doc("clip"), Gt(0)] = 1.0,
    epsilon: Annotated[float, Doc("mask"), Ge(0)] = 1e-5,
    mask: Annotated[Literal["abs", "exact", "grid"], Doc("mask kind")] = "abs",
    scope: Annotated[Literal["model", "layer", "tensor"], Doc("counted over")] = "model",
    weight: Weight = 1.0,
): ...


def ties(
    *,
    density: Density = 0.2,
    weight: Weight = 1.0,
    lambda_: Annotated[float, Doc("scale of the sum")] = 1.0,
    normalize: Annotated[bool, Doc("divide by the sum of weights"), PerTensor] = False,
    seed: Annotated[int, Doc("seed"), Ge(0)] = 0,
): ...


def linear(*, weight: Weight = 1.0, normalize: bool = True): ...


def slerp(*, t: Annotated[float, Doc("0 is the base"), Ge(0), Le(1), PerTensor]): ...


def fisher(
    *, fisher: Annotated[Path, Doc("a safetensors file"), PerAgent], floor: float = 1e-6
): ...


def passthrough(*, scale: Annotated[float, Doc("scale"), PerAgent, PerTensor] = 1.0): ...


PRESETS = {"paper": {"r": 0.1, "alpha": 1.0}, "mergekit": {"alpha": 0.2, "scope": "tensor"}}
METHODS = {
    info.name: info
    for info in (
        MethodInfo(
            "ram_plus", from_function(ram_plus), presets=PRESETS, aliases={"ramplus_tl": "mergekit"}
        ),
        MethodInfo("ties", from_function(ties)),
        MethodInfo("linear", from_function(linear), base="member"),
        MethodInfo("slerp", from_function(slerp), min_agents=1, max_agents=1),
        MethodInfo("fisher", from_function(fisher), base="optional", min_agents=2),
        MethodInfo("passthrough", from_function(passthrough), base="member", max_agents=1),
    )
}
