"""`tokenizer.json`: its vocabulary, and a copy of it with more tokens.

Only the file is read and written, as JSON; neither the tokenizers library nor any code of the model
is needed. Ids that a tokenizer has stay as they are: embeddings are addressed by them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ramerge._errors import CorruptInputError
from ramerge._types import Json
from ramerge.models.files import json_object, read_small, resolve_inside

NAME = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL: Mapping[str, Any] = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}


@dataclass(frozen=True)
class TokenizerJson:
    """A parsed `tokenizer.json`. ``tree`` is never changed."""

    tree: Json

    @cached_property
    def pieces(self) -> dict[str, int]:
        """Ordinary vocabulary: piece -> id."""
        vocab = self._model.get("vocab", {})
        if isinstance(vocab, list):  # Unigram: [piece, score], the id is the position
            return {item[0]: i for i, item in enumerate(vocab)}
        return dict(vocab)

    @cached_property
    def added(self) -> dict[str, Json]:
        """Added tokens (special ones among them) by content, with their flags."""
        return {entry["content"]: entry for entry in self.tree.get("added_tokens") or []}

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Every token -> id."""
        return self.pieces | {content: entry["id"] for content, entry in self.added.items()}

    @property
    def kind(self) -> str:
        """Type of the model: BPE, WordPiece, WordLevel or Unigram."""
        return str(self._model.get("type", "BPE" if "merges" in self._model else "WordPiece"))

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """Merges of a BPE model, whichever of the two spellings the file has."""
        merges = self._model.get("merges") or []
        pairs = (m.split(" ", 1) if isinstance(m, str) else m for m in merges)
        return [(left, right) for left, right in pairs]

    @property
    def _model(self) -> Json:
        model: Json = self.tree["model"]
        return model


def read_tokenizer(directory: Path | None) -> TokenizerJson | None:
    """The tokenizer of a model directory; None where there is no `tokenizer.json`.

    Raises:
        CorruptInputError: not a tokenizer, or two tokens with one id.
        SecurityError: the file is a link out of the directory.
    """
    if directory is None or not (directory / NAME).exists():
        return None
    return parsed(resolve_inside(directory, NAME, "the model"))


def parsed(file: Path | bytes) -> TokenizerJson:
    """The tokenizer in a file, or in its content.

    Raises:
        CorruptInputError: as `read_tokenizer`.
    """
    data = file if isinstance(file, bytes) else read_small(file, NAME)
    where = "the output" if isinstance(file, bytes) else f"`{file.parent.name}`"
    tokenizer = TokenizerJson(json_object(data, NAME))
    try:
        ids = list(tokenizer.vocabulary.values())
        sound = all(type(i) is int and i >= 0 for i in ids) and bool(tokenizer.kind)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        sound = False
    if not sound:
        raise CorruptInputError(f"`{NAME}` in {where} is not a tokenizer")
    if len(set(ids)) != len(ids):
        twice = next(i for i in sorted(ids) if ids.count(i) > 1)
        names = [t for t, i in tokenizer.vocabulary.items() if i == twice]
        found = " and ".join(f"`{name}`" for name in names[:2])
        raise CorruptInputError(f"`{NAME}` in {where} gives {found} the same id {twice}")
    return tokenizer


@dataclass(frozen=True, slots=True)
class Extended:
    """A tokenizer with more tokens.

    Attributes:
        tokenizer: the result.
        added: contents of new added tokens, with flags and id.
        unreachable: how many new pieces text is never split into (they can be decoded), because
            the merges that make them do not continue those of the donor's tokenizer.
    """

    tokenizer: TokenizerJson
    added: tuple[Json, ...]
    unreachable: int


