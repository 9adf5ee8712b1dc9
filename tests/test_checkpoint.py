"""A checkpoint is whole or absent, verified on load, and the one before is used when it is damaged."""

import json

import pytest
import torch

from lib import checkpoint


def put(folder, step, value=1.0):
    tensors = {"model": {"w": torch.full((4, 4), value)}, "optimizer": {"exp_avg/w": torch.zeros(4, 4)}}
    return checkpoint.save(folder, step, tensors, {"note": "x"})


def test_what_was_saved_is_what_is_loaded(tmp_path):
    saved = checkpoint.load(put(tmp_path, 7, 2.5))
    assert saved.step == 7 and saved.state == {"note": "x", "step": 7}
    assert torch.equal(saved.tensors["model"]["w"], torch.full((4, 4), 2.5))
    assert set(saved.tensors) == {"model", "optimizer"}


def test_newest_goes_by_number_not_by_name(tmp_path):
    put(tmp_path, 99_999_999, 1.0)
    put(tmp_path, 100_000_000, 2.0)
    found, passed_over = checkpoint.load_newest(tmp_path)
    assert found.step == 100_000_000 and passed_over == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_any_damage_is_found_and_the_one_before_is_used(tmp_path, name, damage):
    put(tmp_path, 1, 1.0)
    path = put(tmp_path, 2, 2.0) / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    content = {"flip": bytes(raw), "truncate": bytes(raw[: len(raw) // 2]), "empty": b"", "remove": None}[damage]
    path.unlink() if content is None else path.write_bytes(content)
    found, passed_over = checkpoint.load_newest(tmp_path)
    assert found.step == 1
    assert len(passed_over) == 1 and "step-00000002 is damaged" in passed_over[0]


def test_leftovers_of_a_killed_save_are_never_taken_for_a_checkpoint(tmp_path):
    put(tmp_path, 1)
    (tmp_path / "step-00000002.tmp").mkdir()
    (tmp_path / "step-00000003.del").mkdir()
    (tmp_path / "step-00000004").write_text("a file")
    assert checkpoint.steps(tmp_path) == [1]
    put(tmp_path, 2)
    assert checkpoint.steps(tmp_path) == [1, 2]


def test_a_failing_write_leaves_the_others_and_no_rest(tmp_path, monkeypatch):
    put(tmp_path, 1)

    def full(path, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_json", full)
    with pytest.raises(OSError, match="No space"):
        put(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.load_newest(tmp_path)[0].step == 1


def test_retention_keeps_the_newest_and_touches_nothing_else(tmp_path):
    (tmp_path / "mine").mkdir()
    for step in (1, 2, 10):
        put(tmp_path, step)
    checkpoint.retain(tmp_path, 2)
    assert checkpoint.steps(tmp_path) == [2, 10] and (tmp_path / "mine").is_dir()


def test_a_newer_format_is_refused_with_its_number(tmp_path):
    path = put(tmp_path, 1) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(checkpoint.DamagedCheckpoint, match="format 99"):
        checkpoint.load(path.parent)


def test_there_is_no_pickle_in_a_checkpoint(tmp_path):
    for file in put(tmp_path, 1).iterdir():
        assert file.suffix in {".json", ".safetensors"}


def test_saving_a_step_again_replaces_it(tmp_path):
    put(tmp_path, 1, 1.0)
    put(tmp_path, 1, 3.0)
    assert float(checkpoint.load_newest(tmp_path)[0].tensors["model"]["w"][0, 0]) == 3.0
