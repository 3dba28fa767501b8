"""Directories and files of safetensors: index against headers, paths, links, reading in pieces."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pytest

from helpers.hostile import HOSTILE
from helpers.reading import model, read_all, save, sharded, write_index
from ramerge._errors import CorruptInputError, MergeError, SecurityError
from ramerge.models.formats.safetensors import INDEX
from ramerge.models.open import open_checkpoint

RNG = np.random.default_rng(7)
A = RNG.standard_normal((5, 3)).astype(np.float32)
B = RNG.standard_normal((4,)).astype(np.float32)
C = RNG.integers(0, 9, (2, 2)).astype(np.int64)


@pytest.fixture
def shards(tmp_path):
    return sharded(tmp_path / "m", [{"a": A, "b": B}, {"c": C}])


def test_single_file_and_shards_and_bare_file_read_the_same(tmp_path, shards):
    model(tmp_path / "one", {"a": A, "b": B, "c": C}, {"model_type": "x"})
    opened = [
        open_checkpoint(str(tmp_path / "one")),
        open_checkpoint(str(shards)),
        open_checkpoint(str(tmp_path / "one" / "model.safetensors")),
    ]
    for checkpoint in opened:
        assert checkpoint.names() == ("a", "b", "c")
        for name, array in {"a": A, "b": B, "c": C}.items():
            assert checkpoint.spec(name).shape == array.shape
            assert read_all(checkpoint, name).tobytes() == array.tobytes()
        checkpoint.close()
    assert opened[0].config == {"model_type": "x"}
    assert [f.name for f in opened[1].files()] == []  # closed


def test_pieces_of_a_tensor_and_its_extent(tmp_path):
    path = save(tmp_path / "x.safetensors", {"b": B, "a": A})
    checkpoint = open_checkpoint(str(path))
    out = np.empty(4 * 4, np.uint8)
    checkpoint.read("a", 3, 7, out)
    assert out.view(np.float32).tolist() == A.ravel()[3:7].tolist()
    extent = checkpoint.extent("a")
    assert path.read_bytes()[extent.offset : extent.offset + extent.nbytes] == A.tobytes()
    assert checkpoint.directory is None
    assert checkpoint.files()[0].size == path.stat().st_size


def test_threads_read_at_once(tmp_path):
    arrays = {f"t{i}": RNG.standard_normal(40_000).astype(np.float32) for i in range(4)}
    checkpoint = open_checkpoint(str(save(tmp_path / "x.safetensors", arrays)))
    wrong: list[str] = []

    def work(name: str) -> None:
        for _ in range(20):
            if read_all(checkpoint, name).tobytes() != arrays[name].tobytes():
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_descriptors_are_closed_on_exec_and_on_errors(tmp_path, shards):
    before = len(os.listdir("/proc/self/fd"))
    checkpoint = open_checkpoint(str(shards))
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in _fds()]
    mine = [fd for fd, link in zip(_fds(), links, strict=False) if str(shards) in link]
    assert len(mine) == 2
    assert not any(os.get_inheritable(fd) for fd in mine)
    checkpoint.close()
    with pytest.raises(ValueError, match="closed"):
        read_all(checkpoint, "a")
    damaged = shards / "model-00002-of-00002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(CorruptInputError):
        open_checkpoint(str(shards))
    assert len(os.listdir("/proc/self/fd")) == before


def _fds() -> list[int]:
    return [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


def test_file_that_shrinks_while_open(tmp_path):
    path = save(tmp_path / "x.safetensors", {"a": A})
    checkpoint = open_checkpoint(str(path))
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(CorruptInputError, match="4 bytes too early"):
        read_all(checkpoint, "a")


# --- index -----------------------------------------------------------------------------------


def fails(directory, match, error=CorruptInputError) -> MergeError:
    with pytest.raises(error, match=match) as caught:
        open_checkpoint(str(directory))
    return caught.value


def test_missing_shard(shards):
    """A missing shard is exit 3 with its name, never a silent drop."""
    (shards / "model-00002-of-00002.safetensors").unlink()
    error = fails(shards, "names 2 weights files, 1 of them missing.*model-00002-of-00002")
    assert "incomplete" in error.hint


def test_index_leaves_out_a_tensor(tmp_path):
    """A tensor in a shard that the index does not list."""
    directory = sharded(tmp_path / "m", [{"a": A, "b": B}, {"c": C}], {"b": None})
    fails(directory, f"`b` is stored in `model-00001-of-00002.safetensors`, but {INDEX} does not")


def test_index_names_the_wrong_shard(tmp_path):
    """Transformers ignores which shard the index names; here it is an error."""
    directory = sharded(
        tmp_path / "m", [{"a": A, "b": B}, {"c": C}], {"b": "model-00002-of-00002.safetensors"}
    )
    fails(directory, "`b` should be in `model-00002.*but it is in `model-00001-of")


def test_index_lists_a_tensor_that_is_nowhere(tmp_path):
    directory = sharded(
        tmp_path / "m", [{"a": A}, {"c": C}], {"ghost": "model-00002-of-00002.safetensors"}
    )
    fails(directory, "`ghost` should be in `model-00002.*no shard holds it")


def test_tensor_stored_twice(tmp_path):
    directory = sharded(tmp_path / "m", [{"a": A, "b": B}, {"b": B, "c": C}])
    fails(directory, "`b` is stored twice, in `model-00001.*model-00002")


def test_many_disagreements_are_counted(tmp_path):
    tensors = {f"t{i}": B for i in range(20)}
    directory = sharded(tmp_path / "m", [tensors | {"a": A}, {"c": C}], dict.fromkeys(tensors))
    with pytest.raises(MergeError, match="15 more tensors") as caught:
        open_checkpoint(str(directory))
    assert caught.value.exit_code == 3


def test_left_over_shards_and_two_models_in_one_directory(tmp_path, shards):
    """Stale files are an error, because loaders differ in what they read."""
    save(shards / "model-00003-of-00003.safetensors", {"d": A})
    fails(shards, "1 shard is not part of the model in .*: `model-00003-of-00003")
    (shards / "model-00003-of-00003.safetensors").unlink()
    save(shards / "model.safetensors", {"a": A})
    fails(shards, "holds both `model.safetensors` and an index")


def test_shards_beside_a_single_file_are_left_over(tmp_path):
    directory = model(tmp_path / "m", {"a": A})
    save(directory / "model-00001-of-00002.safetensors", {"d": A})
    fails(directory, "not part of the model in .*: `model-00001-of-00002")


def test_index_of_one_file(tmp_path):
    directory = model(tmp_path / "m", {"a": A})
    write_index(directory, {"a": "model.safetensors"}, A.nbytes)
    checkpoint = open_checkpoint(str(directory))
    assert checkpoint.names() == ("a",)
    assert checkpoint.notices == ()


def test_total_size_is_a_notice(tmp_path):
    """Writers disagree about total_size; loaders ignore it, we say so."""
    directory = model(tmp_path / "m", {"a": A})
    write_index(directory, {"a": "model.safetensors"}, 7)
    (notice,) = open_checkpoint(str(directory)).notices
    assert notice.code == "index-total-size"
    assert "7 bytes" in notice.message
    assert str(A.nbytes) in notice.message


def test_consolidated_and_other_copies_are_ignored_and_listed(shards):
    """Duplicate weights beside the shards."""
    save(shards / "consolidated.safetensors", {"other": A})
    save(shards / "adapter_model.safetensors", {"x": A})
    checkpoint = open_checkpoint(str(shards))
    assert "other" not in checkpoint.names()
    assert {n.code for n in checkpoint.notices} == {"consolidated-ignored", "weights-ignored"}
    assert any("`consolidated.safetensors`" in n.message for n in checkpoint.notices)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "not valid JSON.*line 1"),
        ("[]", "JSON list where an object"),
        ("{}", "no `weight_map`"),
        ('{"weight_map": {}}', "no `weight_map`"),
        ('{"weight_map": {"a": 1}}', "maps a tensor to `1`"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "`a` appears twice"),
        ("version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_broken_index(tmp_path, text, match):
    (tmp_path / INDEX).write_text(text)
    fails(tmp_path, match)


# --- paths, T7 -------------------------------------------------------------------------------

SECRET = {"secret": A}


@pytest.mark.parametrize("name", HOSTILE)
def test_weight_map_must_name_plain_files(tmp_path, name):
    """Refused as text, before anything is opened."""
    save(tmp_path / "secret" / "x.safetensors", SECRET)
    directory = tmp_path / "m"
    write_index(directory, {"secret": name})
    error = fails(directory, "plain file name|not a .safetensors", SecurityError)
    assert error.exit_code == 8
    assert error.message.isprintable()


def test_links_out_of_the_directory_are_refused(tmp_path):
    save(tmp_path / "secret" / "x.safetensors", SECRET)
    for i, target in enumerate(["../secret/x.safetensors", "/dev/zero", "loop.safetensors"]):
        directory = tmp_path / f"m{i}"
        write_index(directory, {"secret": "loop.safetensors"})
        os.symlink(target, directory / "loop.safetensors")
        fails(directory, "link", SecurityError)


def test_fifo_device_and_directory_do_not_block(tmp_path):
    for i, make in enumerate([os.mkfifo, os.mkdir]):
        directory = tmp_path / f"m{i}"
        write_index(directory, {"a": "x.safetensors"})
        make(directory / "x.safetensors")
        fails(directory, "not a regular file", SecurityError)
    fails("/dev/zero", "not a regular file", SecurityError)


def test_config_that_links_out_is_refused(tmp_path):
    directory = model(tmp_path / "m", {"a": A})
    os.symlink("/etc/passwd", directory / "config.json")
    fails(directory, "`config.json` in .* link out", SecurityError)


def test_real_hub_cache_layout_works(tmp_path):
    """T7: every snapshot file is a link to ../../blobs."""
    repo = tmp_path / "hub" / "models--org--name"
    snapshot = repo / "snapshots" / "0123abcd"
    sharded(tmp_path / "m", [{"a": A}, {"c": C}])
    (tmp_path / "m" / "config.json").write_text("{}")
    (repo / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, path in enumerate(sorted((tmp_path / "m").iterdir())):
        path.rename(repo / "blobs" / f"hash{i}")
        os.symlink(f"../../blobs/hash{i}", snapshot / path.name)
    assert open_checkpoint(str(snapshot)).names() == ("a", "c")
    os.symlink(snapshot, tmp_path / "alias")
    assert open_checkpoint(str(tmp_path / "alias")).names() == ("a", "c")
    other = tmp_path / "hub" / "models--org--other" / "blobs" / "x"
    save(other, SECRET)
    victim = snapshot / "model-00001-of-00002.safetensors"
    victim.unlink()
    os.symlink("../../../models--org--other/blobs/x", victim)
    fails(snapshot, "link out", SecurityError)


def test_inputs_are_opened_read_only_and_left_alone(shards):
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in shards.iterdir()}
    checkpoint = open_checkpoint(str(shards))
    read_all(checkpoint, "a")
    checkpoint.close()
    assert before == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in shards.iterdir()}


def test_metadata_of_the_index_may_be_anything(tmp_path):
    directory = model(tmp_path / "m", {"a": A})
    (directory / INDEX).write_text(
        json.dumps({"metadata": [1], "weight_map": {"a": "model.safetensors"}})
    )
    assert open_checkpoint(str(directory)).names() == ("a",)