def extended(
    donor: TokenizerJson, others: Sequence[TokenizerJson], special: Iterable[str] = ()
) -> Extended:
    """The donor's tokenizer with the tokens of others and new special tokens.

    New tokens get the next free ids: for one tokenizer after the other, in the order of their ids.
    BPE merges of another tokenizer are taken over where they continue the donor's own; otherwise
    text is still split as by the donor, and the new pieces can only be decoded.

    Args:
        donor: keeps all its ids.
        others: tokenizers of the same kind.
        special: tokens to add beside, if nobody has them.
    """
    model = donor.tree["model"]
    tree = {**donor.tree, "model": {**model, "vocab": copy.copy(model.get("vocab", {}))}}
    taken = dict(donor.vocabulary)
    following = max(taken.values(), default=-1) + 1
    pieces: dict[str, int] = {}
    added: list[Json] = []
    scores: dict[str, float] = {}
    for other in others:
        for token, _ in sorted(other.vocabulary.items(), key=lambda item: item[1]):
            if token in taken:
                continue
            taken[token] = following
            if token in other.added:
                added.append({**other.added[token], "id": following})
            else:
                pieces[token] = following
                scores |= _score(other, token)
            following += 1
    for token in special:
        if token not in taken:
            taken[token] = following
            added.append({"id": following, "content": token, **SPECIAL})
            following += 1
    reached = _insert(tree["model"], donor, others, pieces, scores)
    left = {} if reached else pieces
    added += [] if reached else [_plain(token, at) for token, at in left.items()]
    tree["added_tokens"] = sorted(
        [*(tree.get("added_tokens") or []), *added], key=lambda entry: int(entry["id"])
    )
    _keep_ids(tree)
    unreachable = 0 if donor.kind != "BPE" else _unreachable(tree, pieces)
    return Extended(TokenizerJson(tree), tuple(added), len(left) + unreachable)


def config_with(config: Json, added: Iterable[Json]) -> Json:
    """`tokenizer_config.json` with new added tokens beside the old, where it lists them."""
    if "added_tokens_decoder" not in config:
        return config
    decoder = dict(config["added_tokens_decoder"])
    for entry in added:
        flags = {key: value for key, value in entry.items() if key != "id"}
        decoder[str(entry["id"])] = flags
    return config | {"added_tokens_decoder": decoder}


def dumped(tree: Json) -> bytes:
    """JSON as UTF-8, on one line: indentation makes large vocabularies ten times slower."""
    return (json.dumps(tree, ensure_ascii=False) + "\n").encode()


def _insert(
    model: Json,
    donor: TokenizerJson,
    others: Sequence[TokenizerJson],
    pieces: Mapping[str, int],
    scores: Mapping[str, float],
) -> bool:
    """Put new pieces into the model; False where its vocabulary has no room at those ids."""
    vocab = model.get("vocab")
    if isinstance(vocab, list):
        positions = list(pieces.values())
        if positions != list(range(len(vocab), len(vocab) + len(positions))):
            return False
        vocab += [[piece, scores[piece]] for piece in pieces]
        return True
    assert isinstance(vocab, dict)
    vocab |= pieces
    if donor.kind == "BPE":
        new = _continued(donor, others, vocab)
        spelled = all(isinstance(m, str) for m in model.get("merges") or [])
        model["merges"] = [
            *(model.get("merges") or []),
            *(" ".join(m) if spelled else list(m) for m in new),
        ]
    return True


def _keep_ids(tree: Json) -> None:
    """Make the tokenizers library give added tokens the ids that the file says.

    It does not read them: a token that the model's vocabulary lacks gets the next free id. Where
    that is another one, the token is put into the vocabulary, which is found first; no text is
    split into it there, because added tokens are cut out of the text before.
    """
    vocab = tree["model"].get("vocab")
    size = len(vocab)
    following = size
    for entry in tree["added_tokens"]:
        if isinstance(vocab, list) or entry["content"] in vocab:
            continue
        if entry["id"] != following:
            vocab |= {e["content"]: e["id"] for e in tree["added_tokens"]}
            return
        following += 1


def _continued(
    donor: TokenizerJson, others: Sequence[TokenizerJson], vocab: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Merges that others have after the donor's own, where they begin with all of the donor's."""
    own = len(donor.merges)
    new: dict[tuple[str, str], None] = {}
    for other in others:
        if other.merges[:own] == donor.merges:
            fits = (m for m in other.merges[own:] if {*m, "".join(m)} <= vocab.keys())
            new |= dict.fromkeys(fits)
    return list(new)


def _unreachable(tree: Json, pieces: Mapping[str, int]) -> int:
    """New pieces that no merge makes, and that are not looked up whole either."""
    if tree["model"].get("ignore_merges"):
        return 0
    made = {"".join(m) for m in TokenizerJson(tree).merges}
    return sum(piece not in made and len(piece) > 1 for piece in pieces)


def _score(tokenizer: TokenizerJson, piece: str) -> dict[str, float]:
    vocab = tokenizer.tree["model"].get("vocab")
    return {piece: vocab[tokenizer.pieces[piece]][1]} if isinstance(vocab, list) else {}


def _plain(token: str, at: int) -> Json:
    return {"id": at, "content": token, **SPECIAL, "special": False}
