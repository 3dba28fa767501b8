"""Everything of a model that is not weights: what an output must carry, and correct.

Lost generation configs, lost chat templates and configs that misstate the dtype are among the
most reported faults of merge tools, so files are copied byte for byte, and config.json is edited
in place: only the values that must change do, the rest keeps its order and layout. What could run
code in a reader is left out, and said.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramerge._errors import CorruptInputError
from ramerge._types import DType
from ramerge.models.base import Notice, SourceFile
from ramerge.models.facts import CONFIG, text_config
from ramerge.models.files import json_object, read_small, resolve_inside, shown
from ramerge.output.jsonedit import edit, members, skip

_COPIED = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.spm", "*.bpe", "*.vocab")
_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "*.tiktoken",
    "*.spm",
    "*.bpe",
    "tekken.json",
    "chat_template.*",
)
_COPIED_LEGAL = ("license*", "licence*", "notice*", "use_policy*", "copying*", "tekken.json")
_COPIED_DIRECTORIES = re.compile(
    r"chat_templates|additional_chat_templates|\d+_[A-Za-z]+"
)  # 1_Pooling of s-t
_NOT_COPIED = (
    "*.index.json",
    "adapter_config.json",
    "trainer_state.json",
    "training_args*.json",
    "all_results.json",
    "train_results.json",
    "eval_results.json",
    "fsdp_config.json",
    "requirements*.txt",
    "ramerge_*",
    "mergekit_config*",
)
_CODE = ("*.py", "*.pkl", "*.pickle", "*.so", "*.sh", "*.ipynb")
_CODE_KEYS = ("auto_map", "_attn_implementation_internal", "custom_pipelines")


@dataclass(frozen=True, slots=True)
class SideFiles:
    """What to put beside the weights.

    ``rewritten`` holds new content for the few of ``files`` that must not be copied as they are.
    """

    files: tuple[SourceFile, ...]
    rewritten: Mapping[str, bytes]
    notices: tuple[Notice, ...]


def side_files(
    directory: Path | None,
    *,
    allow_remote_code: bool = False,
    tokenizer_from: Path | None = None,
) -> SideFiles:
    """The side files of a model, sorted by name.

    Args:
        directory: the model's directory; None (a bare weights file) has none.
        allow_remote_code: also copy ``*.py`` and keep ``auto_map`` and its kind.
        tokenizer_from: take tokenizer and chat template from this directory instead.

    Raises:
        SecurityError: a file is a link out of the directory.
    """
    if directory is None:
        return SideFiles((), {}, ())
    if tokenizer_from is not None:
        return _with_tokenizer(
            side_files(directory, allow_remote_code=allow_remote_code),
            side_files(tokenizer_from, allow_remote_code=allow_remote_code),
        )
    files: list[SourceFile] = []
    left_out: list[str] = []
    code: list[str] = []
    for name in _listing(directory):
        kind = _kind(name)
        if kind == "code":
            code.append(name)
        if kind == "copy" or (kind == "code" and allow_remote_code and name.endswith(".py")):
            path = resolve_inside(directory, name, "the model")
            files.append(SourceFile(name, path, path.stat().st_size))
        elif kind == "unknown":
            left_out.append(name)
    rewritten, keys = ({}, ()) if allow_remote_code else _without_code(files)
    notices = _notices(left_out, [] if allow_remote_code else code, keys)
    return SideFiles(tuple(sorted(files, key=lambda f: f.name)), rewritten, notices)


def _with_tokenizer(base: SideFiles, other: SideFiles) -> SideFiles:
    """The base's side files with the other's tokenizer and chat template."""
    kept = [f for f in base.files if not _is_tokenizer(f.name)]
    taken = [f for f in other.files if _is_tokenizer(f.name)]
    rewritten = {n: b for n, b in base.rewritten.items() if not _is_tokenizer(n)}
    rewritten |= {n: b for n, b in other.rewritten.items() if _is_tokenizer(n)}
    files = tuple(sorted((*kept, *taken), key=lambda f: f.name))
    return SideFiles(files, rewritten, base.notices)


def _is_tokenizer(name: str) -> bool:
    base = name.lower().rsplit("/", 1)[-1]
    return any(fnmatch.fnmatch(base, p) for p in _TOKENIZER) or "chat_templates/" in name


def _listing(directory: Path) -> Iterator[str]:
    """Files of the directory and of the few subdirectories that belong to a model."""
    for entry in sorted(os.scandir(directory), key=lambda e: e.name):
        if entry.is_dir():
            if _COPIED_DIRECTORIES.fullmatch(entry.name) and not entry.is_symlink():
                inner = sorted(os.scandir(entry.path), key=lambda e: e.name)
                yield from (f"{entry.name}/{e.name}" for e in inner if not e.is_dir())
        else:
            yield entry.name


def _kind(name: str) -> str:
    """`copy`, `code`, `drop` (weights and leftovers, expected) or `unknown` (said)."""
    low = name.lower()
    base = low.rsplit("/", 1)[-1]
    if any(fnmatch.fnmatch(base, p) for p in _CODE):
        return "code"
    if (
        base.startswith(".")
        or base == "readme.md"
        or any(fnmatch.fnmatch(base, p) for p in _NOT_COPIED)
    ):
        return "drop"
    if any(fnmatch.fnmatch(base, p) for p in (*_COPIED, *_COPIED_LEGAL)):
        return "copy"
    weights = (
        "*.safetensors",
        "*.bin",
        "*.pt",
        "*.pth",
        "*.gguf",
        "*.h5",
        "*.msgpack",
        "*.onnx",
        "*.distcp",
    )
    return "drop" if any(fnmatch.fnmatch(base, p) for p in weights) else "unknown"


def _without_code(files: list[SourceFile]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """New content of the JSON files that name code to be loaded, and which keys were taken out."""
    rewritten: dict[str, bytes] = {}
    found: list[str] = []
    for file in files:
        if not file.name.endswith("config.json"):
            continue
        data = read_small(file.path, file.name)
        if not any(key.encode() in data for key in _CODE_KEYS):
            continue
        json_object(data, file.name)
        cleaned = edit(data.decode(), {}, _CODE_KEYS)
        if cleaned.encode() != data:
            rewritten[file.name] = cleaned.encode()
            found.append(file.name)
    return rewritten, tuple(found)


def _notices(left_out: list[str], code: list[str], keys: tuple[str, ...]) -> tuple[Notice, ...]:
    notices = []
    if code:
        names = ", ".join(map(shown, code))
        notices.append(Notice("code-not-copied", f"files that hold code are not copied: {names}"))
    if keys:
        names = ", ".join(map(shown, keys))
        text = f"references to code ({', '.join(_CODE_KEYS)}) are removed from {names}"
        notices.append(Notice("remote-code-removed", text))
    if left_out:
        names = ", ".join(map(shown, left_out))
        notices.append(
            Notice("side-files-left-out", f"files of unknown purpose are not copied: {names}")
        )
    return tuple(notices)


def config_for_output(
    config: bytes,
    dtype: DType | None,
    *,
    tied: bool | None = None,
    vocab_size: int | None = None,
) -> bytes:
    """config.json with what must say something else in the output; all other bytes stay.

    Args:
        config: the base's config.json.
        dtype: element type of the output's weights: corrects ``torch_dtype`` and ``dtype`` where
        they are given, and
            in nested configs that said the same as the outer one. None leaves them.
        tied: corrects (or adds) ``tie_word_embeddings``. None leaves it.
        vocab_size: corrects ``vocab_size`` wherever it is given. None leaves it.

    Raises:
        CorruptInputError: not a JSON object.
    """
    parsed = json_object(config, CONFIG)
    text = edit(config.decode(), {}, ("_attn_implementation_internal",))
    if dtype is not None:
        text = _with_dtype(text, parsed, dtype.torch_name)
    if tied is not None:
        text = _with_tied(text, parsed, tied=tied)
    if vocab_size is not None:
        text = _everywhere(text, parsed, "vocab_size", str(vocab_size))
    assert isinstance(json.loads(text), dict)
    return text.encode()


def _with_dtype(text: str, parsed: Mapping[str, Any], name: str) -> str:
    outer = next(
        (parsed[k] for k in ("dtype", "torch_dtype") if isinstance(parsed.get(k), str)), None
    )
    for part in reversed(members(text, skip(text, 0))):
        inner = parsed.get(part.key)
        if isinstance(inner, dict) and part.key.endswith("config"):
            said = next(
                (inner[k] for k in ("dtype", "torch_dtype") if isinstance(inner.get(k), str)), None
            )
            if said is not None and (outer in {None, said}):
                text = edit(text, _dtype_values(inner, name), brace=part.value)
    return edit(text, _dtype_values(parsed, name))


def _dtype_values(part: Mapping[str, Any], name: str) -> dict[str, str]:
    return {k: f'"{name}"' for k in ("dtype", "torch_dtype") if isinstance(part.get(k), str)}


def _with_tied(text: str, parsed: Mapping[str, Any], *, tied: bool) -> str:
    value = "true" if tied else "false"
    text = _everywhere(text, parsed, "tie_word_embeddings", value)
    if "tie_word_embeddings" in parsed:
        return text
    brace = skip(text, 0)
    indent = text[brace + 1 : skip(text, brace + 1)]
    comma = "," if parsed else ""
    return f'{text[: brace + 1]}{indent}"tie_word_embeddings": {value}{comma}{text[brace + 1 :]}'


def _everywhere(text: str, parsed: Mapping[str, Any], key: str, value: str) -> str:
    """``text`` with ``key`` corrected at the top and in nested configs, where it is given."""
    for part in reversed(members(text, skip(text, 0))):
        inner = parsed.get(part.key)
        if isinstance(inner, dict) and key in inner and part.key.endswith("config"):
            text = edit(text, {key: value}, brace=part.value)
    return edit(text, {key: value})


def config_with(config: bytes, changes: Mapping[str, Any]) -> bytes:
    """config.json with new values in the language model's part; all other bytes stay.

    Args:
        config: a config.json.
        changes: keys of `facts.text_config` with their new values. A key that also stands at the
            top, with the same old value, changes there too; one that stands nowhere is added.

    Raises:
        CorruptInputError: not a JSON object.
    """
    parsed = json_object(config, CONFIG)
    text = config.decode()
    inner = text_config(parsed)
    for part in reversed(members(text, skip(text, 0))):
        if inner is not parsed and parsed[part.key] is inner:
            text = _with_values(text, inner, changes, part.value)
    if inner is not parsed:
        twice = [k for k in changes if k in parsed and parsed[k] == inner.get(k)]
        changes = {key: changes[key] for key in twice}
    return _with_values(text, parsed, changes, skip(text, 0)).encode()


def _with_values(text: str, part: Mapping[str, Any], changes: Mapping[str, Any], brace: int) -> str:
    """The object at ``brace`` with values replaced, and members added in front."""
    text = edit(text, {k: json.dumps(v) for k, v in changes.items() if k in part}, brace=brace)
    indent = text[brace + 1 : skip(text, brace + 1)]
    new = [f"{indent}{json.dumps(k)}: {json.dumps(v)}" for k, v in changes.items() if k not in part]
    if not new:
        return text
    comma = "," if part else ""
    return f"{text[: brace + 1]}{','.join(new)}{comma}{text[brace + 1 :]}"


# --- generation config --------------------------------------------------------------------------


_SAMPLING_DEFAULTS: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
    "top_k": 50,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}


def generation_config_problems(directory: Path | None) -> tuple[Notice, ...]:
    """What transformers will refuse when a user later saves the model again (strict validation).

    The file itself is still copied as it is: it loads, and it is the base's.
    """
    name = "generation_config.json"
    if directory is None or not (directory / name).exists():
        return ()
    try:
        config = json_object(read_small(resolve_inside(directory, name, "the model"), name), name)
    except CorruptInputError as error:
        return (Notice("generation-config-broken", error.message),)
    wrong = []
    if config.get("do_sample") is not True:
        wrong += [
            f"`{key}` is {config[key]} but `do_sample` is not true"
            for key, default in _SAMPLING_DEFAULTS.items()
            if config.get(key) not in (None, default)
        ]
    if config.get("num_beams") in (None, 1):
        wrong += [
            f"`{key}` is {config[key]} but there is one beam"
            for key, default in (("early_stopping", False), ("length_penalty", 1.0))
            if config.get(key) not in (None, default)
        ]
    pad = config.get("pad_token_id")
    if isinstance(pad, int) and pad < 0:
        wrong.append(f"`pad_token_id` is {pad}")
    if not wrong:
        return ()
    text = f"transformers loads {shown(name)} but refuses to save it again: {'; '.join(wrong)}"
    return (Notice("generation-config-strict", text),)
