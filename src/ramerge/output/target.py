"""The output directory as a place: may we write there, is there room, how it appears at once.

Nothing ever appears under the final name but a complete model. What is there before is either
nothing (or an empty directory) or, with ``overwrite``, an older model that is exchanged as a whole.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ramerge._errors import ConfigError, OutputBusyError, OutputError, SecurityError
from ramerge.models.base import OutputFile
from ramerge.output.disk import exchange, free_bytes, sync_directory, write_new, writing

_MODEL_FILES = (
    "ramerge_manifest.json",
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)


def resolved(out: Path) -> Path:
    """The directory that ``out`` means, links followed: its neighbours share its file system."""
    return Path(os.path.realpath(out.expanduser()))


def check_output(out: Path, inputs: Sequence[Path], *, overwrite: bool = False) -> None:
    """Whether a model may be written to ``out``.

    Args:
        out: the output directory.
        inputs: directories (or files) that are read.
        overwrite: an older model there may be replaced.

    Raises:
        ConfigError: ``out`` is, contains or lies in an input, or is no place for a model.
        OutputBusyError: something is there.
    """
    target = resolved(out)
    _check_apart(target, out, inputs)
    if target == Path(target.anchor) or target in {Path.home(), Path.cwd(), *Path.cwd().parents}:
        raise ConfigError(
            f"`{out}` is not a directory to put a model in", hint="name a new directory"
        )
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir():
        raise OutputBusyError(f"`{out}` exists and is not a directory", hint="choose another --out")
    present = sorted(entry.name for entry in os.scandir(target))
    if not present:
        return
    replaceable = ".git" not in present and any(name in present for name in _MODEL_FILES)
    if not overwrite:
        way = ", or replace the whole directory with --overwrite" if replaceable else ""
        holds = f"holds `{present[0]}`" + (f" and {len(present) - 1} more" if present[1:] else "")
        raise OutputBusyError(f"`{out}` exists and {holds}", hint=f"choose another --out{way}")
    if not replaceable:
        raise OutputBusyError(
            f"`{out}` does not look like a model, so --overwrite does not replace it",
            hint="delete it yourself, or choose another --out",
        )


def _check_apart(target: Path, shown: Path, inputs: Sequence[Path]) -> None:
    """By device and inode, so that links and bind mounts are seen through."""
    above = {_identity(p) for p in (target, *target.parents)} - {None}
    here = _identity(target)
    for path in inputs:
        real = Path(os.path.realpath(path))
        if _identity(real) in above:
            what = "is" if _identity(real) == here else "lies in"
        elif here is not None and here in {_identity(p) for p in real.parents}:
            what = "contains"
        else:
            continue
        raise ConfigError(
            f"the output `{shown}` {what} the input `{path}`",
            hint="inputs are never written to: choose another --out",
        )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def preflight(out: Path, nbytes: int) -> None:
    """Whether a directory may be made at ``out``, and ``nbytes`` fit there.

    Raises:
        OutputError: no permission, or both numbers.
    """
    above = next(p for p in resolved(out).parents if p.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError(
            f"`{out}` cannot be made: `{above}` may not be written to",
            hint="choose another --out, or change the directory's permissions",
        )
    free = free_bytes(above)
    if free < nbytes:
        raise OutputError(
            f"the output at `{out}` needs {nbytes:,} bytes, {free:,} are free",
            hint="free some space, choose another --out, or a narrower --out-dtype",
        )


def write_side(directory: Path, name: str, content: bytes | Path) -> OutputFile:
    """Write one side file of a staged model; ``/`` in its name separates directories.

    Args:
        directory: the staging directory.
        name: relative to it.
        content: the bytes, or a file to copy.

    Raises:
        SecurityError: ``name`` leads out of the directory.
        OutputError: the system refuses.
    """
    parts = PurePosixPath(name)
    if not name or parts.is_absolute() or ".." in parts.parts or "\0" in name:
        raise SecurityError(f"the side file `{name!r}` would lie outside of the output")
    path = directory / parts
    data = content if isinstance(content, bytes) else content.read_bytes()
    with writing(path, len(data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, data)
    return OutputFile(name, len(data), hashlib.sha256(data).hexdigest())


def publish(staged: Path, target: Path, old: Path, *, overwrite: bool) -> None:
    """Give the complete ``staged`` directory its final name.

    Args:
        staged: everything in it is synced.
        target: absent, an empty directory, or (``overwrite``) a directory to be replaced.
        old: where a replaced directory may wait for its removal.
        overwrite: replace what is there.

    Raises:
        OutputBusyError: something has appeared at ``target`` meanwhile.
        OutputError: the file system refuses to rename; names the call.
        OSError: anything else.
    """
    try:
        _publish(staged, target, old, overwrite=overwrite)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            raise OutputBusyError(
                f"`{target.name}` appeared while its model was made",
                hint=f"move it away and run the same command with --resume; the model waits in `{staged.name}`",
            ) from None
        raise OutputError(
            f"cannot rename `{staged}` to `{target.name}`: rename: {error.strerror}",
            hint=f"the model in `{staged.name}` is complete: the same command with --resume publishes it where"
            " rename works (mounts of object stores often cannot rename directories)",
        ) from error
    sync_directory(target.parent)


def _publish(staged: Path, target: Path, old: Path, *, overwrite: bool) -> None:
    if overwrite and target.is_dir() and any(target.iterdir()):
        if exchange(staged, target):
            staged.rename(old)
        else:
            target.rename(old)
            staged.rename(target)
        sync_directory(target.parent)
        shutil.rmtree(old)
    else:
        staged.rename(target)
