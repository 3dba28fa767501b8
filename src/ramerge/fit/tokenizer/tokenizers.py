"""The output's vocabulary: whose tokens, with which ids, and what stands in their embedding rows.

mergekit's documented rules. Every model's embedding is brought into the output's order before it
is merged. A token that a model has keeps that model's row. One that it lacks takes the base's row;
else the row of the only model that has it; else the mean of all that have it. Rules for single
tokens name another row, or zeros, and can be forced on all models.

Where we differ: rows beyond the last token (padding) are kept, not cut off, so that the base's own
size survives; and tokenizers of different kinds are refused: their pieces mean different text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ramerge._errors import ConfigError, IncompatibleError, MergeError, raise_problems
from ramerge._types import I64, Json
from ramerge.config.vocabulary import TokenizerRules, TokenRule
from ramerge.fit.tokenizer import tokenizer_json as tj
from ramerge.fit.tokenizer.tokenizer_json import TokenizerJson
from ramerge.models.base import Checkpoint, Notice
from ramerge.models.facts import is_vocabulary_tensor, text_config, tied_head
from ramerge.models.files import json_object, read_small, resolve_inside
from ramerge.models.views.remap import RemappedCheckpoint, Row, RowMap

SLOW = (
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
FILES = (tj.NAME, tj.CONFIG, "special_tokens_map.json", "chat_template.jinja", *SLOW)
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class VocabularyPlan:
    """A vocabulary for the output, and how every model's rows get there.

    Attributes:
        rows: rows of embedding and head in the output.
        tokens: token -> id.
        maps: for every model, row maps of its vocabulary tensors by name.
        files: tokenizer files of the output: a file to copy, or its new content.
        dropped: side files of the base that must not be copied; others may replace them.
        config: keys of the language model's part of config.json with new values.
        notices: what the user must be told.
    """

    rows: int
    tokens: Mapping[str, int]
    maps: Mapping[str, Mapping[str, RowMap]]
    files: Mapping[str, Path | bytes]
    dropped: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()

    def apply(self, models: Mapping[str, Checkpoint]) -> dict[str, Checkpoint]:
        """The models with their embeddings in the output's order."""
        return {name: RemappedCheckpoint(model, self.maps[name]) for name, model in models.items()}


