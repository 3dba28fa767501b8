"""Merge files in mergekit's dialect, read strictly: what is not understood is refused by name.

Keys of mergekit keep their meaning; where the arithmetic differs a note says so (`Job.notes`).
Keys that only ramerge has: `preset`, `nonfinite`, `extra`, `vocabulary`, `exclude`, `shard_size`, and `name` of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from ramerge._errors import MergeError, raise_problems
from ramerge._signature import MethodInfo, Methods
from ramerge._types import DType
from ramerge.config import fields
from ramerge.config.job import Job
from ramerge.config.models import (
    INDENT,
    Cast,
    cast,
    cast_slices,
    check_count,
    read_models,
    read_slices,
    reference,
)
from ramerge.config.override import Overrides, overridden
from ramerge.config.resolve import missing
from ramerge.config.settings import did_you_mean, read_settings, without_effect
from ramerge.config.tokenizer import read_chat_template, read_tokenizer
from ramerge.config.vocabulary import Extra, Vocabulary
from ramerge.config.yaml import Node, Where, from_value, read_file, read_text
from ramerge.methods.names import lookup

Tree = dict[str, Node]
KEYS = (
    "merge_method",
    "preset",
    "base_model",
    "models",
    "slices",
    "parameters",
    "dtype",
    "out_dtype",
    "tokenizer_source",
    "tokenizer",
    "chat_template",
    "nonfinite",
    "extra",
    "vocabulary",
    "exclude",
    "shard_size",
)
NONFINITE = ("error", "keep_base", "propagate")
EXTRA, VOCABULARY = get_args(Extra), get_args(Vocabulary)
SPARSE = ("dare_linear", "dare_ties", "della", "della_linear", "breadcrumbs", "breadcrumbs_ties")
THEIRS: Mapping[str, Mapping[str, object]] = {  # defaults of mergekit that are not ours
    "ties": {"density": 1.0, "trim": "tensor"},
    **{name: {"density": 1.0} for name in SPARSE},
}
ELSEWHERE: Mapping[str, str] = {
    "modules": "models of several modules are merged as a whole: list them under `models`",
    "input_model_parameters": "write `parameters` under the model",
    "name": "only mergekit-multi has it: one file a merge, and name its output in the next",
    "out_path": "the output is `--out DIR`",
    "int8_mask": INDENT,
    "embed_slerp": "embeddings are merged like every other tensor",
}


def load(path: str | Path, methods: Methods, *, overrides: Overrides | None = None) -> Job:
    """The job that a file describes.

    Args:
        path: the file.
        methods: what methods there are.
        overrides: what flags beside the file change in it; errors name the flag.

    Raises:
        ConfigError: anything wrong in it; several problems come as one `ProblemsError`.
    """
    job = read_job(_changed(read_file(Path(path)), overrides), methods)
    return replace(job, notes=(*job.notes, *other_defaults(job, methods[job.method])))


def loads(text: str | bytes, methods: Methods, *, file: str = "config") -> Job:
    """The job that a YAML text describes; ``file`` stands in error messages.

    Raises:
        ConfigError: as `load`.
    """
    return read_job(read_text(text, file=file), methods)


def from_mapping(
    document: Mapping[str, object],
    methods: Methods,
    *,
    overrides: Overrides | None = None,
    where: str = "job",
) -> Job:
    """The job that a dict describes, with the keys of a file.

    Raises:
        ConfigError: as `load`.
    """
    top = from_value(document, Where(where))
    return read_job(_changed(top, overrides), methods)


def _changed(top: Node, overrides: Overrides | None) -> Node:
    problems: list[MergeError] = []
    changed = top if overrides is None else overridden(top, overrides, problems)
    raise_problems(problems)
    return changed


def find_method(node: Node, methods: Methods) -> tuple[MethodInfo, str | None]:
    """The method that a name or alias means, and the preset that the alias implies.

    Raises:
        ConfigError: no such method.
    """
    name = fields.text(node, "`merge_method`")
    info = lookup(name, methods)
    if info is not None:
        return info
    known = [*methods, *(alias for info in methods.values() for alias in info.aliases)]
    hint = did_you_mean(name.lower(), known, "`ramerge methods` lists them")
    raise node.error(f"unknown merge method `{name}`", hint=hint)


def read_job(top: Node, methods: Methods) -> Job:
    """The job in a tree; all problems at once.

    Raises:
        ConfigError: as `load`.
    """
    problems: list[MergeError] = []
    tree = fields.mapping(top, "a merge configuration").value
    assert isinstance(tree, dict)
    found = None
    if "merge_method" in tree:
        found = fields.attempt(problems, find_method, tree["merge_method"], methods)
    else:
        problems.append(top.error("`merge_method` is missing"))
    slips = dict.fromkeys(found[0].signature if found else (), INDENT)
    fields.check_keys(top, KEYS, "the file", problems, {**slips, **ELSEWHERE})
    if found is None:  # what the parameters mean is unknown, so nothing more can be said
        raise_problems(problems)
    assert found is not None
    info, implied = found
    members = _cast(top, tree, info, problems)
    job = _job(top, tree, info, members, problems)
    job = replace(job, preset=_preset(tree, info, implied, problems))
    raise_problems(problems or list(missing(job, info)))
    return job


def _cast(top: Node, tree: Tree, info: MethodInfo, problems: list[MergeError]) -> Cast:
    base = fields.optional(tree, "base_model", problems, reference)
    if base is None and info.base == "required":
        hint = "add `base_model: PATH`, the checkpoint that the agents were trained from"
        problems.append(top.error(f"`{info.name}` needs a `base_model`", hint=hint))
    if ("models" in tree) == ("slices" in tree):
        hint = "`models` are whole models, `slices` are ranges of layers"
        problems.append(top.error("a file has either `models` or `slices`", hint=hint))
        return Cast(base, ())
    before = len(problems)
    if "slices" in tree:
        pieces = read_slices(tree["slices"], info, problems)
        return cast_slices(base, pieces, info, problems)
    members = cast(base, read_models(tree["models"], info, problems), info, problems)
    wrong = check_count(len(members.agents), info, tree["models"])
    problems.extend([wrong] if wrong and len(problems) == before else [])
    return members


def _job(top: Node, tree: Tree, info: MethodInfo, members: Cast, problems: list[MergeError]) -> Job:
    job = Job(
        base=members.base,
        agents=members.agents,
        method=info.name,
        parameters=read_settings(tree.get("parameters"), info, "all", problems),
        base_parameters=members.base_parameters,
        tokenizer=read_tokenizer(top, members.name_of, problems),
        chat_template=fields.optional(tree, "chat_template", problems, read_chat_template),
        slices=members.slices,
    )
    options = {
        "nonfinite": fields.optional(tree, "nonfinite", problems, _nonfinite),
        "extra": fields.optional(tree, "extra", problems, fields.choice, "`extra`", EXTRA),
        "vocabulary": fields.optional(
            tree, "vocabulary", problems, fields.choice, "`vocabulary`", VOCABULARY
        ),
        "exclude": fields.optional(tree, "exclude", problems, _exclude),
        "shard_size": fields.optional(tree, "shard_size", problems, _shard_size),
        "out_dtype": _out_dtype(tree, problems),
    }
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    return replace(job, notes=_notes(tree, info, job), **given)


def _preset(
    tree: Tree, info: MethodInfo, implied: str | None, problems: list[MergeError]
) -> str | None:
    given = fields.optional(tree, "preset", problems, fields.text, "`preset`")
    if given is None:
        return implied
    if implied is not None and given != implied:
        alias = tree["merge_method"].text
        hint = f"`merge_method: {info.name}` with `preset: {given}`"
        message = f"`{alias}` already means preset `{implied}`, not `{given}`"
        problems.append(tree["preset"].error(message, hint=hint))
    if given not in info.presets:
        listed = ", ".join(f"`{p}`" for p in info.presets) or "none"
        message = f"`{info.name}` has no preset `{given}`"
        close = did_you_mean(given, info.presets, f"its presets: {listed}")
        problems.append(tree["preset"].error(message, hint=close))
        return None
    return given


def _nonfinite(node: Node) -> str:
    return fields.choice(node, "`nonfinite`", NONFINITE)


def _shard_size(node: Node) -> int:
    return fields.size(node, "`shard_size`")


def _exclude(node: Node) -> tuple[str, ...]:
    listed = node.value if isinstance(node.value, tuple) else (node,)
    return tuple(fields.text(item, "a pattern of `exclude`") for item in listed)


def _out_dtype(tree: Tree, problems: list[MergeError]) -> DType | None:
    arithmetic = fields.optional(tree, "dtype", problems, fields.dtype, "`dtype`")
    return fields.optional(tree, "out_dtype", problems, fields.dtype, "`out_dtype`") or arithmetic


def other_defaults(job: Job, info: MethodInfo) -> list[str]:
    """Parameters that a job leaves to a default which is another one in mergekit."""
    levels = [job.parameters, *(a.parameters for a in job.agents)]
    levels += [s.parameters for s in job.slices]
    given = {name for level in levels for name in level} | set(
        info.presets.get(job.preset or "", {})
    )
    return [
        f"`{name}` is not given: {info.signature[name].default} here, {theirs} in mergekit"
        for name, theirs in THEIRS.get(info.name, {}).items()
        if name in info.signature and name not in given and info.signature[name].default != theirs
    ]


def _notes(tree: Tree, info: MethodInfo, job: Job) -> tuple[str, ...]:
    """What a user of mergekit would otherwise take for granted."""
    notes = []
    if "dtype" in tree:
        role = "has no effect beside `out_dtype`" if "out_dtype" in tree else "is the output's"
        notes.append(f"`dtype` {role}: arithmetic is fp32 always, rounded once at the end")
    listed = tree.get("models")
    entries = listed.value if listed and isinstance(listed.value, tuple) else ()
    own = [n.value.get("parameters") for n in entries if isinstance(n.value, dict)]
    ignored: dict[str, str] = {}
    for level in (tree.get("parameters"), *own):
        ignored |= without_effect(level, info)
    notes += [f"`{name}` has no effect: {reason}" for name, reason in ignored.items()]
    if job.base_parameters:
        names = ", ".join(f"`{name}`" for name in job.base_parameters)
        notes.append(f"{names} of the base has no effect in `{info.name}`: its task vector is 0")
    return tuple(notes)
