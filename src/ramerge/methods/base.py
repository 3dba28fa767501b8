"""What a merge method is.

An *elementwise* method is a pure function from a `Context` and its own parameters to coefficients, and a block rule
(see `kernels.fuse`) that applies them; the function's keyword-only parameters are what users may set. A *whole-tensor*
method is a pure function on float arrays, for what cannot be cut into blocks (singular value decompositions).

    @elementwise(rule=scaled_sum, title="Task arithmetic", reference="arXiv 2212.04089")
    def task_arithmetic(context, *, lambda_: Annotated[float, Doc("scale of the sum")] = 1.0, weight: Weight = 1.0):
        return Sum(context.array(w * lambda_ for w in weight))

Statistics over more than one chunk are *probes*, asked for by name (``needs``); they run before the merge pass, and
their results stand in ``context.facts``. λ from overlap counts is the one exception: `engine` guesses it, counts
while merging, and only merges again what the guess got wrong.

Methods never see a path, a configuration, a device or a logger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ramerge._signature import (
    Doc,
    Ge,
    Le,
    MethodInfo,
    PerAgent,
    PerTensor,
    Scalar,
    Signature,
    from_function,
)
from ramerge._types import F64, TensorSpec
from ramerge.probes.overlap import Overlap

Rule = Callable[..., None]
Values = Mapping[
    str, Any
]  # parameter -> scalar, or a tuple over agents where the parameter is per agent

Epsilon = Annotated[float, Doc("an element is changed where |task vector| exceeds this"), Ge(0)]
Mask = Annotated[
    Literal["abs", "exact", "grid"],
    Doc(
        "changed means: |τ| > epsilon, any difference, or a difference left on the base's own grid"
    ),
]
Scope = Annotated[
    Literal["model", "layer", "module", "tensor"], Doc("over what the counts behind λ are taken")
]
Shared = Annotated[
    Literal["mean", "sum", "power", "elect", "largest"],
    Doc("what becomes of elements that several agents changed"),
]
Gamma = Annotated[float, Doc("with `shared: power`, the sum is divided by c^gamma"), Ge(0), Le(1)]
Weight = Annotated[
    tuple[float, ...],
    Doc("multiplies the agent's task vector; 0 leaves the agent out"),
    PerAgent,
    PerTensor,
]
EACH: Any = 1.0  # default of a parameter over agents: the same number for each


@dataclass(frozen=True, slots=True)
class Context:
    """All that a method may know when it makes the coefficients of one chunk.

    Attributes:
        tensor: the output tensor.
        agents: N.
        start: index of the chunk's first element in the tensor.
        elements: elements in the chunk.
        real: working dtype, float32 or float64.
        lambdas: λ per agent, for methods that have one.
        facts: results of the probes in ``needs``, by name.
    """

    tensor: TensorSpec
    agents: int
    start: int
    elements: int
    real: type[np.floating[Any]]
    lambdas: tuple[float, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def array(self, values: Iterable[float]) -> NDArray[Any]:
        """Numbers in the working dtype, rounded once from float64."""
        return np.array(list(values), dtype=np.float64).astype(self.real)

    def number(self, value: float) -> np.floating[Any]:
        """One number in the working dtype."""
        return self.real(value)


class Probe(Protocol):
    """A statistic over the whole model, collected in one streaming pass before the merge."""

    name: str

    def visit(self, chunk: Any, values: Values, facts: Mapping[str, Any]) -> Any:
        """In a worker thread: the record of one chunk (`chunks.Worker` holds the chunk)."""
        ...

    def fold(self, records: Iterable[tuple[Any, int, Any]], facts: Mapping[str, Any]) -> Any:
        """In order of tensors and chunks: (`planning.TensorPlan`, start, record) -> what stands in ``facts``."""
        ...


LambdaRule = Callable[[Overlap, Values], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Method:
    """A registered merge method; what `ramerge methods NAME` prints.

    Attributes:
        name: as in ``merge_method``.
        title: for headings.
        summary: first paragraph of the function's docstring.
        doc: the whole docstring (formula, edge cases).
        reference: paper or public description.
        signature: parameters, read from the function.
        function: coefficients (elementwise) or the merged tensor (whole-tensor).
        rule: picks the block rule by parameters; None for whole-tensor methods.
        lambdas: λ per agent from overlap counts of a scope; None where the method has none.
        masked: the method has masks (`epsilon`, `mask`); others see every difference as changed.
        everywhere: the rule is in force where no agent changed the element, too.
        needs: probe passes that run first.
        auxiliary: per-agent parameter that names a file of extra tensors (Fisher), or None.
        base: see `MethodInfo`.
        min_agents: fewest agents.
        max_agents: most agents, or None.
        ignored: see `MethodInfo`.
        presets: named parameter sets.
        aliases: other names -> preset they stand for (None: defaults).
        cost: passes over the data and memory, in words.
    """

    name: str
    title: str
    summary: str
    doc: str
    reference: str
    signature: Signature
    function: Callable[..., Any]
    rule: Callable[[Values], Rule] | None = None
    lambdas: LambdaRule | None = None
    masked: bool = False
    everywhere: bool = False
    needs: tuple[Callable[[Values], Probe], ...] = ()
    auxiliary: str | None = None
    base: Literal["required", "optional", "member"] = "required"
    min_agents: int = 1
    max_agents: int | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    aliases: Mapping[str, str | None] = field(default_factory=dict)
    cost: str = "one read of the inputs; memory of the chunk buffers"

    @property
    def per_agent(self) -> frozenset[str]:
        """Names of the parameters that every agent may have its own value of."""
        return frozenset(name for name, p in self.signature.items() if p.per_agent)

    @property
    def info(self) -> MethodInfo:
        """What the configuration needs to know."""
        return MethodInfo(
            name=self.name,
            signature=self.signature,
            presets=self.presets,
            aliases=self.aliases,
            base=self.base,
            min_agents=self.min_agents,
            max_agents=self.max_agents,
            summary=self.summary,
            ignored=self.ignored,
        )

    def coefficients(self, context: Context, values: Values) -> Any:
        """Coefficients of one chunk: the method's function with its parameters as keywords."""
        return self.function(context, **keywords(self.function, values))


