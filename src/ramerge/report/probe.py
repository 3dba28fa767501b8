"""The probe report: one JSON object with every figure, stable and versioned, and the ways to look at it.

Terminal tables (`report.terminal`), one HTML file (`report.html`), data frames and figures all start from this object, so
a saved JSON can be looked at later without the models.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from ramerge._errors import ConfigError, OutputError
from ramerge._types import Json
from ramerge.fit.pairs import main_dtype
from ramerge.models.facts import layer_of, module_of
from ramerge.models.files import public_source
from ramerge.planning.plan import Plan
from ramerge.probes.measure import EXPONENTS, MASKS, Measures, total

VERSION = 1


@dataclass(frozen=True, slots=True, repr=False)
class ProbeReport:
    """What a probe found; ``data`` is the JSON object described in docs/reference/probe.schema.json."""

    data: Json

    def __repr__(self) -> str:
        from ramerge.report.terminal import summary

        return summary(self.data)

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame of its own, so that its styles stay its own."""
        return f'<iframe srcdoc="{escape(self.to_html())}" style="width:100%;height:900px;border:0"></iframe>'

    def to_json(self) -> Json:
        """The JSON object."""
        return self.data

    def save_json(self, path: str | Path) -> None:
        """Write the JSON object to a file.

        Raises:
            OutputError: it cannot be written.
        """
        text = json.dumps(self.data, indent=1, ensure_ascii=False) + "\n"
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"`{path}` cannot be written: {error.strerror}") from error

    def to_html(self) -> str:
        """One self-contained page."""
        from ramerge.report.html import page

        return page(self.data)

    def to_dataframe(self, library: Literal["pandas", "polars"] | None = None) -> Any:
        """A data frame, one row per tensor group (layer and module) and agent.

        Args:
            library: whose frame; default: pandas where it is installed, else polars.

        Raises:
            ConfigError: the library is not installed, or is another one.
        """
        frames = frame_library(library)
        rows = [
            {
                "layer": place["layer"],
                "module": place["module"],
                "elements": place["elements"],
                **agent,
            }
            for place in self.data["layers"]
            for agent in place["agents"]
        ]
        return frames.DataFrame(rows)

    def figure(self, name: str) -> Any:
        """A plotly figure: ``density``, ``overlap``, ``magnitude``, ``cosine`` or ``conflict``.

        Raises:
            ConfigError: no such figure.
        """
        from ramerge.report.figures import figure

        return figure(self.data, name)


