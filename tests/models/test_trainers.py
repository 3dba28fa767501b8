"""Checkpoints of RL trainers, written by real torch on two ranks, against the HF form."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.reading import read_all
from ramerge._errors import CorruptInputError, IncompatibleError, MergeError, SecurityError
from ramerge.models.open import open_checkpoint

torch = pytest.importorskip("torch")


def opened(path):
    return open_checkpoint(str(path), allow_pickle=True)


def assert_same(checkpoint, reference, *, extra=()) -> None:
    """All tensors of the HF model, bit for bit, whole and in odd pieces."""
    assert set(checkpoint.names()) == {*reference.names(), *extra}
    for name in reference.names():
        assert checkpoint.spec(name) == reference.spec(name)
        expected = read_all(reference, name).tobytes()
        assert read_all(checkpoint, name).tobytes() == expected, name
        n = checkpoint.spec(name).elements
        for start, stop in ((0, 1), (n // 3, n // 3 + min(n // 2, 41)), (n - 1, n)):
            out = np.empty((stop - start) * 4, np.uint8)
            checkpoint.read(name, start, stop, out)
            assert out.tobytes() == expected[4 * start : 4 * stop], (name, start, stop)


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2", "sharded_tensor", "hsdp"])
def test_verl_rank_files_equal_the_hf_checkpoint(made, kind):
    """Rank files of FSDP, without fsdp_config.json."""
    reference = open_checkpoint(str(made / "hf"))
    checkpoint = opened(made / kind)
    assert_same(checkpoint, reference)
    assert [f.name for f in checkpoint.files()] == [
        "model_world_size_2_rank_0.pt",
        "model_world_size_2_rank_1.pt",
    ]
    checkpoint.close()
    with pytest.raises(ValueError, match="closed"):
        read_all(checkpoint, "model.norm.weight")


def test_columns_replicas_and_buffers(made):
    """Replicated buffers were concatenated by other tools."""
    checkpoint = opened(made / "placed")
    assert_same(checkpoint, open_checkpoint(str(made / "hf")), extra=["rotary_emb.inv_freq"])
    assert checkpoint.spec("rotary_emb.inv_freq").shape == (4,)
    checkpoint.close()


def test_world_size_one_saves_plain_tensors(made, tmp_path):
    """verl#903: one rank, no DTensor at all; configuration in huggingface/."""
    from safetensors.torch import load_file

    state = load_file(made / "hf" / "model.safetensors")
    torch.save(state, tmp_path / "model_world_size_1_rank_0.pt")
    shutil.copytree(made / "hf", tmp_path / "huggingface")
    (tmp_path / "huggingface" / "model.safetensors").unlink()
    torch.save({"lr": 1.0}, tmp_path / "optim_world_size_1_rank_0.pt")
    checkpoint = opened(tmp_path)
    assert_same(checkpoint, open_checkpoint(str(made / "hf")))
    assert checkpoint.config["model_type"] == "qwen2"
    assert checkpoint.directory == tmp_path / "huggingface"


@pytest.mark.parametrize(("kind", "aside"), [("dcp_nested", 25), ("dcp_flat", 0)])
def test_dcp_equals_the_hf_checkpoint(made, kind, aside):
    checkpoint = opened(made / kind)
    reference = open_checkpoint(str(made / "hf"))
    assert_same(checkpoint, reference)
    codes = {n.code: len(n.tensors) for n in checkpoint.notices}
    if aside:
        assert codes == {"entries-left-aside": len(reference.names())}
    else:
        assert codes == {}


# --- broken ------------------------------------------------------------------------------------


def copy(made, kind, tmp_path) -> Path:
    return Path(shutil.copytree(made / kind, tmp_path / kind))


def fails(path, match, error=CorruptInputError, **options):
    with pytest.raises(error, match=match) as caught:
        open_checkpoint(str(path), **{"allow_pickle": True, **options})
    return caught.value


def test_a_rank_is_missing(made, tmp_path):
    directory = copy(made, "fsdp2", tmp_path)
    (directory / "model_world_size_2_rank_1.pt").unlink()
    error = fails(directory, "1 of 2 rank files; rank 1 is missing")
    assert error.exit_code == 3


def test_ranks_of_two_runs(made, tmp_path):
    directory = copy(made, "fsdp2", tmp_path)
    shutil.copy(
        directory / "model_world_size_2_rank_0.pt", directory / "model_world_size_4_rank_3.pt"
    )
    fails(directory, "mixes the files of runs with 2 and 4 ranks")


def test_the_same_rank_twice(made, tmp_path):
    directory = copy(made, "fsdp2", tmp_path)
    shutil.copy(
        directory / "model_world_size_2_rank_0.pt", directory / "model_world_size_2_rank_1.pt"
    )
    fails(directory, "outside F32|pieces of .* elements together")


def test_replicas_that_differ(tmp_path):
    for rank in range(2):
        torch.save(
            {"inv_freq": torch.arange(4.0) + rank}, tmp_path / f"model_world_size_2_rank_{rank}.pt"
        )
    fails(tmp_path, "`inv_freq` is whole on every rank, but not the same")


def test_a_tensor_on_one_rank_only(tmp_path):
    for rank, names in enumerate((["a"], ["a", "b"])):
        state = dict.fromkeys(names, torch.ones(2))
        torch.save(state, tmp_path / f"model_world_size_2_rank_{rank}.pt")
    fails(tmp_path, "`b` is in `model_world_size_2_rank_1.pt` only")


def test_dcp_data_file_is_missing_or_cut(made, tmp_path):
    directory = copy(made, "dcp_flat", tmp_path)
    data = directory / "__1_0.distcp"
    data.write_bytes(data.read_bytes()[:-100])
    fails(directory, "bytes, .* are needed")
    data.unlink()
    fails(directory, "`__1_0.distcp` is missing")


def test_one_rank_of_a_distributed_tensor_as_a_model(made):
    path = made / "fsdp2" / "model_world_size_2_rank_0.pt"
    fails(path, "is one rank's part of a tensor", IncompatibleError)


@pytest.mark.parametrize("kind", ["fsdp2", "dcp_flat"])
def test_trainer_checkpoints_need_the_flag(made, kind):
    """Named as what it is, with the way out."""
    error = fails(made / kind, "verl FSDP|DCP", SecurityError, allow_pickle=False)
    assert "--allow-pickle" in error.hint
    assert error.exit_code == 8


def test_dcp_metadata_that_runs_code(made, tmp_path):
    directory = copy(made, "dcp_flat", tmp_path)
    (directory / ".metadata").write_bytes(b"cos\nsystem\n(S'touch x'\ntR.")
    with pytest.raises(MergeError) as caught:
        opened(directory)
    assert caught.value.exit_code == 8
