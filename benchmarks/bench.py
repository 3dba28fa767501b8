"""ramerge beside mergekit and beside the disk, on the same files in the same run.

    python benchmarks/bench.py --sets 0.1b 0.5b --data bench-data --out benchmarks/RESULTS.md

The programs run one after another, round by round, so that a slow spell of the machine hits all of
them; each row is the median of its rounds. mergekit runs from an environment of its own, named by
RAMERGE_MERGEKIT_PYTHON; without that variable its rows are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from math import prod
from pathlib import Path
from statistics import median

from generate import MODELS, SIZES, shapes
from measure import Cost, FailedRunError, cool, measure, warm
from ramerge import __version__

HERE = Path(__file__).parent
MERGEKIT_RUNS = (
    ("ram", "float32"),
    ("ram", "bfloat16"),
    ("ramplus_tl", "float32"),
    ("ramplus_tl", "bfloat16"),
    ("ties", "float32"),
    ("ties", "bfloat16"),
)
MERGEKIT_BYTES = 120  # of memory per element of the largest tensor, somewhat over what was seen
CLAIMS = (  # (ours, theirs): the ratios that the README may quote
    ("ramerge ram", "mergekit ram float32"),
    ("ramerge ram_plus", "mergekit ramplus_tl float32"),
    ("ramerge ram", "mergekit ram bfloat16"),
    ("ramerge ram_plus", "mergekit ramplus_tl bfloat16"),
    ("ramerge ram_plus", "ramerge ram"),
    ("ramerge ram", "cp base, read agents"),
    ("ramerge ram", "cp base, read agents, fsync"),
    ("ramerge probe", "read base and agents"),
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A program to measure. ``command`` writes to the output directory that it names.

    ``memory``: bytes it is known to need; it is not started on a machine that has less to give.
    ``compiles``: it starts with an empty cache of compiled kernels, as on a first ever run.
    """

    name: str
    command: tuple[str, ...]
    memory: int = 0
    compiles: bool = False


def contenders(models: Path, out: Path, mergekit: Path | None) -> list[Contender]:
    """All programs for one model set."""
    base, *agents = (models / name for name in MODELS)
    read = f"cp -r {base} {out} && cat {' '.join(f'{a}/*.safetensors' for a in agents)} > /dev/null"
    found = [
        Contender("cp base, read agents", ("bash", "-c", read)),
        Contender("cp base, read agents, fsync", ("bash", "-c", f"{read} && sync {out}/*")),
    ]
    found += [Contender(f"ramerge {m}", ours(models, out, m)) for m in ("ram", "ram_plus", "ties")]
    everything = f"cat {' '.join(f'{m}/*.safetensors' for m in (base, *agents))} > /dev/null"
    found.append(Contender("read base and agents", ("bash", "-c", everything)))
    found.append(Contender("ramerge probe", probing(models)))
    if mergekit is not None:
        program = str(mergekit.with_name("mergekit-yaml"))
        memory = MERGEKIT_BYTES * max(prod(shape) for _, shape in shapes(SIZES[models.name]))
        for method, dtype in MERGEKIT_RUNS:
            config = write_mergekit_config(models, method, dtype)
            command = [program, str(config), str(out), "--no-copy-tokenizer", "--quiet"]
            found.append(Contender(f"mergekit {method} {dtype}", tuple(command), memory))
    return found


def ours(models: Path, out: Path, method: str) -> tuple[str, ...]:
    """Our command line for a model set."""
    command = [sys.executable, "-m", "ramerge", "merge", *inputs_of(models)]
    return (*command, "--method", method, "--out", str(out), "--json")


def probing(models: Path) -> tuple[str, ...]:
    """Our command line that only looks at a model set."""
    return (sys.executable, "-m", "ramerge", "probe", *inputs_of(models), "--json", "-")


def inputs_of(models: Path) -> list[str]:
    """The flags that name a model set."""
    base, *agents = (str(models / name) for name in MODELS)
    return ["--base", base, *(word for agent in agents for word in ("--agent", agent))]


