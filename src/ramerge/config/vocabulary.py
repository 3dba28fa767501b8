"""What the output's vocabulary shall be: values that configuration reads and `tokenizers` obeys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What becomes of tensors that not all models have, and of embeddings of unequal length.
Extra = Literal["error", "drop", "base", "keep"]
Vocabulary = Literal["error", "base", "min", "union"]


@dataclass(frozen=True, slots=True)
class TokenRule:
    """Where one token's embedding row comes from, against the usual rules.

    Attributes:
        token: the token as it stands in the vocabulary.
        kind: ``model``: the row of the same token in ``model``; ``model_token``: the row of another
            token of ``model``; ``zero``: zeros; ``default``: the usual rules, perhaps forced.
        model: name of an agent, or ``base``.
        source_token: for ``model_token``, the other token, unless ``source_id`` says which.
        source_id: for ``model_token``, the other token's id.
        force: put the row into every model, also into those that have the token themselves.
    """

    token: str
    kind: Literal["default", "model", "model_token", "zero"] = "default"
    model: str | None = None
    source_token: str | None = None
    source_id: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerRules:
    """The tokenizer of the output.

    Attributes:
        source: ``base``, ``union``, or the name of the agent whose tokenizer is taken.
        tokens: exceptions for single tokens.
        pad_to_multiple_of: rows of embedding and head are padded to a multiple of this.
    """

    source: str
    tokens: tuple[TokenRule, ...] = ()
    pad_to_multiple_of: int | None = None
