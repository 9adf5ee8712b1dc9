"""A run looked at before it starts: nothing in its folder changes, and one real save comes back bit for bit."""

import pytest
import torch

from lib import checkpoint, launch
from lib.checkpoint import weights
from lib.doctor import rehearsal
from lib.errors import BadInput
from lib.launch.resume import announce
from lib.training.state import restore_state, state_tensors
from tests.doctor.conftest import by_name
from tests.serving import Files


def test_a_runs_numbers_are_said(toy):
    found = by_name(rehearsal.check_run(toy({"training.effective_batch": 10, "training.micro_batch": 3})))
    assert found["precision"].value == "fp32 on the CPU; training.precision is auto"
    assert found["save interval"].value.startswith("every 3 steps: a kill loses that")
    assert found["resume"].value == "No earlier checkpoint of toy: training starts at step 0 of 12."
    assert "the same bit for bit" in found["save and resume"].value
    assert not [check for check in found.values() if check.verdict != "ok"]


def test_what_a_run_downloads_is_asked_for_its_size_and_not_downloaded(toy, address, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "prepare", lambda config: pytest.fail("the data was read"))
    found = by_name(rehearsal.check_run(toy({"run.resume_from": f"{address}/there"})))
    assert found["download"].value == f"{address}/there answers, 1,234 bytes"
    assert found["data"].verdict == "warning" and "1 address(es); nothing was downloaded" in found["data"].value
    assert Files.asked == [("HEAD", "/there")]
    found = by_name(rehearsal.check_run(toy({"run.resume_from": f"{address}/gone"})))
    assert found["download"].verdict == "bad" and found["data"].value.startswith("not read")


def test_what_takes_no_time_is_checked_before_data_is_read(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "prepare", lambda config: pytest.fail("the data was read"))
    found = rehearsal.check_precision(toy({"training.precision": "fp16"}))
    assert found.verdict == "warning" and "10 to 20 times as long" in found.advice
    (tmp_path / "file").touch()
    found = by_name(rehearsal.check_run(toy({"output_dir": str(tmp_path / "file")})))
    assert found["output path"].verdict == "bad" and found["data"].advice == "Correct that first."


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"checkpoint.every_steps": 0}, "at the session's end only"),
        ({"checkpoint.every_steps": 12}, "at the session's end only"),
        ({"checkpoint.keep_last": 0}, "no checkpoint is kept"),
    ],
)
def test_a_run_that_a_kill_would_end_is_a_warning(toy, changes, sentence):
    found = rehearsal.check_save_interval(toy(changes))
    assert found.verdict == "warning" and sentence in found.value and found.advice


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [folder, *folder.rglob("*")]}


def test_the_source_of_a_resumed_run_is_found_and_nothing_in_its_folder_changes(toy, tmp_path, quick):
    config = toy()
    launch.train(config)
    folder = tmp_path / "runs" / "toy"
    newest = checkpoint.path_of(folder / "checkpoints", 12)
    (newest / "model.safetensors").write_bytes(b"damaged")
    before = snapshot(tmp_path / "runs")
    assert rehearsal.check_resume(launch.prepare(config)).value.startswith("completed at step 12")
    found = rehearsal.check_resume(launch.prepare(toy({"training.max_steps": 20})))
    assert found.verdict == "warning" and "step 9: 11 of 20 steps left" in found.value and "is damaged" in found.advice
    rehearsal.check_run(toy({"training.max_steps": 20}))
    assert snapshot(tmp_path / "runs") == before
    assert announce(launch.prepare(config)).step == 9 and not newest.exists(), "a run does set it aside"


