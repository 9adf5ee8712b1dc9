"""A run from its configuration to its archive, on the command line and over sessions."""

import contextlib
import fcntl
import os
import shutil
import signal
import tarfile

import pytest

from lib import checkpoint
from lib.errors import BadInput
from lib.training.summary import Summary
from trainbook import launch
from trainbook.outputs import packing

pytestmark = pytest.mark.usefixtures("quick")


def test_a_run_leaves_everything_that_is_promised_stays_as_it_is_and_is_continued(
    toy, tmp_path, capsys
):
    summary = launch.train(toy())
    folder = tmp_path / "runs" / "toy"
    assert summary.reason == "completed"
    assert summary.step == 12
    assert summary.world_size == 1
    assert summary.metrics.keys() == summary.baseline.keys() == {"rmse"}
    assert summary.session == 1
    assert Summary.read(folder) == summary
    assert (folder / "plots" / "metrics.png").is_file()
    assert (folder / "config.yaml").is_file()
    assert checkpoint.steps(folder / "checkpoints") == [9, 12]
    with tarfile.open(tmp_path / "runs" / "outputs.tar.gz") as archive:
        names = archive.getnames()
    assert {"toy/summary.json", "toy/metrics.csv", "toy/plots/metrics.png"} <= {*names}
    assert any(
        name.startswith("toy/best/step-") and name.endswith("model.safetensors") for name in names
    )
    assert not any("checkpoints" in name for name in names)
    assert launch.train(toy()).step == 12
    assert "was completed at step 12" in capsys.readouterr().out
    assert launch.train(toy({"training.max_steps": 15})).step == 15
    assert "step 12: 3 of 15 steps left" in capsys.readouterr().out


def test_a_mounted_earlier_output_is_resumed_and_never_written(toy, tmp_path, monkeypatch, cut):
    cut(5)
    first = launch.train(toy())
    assert first.reason == "deadline"
    assert first.step == 5
    assert first.metrics == {}
    assert launch.EXIT_CODES[first.reason] == 75
    mount = tmp_path / "kaggle" / "input" / "notebooks" / "someone" / "my-run"
    shutil.copytree(tmp_path / "runs", mount)
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    monkeypatch.setenv("TRAINBOOK_KAGGLE_ROOT", str(tmp_path / "kaggle"))
    before = {p: p.read_bytes() for p in mount.rglob("*") if p.is_file()}
    cut(None)
    summary = launch.train(toy())
    assert summary.reason == "completed"
    assert summary.step == 12
    assert summary.session == 2
    assert {p: p.read_bytes() for p in mount.rglob("*") if p.is_file()} == before
    (tmp_path / "nothing").mkdir()
    with pytest.raises(BadInput, match="which has no checkpoint of toy"):
        launch.train(
            toy(
                {
                    "run.resume_from": str(tmp_path / "nothing"),
                    "output_dir": str(tmp_path / "other"),
                }
            )
        )


@pytest.mark.parametrize(
    ("error", "reason"), [(ZeroDivisionError, "failed"), (KeyboardInterrupt, "interrupted")]
)
def test_a_failure_or_an_impatient_signal_is_in_the_summary(
    toy, tmp_path, monkeypatch, error, reason
):
    end = signal.raise_signal if reason == "interrupted" else (lambda number: 1 / 0)
    monkeypatch.setattr(launch.loop, "train", lambda *_: end(signal.SIGTERM))
    with pytest.raises(error):
        launch.train(toy())
    summary = Summary.read(tmp_path / "runs" / "toy")
    assert summary.reason == reason
    assert summary.step == 0
    assert summary.session == 1
    assert summary.max_steps == 12
    assert summary.run == "toy"
    assert summary.task.endswith("toy.py:Toy")
    assert summary.error == ("division by zero" if reason == "failed" else "")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_new_run_starts_from_the_weights_of_another_and_says_what_matched(toy, tmp_path, capsys):
    launch.train(toy())
    first = {
        "run.name": "second",
        "run.initial_weights": str(tmp_path / "runs" / "toy"),
        "training.max_steps": 1,
    }
    launch.train(toy(first))
    assert "Initial weights: 4 of 4 tensors match" in capsys.readouterr().out
    with pytest.raises(BadInput, match="4 of 9 tensors match.*less than 90%"):
        launch.train(toy({**first, "run.name": "third", "workload.batch_norm": True}))


