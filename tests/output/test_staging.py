"""The output protocol on real directories: whole or nothing, whatever happens."""

import errno
import json
import os
import shutil
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from helpers.writing import SIDES, SPECS, content, layout, manifest, tree, write_model, write_tensor
from ramerge._errors import (
    ConfigError,
    NumericError,
    OutputBusyError,
    OutputError,
    SecurityError,
    VerificationError,
)
from ramerge.models.formats.header import read_header_of
from ramerge.models.formats.safetensors import open_directory
from ramerge.output.staging import Staging
from ramerge.output.verify import verify


def left_beside(out):
    return sorted(p.name for p in out.parent.iterdir() if p.name != out.name)


@pytest.mark.parametrize("shard_size", [10**9, 5000])
def test_a_written_model_reads_back_and_leaves_nothing_beside(tmp_path, shard_size):
    out = tmp_path / "out"
    files = write_model(out, shard_size=shard_size)
    assert left_beside(out) == []
    assert sorted(tree(out)) == sorted([f.name for f in files] + ["ramerge_manifest.json"])
    model = open_directory(out, source="out", config=None)
    for spec in SPECS:
        assert model.spec(spec.name) == spec
        got = np.empty(spec.nbytes, np.uint8)
        model.read(spec.name, 0, spec.elements, got)
        assert got.tobytes() == content()[spec.name].tobytes()
    model.close()
    assert (out / "model.safetensors.index.json").exists() == (shard_size == 5000)
    assert {n: c for n, c in tree(out).items() if n in SIDES} == SIDES
    assert verify(out).tensors == len(SPECS)


def test_the_safetensors_library_reads_the_same(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    write_model(tmp_path / "out")
    plain = {k: v for k, v in content().items() if k != "a.weight" and k != "d.empty"}
    from safetensors import safe_open

    with safe_open(tmp_path / "out/model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        for name, data in plain.items():
            assert file.get_tensor(name).tobytes() == data.tobytes()
    assert safetensors


def test_every_tensor_is_aligned_to_its_elements(tmp_path):
    write_model(tmp_path / "out")
    for placed in read_header_of(tmp_path / "out/model.safetensors").tensors.values():
        assert placed.offset % placed.spec.dtype.itemsize == 0


def test_equal_runs_give_equal_bytes_from_any_thread(tmp_path):
    write_model(tmp_path / "one", shard_size=5000)
    data = content()
    with Staging.open(tmp_path / "two", layout(5000), "other") as staging:
        threads = [
            threading.Thread(target=write_tensor, args=(staging, name, data[name], 64))
            for name in data
        ]
        [t.start() for t in threads]
        [t.join() for t in threads]
        staging.commit(SIDES, manifest)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_model(tmp_path / "out")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert modes == {0o640}
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750


def test_a_tensor_may_be_written_again(tmp_path):
    out, data, other = tmp_path / "out", content(), content(1)
    with Staging.open(out, layout(), "job 0") as staging:
        for name in data:
            write_tensor(staging, name, other[name])
        for name in data:
            write_tensor(staging, name, data[name])
        staging.commit(SIDES, manifest)
    write_model(tmp_path / "once")
    assert tree(out) == tree(tmp_path / "once")


@pytest.mark.parametrize("gap", ["all", "tail", "middle"])
def test_bytes_that_never_came_are_noticed(tmp_path, gap):
    staging = Staging.open(tmp_path / "out", layout(), "job")
    data = content()["f.weight"]
    with staging, pytest.raises(VerificationError, match=r"tensor `f\.weight` has 2000 bytes"):
        if gap != "all":
            staging.write("f.weight", 0, data[:1000])
        if gap == "middle":
            staging.write("f.weight", 600, data[1200:])
        staging.finish("f.weight", {})


def test_commit_refuses_an_incomplete_model(tmp_path):
    with Staging.open(tmp_path / "out", layout(), "job") as staging:
        write_tensor(staging, "a.weight", content()["a.weight"])
        with pytest.raises(VerificationError, match=r"`g\.wide` was not written"):
            staging.commit({}, manifest)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("again", [False, True])
def test_the_second_reader_finds_a_changed_byte(tmp_path, again):
    """Whether it follows the writers, or has to start anew because a tensor was written again."""
    out, data = tmp_path / "out", content()
    first, *rest = data
    with (
        pytest.raises(VerificationError, match=r"tensor `f\.weight` in `model\.safetensors` reads"),
        Staging.open(out, layout(), "job") as staging,
    ):
        for name in [first] * again + rest:
            write_tensor(staging, name, data[name])
        path = staging.partial / "model.safetensors"
        at = path.read_bytes().index(data["f.weight"].tobytes()) + 777
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 4]))
        write_tensor(staging, first, data[first])
        staging.commit({}, manifest)
    assert left_beside(out) == []
    assert not out.exists()


