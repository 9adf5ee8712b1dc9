"""The figure of a run while it trains: what it shows, in what place, and what it may cost."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest

from lib import launch
from lib.config import environment
from lib.launch import torchrun, watching
from lib.launch.run import prepare
from lib.machine import hardware, memory, platform
from lib.report import live
from lib.report.live import Batch, Figure, Live, Watched, progress_of
from lib.report.metrics import MetricsLog
from lib.report.progress import Plain, Relayed
from lib.report.summary import Summary
from lib.training import evaluation
from tests.conftest import VOLATILE_COLUMNS

GIB = memory.GIB


def train_row(step, loss, **more):
    return {"step": step, "split": "train", "epoch": step / 50, "loss": loss, **more}


def validation_row(step, **scores):
    return {"step": step, "split": "validation", "epoch": step / 50, **scores}


@pytest.fixture
def written(tmp_path):
    """written(rows, **watched) -> the HTML of the figure of these rows."""

    def draw(rows, **watched):
        with MetricsLog(tmp_path / "metrics.csv", 0) as log:
            for row in rows:
                log.append(row)
        figure = Figure(Watched(tmp_path / "metrics.csv", "toy", 480, **watched))
        return figure.html(*figure.moved(120, 480, "0:10:00 left"))

    return draw


def test_the_figure_has_loss_metrics_the_best_the_baseline_and_epochs(written):
    rows = [train_row(50, 3.0), train_row(100, 1.0), validation_row(50, loss=2.0, mrr=0.5), train_row(120, 1.0)]
    rows += [validation_row(100, loss=1.5, mrr=0.25), validation_row(120, loss=1.25, mrr=0.375)]
    html = written(rows, shown=["mrr"], selection=("mrr", "max"), baseline={"mrr": 0.2})
    assert "120 of 480 steps (25%)" in html and "0:10:00 left" in html
    for name in ("train, as logged", "train, running mean", "mrr, trivial baseline (test)", "best: 0.5 at step 50"):
        assert html.count(f"{name}</span>") == 1
    assert html.count(">epoch</text>") == 2 and 'aria-label="loss: train, running mean 1; validation 1.25"' in html
    assert html.count("stroke-dasharray") == 2, "the baseline's line and its entry in the legend"


def test_the_best_is_the_first_of_the_smallest_where_less_is_better(written):
    rows = [validation_row(step, loss=loss) for step, loss in ((1, 3.0), (2, math.nan), (3, 1.0), (4, 1.0))]
    html = written([train_row(4, 1.0), *rows])
    assert "best: 1 at step 3" in html and ">epoch</text>" not in html, "the first epoch has not ended"


def test_memory_shows_what_is_allocated_reserved_and_at_the_peak_beside_the_prediction(written, monkeypatch):
    monkeypatch.setattr(hardware, "ram", lambda: hardware.Ram(int(1 * GIB), int(10 * GIB), False))
    machine = {"gpu_use": 0.5, "gpu_memory_bytes": 11 * GIB, "gpu_allocated_bytes": 2 * GIB, "data_wait_share": 0.25}
    machine |= {"gpu_reserved_bytes": 8 * GIB, "peak_memory_bytes": 6 * GIB}
    html = written([train_row(5, 1.0, **machine)], gpu_bytes=16 * GIB, predicted_peak_bytes=7 * GIB)
    assert "allocated 2.0, reserved 8.0, peak 6.0 (predicted 7.0) of 16.0 GiB" in html
    assert 'title="peak"' in html and "left:37.50%" in html and "left:43.75%" in html
    assert "RAM <b" in html and "9.0 of 10.0 GiB" in html, "above 80 % it says so in a word"
    assert "Waiting for data <b" in html and "GPU use</div>" in html and "50% of the time" in html


def test_names_of_a_stranger_cannot_break_the_page(written):
    rows = [train_row(1, 1.0), validation_row(1, **{"<b>&\"'": 0.5, "loss": 1.0})]
    html = written(rows, shown=["<b>&\"'"], baseline={"<b>&\"'": 0.1})
    assert "<b>&\"'" not in html and "&lt;b&gt;&amp;&quot;" in html


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf], [0.0, 0.0], [1e300, -1e308], [5e-324, 0.0]])
def test_no_number_ends_a_run(written, tmp_path, monkeypatch, values):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw, display_id: shown.append(bundle))
    written([train_row(step, value) for step, value in enumerate(values, 1)])
    live.display(Figure(Watched(tmp_path / "metrics.csv", "toy", 2)), 1, 2, "on", None)
    assert "1 of 2 steps (50%)" in shown[0]["text/html"] and shown[0]["text/plain"] == "1 of 2 steps (50%)  on"


def test_a_figure_that_cannot_be_drawn_says_why(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw, display_id: shown.append(bundle))
    monkeypatch.setattr(hardware, "ram", lambda: 1 / 0)
    live.display(Figure(Watched(tmp_path / "metrics.csv", "toy", 2)), 1, 2, "on", None)
    assert "1 of 2 steps (50%)  on" in shown[0]["text/html"] and "ZeroDivisionError" in shown[0]["text/html"]


class Clock(SimpleNamespace):
    """Stands in for the module `time`."""

    now = 0.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic


@pytest.mark.parametrize("seconds", [0.004, 0.1, 2.0])
def test_drawing_takes_less_than_half_a_percent_of_the_time_however_slow_it_is(monkeypatch, tmp_path, seconds):
    clock, drawn = Clock(), []

    def draw(*_):
        clock.now += seconds
        drawn.append(clock.now)

    monkeypatch.setattr(live, "time", clock)
    monkeypatch.setattr("lib.report.progress.time", clock)
    monkeypatch.setattr(live, "display", draw)
    shown = Live(Watched(tmp_path / "metrics.csv", "toy", 20_001))
    for step in range(20_000):
        clock.now += 0.25
        shown.update(step, 20_001, "")
    assert len(drawn) > 1 and seconds * (len(drawn) - 1) < 0.005 * clock.now
    gaps = [after - before for before, after in pairwise(drawn)]
    assert seconds > 0.01 or max(gaps) < 4, "every few seconds"


def test_the_figure_is_drawn_in_its_own_place_and_the_last_one_stays(monkeypatch, tmp_path):
    updates, made = [], []
    handle = SimpleNamespace(update=lambda bundle, raw: updates.append(bundle["text/plain"]))
    monkeypatch.setattr("IPython.display.display", lambda *_, **options: made.append(options) or handle)
    monkeypatch.setattr(Live, "interval", 0.0)
    monkeypatch.setattr(live, "_SECONDS", 0.0)
    monkeypatch.setattr(live, "_SHARE", math.inf)
    shown = Live(Watched(tmp_path / "metrics.csv", "toy", 3))
    for step in range(1, 4):
        shown.update(step, 3, "going")
    shown.close()
    assert made == [{"raw": True, "display_id": True}] and updates[-1] == "3 of 3 steps (100%)  going"
    shown.update(5, 7, "batches evaluated")
    assert updates[-1] == "3 of 3 steps (100%)  5/7 batches evaluated", "the test of a rank is no step"


def test_a_batch_run_prints_at_most_a_line_a_minute_and_leaves_one_figure(monkeypatch, tmp_path, capsys):
    clock, shown = Clock(), []
    handle = SimpleNamespace(update=lambda bundle, raw: shown.append(bundle))
    monkeypatch.setattr("IPython.display.display", lambda bundle, **_: shown.append(bundle) or handle)
    monkeypatch.setattr("lib.report.progress.time", clock)
    progress = Batch(Watched(tmp_path / "metrics.csv", "toy", 1200))
    for step in range(1, 1200):
        clock.now += 1.0
        progress.update(step, 1200, "going")
    assert len(capsys.readouterr().out.splitlines()) == 20 and not shown
    progress.update(1200, 1200, "going")
    progress.update(3, 4, "batches evaluated")
    progress.close()
    assert [bundle["text/plain"] for bundle in shown] == ["1,200 of 1,200 steps (100%)  3/4 batches evaluated"]
    assert "<svg" in shown[0]["text/html"]


def test_the_form_follows_the_place(monkeypatch, tmp_path):
    watched = Watched(tmp_path / "metrics.csv", "toy", 1)
    assert type(progress_of(watched)) is Plain, "no notebook"
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    assert type(progress_of(watched)) is Live
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert type(progress_of(watched)) is Batch
    monkeypatch.setenv(environment.RELAY, "1")
    assert type(progress_of(watched)) is Relayed, "the process above shows it"


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_a_notebook(monkeypatch):
    """A notebook that a person runs, in which every step is drawn; returns what it shows."""
    shown = []

    def show(bundle, raw=False, **_):
        shown.extend([bundle] * raw)  # other progress is text
        return SimpleNamespace(update=show)

    monkeypatch.setattr("IPython.display.display", show)
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    monkeypatch.setattr(Live, "interval", 0.0)
    monkeypatch.setattr(live, "_SECONDS", 0.0)
    monkeypatch.setattr(live, "_SHARE", math.inf)
    return shown


def without(path, columns):
    lines = [line.split(",") for line in path.read_text().splitlines()]
    kept = [place for place, name in enumerate(lines[0]) if name not in columns]
    return [[cells[place] for place in kept] for cells in lines]


def test_a_run_that_is_watched_has_the_results_of_one_that_is_not(toy, tmp_path, quick, in_a_notebook, monkeypatch):
    launch.train(toy({"output_dir": str(tmp_path / "watched")}))
    assert "12 of 12 steps (100%)" in in_a_notebook[-1]["text/html"] and len(in_a_notebook) > 5
    monkeypatch.setattr(platform, "in_notebook", lambda: False)
    launch.train(toy())
    one, other = (tmp_path / name / "toy" for name in ("watched", "runs"))
    assert without(one / "metrics.csv", VOLATILE_COLUMNS) == without(other / "metrics.csv", VOLATILE_COLUMNS)
    names = ["checkpoints/step-00000012/model.safetensors", "best/step-00000012/model.safetensors"]
    pairs = [(one / name, other / name) for name in names if (one / name).is_file()]
    assert pairs and all(mine.read_bytes() == others.read_bytes() for mine, others in pairs)


def test_the_baseline_is_drawn_where_the_smoke_test_or_an_earlier_session_knows_it(toy, tmp_path):
    run = prepare(toy())
    assert watching.watched(run).baseline == {}
    run.folder.mkdir(parents=True)
    Summary("toy", "toy", "deadline", baseline={"rmse": 0.5}).write(run.folder)
    assert watching.watched(run).baseline == {"rmse": 0.5}
    assert evaluation.baseline_of(run.task) == {"rmse": 1.0} == watching.watched(run).baseline


def test_ranks_of_their_own_are_drawn_by_the_process_above_them(toy, tmp_path, in_a_notebook, monkeypatch):
    def ranks(config, folder, count, session, summary, progress):
        with MetricsLog(folder / "metrics.csv", 0) as log:
            log.append(train_row(6, 0.75))
        progress.update(6, 12, "of a rank")
        Summary("toy", "toy", "completed", 12).write(folder)

    monkeypatch.setattr(torchrun, "train", ranks)
    launch.train(toy({"device.processes": 2, "training.micro_batch_slots": 2}))
    assert "of a rank" in in_a_notebook[-1]["text/html"] and "running mean 0.75" in in_a_notebook[-1]["text/html"]
