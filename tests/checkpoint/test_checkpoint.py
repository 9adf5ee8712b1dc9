"""A checkpoint is whole or absent, verified on load, and the one before is used when it is damaged."""

import json

import pytest
import torch

from lib import checkpoint


def put(folder, step, value=1.0):
    tensors = {
        "model": {"w": torch.full((4, 4), value)},
        "optimizer": {"exp_avg/w": torch.zeros(4, 4)},
    }
    return checkpoint.save(folder, step, tensors, {"note": "x"})


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "empty", "remove"])
def test_any_damage_is_found_and_the_one_before_is_used(tmp_path, name, damage):
    put(tmp_path, 1, 1.0)
    path = put(tmp_path, 2, 2.0) / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    half = raw[: len(raw) // 2]
    whole = path.read_bytes()
    contents = {"flip": raw, "truncate": half, "extend": whole + b" ", "empty": b"", "remove": None}
    path.unlink() if damage == "remove" else path.write_bytes(contents[damage])
    found, passed_over = checkpoint.load_newest(tmp_path)
    assert found.step == 1
    assert len(passed_over) == 1
    assert "step-00000002 is damaged" in passed_over[0]


def test_a_newer_format_is_refused_with_its_number_and_left_as_it_is(tmp_path):
    path = put(tmp_path, 1) / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    path.write_bytes(checkpoint._sealed({**manifest, "format": 99}))
    put(tmp_path, 0)
    with pytest.raises(
        checkpoint.NewerFormat, match="format 99; this version reads up to 1.*newer one"
    ):
        checkpoint.load_newest(tmp_path, quarantine=True)
    assert path.is_file()


def test_there_is_no_pickle_in_a_checkpoint(tmp_path):
    for file in put(tmp_path, 1).iterdir():
        assert file.suffix in {".json", ".safetensors"}


def test_a_replaced_checkpoint_counts_until_the_new_one_is_in_place(tmp_path):
    put(tmp_path, 1, 1.0)
    put(tmp_path, 2, 2.0).rename(tmp_path / "step-00000002.old")  # a kill between the two renames
    assert checkpoint.load_newest(tmp_path)[0].step == 2
    checkpoint.tidy(tmp_path)
    assert checkpoint.steps(tmp_path) == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_no_checkpoint_is_set_aside_under_a_free_name(tmp_path):
    put(tmp_path, 1)
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002.damaged").mkdir()
    found, (sentence,) = checkpoint.load_newest(tmp_path, quarantine=True)
    assert found.step == 1
    assert sentence.endswith("It is kept as step-00000002.damaged-2.")
    names = {"step-00000001", "step-00000002.damaged", "step-00000002.damaged-2"}
    assert {p.name for p in tmp_path.iterdir()} == names


def test_cleaning_up_takes_only_leftovers(tmp_path):
    mine = ["notes.tmp", "step-1.tmp", "step-00000001.damaged", "step-00000001.backup"]
    for name in [*mine, "step-00000004.tmp", "step-00000005.del"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    put(tmp_path, 1)
    checkpoint.tidy(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {*mine, "step-00000001"}


@pytest.mark.parametrize("dtype", list(checkpoint._DTYPES), ids=str)
def test_every_type_and_shape_comes_back_as_the_library_reads_it(tmp_path, dtype):
    base = torch.arange(24).reshape(4, 6) % 2
    group = {
        "plain": base.to(dtype), "transposed": base.to(dtype).T, "scalar": torch.ones((), dtype=dtype),
        "empty": torch.zeros(0, 3, dtype=dtype), "byte": torch.ones(3, dtype=torch.uint8),
    }  # fmt: skip
    loaded = checkpoint.load(checkpoint.save(tmp_path, 1, {"model": group}, {})).tensors["model"]
    assert loaded.keys() == group.keys()
    for name, value in group.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name].float(), value.float())