def test_side_files_stay_inside(tmp_path):
    for name in ("../x", "/etc/x", "a/../../x", ""):
        with pytest.raises(SecurityError):
            write_model(tmp_path / "out", sides={name: b""})
    assert left_beside(tmp_path / "out") == []


def test_an_interrupted_run_is_resumed_to_the_same_bytes(tmp_path):
    write_model(tmp_path / "reference", shard_size=5000)
    out, data = tmp_path / "out", content()
    with pytest.raises(KeyboardInterrupt), Staging.open(out, layout(5000), "job 0") as staging:
        for name in list(data)[:4]:
            write_tensor(staging, name, data[name])
        raise KeyboardInterrupt
    assert not out.exists()
    assert [n.partition(".partial-")[0] for n in left_beside(out) if n != "reference"] == ["out"]
    with Staging.open(out, layout(5000), "job 0", resume=True) as staging:
        assert dict(staging.finished) == {name: {"of": name} for name in list(data)[:4]}
        for name in list(data)[4:]:
            write_tensor(staging, name, data[name])
        staging.commit(SIDES, manifest)
    assert tree(out) == tree(tmp_path / "reference")
    assert left_beside(out) == ["reference"]


def interrupted(out, names=4):
    data = content()
    with pytest.raises(KeyboardInterrupt), Staging.open(out, layout(), "job 0") as staging:
        for name in list(data)[:names]:
            write_tensor(staging, name, data[name])
        raise KeyboardInterrupt
    return staging.partial


def test_a_tensor_that_was_half_written_again_is_not_finished(tmp_path):
    """The second pass of RAM+ rewrites tensors; whatever the journal says, their bytes decide."""
    out, data, other = tmp_path / "out", content(), content(1)
    write_model(tmp_path / "reference")
    with pytest.raises(KeyboardInterrupt), Staging.open(out, layout(), "job 0") as staging:
        for name in data:
            write_tensor(staging, name, other[name])
        staging._flush()
        write_tensor(staging, "b.bias", data["b.bias"])
        staging.write("a.weight", 256, data["a.weight"][512:1024])
        raise KeyboardInterrupt
    with Staging.open(out, layout(), "job 0", resume=True) as staging:
        assert "a.weight" not in staging.finished
        assert staging.finished.keys() >= {"b.bias", "c.scalar", "f.weight", "g.wide"}
        for name in data:
            write_tensor(staging, name, data[name])
        staging.commit(SIDES, manifest)
    assert tree(out) == tree(tmp_path / "reference")


def test_resume_does_not_trust_what_reads_back_differently(tmp_path):
    write_model(tmp_path / "reference")
    partial = interrupted(tmp_path / "out")
    whole = bytearray((partial / "model.safetensors").read_bytes())
    whole[whole.index(content()["b.bias"].tobytes())] ^= 1
    (partial / "model.safetensors").write_bytes(whole)
    with Staging.open(tmp_path / "out", layout(), "job 0", resume=True) as staging:
        assert set(staging.finished) == {"a.weight", "c.scalar", "d.empty"}
        raise_at_end = content()
        for name in raise_at_end:
            if name not in staging.finished:
                write_tensor(staging, name, raise_at_end[name])
        staging.commit(SIDES, manifest)
    assert tree(tmp_path / "out") == tree(tmp_path / "reference")