def starters(models: Path, out: Path, mergekit: Path | None) -> list[Contender]:
    """What there is to wait for before any work is done: help, and a merge of next to nothing."""
    found = [
        Contender("ramerge --help", (sys.executable, "-m", "ramerge", "--help")),
        Contender("ramerge ram_plus", ours(models, out, "ram_plus")),
        Contender("ramerge ram_plus, first run ever", ours(models, out, "ram_plus"), compiles=True),
    ]
    if mergekit is not None:
        program = str(mergekit.with_name("mergekit-yaml"))
        config = str(write_mergekit_config(models, "ram", "float32"))
        found.append(Contender("mergekit-yaml --help", (program, "--help")))
        command = (program, config, str(out), "--no-copy-tokenizer", "--quiet")
        found.append(Contender("mergekit ram float32", command))
    return found


def write_mergekit_config(models: Path, method: str, dtype: str) -> Path:
    """A mergekit configuration that computes in ``dtype`` and, like ours, stores BF16."""
    base, *agents = (str(models / name) for name in MODELS)
    per_model = {"parameters": {"weight": 1.0, "density": 0.2}} if method == "ties" else {}
    config = {
        "merge_method": method,
        "base_model": base,
        "models": [{"model": agent, **per_model} for agent in agents],
        "dtype": dtype,
        "out_dtype": "bfloat16",
    }
    path = models / f"mergekit-{method}-{dtype}.yml"
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML
    return path


def run_rounds(
    entries: list[Contender], inputs: list[Path], out: Path, rounds: int, *, cold: bool
) -> dict[str, list[Cost]]:
    """Measure every contender ``rounds`` times, round by round; one that fails is dropped aloud."""
    costs: dict[str, list[Cost]] = {entry.name: [] for entry in entries}
    for number in range(rounds):
        for entry in entries:
            if entry.name not in costs:
                continue
            shutil.rmtree(out, ignore_errors=True)
            (cool if cold else warm)(inputs)
            try:
                cost = run_once(entry)
            except FailedRunError as error:
                print(f"{entry.name} is left out: {error}", file=sys.stderr)
                del costs[entry.name]
                continue
            costs[entry.name].append(cost)
            print(f"round {number + 1}  {entry.name:32} {cost.wall:8.2f} s", file=sys.stderr)
    shutil.rmtree(out, ignore_errors=True)
    return costs


def run_once(entry: Contender) -> Cost:
    """Measure one run.

    Raises:
        FailedRunError: it failed, or would not fit into memory.
    """
    if entry.memory > available_memory():
        raise FailedRunError(f"it needs {entry.memory / 1e9:.0f} GB of memory")
    with tempfile.TemporaryDirectory() as empty:
        environment = {"NUMBA_CACHE_DIR": empty} if entry.compiles else {}
        return measure(entry.command, os.environ | environment)


