"""The study's test problems as a suite of `ramerge evaluate`: miniature models through the commands of large ones.

Sampled at temperature 1, as in the study; the noise is another one, so that figures differ by luck.
"""

from __future__ import annotations

from functools import partial

from ramerge.evaluate.records import Ask, Options, Prompt, Sampling, Score, Task
from ramerge.evaluate.rows import Source
from ramerge.lab.environments import Environment, Problem, environments
from ramerge.lab.environments.base import problems

SOURCES: dict[str, Source | None] = {}  # the problems are drawn, not read
PROBLEMS = 256  # of each task, as in the study


def load(options: Options) -> list[Task]:
    """One task a problem; ``--limit`` takes the first ones of each kind."""
    return [
        Task(
            column=f"miniature {name}",
            domain="miniature",
            item=problem.key,
            requests=len(problem.prompts),
            tokens=len(problem.prompts) * environment.max_new,
            solve=partial(solve, environment, problem),
        )
        for name, environment in environments().items()
        for problem in problems(environment, "test", PROBLEMS, 0)[: options.limit]
    ]


async def solve(environment: Environment, problem: Problem, ask: Ask) -> Score:
    """Play the turns; each sees the answer of the one before, as `ramerge.lab.rollout` does."""
    sampling, said = Sampling(temperature=1.0, max_tokens=environment.max_new), ""
    for prompt in problem.prompts:
        answer = await ask(Prompt((("user", prompt.format(said)),), sampling))
        said = answer.text[: environment.max_new]
    return Score({"accuracy": (environment.reward(problem, said), 1.0)}, prediction=said)