@pytest.mark.parametrize("cut", range(1, 200, 13))
def test_a_torn_journal_is_read_as_far_as_it_is_whole(tmp_path, cut):
    write_model(tmp_path / "reference")
    partial = interrupted(tmp_path / "out", names=7)
    journal = next(partial.glob(".ramerge_journal*"))
    journal.write_bytes(journal.read_bytes()[:-cut] + b"\0\0")
    write_model(tmp_path / "out", resume=True)
    assert tree(tmp_path / "out") == tree(tmp_path / "reference")


@pytest.mark.parametrize("harm", ["truncate", "remove", "header"])
def test_leftovers_that_are_not_what_they_were_are_begun_anew(tmp_path, harm):
    write_model(tmp_path / "reference")
    partial = interrupted(tmp_path / "out")
    path = partial / "model.safetensors"
    if harm == "remove":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-1] if harm == "truncate" else b"\0" * 16 + data[16:])
    write_model(tmp_path / "out", resume=True)
    assert tree(tmp_path / "out") == tree(tmp_path / "reference")


def test_resuming_another_job_is_refused_and_a_new_run_leaves_its_work_alone(tmp_path):
    partial = interrupted(tmp_path / "out")
    with pytest.raises(OutputBusyError, match="was left by another merge") as caught:
        write_model(tmp_path / "out", seed=1, resume=True)
    assert partial.name in str(caught.value)
    write_model(tmp_path / "out", seed=1)
    assert partial.is_dir()


def test_a_new_run_of_the_same_job_does_not_discard_finished_work(tmp_path):
    partial = interrupted(tmp_path / "out")
    before = tree(partial)
    with pytest.raises(OutputBusyError, match=r"finished \d of 7 tensors") as caught:
        write_model(tmp_path / "out")
    assert "--resume" in caught.value.hint and str(partial) in caught.value.hint
    assert tree(partial) == before
    shutil.rmtree(partial)
    write_model(tmp_path / "out")
    assert left_beside(tmp_path / "out") == []


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_finished_model_survives_a_rename_that_fails(tmp_path, monkeypatch, code):
    out, whole = tmp_path / "out", tmp_path / "whole"
    write_model(whole)
    rename = Path.rename

    def refused(self, target):
        if Path(target) == out:
            raise OSError(code, os.strerror(code))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(OutputError, match="cannot rename") as caught:
        write_model(out)
    assert os.strerror(code) in caught.value.message and "--resume" in caught.value.hint
    assert not out.exists()
    monkeypatch.undo()
    with Staging.open(out, layout(), "job 0", resume=True) as staging:
        assert set(staging.finished) == set(content())
        staging.commit(SIDES, manifest)
    assert tree(out) == tree(whole)
    assert left_beside(out) == ["whole"]


def test_leftovers_are_kept_for_what_may_pass_and_removed_for_what_will_not(tmp_path):
    for error, kept in ((OutputError("disk"), True), (NumericError("nan"), False)):
        out = tmp_path / type(error).__name__
        with pytest.raises(type(error)), Staging.open(out, layout(), "job") as staging:
            write_tensor(staging, "a.weight", content()["a.weight"])
            raise error
        assert staging.partial.exists() == kept


