"""Disks that are too small, limits on file sizes, and inputs that nobody may write."""

from __future__ import annotations

import re
import subprocess

import pytest
from harness import clear, digest, merge_argv

KILOBYTES = (16, 32, 48, 64, 80, 96, 128, 4096)  # the output has 20; the reserve for it is 1 MB


def mounted(kind: list[str], place) -> bool:
    place.mkdir()
    done = subprocess.run(["mount", *kind, str(place)], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def reference(server, models, tmp_path):
    out = tmp_path / "reference"
    assert server.run(merge_argv(models, out)).code == 0
    return digest(out)


@pytest.mark.parametrize("check", [True, False])
def test_small_file_systems(server, models, tmp_path, reference, size, check, record):
    """With the check of free space, and as if it had been passed and the room taken since."""
    complete = refused = 0
    for i, room in enumerate(KILOBYTES if size == "full" else KILOBYTES[::7]):
        disk = tmp_path / f"disk{i}"
        if not mounted(["-t", "tmpfs", "-o", f"size={room}k", "tmpfs"], disk):
            pytest.skip("mounting is not allowed here")
        try:
            result = server.run(merge_argv(models, disk / "out"), blind=not check)
            assert result.code in {0, 6}, (room, result)
            if result.code == 0:
                assert digest(disk / "out") == reference
                complete += 1
            else:
                refused += 1
                assert not (disk / "out").exists()
                assert re.search(r"[\d,]+ bytes", result.text), (room, result)
                assert "free" in result.text, (room, result)
            left = [p.name for p in disk.iterdir() if p.name != "out"]
            assert all(name.startswith("out.partial-") for name in left)
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    assert refused
    assert complete
    if size == "full":
        how = "found beforehand" if check else "found while writing"
        record("2 errors", f"tmpfs of {len(KILOBYTES)} sizes, {how}", f"{len(KILOBYTES)}",
               f"{refused} × exit 6 with bytes needed and free, {complete} × whole")  # fmt: skip


def test_a_limit_on_file_sizes(server, models, tmp_path, reference, size, record):
    for limit in (1000, 5000, 10_000, 14_000):
        out = tmp_path / "out"
        result = server.run(merge_argv(models, out), fsize=limit)
        assert result.code == 6, (limit, result)
        assert "File too large" in result.text
        assert not out.exists()
        clear(out)
    if size == "full":
        record("2 errors", "RLIMIT_FSIZE below the output's size", "4", "exit 6, nothing published")


def test_inputs_on_a_read_only_mount(server, models, tmp_path, reference, size, record):
    place = tmp_path / "inputs"
    if not mounted(["--bind", str(models)], place):
        pytest.skip("mounting is not allowed here")
    try:
        remount = ["mount", "-o", "remount,bind,ro", str(place)]
        subprocess.run(remount, check=True, capture_output=True)
        out = tmp_path / "out"
        result = server.run(merge_argv(place, out))
        assert result.code == 0, result
        assert digest(out) == reference
        inside = server.run(merge_argv(place, place / "base/out"))
        assert inside.code == 2, inside
    finally:
        subprocess.run(["umount", str(place)], check=True)
    if size == "full":
        record("3 signals", "inputs on a read-only mount", "1", "merged; the same bytes")
