"""A run looked at before it starts: nothing in its folder changes, and one real save comes back bit for bit."""

import pytest
import torch

from lib import checkpoint
from lib.checkpoint import weights
from lib.errors import BadInput
from lib.training.state import restore_state
from tests.trainbook.doctor.conftest import by_name
from trainbook import launch
from trainbook.doctor import rehearsal
from trainbook.launch.resume import announce


@pytest.mark.parametrize(
    "changes", [{}, {"training.ema_decay": 0.9, "checkpoint.lightweight": True}]
)
def test_a_runs_numbers_are_said_and_its_save_comes_back_bit_for_bit(toy, tmp_path, changes):
    checks = by_name(rehearsal.check_run(toy(changes)))
    assert (
        checks["resume"].value == "No earlier checkpoint of toy: training starts at step 0 of 12."
    )
    assert "the same bit for bit" in checks["save and resume"].value
    assert not [check for check in checks.values() if check.verdict != "ok"]
    assert not (tmp_path / "runs").exists()


def test_what_a_run_downloads_is_named_without_credentials_and_not_downloaded(toy, monkeypatch):
    monkeypatch.setattr(launch, "prepare", lambda config: pytest.fail("the data was read"))
    there = {"run.resume_from": "https://user:word@host.invalid/there?key=word"}
    data = by_name(rehearsal.check_run(toy(there)))["data"]
    assert data.verdict == "warning"
    assert "from https://host.invalid/there; nothing was downloaded" in data.value
    assert (
        rehearsal.remote(toy({**there, "data.dir": "somewhere"})) == [] == rehearsal.remote(toy())
    )


def snapshot(folder):
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in [folder, *folder.rglob("*")]
    }


def test_the_source_of_a_resumed_run_is_found_and_nothing_in_its_folder_changes(
    toy, tmp_path, quick
):
    launch.train(toy())
    newest = checkpoint.path_of(tmp_path / "runs" / "toy" / "checkpoints", 12)
    (newest / "model.safetensors").write_bytes(b"damaged")
    before = snapshot(tmp_path / "runs")
    assert rehearsal.check_resume(launch.prepare(toy())).value.startswith("completed at step 12")
    longer = toy({"training.max_steps": 20})
    finding = rehearsal.check_resume(launch.prepare(longer))
    assert finding.verdict == "warning"
    assert "step 9: 11 of 20 steps left" in finding.value
    assert "is damaged" in finding.advice
    rehearsal.check_run(longer)
    other = launch.prepare(toy({"seed": 1, "training.max_steps": 20}))
    finding = rehearsal.check_resume(other)
    assert finding.verdict == "bad"
    assert "cannot be resumed with this configuration" in finding.advice
    assert snapshot(tmp_path / "runs") == before
    with pytest.raises(
        BadInput, match=r"It is kept as step-00000012.damaged.\n.* cannot be resumed"
    ):
        announce(other)
    assert announce(launch.prepare(toy())).step == 9, "a run does set it aside"
    assert not newest.exists(), "a run does set it aside"


@pytest.mark.parametrize("lost", ["optimizer", "model"])
def test_a_resume_that_loses_something_is_found(toy, monkeypatch, lost):
    def forgetful(state, saved):
        rest = {group: named for group, named in saved.tensors.items() if group != lost}
        whole = weights.of(state.model) if lost == "model" else {}
        restore_state(
            state,
            checkpoint.Checkpoint(saved.path, saved.step, {"model": whole, **rest}, saved.state),
        )

    monkeypatch.setattr(rehearsal, "restore_state", forgetful)
    finding = by_name(rehearsal.check_saving(launch.prepare(toy())))["save and resume"]
    assert finding.verdict == "bad"
    assert f"{lost}/" in finding.advice


def test_every_bit_counts():
    zeros = {"a": {"x": torch.zeros(2)}}
    nan = {"a": {"x": torch.tensor([float("nan")])}}
    assert rehearsal.differences(zeros, {"a": {"x": torch.tensor([0.0, -0.0])}}) == ["a/x"]
    assert rehearsal.differences(nan, {"a": {"x": torch.tensor([float("nan")])}}) == []