def test_what_lies_in_the_way_is_not_touched(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("x")
    name = Staging(tmp_path / "out", layout(), "job 0").partial
    name.symlink_to(victim)
    with pytest.raises(OutputBusyError, match="in the way"):
        write_model(tmp_path / "out")
    assert (victim / "precious").exists()


# --- the place -----------------------------------------------------------------------------------


def test_an_empty_directory_is_taken_and_a_full_one_is_not(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    write_model(out)
    with pytest.raises(OutputBusyError, match="exists and holds") as caught:
        write_model(out)
    assert "--overwrite" in str(caught.value)
    assert caught.value.exit_code == 7


def test_overwrite_replaces_the_directory_as_a_whole(tmp_path):
    out = tmp_path / "out"
    write_model(out, seed=1, shard_size=5000)
    (out / "stale.safetensors").write_bytes(b"old")
    write_model(out, overwrite=True)
    write_model(tmp_path / "reference")
    assert tree(out) == tree(tmp_path / "reference")
    assert left_beside(out) == ["reference"]


def test_overwrite_without_an_atomic_exchange(tmp_path, monkeypatch):
    monkeypatch.setattr("ramerge.output.target.exchange", lambda a, b: False)
    out = tmp_path / "out"
    write_model(out, seed=1)
    write_model(out, overwrite=True)
    write_model(tmp_path / "reference")
    assert tree(out) == tree(tmp_path / "reference")
    assert left_beside(out) == ["reference"]


def test_a_replacement_that_stopped_half_way_is_undone(tmp_path):
    out = tmp_path / "out"
    write_model(out, seed=1)
    before = tree(out)
    out.rename(tmp_path / "out.partial-old")
    with pytest.raises(OutputBusyError, match="exists and holds"):
        write_model(out)
    assert tree(out) == before


def test_overwrite_fails_without_harm(tmp_path):
    out = tmp_path / "out"
    write_model(out, seed=1)
    before = tree(out)
    with pytest.raises(NumericError), Staging.open(out, layout(), "job", overwrite=True):
        raise NumericError("nan")
    assert tree(out) == before
    assert left_beside(out) == []


@pytest.mark.parametrize("content", ["notes.txt", ".git"])
def test_overwrite_is_for_models(tmp_path, content):
    out = tmp_path / "out"
    out.mkdir()
    (out / content).write_text("x")
    if content == ".git":
        (out / "config.json").write_text("{}")
    with pytest.raises(OutputBusyError, match="does not look like a model"):
        write_model(out, overwrite=True)


def test_something_that_appears_meanwhile_is_not_overwritten(tmp_path):
    out, data = tmp_path / "out", content()
    with (
        pytest.raises(OutputBusyError, match="appeared"),
        Staging.open(out, layout(), "j") as staging,
    ):
        for name in data:
            write_tensor(staging, name, data[name])
        out.mkdir()
        (out / "theirs").write_text("x")
        staging.commit(SIDES, manifest)
    assert list(tree(out)) == ["theirs"]


@pytest.mark.parametrize(
    ("where", "what"), [("in", "is"), ("in/deep/out", "lies in"), (".", "contains"), ("link", "is")]
)
def test_inputs_are_out_of_bounds(tmp_path, where, what):
    (tmp_path / "models/in").mkdir(parents=True)
    (tmp_path / "models/link").symlink_to("in")
    with pytest.raises(ConfigError, match=rf"the output `.*` {what} the input") as caught:
        write_model(tmp_path / "models" / where, inputs=[tmp_path / "models/in"], overwrite=True)
    assert caught.value.exit_code == 2
    assert list(tree(tmp_path)) == []


@pytest.mark.parametrize("place", ["/", "~", "."])
def test_some_places_are_never_a_model(place):
    with pytest.raises(ConfigError, match="not a directory to put a model in"):
        write_model(__import__("pathlib").Path(place), overwrite=True)


def test_a_file_in_the_place_is_refused(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(OutputBusyError, match="not a directory"):
        write_model(tmp_path / "out")


def test_room_is_checked_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr("ramerge.output.target.free_bytes", lambda path: 4_321)
    with pytest.raises(OutputError, match=r"needs 1,0\d\d,\d\d\d bytes, 4,321 are free") as caught:
        write_model(tmp_path / "out")
    assert caught.value.exit_code == 6
    assert left_beside(tmp_path / "out") == []


def test_a_late_writer_meets_a_closed_door(tmp_path):
    with Staging.open(tmp_path / "out", layout(), "job") as staging:
        pass
    with pytest.raises(OutputError, match="no longer being written"):
        staging.write("a.weight", 0, content()["a.weight"])


def test_the_manifest_lists_every_file_and_tensor(tmp_path):
    files = write_model(tmp_path / "out")
    found = json.loads((tmp_path / "out/ramerge_manifest.json").read_bytes())
    assert [(f["file"], f["size"], f["sha256"]) for f in found["output"]] == [
        (f.name, f.size, f.sha256) for f in files
    ]
    assert set(found["tensor_crc32"]) == {s.name for s in SPECS}
