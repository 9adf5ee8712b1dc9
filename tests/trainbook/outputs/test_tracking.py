"""Rows on their way to TensorBoard and Weights & Biases, whose clients are imitated."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.config import Tracking
from lib.report import metrics
from lib.report.metrics import MetricsLog
from tests.conftest import VOLATILE_COLUMNS
from tests.report.test_live import without
from trainbook import launch
from trainbook.outputs import tracking
from trainbook.outputs.tracking import Tracked

KEY = "k3y-that-nobody-may-see"


@pytest.fixture
def wandb(monkeypatch):
    """An imitation of wandb; its `inits` and `runs` say what was asked of it."""
    fake = SimpleNamespace(
        inits=[], runs=[], fails=[], ends=threading.Event(), Settings=SimpleNamespace
    )
    fake.ends.set()

    def init(**options):
        run = SimpleNamespace(rows=[], codes=[])

        def log(values, step):
            run.rows.append((step, values))
            for error in fake.fails:
                raise error

        def finish(exit_code):
            if fake.ends.wait(60):
                run.codes.append(exit_code)

        run.log = log
        run.finish = finish
        (Path(options["dir"]) / "latest-run").symlink_to("somewhere")
        fake.inits.append(options)
        fake.runs.append(run)
        return run

    fake.init = init
    monkeypatch.setenv(tracking.KEY, "")  # and put back what a test leaves
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def board(monkeypatch):
    """An imitation of TensorBoard's writer; gives (folder, name, value, step) of what is written."""
    written = []
    write = lambda folder, *values: written.append((folder, *values))  # noqa: E731
    writer = lambda folder: SimpleNamespace(  # noqa: E731
        add_scalar=lambda *values: write(folder, *values), close=lambda: write(folder, "closed")
    )
    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=writer)
    )
    return written


def row(step, split="train", **values):
    return {"step": step, "split": split, **values}


def session(folder, rows, is_resumed=False, values=None, **options):
    folder.mkdir(exist_ok=True)
    tracked = Tracked(folder, Tracking(**options), "toy", {"seed": 0}, is_resumed)
    with MetricsLog(folder / "metrics.csv", 0) as log:
        for cells in rows:
            log.append(cells)
    tracked.end(values is not None, values or {})
    assert not metrics.on_row, "the next run is not sent there"


def test_rows_reach_weights_and_biases_offline_with_the_test_if_a_key_says_so(
    tmp_path, wandb, board
):
    rows = [
        row(1, loss=2.0, gpu_use=0.5, stage="one"),
        row(1, "validation", rmse=0.5),
        row(2, loss=1.0),
    ]
    session(tmp_path / "run", rows)
    assert not (wandb.inits or board), "no key, no tracking"
    assert not (tmp_path / "run" / "tracking").exists(), "no key, no tracking"
    session(tmp_path / "run", rows, wandb=True, values={"rmse": 0.25})
    (init,), (run,) = wandb.inits, wandb.runs
    assert init["mode"] == "offline"
    assert init["project"] == "trainbook"
    assert init["name"] == "toy"
    assert init["resume"] == "allow"
    assert init["settings"].console == "off", "what is printed stays here"
    first, validation, *others = run.rows
    assert first == (1, {"train/loss": 2.0, "machine/gpu_use": 0.5})
    assert validation == (1, {"validation/rmse": 0.5})
    assert others == [(2, {"train/loss": 1.0}), (2, {"test/rmse": 0.25})]
    assert run.codes == [0]


def test_a_tracker_that_fails_or_hangs_costs_a_warning_without_its_key(
    tmp_path, wandb, board, capsys, monkeypatch
):
    monkeypatch.setattr(tracking, "END_SECONDS", 0.01)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    wandb.fails.append(ConnectionError(f"no route with {KEY}"))
    wandb.ends.clear()
    session(tmp_path / "run", [row(1, loss=3.0), row(2, loss=2.0)], wandb=True, tensorboard=True)
    wandb.ends.set()
    out = capsys.readouterr().out
    assert (
        out.count("Warning: wandb does not work: ConnectionError: no route with (WANDB_API_KEY).")
        == 1
    )
    assert len(wandb.runs[0].rows) == 1, "nothing more is sent to the one that failed"
    assert len(board) == 3, "nothing more is sent to the one that failed"
    assert "the trackers have not ended after 0 s and are left behind" in out
    assert KEY not in out
    assert KEY not in "".join(path.read_text() for path in (tmp_path / "run").rglob("*.json"))


def test_online_takes_the_key_from_secrets_and_without_one_says_where_to_put_it(
    tmp_path, wandb, capsys, monkeypatch
):
    session(tmp_path / "run", [row(1, loss=3.0)], wandb=True, online=True)
    assert "needs WANDB_API_KEY: add it under Add-ons > Secrets" in capsys.readouterr().out
    assert not wandb.inits
    get = {"WANDB_API_KEY": KEY}.__getitem__
    client = SimpleNamespace(UserSecretsClient=lambda: SimpleNamespace(get_secret=get))
    monkeypatch.setitem(sys.modules, "kaggle_secrets", client)
    session(tmp_path / "run", [row(1, loss=3.0)], wandb=True, online=True)
    assert wandb.inits[0]["mode"] == "online"
    assert KEY not in capsys.readouterr().out
    assert KEY not in repr(wandb.inits)


def test_a_real_run_sends_its_rows_and_goes_on_with_its_ids_in_another_folder(
    toy, tmp_path, quick, cut, wandb, board
):
    """It has the results of a run that is not tracked."""
    launch.train(toy({"output_dir": str(tmp_path / "plain")}))
    options = {"tracking.wandb": True, "tracking.tensorboard": True, "checkpoint.every_steps": 5}
    cut(7)
    assert launch.train(toy(options)).reason == "deadline"
    cut(None)
    moved = {
        "output_dir": str(tmp_path / "new"),
        "run.resume_from": str(tmp_path / "runs"),
        **options,
    }
    assert launch.train(toy(moved)).reason == "completed"
    first, second = wandb.inits
    assert first["id"] == second["id"]
    assert first["config"]["seed"] == 0
    steps = [step for run in wandb.runs for step, values in run.rows if "train/loss" in values]
    assert steps == [5, 10, 12] == [values[3] for values in board if values[1] == "train/loss"]
    assert [run.codes for run in wandb.runs] == [[1], [0]]
    assert wandb.runs[1].rows[-1][1]["test/rmse"] > 0
    assert launch.packing.is_current(tmp_path / "new"), "the archive has what it ended with"
    plain, new = (tmp_path / name / "toy" / "metrics.csv" for name in ("plain", "new"))
    assert without(plain, VOLATILE_COLUMNS)[-1] == without(new, VOLATILE_COLUMNS)[-1]
    untracked = launch.prepare(toy())
    tracked = launch.prepare(toy({"tracking.wandb": True, "tracking.project": "mine"}))
    assert untracked.identity == tracked.identity
