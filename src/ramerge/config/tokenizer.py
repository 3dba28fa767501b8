"""The keys `tokenizer_source`, `tokenizer` and `chat_template`: whose vocabulary the output has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ramerge._errors import MergeError
from ramerge.config import fields
from ramerge.config.vocabulary import TokenizerRules, TokenRule
from ramerge.config.yaml import Node

ModelName = Callable[[Node], str]  # a reference to a model -> an agent's name, or `base`
TEMPLATES = ("auto", "chatml", "alpaca", "llama3")
_ELSEWHERE = ("mistral", "exaone")  # names that mergekit knows


def read_tokenizer(
    top: Node, name_of: ModelName, problems: list[MergeError]
) -> TokenizerRules | None:
    """What the file says about the output's tokenizer; None where it says nothing."""
    assert isinstance(top.value, dict)
    short, full = top.value.get("tokenizer_source"), top.value.get("tokenizer")
    if short is not None and full is not None:
        hint = "keep `tokenizer` and write `source` under it"
        message = "`tokenizer_source` and `tokenizer` exclude each other"
        problems.append(top.key_error("tokenizer_source", message, hint=hint))
    if full is not None and full.value is not None:
        return fields.attempt(problems, _full, full, name_of, problems)
    if short is not None and short.value is not None:
        source = fields.attempt(problems, _source, short, name_of)
        return TokenizerRules(source) if source else None
    return None


def read_chat_template(node: Node) -> str:
    """A known name, or a Jinja template.

    Raises:
        ConfigError: neither.
    """
    template = fields.text(node, "`chat_template`")
    if template in TEMPLATES or "{" in template:
        return template
    names = ", ".join(f"`{t}`" for t in TEMPLATES)
    if template in _ELSEWHERE:
        message = f"the chat template `{template}` is not built in"
    else:
        message = f"`chat_template` is {names} or a Jinja template, not `{template}`"
    hint = "paste the template itself, or take an agent's files with `tokenizer_source`"
    raise node.error(message, hint=hint)


def _full(node: Node, name_of: ModelName, problems: list[MergeError]) -> TokenizerRules:
    tree = fields.mapping(node, "`tokenizer`").value
    assert isinstance(tree, dict)
    fields.check_keys(node, ("source", "tokens", "pad_to_multiple_of"), "`tokenizer`", problems)
    source = fields.optional(tree, "source", problems, _source, name_of) or "union"
    multiple = fields.optional(
        tree, "pad_to_multiple_of", problems, fields.whole, "`pad_to_multiple_of`", 1
    )
    tokens: list[TokenRule] = []
    if "tokens" in tree and tree["tokens"].value is not None:
        listed = fields.mapping(tree["tokens"], "`tokens`").value
        assert isinstance(listed, dict)
        read = (
            fields.attempt(problems, _token, token, rule, name_of, problems)
            for token, rule in listed.items()
        )
        tokens = [rule for rule in read if rule is not None]
    return TokenizerRules(source, tuple(tokens), multiple)


def _source(node: Node, name_of: ModelName) -> str:
    if not isinstance(node.value, dict) and node.text in {"base", "union"}:
        return node.text
    return name_of(node)


def _token(token: str, node: Node, name_of: ModelName, problems: list[MergeError]) -> TokenRule:
    tree = fields.mapping(node, f"the rule of token `{token}`").value
    assert isinstance(tree, dict)
    fields.check_keys(node, ("source", "force"), f"token `{token}`", problems)
    force = fields.flag(tree["force"], "`force`") if "force" in tree else False
    if "source" not in tree:
        return TokenRule(token, force=force)
    return replace(_token_source(token, tree["source"], name_of, problems), force=force)


def _token_source(
    token: str, node: Node, name_of: ModelName, problems: list[MergeError]
) -> TokenRule:
    if not isinstance(node.value, dict):
        return TokenRule(token, "model", name_of(node))
    tree = node.value
    if "kind" not in tree:
        return TokenRule(token, "model", name_of(node))
    kind = fields.choice(tree["kind"], "`kind`", ("model_token", "zero"))
    if kind == "zero":
        fields.check_keys(node, ("kind",), f"`source` of `{token}`", problems)
        return TokenRule(token, "zero")
    known = ("kind", "model", "token", "token_id")
    fields.check_keys(node, known, f"`source` of `{token}`", problems)
    if "model" not in tree or ("token" in tree) == ("token_id" in tree):
        message = f"`source` of `{token}` needs `model` and one of `token` and `token_id`"
        raise node.error(message)
    return TokenRule(
        token,
        "model_token",
        name_of(tree["model"]),
        source_token=fields.text(tree["token"], "`token`") if "token" in tree else None,
        source_id=fields.whole(tree["token_id"], "`token_id`", 0) if "token_id" in tree else None,
    )
