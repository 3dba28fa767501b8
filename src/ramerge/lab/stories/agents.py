"""The converted base and its agents on disk, trained once and found again by their settings.

CACHE/stories/base/                          BF16, as `convert` writes it
CACHE/stories/natural/seed-0/dog.bf16/  dog.fp32/  ...  provenance.json
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ramerge.lab import fisher
from ramerge.lab.agents import Cell, Stored, curve, matches, write_provenance
from ramerge.lab.arms import Case
from ramerge.lab.grpo import Settings, optimise, round_to_bf16
from ramerge.lab.model import Weights, load, save
from ramerge.lab.regimes import Regime, Schedule, masks
from ramerge.lab.stories.bench import Author
from ramerge.lab.stories.convert import MODEL, convert, read_model
from ramerge.lab.stories.tasks import NEW, PROPERTIES, SENTENCES

VERSION = 1  # raised when a change of the code would train other weights
AGENTS = tuple(PROPERTIES)  # an agent has the name of the property that it is trained for
GROUPS, SAMPLES = 12, 8
DENSITIES = dict(zip(AGENTS, (0.032, 0.462, 0.543), strict=True))  # the paper's, as elsewhere
ENOUGH = 0.9  # mean reward of two batches that ends training: more would cost fluency for little
SCHEDULES: dict[Regime, dict[str, Schedule]] = {  # at most so many steps
    "natural": {name: Schedule(60, 3e-4) for name in AGENTS},
    "bf16": {name: Schedule(60, 3e-4) for name in AGENTS},
    "geometry": {
        "dog": Schedule(60, 2e-3),
        "sentences": Schedule(60, 5e-4),
        "dialogue": Schedule(60, 5e-4),
    },
}


@dataclass(frozen=True, slots=True)
class Root:
    """The base, and where everything that is made from it is kept."""

    directory: Path
    weights: Weights
    author: Author

    def cell(self, cell: Cell) -> Path:
        """Where a cell's agents are."""
        return self.directory / cell.regime / f"seed-{cell.agent_seed}"


def get_root(source: Path, cache: Path) -> Root:
    """Convert the base to BF16 if it is not there, and read it.

    Raises:
        ConfigError: as `convert`.
    """
    directory = cache / "stories"
    base = directory / "base"
    model = source / MODEL
    digest = hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else ""
    wanted = {"version": VERSION, "source": MODEL, "sha256": digest}
    if not matches(base, wanted):
        convert(source, base, torch.bfloat16)
        write_provenance(base, wanted)
    shape, _ = read_model(model)
    return Root(directory, load(base), Author.of(base, shape))


def get_agents(root: Root, cell: Cell, stored: Stored = "bf16") -> dict[str, Weights]:
    """The cell's agents, read from their BF16 or fp32 files; trained if they are not there."""
    directory, shape = root.cell(cell), root.author.shape
    wanted = {"version": VERSION, **asdict(cell), "settings": _settings(cell)}
    if not matches(directory, wanted):
        curves = {}
        for name in AGENTS:
            weights, rewards = train_agent(root, cell, name)
            for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
                save(weights, shape, directory / f"{name}.{kind}", dtype, _tokenizer(root))
            curves[name] = curve(rewards)
        write_provenance(directory, {**wanted, "reward": curves})
    return {name: load(directory / f"{name}.{stored}") for name in AGENTS}


def train_agent(root: Root, cell: Cell, name: str) -> tuple[Weights, list[float]]:
    """GRPO on one property in the cell's regime; weights and the mean reward of every batch."""
    schedule = SCHEDULES[cell.regime][name]
    seed = 1000 * cell.agent_seed + AGENTS.index(name)
    settings = Settings(schedule.steps, schedule.rate, GROUPS, SAMPLES, seed=seed)
    confined = masks(root.weights, DENSITIES[name], seed) if cell.regime == "geometry" else None
    rounding = round_to_bf16 if cell.regime == "bf16" else None
    return optimise(
        root.weights,
        root.author.shape,
        root.author.episode(name, settings),
        settings,
        masks=confined,
        after_step=rounding,
        enough=ENOUGH,
    )


def make_case(root: Root, cell: Cell) -> Case:
    """The cell's agents, in both precisions, with their Fisher information."""
    agents, exact = get_agents(root, cell), get_agents(root, cell, "fp32")
    files = {}
    for name in AGENTS:
        path = root.cell(cell) / f"{name}.fisher.safetensors"
        if not path.is_file():
            _information(root, agents[name], name, cell.agent_seed, path)
        files[name] = path
    return Case(root.weights, agents, exact, files, cell.agent_seed, root.author.shape)


def _information(root: Root, agent: Weights, name: str, seed: int, path: Path) -> None:
    settings = Settings(0, 0.0, groups=fisher.SAMPLES, samples=1, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    turns, _ = root.author.episode(name, settings)(agent, 0, generator)
    fisher.write(fisher.of_answers(agent, root.author.shape, turns), path)


def _settings(cell: Cell) -> dict[str, Any]:
    fixed: dict[str, Any] = asdict(Settings(0, 0.0, GROUPS, SAMPLES))
    for varied in ("steps", "rate", "seed"):
        del fixed[varied]
    schedules = {task: asdict(s) for task, s in SCHEDULES[cell.regime].items()}
    text = {"tokens": NEW, "sentences": SENTENCES}
    return {"grpo": fixed, "enough": ENOUGH, "text": text, "densities": DENSITIES, **schedules}


def _tokenizer(root: Root) -> Any:
    """Writes the base's tokenizer into an agent's directory."""

    def copy(directory: Path) -> None:
        for path in (root.directory / "base").glob("*token*.json"):
            (directory / path.name).write_bytes(path.read_bytes())

    return copy
