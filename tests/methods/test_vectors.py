"""Golden vectors: random miniature models and what the RAM authors' own functions made of them in fp32.

Their arithmetic is θ0 + λ(θt - θ0) even for λ = 1, where ours takes the agent's value: hence "within one ulp".
"""

from __future__ import annotations

import numpy as np
import pytest

from helpers.engine import run
from helpers.vectors import CASES, EXPECTED, load, models
from ramerge.probes.overlap import Overlap


def settings(expected):
    if expected == "ram":
        return "ram", {}
    r = float(expected.split("_r")[-1].split("_")[0])
    return ("ram_soft", {"r": r}) if "soft" in expected else ("ram_plus", {"r": r, "alpha": 1.0})


@pytest.mark.parametrize("case", CASES)
def test_counts_are_exactly_the_authors(case):
    base, agents = models(case)
    _, outcome, _ = run(base, agents, "ram")
    overlap = Overlap.total(len(agents), (r.overlap for r in outcome.records.values()))
    for t, theirs in enumerate(CASES[case]["counts"]):
        assert overlap.changed(t) == theirs["changed"]
        assert overlap.overlap_with(t) == theirs["overlap_with_k_others"]
        assert overlap.elements == theirs["elements"]


@pytest.mark.parametrize(("case", "expected"), EXPECTED)
def test_outputs_are_the_authors(case, expected):
    base, agents = models(case)
    theirs = load(f"{case}.expect.{expected}")
    method, parameters = settings(expected)
    ours, _, _ = run(base, agents, method, parameters)
    for name, array in ours.items():
        want = theirs[name]
        if array.dtype == want.dtype:
            assert np.all(np.abs(array - want) <= np.spacing(np.abs(want))), name
        else:
            assert np.array_equal(
                array.view(np.uint16), want.astype(array.dtype).view(np.uint16)
            ), name
