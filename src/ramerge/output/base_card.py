"""What the card of a merge keeps of the base's own: licence, language, task and library, where they are plain words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

KEPT = ("license", "license_name", "license_link", "language", "library_name", "pipeline_tag")
MOST = 64 * 1024
_WORD = re.compile(r"[A-Za-z0-9][\w .:/+-]{0,199}", re.ASCII)


def kept_metadata(directory: Path | None) -> dict[str, Any]:
    """The keys of `KEPT` from the front matter of README.md in ``directory``; empty where nothing can be read.

    Values are words, or lists of them; anything else is left out, as the file may come from a stranger.
    """
    if directory is None or not (directory / "README.md").is_file():
        return {}
    with (directory / "README.md").open("rb") as file:
        text = file.read(MOST).decode("utf-8", "replace")
    matter = re.match(r"---\r?\n(.*?)\r?\n---\s", text, re.DOTALL)
    try:
        values = yaml.safe_load(matter[1]) if matter else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    return {key: values[key] for key in KEPT if key in values and _is_plain(values[key])}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return 0 < len(value) <= 100 and all(isinstance(v, str) and _is_plain(v) for v in value)
    return isinstance(value, str) and bool(_WORD.fullmatch(value))