def frame_library(wanted: str | None) -> Any:
    """The module of the wanted library, or of the first that is installed.

    Raises:
        ConfigError: none is, or it is not a library of data frames.
    """
    if wanted not in {None, "pandas", "polars"}:
        raise ConfigError(f"`{wanted}` is not a data-frame library", hint="pandas or polars")
    for name in (wanted,) if wanted else ("pandas", "polars"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    missing = wanted or "pandas or polars"
    raise ConfigError(f"data frames need {missing}", hint=f"pip install {wanted or 'pandas'}")


def build(plan: Plan, records: Mapping[str, Measures], *, r: float, alpha: float) -> ProbeReport:
    """Put the report together.

    Args:
        plan: what was probed; its method's mask decides what changed means.
        records: per tensor.
        r: for the preview of λ.
        alpha: for the preview of λ.
    """
    n = len(plan.agents)
    whole = total(n, [records[t.name] for t in plan.merged])
    names = plan.agent_names
    data: Json = {
        "version": VERSION,
        "mask": {"kind": plan.values["mask"], "epsilon": plan.values["epsilon"]},
        "preview": {"r": r, "alpha": alpha},
        "base": {
            "source": public_source(plan.base.source),
            "dtype": main_dtype(plan.base).name,
            "norm": math.sqrt(whole.gram[0, 0]),
        },
        "elements": whole.overlap.elements,
        "unchanged": whole.overlap.unchanged,
        "agents": [_agent(plan, whole, t, r, alpha) for t in range(n)],
        "pairs": [_pair(names, whole, a, b) for a, b in combinations(range(n), 2)],
        "intersections": _intersections(names, whole),
        "layers": _layers(plan, records),
        "warnings": list(plan.warnings),
        "decisions": list(plan.decisions),
    }
    return ProbeReport(data)


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None


def _agent(plan: Plan, whole: Measures, t: int, r: float, alpha: float) -> Json:
    overlap, gram = whole.overlap, whole.gram
    rho = overlap.rho(t)
    norm = math.sqrt(gram[1 + t, 1 + t])
    others = {
        name: _cosine(gram, 1 + t, 1 + u) for u, name in enumerate(plan.agent_names) if u != t
    }
    return {
        "name": plan.agent_names[t],
        "path": public_source(plan.sources[plan.agent_names[t]]),
        "dtype": main_dtype(plan.agents[t]).name,
        "changed": overlap.changed(t),
        "density": overlap.changed(t) / max(overlap.elements, 1),
        "density_by_mask": {
            mask: int(whole.masks[t, m]) / max(overlap.elements, 1) for m, mask in enumerate(MASKS)
        },
        "unique": overlap.unique(t),
        "shared": overlap.shared(t),
        "rho": None if math.isinf(rho) else rho,
        "lambda": 1.0 + r * min(rho, alpha),
        "overlap_with": overlap.overlap_with(t),
        "norm": norm,
        "relative_norm": _ratio(norm, math.sqrt(gram[0, 0])),
        "cosine_to_base": _cosine(gram, 0, 1 + t),
        "largest": float(whole.largest[t]),
        "cosine_to": others,
        "sign_conflict": _ratio(int(whole.disputed[t]), overlap.shared(t)),
        "lost_to_rounding": int(whole.lost[t]),
        "magnitudes": _decades(whole.exponents[t]),
    }


def _cosine(gram: Any, a: int, b: int) -> float | None:
    norms = math.sqrt(gram[a, a]) * math.sqrt(gram[b, b])
    return float(gram[a, b]) / norms if norms else None


def _decades(exponents: Any) -> list[Json]:
    """Changed elements by binary exponent, as [2^e, 2^(e+1)) with log10 of the lower end; empty bins left out."""
    return [
        {"exponent": e - 127, "log10": (e - 127) * math.log10(2), "elements": int(exponents[e])}
        for e in range(EXPONENTS)
        if exponents[e]
    ]


def _pair(names: Sequence[str], whole: Measures, a: int, b: int) -> Json:
    overlap = whole.overlap
    both = overlap.both(a, b)
    chance = overlap.changed(a) * overlap.changed(b) / max(overlap.elements, 1)
    return {
        "a": names[a],
        "b": names[b],
        "both": both,
        "expected_by_chance": chance,
        "ratio": _ratio(both, chance),
        "sign_conflict": _ratio(int(whole.conflicts[a, b]), both),
        "cosine": _cosine(whole.gram, 1 + a, 1 + b),
    }


def _intersections(names: Sequence[str], whole: Measures) -> list[Json]:
    """Elements changed by exactly these agents, largest first."""
    found = [
        {"agents": [n for t, n in enumerate(names) if p >> t & 1], "elements": count}
        for p, count in whole.overlap.counts.items()
        if p
    ]
    return sorted(found, key=lambda e: (-e["elements"], e["agents"]))


def _layers(plan: Plan, records: Mapping[str, Measures]) -> list[Json]:
    groups: dict[tuple[int, str], list[Measures]] = {}
    for tensor in plan.merged:
        layer = layer_of(tensor.name)
        key = (-1 if layer is None else layer, module_of(tensor.name))
        groups.setdefault(key, []).append(records[tensor.name])
    n = len(plan.agents)
    result = []
    for (layer, module), parts in sorted(groups.items()):
        whole = total(n, parts)
        elements = whole.overlap.elements
        agents = [
            {
                "name": name,
                "changed": whole.overlap.changed(t),
                "density": whole.overlap.changed(t) / max(elements, 1),
                "unique": whole.overlap.unique(t),
                "shared": whole.overlap.shared(t),
                "norm": math.sqrt(whole.gram[1 + t, 1 + t]),
                "relative_norm": _ratio(
                    math.sqrt(whole.gram[1 + t, 1 + t]), math.sqrt(whole.gram[0, 0])
                ),
            }
            for t, name in enumerate(plan.agent_names)
        ]
        result.append(
            {
                "layer": None if layer < 0 else layer,
                "module": module,
                "elements": elements,
                "agents": agents,
            }
        )
    return result
