"""Chat templates: the one that most inputs have, a well-known one, or one given in words.

The output's template is written as `chat_template.jinja`, which readers prefer, and taken out of
`tokenizer_config.json`, so that no second one is left to contradict it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from ramerge._errors import ConfigError
from ramerge._types import Json
from ramerge.fit.tokenizer.tokenizer_json import CONFIG, dumped
from ramerge.models.base import Notice
from ramerge.models.files import json_object, read_small, resolve_inside

JINJA = "chat_template.jinja"
_HEADER = "'<|start_header_id|>' + {} + '<|end_header_id|>\\n\\n'"
TEMPLATES: Mapping[str, str] = {
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ " + _HEADER.format("message['role']") + " + message['content'] | trim + '<|eot_id|>' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ " + _HEADER.format("'assistant'") + " }}{% endif %}"
    ),
    "alpaca": (
        "{% for message in messages %}"
        "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
        "{% elif message['role'] == 'user' %}"
        "{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
        "{% else %}{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"
    ),
}
_TOKEN = re.compile(r"<\|[^|<>\s]+\|>")


def chosen_template(choice: str, directories: Iterable[Path | None]) -> str:
    """The text of a template.

    Args:
        choice: ``auto``, a name of `TEMPLATES`, or the template itself.
        directories: of the models, the base first: ``auto`` takes the template that most of them
            have, of equally many the first.

    Raises:
        ConfigError: ``auto`` where no model has a template.
    """
    if choice != "auto":
        return TEMPLATES.get(choice, choice)
    found = [text for d in directories if (text := read_template(d)) is not None]
    if not found:
        hint = "leave `chat_template` out, or give one"
        raise ConfigError("`chat_template: auto`, but no model has a chat template", hint=hint)
    return Counter(found).most_common(1)[0][0]


def read_template(directory: Path | None) -> str | None:
    """The chat template of a model directory, or None.

    Raises:
        MergeError: its files are broken.
    """
    if directory is None:
        return None
    if (directory / JINJA).exists():
        return read_small(resolve_inside(directory, JINJA, "the model"), JINJA).decode()
    if not (directory / CONFIG).exists():
        return None
    return _in_config(_config(resolve_inside(directory, CONFIG, "the model")))


def with_template(
    text: str, config: Path | bytes | None, tokens: Iterable[str] | None = None
) -> tuple[dict[str, bytes], tuple[Notice, ...]]:
    """Side files that make ``text`` the output's chat template.

    Args:
        text: the template.
        config: the output's `tokenizer_config.json`, None without one.
        tokens: the output's vocabulary, if known: special tokens that it lacks are a notice.
    """
    files = {JINJA: text.encode()}
    if config is not None:
        tree = json_object(config, CONFIG) if isinstance(config, bytes) else _config(config)
        rest = {key: value for key, value in tree.items() if key != "chat_template"}
        files |= {CONFIG: dumped(rest)} if len(rest) < len(tree) else {}
    if tokens is None:
        return files, ()
    lacking = sorted(set(_TOKEN.findall(text)) - set(tokens))
    if not lacking:
        return files, ()
    names = ", ".join(f"`{token}`" for token in lacking)
    message = f"the chat template uses {names}, which the tokenizer lacks: plain text to the model"
    return files, (Notice("template-tokens-missing", message),)


def _config(path: Path) -> Json:
    return json_object(read_small(path, CONFIG), CONFIG)


def _in_config(config: Json) -> str | None:
    """The default template of a tokenizer_config.json: a text, or a list of named ones."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default", next(iter(named.values()), None))
    return template if isinstance(template, str) else None