WholeTensor = Callable[..., F64]
METHODS: dict[str, Method] = {}


def keywords(function: Callable[..., Any], values: Values) -> dict[str, Any]:
    """Parameter values under the Python names of ``function`` (``lambda`` -> ``lambda_``)."""
    import inspect

    names = (
        n for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY
    )
    return {name: values[name.rstrip("_")] for name in names}


def elementwise(
    *,
    rule: Rule | Callable[[Values], Rule],
    title: str,
    reference: str,
    chooses: bool = False,
    **facts: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function from context and parameters to coefficients as a method named like it.

    Args:
        rule: the block rule, or with ``chooses`` a function from parameter values to the block rule.
        title: for headings.
        reference: paper or public description.
        chooses: see ``rule``.
        **facts: further fields of `Method`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        pick = rule if chooses else (lambda _values: rule)
        _add(function, title=title, reference=reference, rule=pick, **facts)
        return function

    return register


def whole_tensor(
    *, title: str, reference: str, **facts: Any
) -> Callable[[WholeTensor], WholeTensor]:
    """Register ``f(base, agents, name, **parameters) -> merged`` on float arrays ``[...]`` and ``[N, ...]``."""

    def register(function: WholeTensor) -> WholeTensor:
        _add(function, title=title, reference=reference, **facts)
        return function

    return register


def _add(function: Callable[..., Any], **facts: Any) -> None:
    import inspect

    doc = inspect.getdoc(function) or ""
    name = function.__name__
    assert name not in METHODS, f"method {name} is registered twice"
    METHODS[name] = Method(
        name=name,
        summary=doc.split("\n\n")[0].replace("\n", " "),
        doc=doc,
        signature=MappingProxyType(from_function(function)),
        function=function,
        **facts,
    )
