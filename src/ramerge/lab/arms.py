"""The arms of the study: every model that is scored, and how it is made.

A method is scored up to three times: *published* (its paper's parameters), *tuned* (its own
parameter, the best of eight values) and *scaled* (its published merge, with the total step set to
the best of eight norms, the same eight for every method). Tuning sees the validation problems only,
and every method has the same number of looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ramerge.lab import controls
from ramerge.lab.merging import merge, merge_files, moved, norm, task_vector
from ramerge.lab.model import Shape, Weights

NORMS = (
    0.3,
    0.45,
    0.6,
    0.75,
    0.9,
    1.05,
    1.25,
    1.5,
)  # of the root of the summed squared norms of the agents
Kind = Literal["reference", "baseline", "ram", "lead", "ablation", "control"]


@dataclass(frozen=True, slots=True)
class Case:
    """What an arm is made from.

    Attributes:
        base: weights.
        agents: by name, as saved in BF16.
        exact: the same agents as saved in fp32; empty where an arm needs none.
        fisher: each agent's Fisher information file; empty where there is none.
        seed: of random controls.
        shape: sizes of all these models.
    """

    base: Weights
    agents: Mapping[str, Weights]
    exact: Mapping[str, Weights]
    fisher: Mapping[str, Path]
    seed: int
    shape: Shape = Shape()  # noqa: RUF009


Make = Callable[[Case], Weights]


@dataclass(frozen=True, slots=True)
class Arm:
    """One row of the tables.

    Attributes:
        name: short and stable.
        label: for the tables.
        kind: which table.
        make: the published merge.
        grid: the tuned variants, eight; empty: the method has no parameter of its own.
        scaled: whether the total step is tuned, too.
    """

    name: str
    label: str
    kind: Kind
    make: Make
    grid: Sequence[tuple[str, Make]] = ()
    scaled: bool = False


def engine(method: str, **parameters: Any) -> Make:
    """An arm made by a method of the engine."""
    return lambda case: merge(case.base, case.agents, method, **parameters)


def _grid(
    method: str, parameter: str, values: Sequence[float], **fixed: Any
) -> tuple[tuple[str, Make], ...]:
    return tuple(
        (f"{parameter} = {v:g}", engine(method, **fixed, **{parameter: v})) for v in values
    )


def arms(agents: Sequence[str]) -> list[Arm]:
    """All arms for agents of these names."""
    return [
        *_references(agents),
        *methods(len(agents)),
        *leads(),
        *_ablations(),
        *_controls(agents),
    ]


def _references(agents: Sequence[str]) -> list[Arm]:
    def agent(name: str) -> Make:
        return lambda case: case.agents[name]

    own = [Arm(a, f"agent {a}", "reference", agent(a)) for a in agents]
    return [Arm("base", "base", "reference", lambda case: case.base), *own]


def methods(count: int) -> list[Arm]:
    """The published methods, RAM among them, for ``count`` agents; those that the engine has."""
    share = 1 / count
    densities = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
    kept = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.9)
    scales = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.2)
    bonus = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
    ta_mean = engine("task_arithmetic", **{"lambda": share})
    dare_ta = engine("dare_linear", **{"lambda": share})
    grids = {
        "ta_mean": _grid("task_arithmetic", "lambda", scales),
        "ties": _grid("ties", "density", densities),
        "dare_ta": _grid("dare_linear", "density", kept, **{"lambda": share}),
        "dare_ties": _grid("dare_ties", "density", kept),
        "localize_stitch": _grid("localize_stitch", "density", densities),
        "consensus": _grid("consensus", "lambda", scales),
        "ram": _grid("ram", "epsilon", (0, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
        "ram_plus": _grid("ram_plus", "r", bonus),
        "ram_soft": _grid("ram_soft", "r", bonus),
    }
    table: list[tuple[str, str, Kind, Make]] = [
        ("average", "weight average", "baseline", engine("linear")),
        ("ta_mean", "task arithmetic, λ = 1/N", "baseline", ta_mean),
        ("ta_sum", "task arithmetic, λ = 1", "baseline", engine("task_arithmetic")),
        ("fisher", "Fisher", "baseline", _fisher),
        ("ties", "TIES, keep 20 %", "baseline", engine("ties")),
        ("dare_ta", "DARE + task arithmetic, λ = 1/N", "baseline", dare_ta),
        ("dare_ties", "DARE + TIES", "baseline", engine("dare_ties")),
        ("localize_stitch", "Localize-and-Stitch, top 5 %", "baseline", engine("localize_stitch")),
        ("consensus", "Consensus (drops unique)", "baseline", engine("consensus")),
        ("iso_c", "Iso-C", "baseline", engine("iso_c")),
        ("tsv_m", "TSV-M", "baseline", engine("tsv_m")),
        ("res_merge", "ResMerge", "baseline", engine("res_merge")),
        ("norm_matched", "norm-matched task arithmetic", "baseline", norm_matched),
        ("ram", "RAM", "ram", engine("ram")),
        ("ram_plus", "RAM+, r = 0.1", "ram", engine("ram_plus")),
        ("ram_soft", "RAM-soft, r = 0.1", "ram", engine("ram_soft")),
    ]
    # These three point where `ta_sum` points: scaled, they would be the same models again.
    same = {"average", "ta_mean", "norm_matched"}
    return [
        Arm(name, label, kind, make, grids.get(name, ()), name not in same)
        for name, label, kind, make in table
        if _known(name)
    ]


def leads() -> list[Arm]:
    """The search for a better rule: merging by directions; scales that need no tuning."""
    table: list[tuple[str, str, Make, bool]] = [
        ("ta_unit", "task arithmetic, unit norm", unit_norm(engine("task_arithmetic")), False),
        (
            "ta_whole",
            "task arithmetic, unit effective λ",
            unit_effect(engine("task_arithmetic")),
            False,
        ),
    ]
    if _known("gram"):
        gram = engine("gram")
        table += [
            ("gram", "Gram merge", gram, True),
            ("gram_small", "Gram merge, smaller side", engine("gram", sides="small"), True),
            ("gram_unit", "Gram merge, unit norm", unit_norm(gram), False),
            ("gram_whole", "Gram merge, unit effective λ", unit_effect(gram), False),
            ("gram_ram", "Gram merge, norm of RAM", as_long_as(gram, engine("ram")), False),
            ("gram_union", "RAM on unique elements, Gram merge on shared ones", _union, True),
        ]
    if _known("tsv_m"):
        table.append(("tsv_unit", "TSV-M, unit norm", unit_norm(engine("tsv_m")), False))
    return [Arm(name, label, "lead", make, (), scaled) for name, label, make, scaled in table]


def _ablations() -> list[Arm]:
    settings: list[tuple[str, str, dict[str, Any]]] = [
        *((f"r_{r:g}", f"r = {r:g}", {"r": r}) for r in (0.05, 0.2, 0.5, 1.0)),
        *((f"alpha_{a:g}", f"alpha = {a:g}", {"alpha": a}) for a in (0.2, 2.0)),
        *((f"scope_{s}", f"λ by {s}", {"scope": s}) for s in ("layer", "module", "tensor")),
        *((f"eps_{e:g}", f"epsilon = {e:g}", {"epsilon": e}) for e in (1e-4, 1e-3)),
        *((f"mask_{m}", f"mask: {m}", {"mask": m}) for m in ("exact", "grid")),
        *(
            (f"shared_{s}", f"shared: {s}", {"shared": s})
            for s in ("sum", "power", "elect", "largest")
        ),
    ]
    return [
        Arm(name, f"RAM+, {label}", "ablation", engine("ram_plus", **given))
        for name, label, given in settings
    ]


def _controls(agents: Sequence[str]) -> list[Arm]:
    def stored_exactly(method: str, **parameters: Any) -> Make:
        return lambda case: merge(case.base, case.exact, method, **parameters)

    table: list[tuple[str, str, Make]] = [
        (
            "random",
            "RAM, partition at random",
            lambda c: controls.random_partition(c.base, c.agents, c.seed),
        ),
        (
            "on_shared",
            "bonus r = 0.1 on the shared elements",
            lambda c: controls.scaled_shared(c.base, c.agents, 0.1),
        ),
        ("ram_fp32", "RAM, agents saved in fp32", stored_exactly("ram")),
        ("ram_plus_fp32", "RAM+, agents saved in fp32", stored_exactly("ram_plus")),
        (
            "ram_plus_grid",
            "RAM+, agents saved in fp32, mask: grid",
            stored_exactly("ram_plus", mask="grid"),
        ),
    ]
    for at, agent in enumerate(agents, start=1):
        for label, scale in (("whole", 1.0), ("1/N", 1 / len(agents))):
            make = engine("unique_only", agent=at, scale=scale)
            table.append(
                (f"unique_{agent}_{label}", f"only what {agent} alone changed, {label}", make)
            )
    return [Arm(name, label, "control", make) for name, label, make in table]


def _fisher(case: Case) -> Weights:
    files = {f"{agent}.fisher": str(path) for agent, path in case.fisher.items()}
    return merge_files(case.base, case.agents, "fisher", case.shape, **files)


def _union(case: Case) -> Weights:
    whole = unit_norm(engine("gram"))(case)
    return controls.where_unique(case.base, case.agents, engine("ram")(case), whole)


def resized(base: Weights, merged: Weights, length: float) -> Weights:
    """The merge with its task vector stretched to this norm; a null vector stays null."""
    vector = task_vector(base, merged)
    size = norm(vector)
    return moved(base, vector, length / size if size else 0.0)


def as_long_as(make: Make, other: Make) -> Make:
    """``make`` with the norm of ``other``."""
    return lambda c: resized(c.base, make(c), norm(task_vector(c.base, other(c))))


norm_matched = as_long_as(engine("task_arithmetic"), engine("ram"))


def unit_norm(make: Make) -> Make:
    """``make`` as long as the sum of the task vectors would be, were they orthogonal: no tuning."""
    return lambda c: resized(c.base, make(c), total_norm(c))


def unit_effect(make: Make) -> Make:
    """``make`` at the scale where agents find, on average, all of their change: no tuning."""

    def scaled(case: Case) -> Weights:
        merged = make(case)
        effect = controls.effective_scale(case.base, case.agents, merged)
        return moved(case.base, task_vector(case.base, merged), 1 / effect if effect > 0 else 0.0)

    return scaled


def total_norm(case: Case) -> float:
    """Root of the summed squared norms of the task vectors; `NORMS` are shares of it."""
    return sum(norm(task_vector(case.base, a)) ** 2 for a in case.agents.values()) ** 0.5


def _known(name: str) -> bool:
    """Whether this engine can make the arm; all but the matrix methods it always can."""
    from ramerge.methods.registry import METHODS

    return name in METHODS or name not in {"iso_c", "tsv_m", "res_merge", "gram"}
