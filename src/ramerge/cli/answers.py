"""What to write instead: hints for options that mergekit has, and for words in the wrong place."""

from __future__ import annotations

import re

_NOT_NEEDED = "leave it out: "
_OPTIONS = {
    "--cuda": _NOT_NEEDED + "a merge is limited by the disk, not by arithmetic",
    "--device": _NOT_NEEDED + "a merge is limited by the disk, not by arithmetic",
    "--multi-gpu": _NOT_NEEDED + "a merge is limited by the disk, not by arithmetic",
    "--low-cpu-memory": _NOT_NEEDED + "memory is bounded always; --memory 500MB sets the bound",
    "--lazy-unpickle": "pickles are read lazily always, if you allow them: --allow-pickle",
    "--trust-remote-code": "nothing is run; --allow-remote-code copies the base's Python files",
    "--copy-tokenizer": _NOT_NEEDED + "the base's tokenizer is copied; --tokenizer-from AGENT takes an agent's",
    "--allow-crimes": "say what becomes of tensors that do not fit: --extra and --vocabulary",
    "--out-shard-size": "write --shard-size 5GB",
    "--num-threads": "write --threads N",
    "--random-seed": "write --set seed=N",
    "--clone-tensors": _NOT_NEEDED + "tensors are never held as views",
    "--verbose": "`ramerge plan` shows what a merge will do, --debug the traceback of an error",
}  # fmt: skip
_UNKNOWN = re.compile(r"no such option: (--[\w-]+)", re.IGNORECASE)
_EXTRA = re.compile(r"unexpected extra argument", re.IGNORECASE)
_MISSING_OUT = re.compile(r"missing option '--out'", re.IGNORECASE)


def answer(message: str, command: str) -> str | None:
    """The hint for a usage error of ``command``, where a common habit explains it; else None."""
    if unknown := _UNKNOWN.search(message):
        return _OPTIONS.get(unknown[1])
    if command.endswith((" merge", " plan")) and _EXTRA.search(message):
        return "repeat --agent for every agent, write --out DIR for the output, and no spaces around `=` in --set KEY=VALUE"
    if command.endswith(" merge") and _MISSING_OUT.search(message):
        return "name the output directory with --out DIR"
    return None
