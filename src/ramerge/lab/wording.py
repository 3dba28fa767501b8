"""The report's prose; numbers are filled in by `sections`."""

from __future__ import annotations


def paragraphs(text: str, **values: object) -> list[str]:
    """Paragraphs of a text with its values, each on one line."""
    return [" ".join(part.split()) for part in text.format(**values).split("\n\n") if part.strip()]


WHAT = """
{bases} base(s), one triple of agents a cell ({cells}); {done} of the
{planned} planned cells are in this report. Every model is scored at temperature 1 on
the same {problems} test problems a task, with the same sampling noise, so that differences are
paired by agents, prompts and luck. Tuning sees {validation} other problems a task and maximises the
mean over all four tasks; every tuned method has {looks} looks.

Intervals are 95 % bootstrap intervals over agent seeds (within each base) and prompts. Variation
between bases is not in them; with so few bases it cannot be estimated. Scores are percentages,
differences are points.

Models have 0.1 M parameters and toy tasks. The study can show that a claimed mechanism works or
fails in this setting; it says nothing about the size of an effect in a 7 B agent.
"""
LONELY = """
**Caution**: in {regimes} a base has fewer than two triples of agents. The intervals there hold
little or nothing of the variation between agents; their p-values are too small.
"""
PLANNED = """
The four contrasts of the study's plan, on the mean of the three agents' tasks, methods as
published; docs/evidence/lab.md says what was fixed when. The best baseline is taken by validation from the
paper's, with task arithmetic at λ = 1 added. p-values are adjusted by Holm within a regime.
*Reproduced* and *reversed*: the difference has, or has against it, the sign that the paper's claim
needs, at adjusted p < 0.05. A lost contrast is a result.
"""
BETTER = """
Differences of the mean over the agents' tasks, at equal tuning: the rule scaled, each rival tuned
or scaled, whichever is better on validation. *holds*: better than all three at p < 0.05, adjusted
by Holm for all differences in this table, and in none of the three comparisons does the interval of
the retention's difference reach {tolerated} point below zero; the lowest of these intervals is
shown. *all four*: the smallest of the three differences of the mean that tuning maximises; where a
rule gains tasks for retention, this is the sum of it. The criterion was written down when the
results of the study with three tasks were known, and before those on stories260K were (but for an
earlier pilot on it); later only its family was widened, from one regime to all, when two
cells on stories260K had been seen.
"""
METHODS = """
*tuned*: its own parameter, the best of eight on validation; *scaled*: the total step, likewise, on
one common grid of norms. Weight average, task arithmetic at any λ and its norm-matched form have
one direction, so only one of them is scaled. composite: geometric mean of accuracies relative to
the tasks' own agents; norm: of the merged task vector, as a share of √Σ‖τ‖².
"""
CONTROLS = """
If RAM's partition is what helps, a partition at random (as many unique elements, elsewhere) must
lose to it, and the bonus must help on unique elements and not on shared ones. *only what … alone
changed*: the paper's figure 3.
"""
ABLATIONS = """
Against RAM+ with r = 0.1, alpha = 1, epsilon = 1e-5, λ over the model; not adjusted for their
number.
"""
OTHERS = """
Mean of the agents' three tasks / of all four tasks; published scales, or a scale that needs no
tuning. Crowds add the agents of other seeds; a pair is scored on the third task, too.
"""
COSTS = """
Processor seconds and peak memory (numpy's and Python's, as multiples of one model in fp32) of the
in-memory merge of three drawn agents of 1 M parameters, on one thread of the machine that wrote
this report. In the figure, the coloured methods are the Pareto front: nothing is both faster and
better. These are the only numbers here that change from run to run.
"""
