"""Run models over suites: load the rows, say what it will cost, ask, score, write the report.

Everything that can be refused is refused before the first request: unknown suites, missing data or scorers,
an endpoint that does not answer, a sandbox that does not hold.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ramerge._errors import ConfigError, MergeError
from ramerge.evaluate import suites as registry
from ramerge.evaluate.asking import Asker, Pace
from ramerge.evaluate.backends import connect
from ramerge.evaluate.records import Answer, Backend, Options, Outcome, Task, UnansweredError
from ramerge.evaluate.report import EvaluationReport, build, write
from ramerge.evaluate.store import Store

STORE = "answers.sqlite"
SCORERS = {"tool": "bfcl-eval", "math": "math-verify", "ifeval": "langdetect"}


@dataclass(frozen=True, slots=True)
class Step:
    """How far an evaluation is."""

    model: str
    done: int  # tasks
    total: int
    asked: int  # requests answered in this run, not from the store
    seconds: float  # that the last answer took, 0 if from the store


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model's evaluation may take at most; some of it may be stored already."""

    model: str
    tasks: int
    requests: int
    tokens: int
    stored: int
    seconds: float | None  # None before any answer is known


def run(
    models: Mapping[str, str],
    suites: Sequence[str],
    *,
    out: str | Path,
    options: Options | None = None,
    pace: Pace = Pace(),  # noqa: B008 (frozen)
    merge_seconds: Mapping[str, float] | None = None,
    estimated: Callable[[Estimate], None] = lambda e: None,  # noqa: ARG005
    progress: Callable[[Step], None] = lambda s: None,  # noqa: ARG005
    dry_run: bool = False,
) -> EvaluationReport:
    """Evaluate ``models`` on ``suites`` and write the report to ``out``.

    Args:
        models: name -> endpoint (``http://host:8000/v1#served``) or model directory.
        suites: names out of `suites.MODULES`.
        out: directory of answers and report; one that exists is gone on with.
        options: of the suites.
        pace: bounds and retries of requests.
        merge_seconds: name -> seconds that its merge took, for the Pareto front.
        estimated: told what a model will take, before it is asked anything.
        progress: told of each finished task and each answer.
        dry_run: estimate only; the report is empty and nothing is written but the store.

    Raises:
        ConfigError: no models or suites, or something that a suite needs is missing.
        HubError: an endpoint does not answer.
        SandboxError: a suite runs model-written code and there is no working sandbox.
        OutputBusyError: another evaluation writes to ``out``.
    """
    if not models or not suites:
        raise ConfigError("an evaluation needs at least one model and one suite")
    options = options or Options()
    tasks = [task for suite in suites for task in registry.load(suite, options)]
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    with Store(target / STORE) as store:
        found = asyncio.run(
            _all(models, tasks, store, pace, estimated, None if dry_run else progress)
        )
    report = build(found, merge_seconds or {}, settings(suites, options))
    if not dry_run:
        write(report, target)
    return report


def settings(suites: Sequence[str], options: Options) -> dict[str, object]:
    """What scores depend on, besides the model; two runs are comparable where this is equal."""
    facts = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(options).items()}
    facts["data"] = {n: _digest(Path(p)) for n, p in sorted(options.data.items())}
    facts["tokenizer"] = None if options.tokenizer is None else _digest(Path(options.tokenizer))
    scorers = {}
    for name in (SCORERS[suite] for suite in suites if suite in SCORERS):
        with suppress(PackageNotFoundError):  # not every row needs one
            scorers[name] = version(name)
    return {"suites": list(suites), **facts, "scorers": scorers}


def _digest(path: Path) -> str:
    """The start of the SHA-256 of a file, or of all files of a directory: equal data look equal wherever they lie."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        digest.update(b"" if file == path else file.relative_to(path).as_posix().encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


async def _all(
    models: Mapping[str, str],
    tasks: Sequence[Task],
    store: Store,
    pace: Pace,
    estimated: Callable[[Estimate], None],
    progress: Callable[[Step], None] | None,
) -> dict[str, list[Outcome]]:
    """Outcomes by model; none, after the estimates, where there is no ``progress`` to tell of."""
    found: dict[str, list[Outcome]] = {}
    for name, source in models.items():
        backend = await connect(source, concurrency=pace.concurrency, timeout_s=pace.timeout_s)
        try:
            estimated(estimate(name, backend, tasks, store, pace.concurrency))
            found[name] = []
            if progress is not None:
                found[name] = await _one(name, backend, tasks, store, pace, progress)
        finally:
            await backend.close()
    return found


async def _one(
    name: str,
    backend: Backend,
    tasks: Sequence[Task],
    store: Store,
    pace: Pace,
    progress: Callable[[Step], None],
) -> list[Outcome]:
    """Outcomes of one model, in the order of ``tasks``."""
    done = asked = 0

    def answered(answer: Answer) -> None:
        nonlocal asked
        asked += 1
        progress(Step(name, done, len(tasks), asked, answer.seconds))

    asker = Asker(backend, store, pace, answered=answered)

    async def outcome(task: Task) -> Outcome:
        nonlocal done
        try:
            score, error = await task.solve(asker.ask), ""
        except UnansweredError as failure:
            score, error = None, str(failure)
        done += 1
        progress(Step(name, done, len(tasks), asked, 0.0))
        return Outcome(task.column, task.domain, task.item, score, error)

    try:
        async with asyncio.TaskGroup() as group:
            started = [group.create_task(outcome(task)) for task in tasks]
    except* MergeError as failures:  # a refused key, a broken sandbox: one is enough to say
        raise _first(failures) from None
    return [task.result() for task in started]


def _first(group: BaseExceptionGroup[MergeError]) -> MergeError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def estimate(
    name: str, backend: Backend, tasks: Sequence[Task], store: Store, concurrency: int
) -> Estimate:
    """Upper bounds on requests and new tokens; the time follows from answers already stored."""
    stored, seconds, _ = store.pace(backend.identity)
    requests = sum(task.requests for task in tasks)
    left = max(0, requests - stored)
    return Estimate(
        model=name,
        tasks=len(tasks),
        requests=requests,
        tokens=sum(task.tokens for task in tasks),
        stored=stored,
        seconds=left * seconds / concurrency if stored else None,
    )
