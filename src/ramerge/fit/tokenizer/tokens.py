"""Do tokenizers, special tokens and chat templates of the models agree? Read without a library.

Two tokenizers of one size with other ids give a clean merge and nonsense answers; an
end-of-sequence id that differs between two files gives a generation that never stops. Both are
found before a byte is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ramerge._errors import CorruptInputError, IncompatibleError, MergeError
from ramerge.fit.configs import Findings
from ramerge.fit.tokenizer.tokenizer_json import read_tokenizer
from ramerge.models.base import Checkpoint, Notice
from ramerge.models.facts import is_vocabulary_tensor, text_config
from ramerge.models.files import json_object, read_small, resolve_inside, shown

_SHOWN = 5
_SPECIAL = ("bos_token", "eos_token", "pad_token")


def check_tokens(base: Checkpoint, agents: Mapping[str, Checkpoint]) -> Findings:
    """Compare tokenizers, special tokens and chat templates.

    Args:
        base: the opened base.
        agents: opened agents by name, in config order. One without tokenizer files uses the base's.

    Returns:
        Problems (token ids that contradict each other or the embedding) and notices (everything
        that the base's files will overrule).
    """
    problems: list[MergeError] = []
    notices: list[Notice] = []
    ours = token_ids(base.directory)
    problems += _too_high(ours, base)
    special = special_ids(base, ours)
    notices += _disagreements("the base", special)
    notices += _two_templates("the base", base.directory)
    for name, agent in agents.items():
        theirs = ours if _same_tokenizer(base, agent) else token_ids(agent.directory)
        if theirs is not None and theirs is not ours:
            problems += _contradictions(name, ours, theirs)
            notices += _only_in_one(name, ours, theirs)
            notices += _other_merges(name, base.directory, agent.directory)
        own = special_ids(agent, theirs)
        if own != special:
            notices += _disagreements(f"agent {shown(name)}", own)
        notices += _other_specials(name, special, own)
        notices += _other_template(name, base.directory, agent.directory)
    return Findings(tuple(problems), tuple(notices))


def _same_tokenizer(base: Checkpoint, agent: Checkpoint) -> bool:
    """Whether both have one tokenizer.json, byte for byte: the usual case, and quick to see."""
    ours, theirs = (_bytes(model.directory, "tokenizer.json") for model in (base, agent))
    return ours is not None and ours == theirs


# --- token ids ---------------------------------------------------------------------------------


def token_ids(directory: Path | None) -> dict[str, int] | None:
    """Token to id, from tokenizer.json, or vocab.json, or vocab.txt, and added_tokens.json.

    Returns:
        None where there is none of them (SentencePiece files are not read).

    Raises:
        CorruptInputError: a file is not as it should be.
    """
    tokenizer = read_tokenizer(directory)
    if tokenizer is not None:
        return tokenizer.vocabulary
    ids = _json(directory, "vocab.json")
    if ids is None:
        lines = _text(directory, "vocab.txt")
        ids = None if lines is None else {line: i for i, line in enumerate(lines.splitlines())}
    if ids is None:
        return None
    return _checked({**ids, **(_json(directory, "added_tokens.json") or {})}, "vocab.json")


def _checked(ids: Mapping[Any, Any], name: str) -> dict[str, int]:
    bad = next((t for t, i in ids.items() if type(i) is not int or not isinstance(t, str)), None)
    if bad is not None:
        raise CorruptInputError(f"token {shown(bad)} in {shown(name)} has the id {shown(ids[bad])}")
    return dict(ids)


def _contradictions(
    agent: str, ours: Mapping[str, int] | None, theirs: Mapping[str, int]
) -> list[MergeError]:
    """Tokens that both have, under different ids."""
    differ = sorted((i, t) for t, i in (ours or {}).items() if t in theirs and theirs[t] != i)
    if not differ or ours is None:
        return []
    some = ", ".join(f"{shown(t)} is {theirs[t]} not {i}" for i, t in differ[:_SHOWN])
    return [
        IncompatibleError(
            f"the tokenizer of agent {shown(agent)} gives {len(differ)} tokens other ids than the "
            f"base's: {some}",
            hint="rows of the embeddings mean different tokens: the agent has another base",
        )
    ]


def _only_in_one(
    agent: str, ours: Mapping[str, int] | None, theirs: Mapping[str, int]
) -> Iterable[Notice]:
    """Tokens that only the agent, or only the base has."""
    if ours is None:
        return
    new = sorted((i, t) for t, i in theirs.items() if t not in ours)
    lost = sorted((i, t) for t, i in ours.items() if t not in theirs)
    if new:
        text = f"agent {shown(agent)} has {len(new)} tokens that the base lacks: {_some(new)}"
        yield Notice("tokens-added", text, tuple(t for _, t in new))
    if lost:
        text = f"agent {shown(agent)} lacks {len(lost)} tokens of the base: {_some(lost)}"
        yield Notice("tokens-missing", text, tuple(t for _, t in lost))


def _some(tokens: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"{shown(t)} ({i})" for i, t in tokens[:_SHOWN])


def _other_merges(agent: str, ours: Path | None, theirs: Path | None) -> Iterable[Notice]:
    """Merges of BPE tokenizers, whose order decides into which tokens a text falls."""
    base, own = read_tokenizer(ours), read_tokenizer(theirs)
    if base is None or own is None or base.merges == own.merges:
        return
    at = next((i for i, (a, b) in enumerate(zip(own.merges, base.merges, strict=False)) if a != b),
              min(len(own.merges), len(base.merges)))  # fmt: skip
    there, here = (
        shown(" ".join(m[at])) if at < len(m) else "none" for m in (own.merges, base.merges)
    )
    text = f"BPE merges of agent {shown(agent)} differ from the base's: merge {at} is {there}, not {here}"
    yield Notice("merges-differ", text)


def _too_high(ours: Mapping[str, int] | None, base: Checkpoint) -> list[MergeError]:
    """Tokens of the base whose id has no row in the embedding."""
    tables = [n for n in base.names() if is_vocabulary_tensor(n) and base.spec(n).shape]
    if ours is None or not tables:
        return []
    rows = base.spec(tables[0]).shape[0]
    high = sorted((i, t) for t, i in ours.items() if i >= rows)
    if not high:
        return []
    some = ", ".join(f"{shown(t)} ({i})" for i, t in high[:_SHOWN])
    return [
        IncompatibleError(
            f"{len(high)} tokens of the base have no row in {shown(tables[0])}, which has {rows}: "
            f"{some}",
            hint="correct the tokenizer's added tokens",
        )
    ]


# --- special tokens ----------------------------------------------------------------------------


def special_ids(
    checkpoint: Checkpoint, ids: Mapping[str, int] | None
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Ids of bos, eos and pad by token and by the file that gives them.

    Args:
        checkpoint: an opened model.
        ids: its tokens (`token_ids`), for the files that name tokens instead of ids.
    """
    found: dict[str, dict[str, tuple[int, ...]]] = {key: {} for key in _SPECIAL}
    tokenizer = _json(checkpoint.directory, "tokenizer_config.json") or {}
    for key in _SPECIAL:
        value = tokenizer.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and ids is not None and text in ids:
            found[key]["tokenizer_config.json"] = (ids[text],)
    config = text_config(checkpoint.config) if checkpoint.config is not None else {}
    generation = _json(checkpoint.directory, "generation_config.json") or {}
    for file, content in (("generation_config.json", generation), ("config.json", config)):
        for key in _SPECIAL:
            value = content.get(f"{key}_id")
            if isinstance(value, int):
                found[key][file] = (value,)
            elif isinstance(value, list) and value:
                found[key][file] = tuple(v for v in value if isinstance(v, int))
    return found


def _disagreements(
    who: str, special: Mapping[str, Mapping[str, tuple[int, ...]]]
) -> Iterable[Notice]:
    """An id that one file of a model gives and another does not know."""
    for key, by_file in special.items():
        values = [set(v) for v in by_file.values()]
        if any(a.isdisjoint(b) for a in values for b in values):
            text = ", ".join(f"{list(v)} in {shown(f)}" for f, v in by_file.items())
            yield Notice("special-tokens", f"{who} gives different ids for {shown(key)}: {text}")


def _other_specials(
    agent: str,
    ours: Mapping[str, Mapping[str, tuple[int, ...]]],
    theirs: Mapping[str, Mapping[str, tuple[int, ...]]],
) -> Iterable[Notice]:
    """Ids of an agent that the base's files, which the output gets, do not give."""
    for key in _SPECIAL:
        for file, value in theirs[key].items():
            base = ours[key].get(file)
            if base is not None and set(base) != set(value):
                text = (
                    f"{shown(key)} is {list(value)} in {shown(file)} of agent {shown(agent)} but "
                    f"{list(base)} in the base's, which the output gets"
                )
                yield Notice("special-tokens", text)


# --- chat templates ----------------------------------------------------------------------------


def chat_template(directory: Path | None) -> str | None:
    """The chat template that transformers uses: the .jinja file wins over the JSON files."""
    text = _text(directory, "chat_template.jinja")
    return text if text is not None else _json_template(directory)


def _json_template(directory: Path | None) -> str | None:
    for name in ("chat_template.json", "tokenizer_config.json"):
        value = (_json(directory, name) or {}).get("chat_template")
        if isinstance(value, str):
            return value
    return None


def _two_templates(who: str, directory: Path | None) -> Iterable[Notice]:
    ours, other = _text(directory, "chat_template.jinja"), _json_template(directory)
    if ours is not None and other is not None and ours != other:
        text = f"{who} has two chat templates that differ; `chat_template.jinja` is the one in use"
        yield Notice("chat-template", text)


def _other_template(agent: str, ours: Path | None, theirs: Path | None) -> Iterable[Notice]:
    own, base = chat_template(theirs), chat_template(ours)
    if own is None or own == base:
        return
    text = f"agent {shown(agent)} was trained with another chat template than the base's"
    if base is None:
        yield Notice("chat-template", f"{text}, which has none")
        return
    number, there, here = _first_difference(
        own.splitlines(keepends=True), base.splitlines(keepends=True)
    )
    yield Notice("chat-template", f"{text}: line {number} is {shown(there)}, not {shown(here)}")


def _first_difference(theirs: Sequence[str], ours: Sequence[str]) -> tuple[int, str, str]:
    """Number of the first line that differs, and both; lines past an end are empty."""
    pairs = zip_longest(theirs, ours, fillvalue="")
    return next(((i, a, b) for i, (a, b) in enumerate(pairs, 1) if a != b), (0, "", ""))


# --- files -------------------------------------------------------------------------------------


def _json(directory: Path | None, name: str) -> dict[str, Any] | None:
    data = _bytes(directory, name)
    return None if data is None else json_object(data, name, unique=False)


def _text(directory: Path | None, name: str) -> str | None:
    data = _bytes(directory, name)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise CorruptInputError(f"byte {error.start} of {shown(name)} is not UTF-8") from None


def _bytes(directory: Path | None, name: str) -> bytes | None:
    if directory is None or not (directory / name).exists():
        return None
    return read_small(resolve_inside(directory, name, "the model"), name)
