"""Block rules of the RAM family: what becomes of an element that none, one or several agents changed.

SPEC 3 and arXiv 2601.13572, section 4. All four differ only in how *shared* elements are combined; a *unique*
element takes its agent's value, moved away from the base by ``unique[t]`` times its task vector.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Scales(NamedTuple):
    """Coefficients of the RAM family, all in the working dtype.

    ``weight`` ``[N]``: multiplies agent t's task vector. ``unique`` ``[N]``: what multiplies it on unique
    elements (λ·weight). ``divisor`` ``[N + 1]``: what a sum over c contributors is divided by.
    """

    weight: Any
    unique: Any
    divisor: Any


def mean(x, theta, pattern, contributors, k, start, coef, out, own):
    """Shared elements: the average over those that changed them (the paper's rule)."""
    for i in range(k):
        out[i] = np.float32(0)
    for t in range(theta.shape[0]):
        a = theta[t]
        bit = np.uint32(1) << np.uint32(t)
        weight = coef.weight[t]
        unique = coef.unique[t]
        for i in range(k):
            tau = weight * (a[i] - x[i])
            out[i] += tau if pattern[i] & bit else np.float32(0)
        if unique == np.float32(1):  # the agent's own value, not base + (agent - base)
            for i in range(k):
                taken, kept = a[i], own[i]
                own[i] = taken if pattern[i] & bit else kept
        else:
            for i in range(k):
                moved, kept = x[i] + unique * (a[i] - x[i]), own[i]
                own[i] = moved if pattern[i] & bit else kept
    for i in range(k):
        c = contributors[i]
        shared = x[i] + out[i] / np.float32(max(c, np.uint32(1)))
        out[i] = own[i] if c == np.uint32(1) else shared
