"""The groups in which methods are listed."""

from __future__ import annotations

from collections.abc import Iterable

GROUPS = (
    ("The RAM family", ("ram", "ram_plus", "ram_soft")),
    (
        "Task vectors, element by element",
        (
            "task_arithmetic", "ties", "dare_linear", "dare_ties", "breadcrumbs", "breadcrumbs_ties", "della_linear",
            "della", "sce", "localize_stitch", "consensus",
        ),
    ),
    (
        "Whole models: averages and interpolations",
        (
            "linear", "fisher", "slerp", "nuslerp", "multislerp", "karcher", "model_stock", "nearswap", "arcee_fusion",
            "passthrough",
        ),
    ),
    ("Whole matrices", ("iso_c", "tsv_m", "res_merge", "gram")),
    ("Controls", ("unique_only", "shared_only", "norm_matched")),
)  # fmt: skip


def grouped(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Each group's title with those of ``names`` that are in it; the rest, by name, under "Others"."""
    known = set(names)
    groups = [(title, [n for n in members if n in known]) for title, members in GROUPS]
    rest = sorted(known - {n for _, members in GROUPS for n in members})
    return [(title, members) for title, members in [*groups, ("Others", rest)] if members]
