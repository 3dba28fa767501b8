"""A job written back as YAML: the `ramerge_config.yml` beside every merged model.

One spelling for every job: no comments, no secrets, fixed order of keys, numbers that read back as
the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from ramerge.config.bytes import PLAIN
from ramerge.config.job import Filtered, Gradient, Job, Setting, Settings, Slice
from ramerge.config.sources import without_credentials
from ramerge.config.vocabulary import TokenizerRules, TokenRule
from ramerge.config.yaml import scalar

Tree = dict[str, object]
_PLAIN = re.compile(r"[A-Za-z0-9_/.][A-Za-z0-9_/.@+-]*")
_UNPRINTABLE = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")
_DEFAULT = Job(base=None, agents=(), method="")


def to_yaml(job: Job, *, source: Callable[[str], str] = without_credentials) -> str:
    """The job as YAML that reads back as an equal job.

    Args:
        job: the merge.
        source: how a model's source is written; `without_credentials` keeps paths as they were
            given. What it takes away does not come back.
    """
    return "".join(f"{line}\n" for line in _mapping(to_mapping(job, source=source)))


def to_mapping(job: Job, *, source: Callable[[str], str] = without_credentials) -> Tree:
    """The same as a dict with the keys of a file."""
    sources = {"base": source(job.base or ""), **{a.name: source(a.source) for a in job.agents}}
    tree: Tree = {"merge_method": job.method, "preset": job.preset}
    tree["base_model"] = sources["base"] if job.base is not None else None
    if job.slices:
        tree["slices"] = [_slice(piece, source) for piece in job.slices]
    else:
        tree["models"] = _models(job, sources)
    tree["parameters"] = _settings(job.parameters)
    tree["out_dtype"] = job.out_dtype.torch_name if job.out_dtype else None
    tree["tokenizer"] = _tokenizer(job.tokenizer) if job.tokenizer else None
    tree["chat_template"] = job.chat_template
    for key in ("nonfinite", "extra", "vocabulary", "shard_size"):
        tree[key] = getattr(job, key) if getattr(job, key) != getattr(_DEFAULT, key) else None
    if isinstance(tree["shard_size"], int) and tree["shard_size"] < PLAIN:
        tree["shard_size"] = f"{tree['shard_size']}B"
    tree["exclude"] = list(job.exclude)
    return _without_empty(tree)


def _models(job: Job, sources: Mapping[str, str]) -> list[Tree]:
    models: list[Tree] = []
    if job.base_parameters:
        base: Tree = {"model": sources["base"], "parameters": _settings(job.base_parameters)}
        models.append(base)
    for agent in job.agents:
        entry: Tree = {"model": sources[agent.name], "name": agent.name}
        models.append(entry | _without_empty({"parameters": _settings(agent.parameters)}))
    return models


def _slice(piece: Slice, source: Callable[[str], str]) -> Tree:
    entries: list[Tree] = []
    for part in piece.sources:
        entry: Tree = {"model": source(part.source), "name": part.model}
        if part.model == "base":
            del entry["name"]
        entry["layer_range"] = [part.start, part.stop]
        entries.append(entry | _without_empty({"parameters": _settings(part.parameters)}))
    return {"sources": entries} | _without_empty({"parameters": _settings(piece.parameters)})


def _settings(settings: Settings) -> Tree:
    return {name: setting(value) for name, value in settings.items()}


def setting(value: Setting) -> object:
    """A value, gradient or conditional value as YAML and JSON have it."""
    if isinstance(value, Gradient):
        return list(value.anchors)
    if isinstance(value, tuple):
        return [_arm(arm) for arm in value]
    return value


def _arm(arm: Filtered) -> Tree:
    pattern = {} if arm.pattern is None else {"filter": arm.pattern}
    return {**pattern, "value": setting(arm.value)}


def _tokenizer(rules: TokenizerRules) -> Tree:
    tokens = {rule.token: _token(rule) for rule in rules.tokens}
    tree: Tree = {"source": rules.source, "tokens": tokens}
    return _without_empty(tree | {"pad_to_multiple_of": rules.pad_to_multiple_of})


def _token(rule: TokenRule) -> Tree:
    by_kind: dict[str, object] = {
        "default": None,
        "model": rule.model,
        "model_token": {
            "kind": "model_token",
            "model": rule.model,
            "token": rule.source_token,
            "token_id": rule.source_id,
        },
        "zero": {"kind": "zero"},
    }
    origin = by_kind[rule.kind]
    if isinstance(origin, dict):
        origin = {key: value for key, value in origin.items() if value is not None}
    return ({} if origin is None else {"source": origin}) | ({"force": True} if rule.force else {})


def _without_empty(tree: Tree) -> Tree:
    return {
        key: value for key, value in tree.items() if value is not None and value not in ({}, [])
    }


def _mapping(tree: Mapping[str, object]) -> Iterable[str]:
    for key, value in tree.items():
        yield from _entry(f"{_scalar(key)}:", value)


def _entry(head: str, value: object) -> Iterable[str]:
    """Lines of ``head value``; nested lines are indented under it."""
    if isinstance(value, dict) and value:
        yield head
        yield from (f"  {line}" for line in _mapping(value))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        yield head
        for item in value:
            lines = list(_mapping(item))
            yield f"- {lines[0]}"
            yield from (f"  {line}" for line in lines[1:])
    elif isinstance(value, list):
        yield f"{head} [{', '.join(_scalar(item) for item in value)}]"
    else:
        yield f"{head} {'{}' if value == {} else _scalar(value)}"


def _scalar(value: object) -> str:
    """A value in the one spelling that `yaml.scalar` reads back as itself."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        text = repr(value)
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text)
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and scalar(text) == text:
        return text
    import json

    quoted = json.dumps(text, ensure_ascii=False)  # JSON's strings are YAML's double-quoted ones
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