def test_a_run_that_cannot_go_on_is_bad(toy, tmp_path, quick):
    launch.train(toy())
    other = launch.prepare(toy({"seed": 1, "training.max_steps": 20}))
    found = rehearsal.check_resume(other)
    assert found.verdict == "bad" and "cannot be resumed with this configuration" in found.advice
    newest = checkpoint.path_of(tmp_path / "runs" / "toy" / "checkpoints", 12)
    (newest / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(BadInput, match=r"It is kept as step-00000012.damaged.\n.* cannot be resumed"):
        announce(other)


def test_room_for_one_checkpoint_is_too_little_and_for_a_few_a_warning(toy, monkeypatch):
    run = launch.prepare(toy({"checkpoint.keep_last": 5}))
    state = rehearsal._after_one_update(run)
    one = rehearsal._bytes(state_tensors(state, run.config))
    assert one == (3 * 4 * 21 + 4 * 4), "weights and two moments of 21 numbers in fp32, and a step for each parameter"
    verdicts = []
    for room in (one, 3 * one, 100 * one):
        monkeypatch.setattr(rehearsal.Retention, "available", lambda self, room=room: room)
        verdicts.append(rehearsal.check_room(run, state).verdict)
    assert verdicts == ["bad", "warning", "ok"]


@pytest.mark.parametrize("lost", ["optimizer", "model"])
def test_a_resume_that_loses_something_is_found(toy, monkeypatch, lost):
    restore = restore_state

    def forgetful(state, saved):
        kept = {group: named for group, named in saved.tensors.items() if group != lost}
        whole = weights.of(state.model) if lost == "model" else {}
        restore(state, checkpoint.Checkpoint(saved.path, saved.step, {"model": whole, **kept}, saved.state))

    monkeypatch.setattr(rehearsal, "restore_state", forgetful)
    run = launch.prepare(toy())
    found = rehearsal.check_round_trip(run, rehearsal._after_one_update(run))
    assert found.verdict == "bad" and f"{lost}/" in found.advice


def test_every_bit_counts(toy):
    zeros = {"a": {"x": torch.zeros(2)}}
    assert rehearsal.differences(zeros, {"a": {"x": torch.tensor([0.0, -0.0])}}) == ["a/x"]
    nan = {"a": {"x": torch.tensor([float("nan")])}}
    assert rehearsal.differences(nan, {"a": {"x": torch.tensor([float("nan")])}}) == []
    assert rehearsal.differences(
        zeros, {"a": {"x": torch.zeros(2, dtype=torch.float16)}, "b": {"y": nan["a"]["x"]}}
    ) == [
        "a/x",
        "b/y",
    ]


@pytest.mark.parametrize("changes", [{"training.ema_decay": 0.9}, {"checkpoint.lightweight": True}])
def test_the_round_trip_holds_for_averages_and_lightweight_checkpoints(toy, changes, tmp_path):
    found = by_name(rehearsal.check_run(toy(changes)))["save and resume"]
    assert found.verdict == "ok" and "the same bit for bit" in found.value
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "error, sentence",
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "do not fit into memory"),
        (FileNotFoundError("No usable temporary directory"), "No usable temporary directory"),
    ],
)
def test_a_model_that_cannot_be_made_is_said(toy, monkeypatch, error, sentence):
    def fail(task, config):
        raise error

    monkeypatch.setattr(rehearsal, "new_state", fail)
    found = by_name(rehearsal.check_run(toy()))["model"]
    assert found.verdict == "bad" and sentence in found.value


def test_a_mistake_in_the_task_is_said_with_its_line(toy, monkeypatch):
    def mistaken(task, config):
        raise AttributeError("no such layer")

    monkeypatch.setattr(rehearsal, "new_state", mistaken)
    found = by_name(rehearsal.check_run(toy()))["model"]
    assert found.verdict == "bad" and "raises AttributeError: no such layer" in found.advice
    assert "test_rehearsal.py" in found.advice and 'raise AttributeError("no such layer")' in found.advice


def test_a_mistake_of_the_library_keeps_its_own_traceback(toy, monkeypatch):
    source = "def mistaken(task, config):\n    raise AttributeError('no such layer')\n"
    names = {}
    exec(compile(source, rehearsal.__file__, "exec"), names)
    monkeypatch.setattr(rehearsal, "new_state", names["mistaken"])
    with pytest.raises(AttributeError, match="no such layer"):
        rehearsal.check_run(toy())