def test_an_archive_that_is_gone_or_older_than_the_run_is_packed_again(toy, tmp_path):
    launch.train(toy({"training.max_steps": 6}))
    archive = tmp_path / "runs" / packing.ARCHIVE
    earlier = archive.read_bytes()
    packed_at = archive.stat().st_mtime
    launch.train(toy())
    good = archive.read_bytes()
    archive.write_bytes(earlier)
    os.utime(archive, (packed_at, packed_at))
    for _ in range(2):
        launch.train(toy())
        assert archive.read_bytes() == good
        archive.unlink()


@pytest.mark.parametrize(("what", "keep_last"), [("test", 0), ("report", 2), ("archive", 2)])
def test_an_error_after_the_last_step_costs_no_summary_and_is_made_up_for(
    toy, monkeypatch, capsys, what, keep_last
):
    def fail(*_):
        raise ValueError("a mistake in it")

    run = launch.prepare(toy({"checkpoint.keep_last": keep_last}))
    places = {"test": (launch, "evaluate"), "archive": (packing, "package")}
    with monkeypatch.context() as patched:
        patched.setattr(*places.get(what, (type(run.task), what)), fail, raising=False)
        summary = launch.train(run)
    assert summary.reason == "completed"
    assert Summary.read(run.folder) == summary
    assert summary.missing == ({} if what == "archive" else {what: "ValueError: a mistake in it"})
    out = capsys.readouterr().out
    assert f"Warning: the {what} failed" in out
    assert "Traceback" in out
    rows = (run.folder / "metrics.csv").read_bytes()
    mended = launch.train(run)
    assert mended.missing == {}
    assert mended.metrics
    assert mended.baseline
    assert mended.session == 1
    assert (run.folder / "metrics.csv").read_bytes() == rows  # nothing was trained
    assert (run.folder / launch.PICTURE).is_file()
    assert packing.is_current(run.output_dir)


@contextlib.contextmanager
def held(folder):
    """Holds a run's folder as another process does."""
    folder.mkdir(parents=True)
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    yield
    os.close(other)


def test_a_run_whose_folder_another_process_holds_is_refused_and_changes_nothing(toy, tmp_path):
    folder = tmp_path / "runs" / "toy"
    with held(folder):
        with pytest.raises(BadInput, match=f"Another process is training in {folder}"):
            launch.train(toy())
        assert not list(folder.iterdir())
        assert [path.name for path in folder.parent.iterdir()] == ["toy"]
    assert launch.train(toy({"training.max_steps": 1})).reason == "completed"


def test_no_score_of_a_completed_run_is_printed_under_other_settings_or_data(toy, tmp_path, capsys):
    launch.train(toy())
    assert launch.train(toy({"training.micro_batch": 2, "training.log_every_steps": 1})).step == 12
    assert "rmse" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "runs" / "toy" / "checkpoints")  # its summary knows what it was
    for key, value in {"optimizer.lr": 0.02, "seed": 1, "workload.samples": 36}.items():
        named = key.replace("workload.samples", "data fingerprint")
        wanted = rf"(?s)completed with another configuration:\n +saved +now\n.* {named} .*--set run.name=toy-2"
        with pytest.raises(BadInput, match=wanted):
            launch.train(toy({key: value}))
    assert "rmse" not in capsys.readouterr().out
    launch.train(toy({"optimizer.lr": 0.02, "run.accept_changes": True}))
    assert "was completed with other settings, because these differ:\n" in capsys.readouterr().out