def plan_vocabulary(rules: TokenizerRules, models: Mapping[str, Checkpoint]) -> VocabularyPlan:
    """Decide the output's tokens and rows from tokenizer files and headers.

    Args:
        rules: what was asked for.
        models: opened models by name, the base first and called ``base``; without a base, the
            first model stands for it.

    Raises:
        MergeError: a model without a readable tokenizer, tokenizers of different kinds, a token
            without a row; all such problems together.
    """
    donor = rules.source if rules.source in models else next(iter(models))
    read = {name: tj.read_tokenizer(model.directory) for name, model in models.items()}
    problems = [*_missing(read, models, donor), *_kinds(read, donor)]
    problems += [e for e in (_too_large(n, t, models[n]) for n, t in read.items()) if e]
    raise_problems(problems)
    own = read[donor]
    assert own is not None
    every = {name: tokenizer or own for name, tokenizer in read.items()}
    others = [t for n, t in every.items() if n != donor] if rules.source == "union" else []
    made = tj.extended(own, others, [rule.token for rule in rules.tokens])
    rows = _rows(made.tokenizer, models[donor], rules.pad_to_multiple_of)
    known = _known(rules, every, models)
    table = _Table(made.tokenizer.vocabulary, rows, every, models, donor, known)
    files = _files(models[donor].directory, own, made, whole=donor != next(iter(models)))
    return VocabularyPlan(
        rows=rows,
        tokens=made.tokenizer.vocabulary,
        maps={name: table.maps(name) for name in models},
        files=files,
        dropped=tuple(name for name in FILES if name not in files),
        config=_config(models, donor, rows),
        notices=_notices(made, read, donor),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """Everything that decides a row."""

    tokens: Mapping[str, int]
    rows: int
    tokenizers: Mapping[str, TokenizerJson]
    models: Mapping[str, Checkpoint]
    donor: str
    rules: Mapping[str, TokenRule]

    def maps(self, name: str) -> dict[str, RowMap]:
        """Row maps of one model's vocabulary tensors."""
        model = self.models[name]
        vocabulary = self.tokenizers[name].vocabulary
        ids = np.array([vocabulary.get(token, -1) for token in self.tokens], np.int64)
        return {tensor: self._map(name, tensor, ids) for tensor in _tensors(model)}

    def _map(self, name: str, tensor: str, ids: I64) -> RowMap:
        """``ids`` ``[tokens]``: the model's id of every output token, or -1."""
        height = self.models[name].spec(tensor).shape[0]
        own = np.arange(self.rows, dtype=np.int64)  # padding rows, until a token claims them
        own[height:] = -1
        claimed = np.fromiter(self.tokenizers[name].vocabulary.values(), np.int64)
        own[claimed[claimed < self.rows]] = -1
        targets = np.fromiter(self.tokens.values(), np.int64)
        own[targets] = np.where(ids < height, ids, -1)
        own[[self.tokens[token] for token, rule in self.rules.items() if rule.force]] = -1
        by_row = {row: token for token, row in self.tokens.items()} if (own < 0).any() else {}
        borrowed = {
            row: self._origin(by_row[row], tensor) if row in by_row else self._padding(tensor, row)
            for row in np.flatnonzero(own < 0).tolist()
        }
        return RowMap(own, borrowed)

    def _origin(self, token: str, tensor: str) -> tuple[Row, ...]:
        """Rows whose mean a model takes for a token that it lacks."""
        rule = self.rules.get(token)
        if rule is not None and rule.kind == "zero":
            return ()
        if rule is not None and rule.kind != "default":
            assert rule.model is not None
            found = self._row(rule.model, _other_row(rule, self.tokenizers[rule.model]), tensor)
            return (found,) if found else ()
        first, *agents = (self._token_row(name, token, tensor) for name in self.models)
        return (first,) if first else tuple(row for row in agents if row)

    def _token_row(self, name: str, token: str, tensor: str) -> Row | None:
        at = self.tokenizers[name].vocabulary.get(token)
        return None if at is None else self._row(name, at, tensor)

    def _row(self, name: str, row: int, tensor: str) -> Row | None:
        """A row of a model, of its embedding where that serves as its head, too."""
        model = self.models[name]
        if tensor not in model.names():
            tied = tied_head(model.names(), model.config)
            if tied is None or not tied.tied or tensor != tied.head:
                return None
            tensor = tied.embed
        return (model, tensor, row) if row < model.spec(tensor).shape[0] else None

    def _padding(self, tensor: str, row: int) -> tuple[Row, ...]:
        """The donor's own row for a row without a token; zeros beyond the donor's matrix."""
        found = self._row(self.donor, row, tensor)
        return (found,) if found else ()


def _known(
    rules: TokenizerRules,
    tokenizers: Mapping[str, TokenizerJson],
    models: Mapping[str, Checkpoint],
) -> dict[str, TokenRule]:
    """Rules by token, after checking that the rows they name exist."""
    checked = (_wrong(rule, tokenizers, models) for rule in rules.tokens)
    raise_problems([error for error in checked if error is not None])
    return {rule.token: rule for rule in rules.tokens}


def _wrong(
    rule: TokenRule, tokenizers: Mapping[str, TokenizerJson], models: Mapping[str, Checkpoint]
) -> MergeError | None:
    if rule.kind == "default" and not any(rule.token in t.vocabulary for t in tokenizers.values()):
        hint = "give its rule a `source`"
        return ConfigError(f"no model has the token `{rule.token}`", hint=hint)
    if rule.model is None:
        return None
    wanted = rule.source_token or rule.token
    if rule.source_id is None and wanted not in tokenizers[rule.model].vocabulary:
        message = f"{_called(rule.model)} has no token `{wanted}`, asked for `{rule.token}`"
        return ConfigError(message)
    height = min(models[rule.model].spec(t).shape[0] for t in _tensors(models[rule.model]))
    if _other_row(rule, tokenizers[rule.model]) >= height:
        message = f"{_called(rule.model)} has {height} rows, so none for id {rule.source_id}"
        return ConfigError(f"{message}, asked for `{rule.token}`")
    return None


def _other_row(rule: TokenRule, tokenizer: TokenizerJson) -> int:
    if rule.source_id is not None:
        return rule.source_id
    return tokenizer.vocabulary[rule.source_token or rule.token]


def _rows(tokenizer: TokenizerJson, donor: Checkpoint, multiple: int | None) -> int:
    """Rows for all tokens, not fewer than the donor has, padded."""
    needed = max(tokenizer.vocabulary.values(), default=-1) + 1
    rows = max([needed, *(donor.spec(t).shape[0] for t in _tensors(donor))])
    return rows if multiple is None else -(-rows // multiple) * multiple


def _tensors(model: Checkpoint) -> list[str]:
    return [n for n in model.names() if is_vocabulary_tensor(n) and model.spec(n).shape]


def _missing(
    read: Mapping[str, TokenizerJson | None], models: Mapping[str, Checkpoint], donor: str
) -> list[MergeError]:
    """Models without a tokenizer, unless their embedding is as large as the donor's."""
    problems: list[MergeError] = []
    sizes = {n: {model.spec(t).shape[0] for t in _tensors(model)} for n, model in models.items()}
    for name, tokenizer in read.items():
        if tokenizer is None and (name == donor or sizes[name] != sizes[donor]):
            hint = "save it with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            message = f"{_called(name)} has no `{tj.NAME}`, so its rows have no names"
            problems.append(IncompatibleError(message, hint=hint))
    return problems


def _kinds(read: Mapping[str, TokenizerJson | None], donor: str) -> list[MergeError]:
    """Tokenizers whose pieces cannot be compared with the donor's."""
    own = read[donor]
    if own is None:
        return []
    return [
        IncompatibleError(
            f"{_called(name)} has a tokenizer of kind {other.kind}, {_called(donor)} {own.kind}",
            hint="pieces of different kinds mean different text; take one with `tokenizer_source`"
            " only where the vocabularies are the same",
        )
        for name, other in read.items()
        if other is not None and other.kind != own.kind
    ]


def _too_large(name: str, tokenizer: TokenizerJson | None, model: Checkpoint) -> MergeError | None:
    """An added token without a row: the embedding was never resized."""
    heights = [model.spec(t).shape[0] for t in _tensors(model)]
    if tokenizer is None or not heights:
        return None
    token, at = max(tokenizer.vocabulary.items(), key=lambda item: item[1])
    if at < min(heights):
        return None
    message = f"token `{token}` of {_called(name)} has id {at}, but there are {min(heights)} rows"
    return IncompatibleError(message, hint="resize its embeddings to its tokenizer first")


def _files(
    directory: Path | None, own: TokenizerJson, made: tj.Extended, *, whole: bool
) -> dict[str, Path | bytes]:
    """Tokenizer files of the output: the donor's, with the new tokens.

    ``whole``: the donor is not the base, so what names its token ids comes along.
    """
    assert directory is not None, "a tokenizer was read from it"
    names = [*FILES, "generation_config.json"] if whole else FILES
    files: dict[str, Path | bytes] = {
        name: resolve_inside(directory, name, "the model")
        for name in names
        if (directory / name).exists()
    }
    if len(own.vocabulary) == len(made.tokenizer.vocabulary):
        return files
    files = {name: file for name, file in files.items() if name not in SLOW}
    files[tj.NAME] = tj.dumped(made.tokenizer.tree)
    if tj.CONFIG in files:
        path = resolve_inside(directory, tj.CONFIG, "the model")
        config = json_object(read_small(path, tj.CONFIG), tj.CONFIG)
        changed = tj.config_with(config, made.added)
        files |= {tj.CONFIG: tj.dumped(changed)} if changed != config else {}
    return files


def _config(models: Mapping[str, Checkpoint], donor: str, rows: int) -> Json:
    """Changes to the base's config: the vocabulary's size, and ids of special tokens."""
    base = text_config(next(iter(models.values())).config or {})
    theirs = text_config(models[donor].config or {})
    changes: Json = {"vocab_size": rows} if base.get("vocab_size") != rows else {}
    changes |= {k: theirs[k] for k in _IDS if k in theirs and theirs[k] != base.get(k)}
    return changes if base else {}


def _notices(
    made: tj.Extended, read: Mapping[str, TokenizerJson | None], donor: str
) -> tuple[Notice, ...]:
    notices = []
    own = read[donor]
    assert own is not None
    new = len(made.tokenizer.vocabulary) - len(own.vocabulary)
    if new:
        text = f"the tokenizer of {_called(donor)} has {new} more token{'s' * (new != 1)}"
        notices.append(Notice("tokens-added", text))
    if made.unreachable:
        text = f"{made.unreachable} of them can be decoded, but text is never split into them"
        notices.append(Notice("tokens-unreachable", text))
    for name, tokenizer in read.items():
        if tokenizer is None:
            text = f"{_called(name)} has no `{tj.NAME}`: taken to have that of {_called(donor)}"
            notices.append(Notice("tokenizer-assumed", text))
    return tuple(notices)


def _called(name: str) -> str:
    return "the base" if name == "base" else f"agent `{name}`"
