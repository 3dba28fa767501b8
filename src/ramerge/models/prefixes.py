"""Prefixes that wrappers leave on tensor names: removed only when every name carries them.

`torch.compile`, data-parallel and FSDP wrappers, PEFT and TRL put their own names in front. A
prefix on some names only is no wrapper, and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

WRAPPERS = (
    "module.",
    "_orig_mod.",
    "base_model.model.",
    "_fsdp_wrapped_module.",
    "pretrained_model.",
)
# FSDP and torch.compile also leave their names in the middle, once per wrapped block.
_INNER = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")
_VALUE_HEAD = "v_head."  # TRL's value head stands beside `pretrained_model.`, not below it


def stripped(names: Iterable[str]) -> Mapping[str, str]:
    """New name to old name, prefixes removed to a fixed point.

    Raises:
        ValueError: two names would become one; the message holds both.
    """
    old = list(names)
    new = [_without_inner(name) for name in old]
    while (body := [n for n in new if not n.startswith(_VALUE_HEAD)]) and (
        prefix := _shared_prefix(body)
    ):
        new = [n.removeprefix(prefix) for n in new]
    result: dict[str, str] = {}
    for short, name in zip(new, old, strict=True):
        if short in result:
            raise ValueError(
                f"`{result[short]}` and `{name}` are both `{short}` without their prefix"
            )
        result[short] = name
    return result


def _shared_prefix(names: list[str]) -> str | None:
    return next((w for w in WRAPPERS if all(n.startswith(w) and n != w for n in names)), None)


def _without_inner(name: str) -> str:
    for part in _INNER:
        name = name.replace("." + part, ".")
    return name
