"""`verify`: every flipped bit, missing, extra or exchanged file is found and named."""

import json
import random
import shutil

import pytest

from helpers.writing import SPECS, write_model
from ramerge._errors import MergeError, ProblemsError, VerificationError
from ramerge.models.formats.header import read_header_of
from ramerge.output.verify import verify


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    out = tmp_path_factory.mktemp("verify") / "model"
    write_model(out, shard_size=5000)
    return out


@pytest.fixture
def copy(model, tmp_path):
    return shutil.copytree(model, tmp_path / "copy")


def tensor_at(path, byte):
    """The tensor that a byte of a weights file belongs to; None for the header."""
    for name, placed in read_header_of(path).tensors.items():
        if placed.offset <= byte < placed.offset + placed.nbytes:
            return name
    return None


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_an_untouched_model_is_as_it_says(model):
    report = verify(model)
    assert report.to_json() | {"directory": ""} == {
        "directory": "", "verified": True, "files": report.files, "bytes": report.bytes,
        "tensors": len(SPECS),
    }  # fmt: skip
    assert report.bytes == sum(
        p.stat().st_size for p in model.rglob("*") if p.is_file() and "manifest" not in p.name
    )


def test_any_flipped_bit_is_found_and_placed(copy):
    """The whole thousand is in the fault bench; here every file and every tensor once or more."""
    draw = random.Random(1)
    files = [p for p in sorted(copy.rglob("*")) if p.is_file() and "manifest" not in p.name]
    for path in files:
        for _ in range(20):
            bit = draw.randrange(path.stat().st_size * 8)
            tensor = tensor_at(path, bit // 8) if path.suffix == ".safetensors" else None
            flip(path, bit)
            with pytest.raises(VerificationError) as caught:
                verify(copy)
            flip(path, bit)
            text = str(caught.value)
            assert f"`{path.relative_to(copy).as_posix()}` is damaged" in text
            if tensor:
                assert f" in tensor `{tensor}`:" in text
            elif path.suffix == ".safetensors":
                assert " in its header" in text
    verify(copy)


def test_missing_extra_and_cut_files_are_all_named_at_once(copy):
    (copy / "config.json").unlink()
    (copy / "model.safetensors").write_bytes(b"stale")
    first = copy / "model-00001-of-00002.safetensors"
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(ProblemsError) as caught:
        verify(copy)
    text = str(caught.value)
    assert caught.value.exit_code == 10
    assert "`config.json` is missing" in text
    assert "`model.safetensors` is not in the manifest" in text
    assert "`model-00001-of-00002.safetensors` is 6" in text


def test_a_shard_in_anothers_place_is_found(copy):
    one, two = (copy / f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    with pytest.raises(ProblemsError):
        verify(copy)


def test_hidden_files_of_git_and_the_hub_do_not_matter(copy):
    (copy / ".gitattributes").write_text("*.safetensors filter=lfs")
    (copy / ".cache/huggingface").mkdir(parents=True)
    (copy / ".cache/huggingface/x").write_text("x")
    verify(copy)


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"output": 3, "tensor_crc32": {}}', "{"]
)
def test_without_a_sound_manifest_nothing_is_verified(copy, content):
    path = copy / "ramerge_manifest.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(VerificationError, match=r"`ramerge_manifest\.json` in `copy` is"):
        verify(copy)


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "a\nb"])
def test_a_manifest_cannot_point_outside(copy, name):
    path = copy / "ramerge_manifest.json"
    whole = json.loads(path.read_text())
    whole["output"][0]["file"] = name
    path.write_text(json.dumps(whole))
    with pytest.raises(MergeError, match="lies outside"):
        verify(copy)


def test_a_link_to_something_that_never_ends_is_refused(copy):
    (copy / "config.json").unlink()
    (copy / "config.json").symlink_to("/dev/zero")
    with pytest.raises(VerificationError, match="not a regular file"):
        verify(copy)