def available_memory() -> int:
    """Bytes that a new program may use without pushing others out."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def table(costs: dict[str, list[Cost]], moved: int | None = None) -> list[str]:
    """Markdown rows: medians, and the range of the walls; a rate where ``moved`` bytes are known."""
    rate = moved is not None
    lines = [
        "| program | wall s (range) | CPU s | peak RSS MB | of it anonymous MB |"
        + " GB/s |" * rate,
        "|---|---:|---:|---:|---:|" + "---:|" * rate,
    ]
    for name, runs in costs.items():
        walls = [run.wall for run in runs]
        wall, cpu = median(walls), median(run.cpu for run in runs)
        rss = median(run.rss for run in runs) / 1e6
        anonymous = median(run.anonymous for run in runs) / 1e6
        lines.append(
            f"| {name} | {wall:.2f} ({min(walls):.2f}-{max(walls):.2f}) | {cpu:.2f} "
            f"| {rss:.0f} | {anonymous:.0f} |"
            + (f" {moved / wall / 1e9:.2f} |" if moved is not None else "")
        )
    return lines


def ratios(costs: dict[str, list[Cost]]) -> list[str]:
    """Markdown rows: how our programs compare, by medians of the same rounds."""
    lines = ["| of | against | wall | CPU | peak RSS |", "|---|---|---:|---:|---:|"]
    for ours, theirs in CLAIMS:
        if ours in costs and theirs in costs:
            parts = [
                median(getattr(r, what) for r in costs[ours])
                / max(median(getattr(r, what) for r in costs[theirs]), 1e-9)
                for what in ("wall", "cpu", "rss")
            ]
            lines.append(f"| {ours} | {theirs} | " + " | ".join(map(share, parts)) + " |")
    return lines


def share(ratio: float) -> str:
    """A ratio as people say it: ``1/24`` or ``1.18``."""
    return f"{ratio:.2f}" if ratio > 0.3 else f"1/{1 / ratio:.0f}"


def copy_speed(threads: int, nbytes: int = 1 << 28) -> float:
    """Bytes per second, read plus written, of copying in memory on some threads; best of five."""
    import numpy as np

    pairs = [(np.ones(nbytes // 8), np.empty(nbytes // 8)) for _ in range(threads)]
    best = float("inf")
    for _ in range(5):
        jobs = [threading.Thread(target=np.copyto, args=(to, source)) for source, to in pairs]
        started = time.perf_counter()
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        best = min(best, time.perf_counter() - started)
    return 2 * threads * nbytes / best


def machine(mergekit: Path | None) -> list[str]:
    """What the numbers were measured on and with."""
    cpu = next(
        (
            x.split(":")[1].strip()
            for x in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in x
        ),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = len(os.sched_getaffinity(0))
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    lines = [
        f"- {cpu}, {cores} cores, {memory:.0f} GB memory, Linux {platform.release()}",
        f"- copy in memory, {cores} threads, read + write: {copy_speed(cores) / 1e9:.1f} GB/s",
        f"- load of the machine before the run (1, 5, 15 min): {os.getloadavg()}",
        f"- Python {platform.python_version()}, ramerge {__version__}, {libraries}",
    ]
    if mergekit is not None:
        script = "from importlib.metadata import version as v; print(v('mergekit'), v('torch'))"
        done = subprocess.run([mergekit, "-c", script], capture_output=True, text=True, check=True)
        lines.append("- mergekit {}, torch {}".format(*done.stdout.split()))
    return lines


def bench_start(arguments: argparse.Namespace, mergekit: Path | None) -> list[str]:
    """Measure and report start-up, on the smallest model set."""
    models = (arguments.data / "tiny").resolve()
    subprocess.run([sys.executable, HERE / "generate.py", "tiny", models], check=True)
    inputs = sorted(models.glob("*/*.safetensors"))
    out = models / "out"
    costs = run_rounds(starters(models, out, mergekit), inputs, out, arguments.rounds, cold=False)
    return ["## Start-up: help, and the 12 M parameters of `tiny`", "", *table(costs), ""]


def bench_set(name: str, arguments: argparse.Namespace, mergekit: Path | None) -> list[str]:
    """Generate, measure and report one model set."""
    models = (arguments.data / name).resolve()
    out = models / "out"
    subprocess.run([sys.executable, HERE / "generate.py", name, models], check=True)
    inputs = sorted(path for model in MODELS for path in (models / model).glob("*.safetensors"))
    per_model = sum(path.stat().st_size for path in inputs) // len(MODELS)
    entries = contenders(models, out, mergekit)
    if arguments.only:
        entries = [entry for entry in entries if any(word in entry.name for word in arguments.only)]
    costs = run_rounds(entries, inputs, out, arguments.rounds, cold=arguments.cold)
    passes = {
        entry: json.loads(runs[0].output)["passes"]
        for entry, runs in costs.items()
        if entry.startswith("ramerge") and entry != "ramerge probe"
    }
    state = f"{'cold' if arguments.cold else 'warm'} page cache, median of {arguments.rounds}"
    return [
        f"## {name}: 4 models of {per_model / 1e9:.2f} GB, {state}",
        "",
        *table(costs, (len(MODELS) + 1) * per_model),
        "",
        *ratios(costs),
        "",
        "Passes over the inputs: " + ", ".join(f"{entry} {n}" for entry, n in passes.items()),
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["0.1b"], choices=SIZES)
    parser.add_argument(
        "--data", type=Path, default=Path("bench-data"), help="where model sets are kept"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--cold", action="store_true", help="drop the inputs from the page cache first"
    )
    parser.add_argument(
        "--only", nargs="+", help="only programs whose name holds one of these words"
    )
    parser.add_argument("--out", type=Path, help="Markdown file for the results (default: stdout)")
    arguments = parser.parse_args()
    named = os.environ.get("RAMERGE_MERGEKIT_PYTHON")
    mergekit = Path(named) if named else None
    lines = ["# Measured", "", f"`python {shlex.join(sys.argv)}`", "", *machine(mergekit), ""]
    sections = [] if arguments.only else [partial(bench_start, arguments, mergekit)]
    sections += [partial(bench_set, name, arguments, mergekit) for name in arguments.sets]
    for section in sections:
        lines += section()
        if arguments.out:  # after each section, for the whole takes an hour
            arguments.out.write_text("\n".join(lines), encoding="utf-8")
    if not arguments.out:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
