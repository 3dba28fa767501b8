"""What lies beside the weights of the output: the base's side files, and what the job replaces."""

from __future__ import annotations

from pathlib import Path

from ramerge._errors import ConfigError, nearest
from ramerge.fit.inputs import Inputs
from ramerge.models.base import Notice
from ramerge.output.sidefiles import config_for_output, config_with, side_files
from ramerge.planning.plan import Plan


def side_content(
    plan: Plan, inputs: Inputs, *, allow_remote_code: bool, tokenizer_from: str | None
) -> tuple[dict[str, bytes | Path], tuple[Notice, ...]]:
    """Side files by name, and what was left out: the base's, what the job replaces, config.json as the tensors are."""
    donor = None
    if tokenizer_from is not None:
        if tokenizer_from not in inputs.agents:
            close = nearest(tokenizer_from, inputs.agents)
            raise ConfigError(
                f"there is no agent `{tokenizer_from}` to take the tokenizer from",
                hint=f"did you mean `{close}`?" if close else None,
            )
        donor = inputs.agents[tokenizer_from].directory
    sides = side_files(
        inputs.base.directory, allow_remote_code=allow_remote_code, tokenizer_from=donor
    )
    files: dict[str, bytes | Path] = {f.name: f.path for f in sides.files} | dict(sides.rewritten)
    files = {n: f for n, f in (files | dict(inputs.files)).items() if n not in inputs.dropped}
    if "config.json" in files:
        content = files["config.json"]
        data = content if isinstance(content, bytes) else content.read_bytes()
        changes = dict(inputs.config)
        if plan.config_vocabulary is not None:
            changes["vocab_size"] = plan.config_vocabulary
        data = config_with(data, changes) if changes else data
        files["config.json"] = config_for_output(data, plan.job.out_dtype, tied=plan.config_tied)
    return files, tuple(sides.notices)
