"""Pickled weights: read exactly without torch, and hostile ones stopped before anything happens."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from helpers.reading import model, read_all, save
from ramerge._errors import CorruptInputError, IncompatibleError, MergeError, SecurityError
from ramerge._types import DType
from ramerge.models.open import open_checkpoint

torch = pytest.importorskip("torch")


def opened(path, **options):
    return open_checkpoint(str(path), allow_pickle=True, **options)


def raw(tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


STATE = {
    "f32": torch.arange(12.0).reshape(3, 4),
    "bf16": torch.randn(5, 3).bfloat16(),
    "f16": torch.randn(7).half(),
    "f64": torch.randn(2, 2).double(),
    "i64": torch.arange(4),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    "transposed": torch.randn(4, 6).t(),
    "view": torch.arange(20.0)[5:11].reshape(2, 3),
    "columns": torch.arange(20.0).reshape(4, 5)[:, 1:3],
}


@pytest.fixture
def single(tmp_path):
    torch.save(STATE, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    return tmp_path


def test_all_dtypes_and_layouts_as_torch_reads_them(single):
    for source in (single, single / "pytorch_model.bin"):
        checkpoint = opened(source)
        theirs = torch.load(single / "pytorch_model.bin", weights_only=True)
        assert set(checkpoint.names()) == set(theirs)
        for name, tensor in theirs.items():
            spec = checkpoint.spec(name)
            assert spec.shape == tuple(tensor.shape)
            assert spec.dtype is DType.parse(str(tensor.dtype))
            assert read_all(checkpoint, name).tobytes() == raw(tensor), name
        checkpoint.close()


def test_pieces_of_a_transposed_tensor(single):
    checkpoint = opened(single)
    expected = STATE["transposed"].contiguous().flatten().numpy()
    for start in range(0, 24, 5):
        stop = min(start + 5, 24)
        out = np.empty(4 * (stop - start), np.uint8)
        checkpoint.read("transposed", start, stop, out)
        assert out.view(np.float32).tolist() == expected[start:stop].tolist()


def test_extent_points_at_the_bytes(single):
    checkpoint = opened(single)
    extent = checkpoint.extent("bf16")
    data = (single / "pytorch_model.bin").read_bytes()
    assert data[extent.offset : extent.offset + extent.nbytes] == raw(STATE["bf16"])
    assert checkpoint.extent("transposed") is None


@pytest.mark.parametrize("nested", ["state_dict", "model", "module"])
def test_weights_beside_other_entries(tmp_path, nested):
    torch.save({nested: {"a": torch.ones(2)}, "epoch": 3, "lr": 0.1}, tmp_path / "x.pt")
    checkpoint = opened(tmp_path / "x.pt")
    assert checkpoint.names() == ("a",)
    (notice,) = checkpoint.notices
    assert notice.code == "entries-left-aside"
    assert "`epoch`, `lr`" in notice.message


def test_shards_and_index(tmp_path):
    names = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    for name, file in names.items():
        torch.save({name: torch.ones(2)}, tmp_path / file)
    torch.save({}, tmp_path / "training_args.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": names}))
    checkpoint = opened(tmp_path)
    assert checkpoint.names() == ("a", "b")
    assert checkpoint.notices == ()
    index.write_text(json.dumps({"weight_map": {"a": names["b"], "b": names["a"]}}))
    with pytest.raises(MergeError, match=f"`a` should be in `{names['b']}`.*`{names['a']}`"):
        opened(tmp_path)


def test_safetensors_win_over_pickles(single):
    model(single, {"f32": np.ones(2, np.float32)})
    assert open_checkpoint(str(single)).names() == ("f32",)


def test_pickles_need_the_flag(single):
    for source in (single, single / "pytorch_model.bin"):
        with pytest.raises(SecurityError, match="pickle") as caught:
            open_checkpoint(str(source))
        assert caught.value.exit_code == 8
        assert "--allow-pickle" in caught.value.hint


def test_deepspeed_consolidated_fp32(tmp_path):
    """What zero_to_fp32.py writes: an ordinary state dict of fp32 tensors, names as trained."""
    torch.save({"module.a": torch.ones(2), "module.b": torch.ones(3)}, tmp_path / SINGLE)
    checkpoint = opened(tmp_path)
    assert checkpoint.names() == ("a", "b")
    assert {n.code for n in checkpoint.notices} == {"prefix-stripped"}


SINGLE = "pytorch_model.bin"

# --- hostile, T8 -------------------------------------------------------------------------------


class Calls:
    """Pickles into a call that leaves a marker file."""

    def __init__(self, marker: Path, function=os.system) -> None:
        self.marker, self.function = marker, function

    def __reduce__(self):
        return self.function, (f"touch {self.marker}",)


def archive(path: Path, program: bytes, *, data: bytes = b"", compress: bool = False) -> Path:
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as out:
        out.writestr("archive/data.pkl", program)
        out.writestr("archive/byteorder", "little")
        out.writestr("archive/data/0", data)
        out.writestr("archive/version", "3\n")
    return path


def programs(marker: Path) -> dict[str, bytes]:
    touch = f"touch {marker}".encode()
    return {
        "reduce": pickle.dumps({"a": Calls(marker)}, 2),
        "stack_global": pickle.dumps({"a": Calls(marker)}, 4),
        "eval": pickle.dumps(Calls(marker, eval), 2),
        "inst": b"(S'" + touch + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + touch + b"'\no.",
        "global_text": b"cos\nsystem\n(S'" + touch + b"'\ntR.",
        "getattr_chain": b"c__builtin__\ngetattr\n(ctorch\nhub\nX\x04\x00\x00\x00loadtR.",
        "torch_function": b"ctorch.hub\nload\n(X\x01\x00\x00\x00xtR.",
        "build": b"ctorch\nSize\n)R}X\x01\x00\x00\x00aK\x01sb.",
        "memo": b"\x80\x02cposix\nsystem\nq\x01h\x01X\x01\x00\x00\x00x\x85R.",
        "extension": b"\x80\x02\x82\x01.",
        "newline_in_name": b"cos\nsystem\r\n(S'" + touch + b"'\ntR.",
        "truncated": pickle.dumps({"a": 1}, 2)[:-4],
        "nothing": b"",
        "no_stop": b"\x80\x02}",
        "memo_bomb": b"\x80\x02}r\xff\xff\xff\x7f.",
        "deep": b"\x80\x02" + b"(" * 100_000 + b".",
    }


@pytest.mark.parametrize("case", programs(Path("x")))
def test_hostile_programs_leave_no_trace(tmp_path, case):
    """T8: no marker file, and exit 8 (or 3 where the program is merely broken)."""
    marker = tmp_path / "marker"
    archive(tmp_path / SINGLE, programs(marker)[case])
    with pytest.raises(MergeError) as caught:
        opened(tmp_path)
    broken = {"build", "truncated", "nothing", "no_stop", "memo_bomb", "deep"}
    assert caught.value.exit_code == (3 if case in broken else 8)
    assert SINGLE in caught.value.message
    assert not marker.exists()


def test_nested_archives_and_bare_pickles(tmp_path):
    (tmp_path / SINGLE).write_bytes(pickle.dumps({"a": Calls(tmp_path / "marker")}))
    with pytest.raises(CorruptInputError, match="pickle of the old, unzipped form"):
        opened(tmp_path)
    inner = archive(tmp_path / "inner.zip", b"\x80\x02}.").read_bytes()
    with zipfile.ZipFile(tmp_path / SINGLE, "w") as out:
        out.writestr("archive/inner.zip", inner)
    with pytest.raises(CorruptInputError, match=r"torch.save did not write"):
        opened(tmp_path)
    torch.save({"a": torch.ones(2)}, tmp_path / SINGLE, _use_new_zipfile_serialization=False)
    with pytest.raises(CorruptInputError, match="old"):
        opened(tmp_path)
    assert not (tmp_path / "marker").exists()


def test_compressed_bomb(tmp_path):
    """1 MB deflated loads as 1 GiB elsewhere."""
    archive(tmp_path / SINGLE, b"\x80\x02}.", data=bytes(50_000_000), compress=True)
    assert (tmp_path / SINGLE).stat().st_size < 100_000
    with pytest.raises(CorruptInputError, match="compressed or encrypted"):
        opened(tmp_path)


def test_giant_of_stride_zero(tmp_path):
    """1,549 bytes load as a (2^20, 2^20) tensor, 4 TiB once written out."""
    torch.save({"a": torch.zeros(1).expand(2**20, 2**20)}, tmp_path / SINGLE)
    assert (tmp_path / SINGLE).stat().st_size < 2000
    with pytest.raises(CorruptInputError, match=r"\[1048576, 1048576\] in a storage of 4 bytes"):
        opened(tmp_path)


def test_truncated_file(single):
    data = (single / SINGLE).read_bytes()
    (single / SINGLE).write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptInputError, match="a damaged zip archive"):
        opened(single)


def test_quantised_and_sparse_tensors(tmp_path):
    quantised = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    torch.save({"a": quantised}, tmp_path / SINGLE)
    with pytest.raises(IncompatibleError, match="quantised"):
        opened(tmp_path)
    torch.save({"a": torch.eye(3).to_sparse()}, tmp_path / SINGLE)
    with pytest.raises(SecurityError, match="_rebuild_sparse_tensor"):
        opened(tmp_path)


def test_files_without_tensors(tmp_path):
    for value, match in (({"a": 1}, "no tensors"), ([torch.ones(1)], "no state dict but a list")):
        torch.save(value, tmp_path / SINGLE)
        with pytest.raises(CorruptInputError, match=match):
            opened(tmp_path)
    torch.save({"a\n": torch.ones(1)}, tmp_path / SINGLE)
    with pytest.raises(CorruptInputError, match=r"a tensor called `a\\n`"):
        opened(tmp_path)


def test_random_damage_ends_in_one_kind_of_error(tmp_path):
    torch.save({"a": torch.ones(3, 2), "b": torch.zeros(2).half()}, tmp_path / "good.pt")
    good = (tmp_path / "good.pt").read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(300):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad), 3):
            bad[at] = rng.integers(0, 256)
        (tmp_path / "bad.pt").write_bytes(bad)
        try:
            checkpoint = opened(tmp_path / "bad.pt")
            for name in checkpoint.names():
                read_all(checkpoint, name)
            checkpoint.close()
        except MergeError as error:
            assert error.exit_code in {3, 4, 8}


# --- prefixes and value heads --------------------------------------------------------------------

ONE = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (["module.a", "module.b"], ["a", "b"]),
        (["module._orig_mod.model.a", "module._orig_mod.model.b"], ["model.a", "model.b"]),
        (["_orig_mod.module.a.x"], ["a.x"]),
        (["base_model.model.model.a", "base_model.model.lm_head"], ["lm_head", "model.a"]),
        (["model.layers.0._fsdp_wrapped_module.a", "model.b"], ["model.b", "model.layers.0.a"]),
        (["model.layers.0._checkpoint_wrapped_module.a"], ["model.layers.0.a"]),
        (["module.a", "b"], ["b", "module.a"]),
        (["model.a", "model.b"], ["model.a", "model.b"]),
        (["pretrained_model.a", "pretrained_model.b"], ["a", "b"]),
        (
            ["pretrained_model.a", "v_head.summary.weight", "v_head.summary.bias"],
            ["a", "v_head.summary.bias", "v_head.summary.weight"],
        ),
        (["v_head.summary.weight"], ["v_head.summary.weight"]),
    ],
)
def test_prefixes_are_stripped_when_all_names_share_them(tmp_path, stored, read):
    """To a fixed point, only if all share them."""
    model(tmp_path / "m", {name: ONE * i for i, name in enumerate(stored)})
    checkpoint = open_checkpoint(str(tmp_path / "m"))
    assert list(checkpoint.names()) == read
    changed = sorted(stored) != read
    assert ("prefix-stripped" in {n.code for n in checkpoint.notices}) == changed
    for i, name in enumerate(stored):
        short = next(n for n in read if name.replace("_fsdp_wrapped_module.", "").endswith(n)
                     or name.replace("_checkpoint_wrapped_module.", "").endswith(n))  # fmt: skip
        assert read_all(checkpoint, short).view(np.float32)[0] == i
        assert checkpoint.spec(short).name == short


def test_prefixes_that_would_collide(tmp_path):
    names = ["model._orig_mod.a", "model.a"]
    model(tmp_path / "m", dict.fromkeys(names, ONE))
    with pytest.raises(CorruptInputError, match=r"`model\.a` and|`model\._orig_mod\.a` and"):
        open_checkpoint(str(tmp_path / "m"))


def test_adapter_inside_a_model_directory_is_noticed(tmp_path):
    """The adapter in lora_adapter/ was never folded in."""
    model(tmp_path / "m", {"a": ONE})
    save(tmp_path / "m" / "lora_adapter" / "adapter_model.safetensors", {"x": ONE})
    (tmp_path / "m" / "lora_adapter" / "adapter_config.json").write_text("{}")
    (notice,) = open_checkpoint(str(tmp_path / "m")).notices
    assert notice.code == "adapter-inside"
    assert "`lora_adapter`" in notice.message


def test_reading_pickles_needs_no_torch(single):
    code = (
        "import sys; from ramerge.models.open import open_checkpoint as o; import numpy as n;"
        "c = o(sys.argv[1], allow_pickle=True); c.read('f32', 0, 12, n.empty(48, n.uint8));"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, single], check=True, timeout=60)
