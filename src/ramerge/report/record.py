"""What a merge says of itself in its manifest and its model card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramerge.config.canonical import to_yaml
from ramerge.models.files import public_source
from ramerge.planning.plan import Plan
from ramerge.report import merge as summary
from ramerge.run.records import Outcome


def manifest_facts(plan: Plan, outcome: Outcome, digests: Sequence[Any]) -> dict[str, Any]:
    """What the manifest says beside the output's own files (docs/output.md); no time, host or absolute path."""
    from ramerge._version import __version__

    roles = [
        ("base", "base", plan.job.base or ""),
        *(("agent", name, source) for name, source in plan.sources.items()),
    ]
    roles += [("auxiliary", name, "") for name in plan.sources][: len(plan.auxiliary)]
    streams = [plan.base, *plan.agents, *plan.auxiliary]
    inputs = [
        {
            "role": role,
            "name": name,
            "source": public_source(source or checkpoint.source),
            "revision": checkpoint.revision,
            "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in files],
        }
        for (role, name, source), checkpoint, files in zip(roles, streams, digests, strict=True)
    ]
    agents = summary.agents(plan, outcome)
    return {
        "ramerge": __version__,
        "method": plan.method.name,
        "parameters": plan.parameters,
        "preset": plan.job.preset,
        "inputs": inputs,
        "probe": summary.probe_json(plan, outcome),
        "lambda": {a.name: a.lam for a in agents},
        "lambda_effective": {a.name: a.lam_effective for a in agents},
        "passes": outcome.passes,
        "tensors": len(plan.tensors),
        "decisions": list(plan.decisions),
    }


def card_facts(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What the model card is made of."""
    return {
        "base": public_source(plan.job.base or plan.base.source),
        "agents": [
            {"source": public_source(plan.sources[a.name]), "summary": a}
            for a in summary.agents(plan, outcome)
        ],
        "method": plan.method,
        "parameters": plan.parameters,
        "config": to_yaml(plan.job, source=public_source),
    }
