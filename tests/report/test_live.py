"""Progress of a run in a log and a terminal; its figure in a notebook: what it shows, and what it may cost."""

import math
from types import SimpleNamespace

import pytest

from lib.config import environment
from lib.machine import platform
from lib.report import progress as showing
from lib.report.metrics import MetricsLog
from lib.report.progress import Live, Plain, Relayed, choose_progress
from tests.conftest import VOLATILE_COLUMNS
from trainbook import launch
from trainbook.outputs import figure


def train_row(step, loss):
    return {"step": step, "split": "train", "epoch": step / 50, "loss": loss}


def validation_row(step, **scores):
    return {"step": step, "split": "validation", "epoch": step / 50, **scores}


@pytest.fixture
def in_a_notebook(monkeypatch):
    """A notebook that a person runs, in which every step is drawn; the objects that it shows, in order."""
    shown = []

    def show(content, display_id=False):
        shown.append(content)
        return SimpleNamespace(update=shown.append)

    monkeypatch.setattr("IPython.display.display", show)
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    monkeypatch.setattr(Live, "interval", 0.0)
    return shown


def test_no_name_and_number_of_a_stranger_and_no_failing_curve_ends_a_run(
    tmp_path, in_a_notebook, capsys
):
    """What a table has is drawn, or a warning says once why not."""
    name = "<b>&\"'$"
    path = tmp_path / "metrics.csv"
    for values in ([1.0], [], [math.nan], [math.inf, -math.inf], [0.0, 0.0], [1e300, -1e308]):
        path.unlink(missing_ok=True)
        in_a_notebook.clear()
        with MetricsLog(path, 0) as log:
            for step, value in enumerate(values, 1):
                log.append(train_row(step, value))
                log.append(validation_row(step, **{name: 0.5, "loss": 1.0}))
        live = Live(lambda: figure.curves(path, "$toy", {name: 0.1}, [name]))
        live.update(120, 480, "epoch 2.40  0:10:00 left")
        live.close()
        assert in_a_notebook[0].data.startswith("120/480 (25%)")
        assert all(picture.data.startswith(b"\x89PNG") for picture in in_a_notebook[1:])
    live = Live(lambda: 1 / 0)
    for step in range(3):
        live.update(step, 480, "")
    assert capsys.readouterr().out.count("progress does not work: ZeroDivisionError") == 1


def test_drawing_takes_less_than_a_percent_of_the_time(monkeypatch, in_a_notebook):
    now = [0.0]
    drawn = []

    def draw():
        now[0] += 2.0
        drawn.append(now[0])
        return b"\x89PNG"

    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(showing, "time", clock)
    monkeypatch.setattr(Live, "interval", 3.0)
    progress = Live(draw)
    for step in range(10_000):
        now[0] += 0.5
        progress.update(step, 20_001, "")
    assert len(drawn) > 1
    assert 2.0 * (len(drawn) - 1) < 0.01 * now[0]


def test_the_form_follows_the_place(monkeypatch):
    forms = []
    draw = bytes
    forms.append(choose_progress(draw))  # no notebook
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    forms.append(choose_progress(draw))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    forms.append(choose_progress(draw))  # its notebook shows the plot at its end
    monkeypatch.setenv(environment.RELAY, "1")
    forms.append(choose_progress(draw))  # the process above shows it
    assert [*map(type, forms)] == [Plain, Live, Plain, Relayed]


def without(path, columns):
    lines = [line.split(",") for line in path.read_text().splitlines()]
    places = [place for place, name in enumerate(lines[0]) if name not in columns]
    return [[cells[place] for place in places] for cells in lines]


def test_a_run_that_is_watched_has_the_results_of_one_that_is_not(
    toy, tmp_path, quick, in_a_notebook, monkeypatch
):
    launch.train(toy({"output_dir": str(tmp_path / "watched")}))
    assert len(in_a_notebook) > 5
    monkeypatch.setattr(platform, "in_notebook", lambda: False)
    launch.train(toy())
    watched, plain = (tmp_path / name / "toy" for name in ("watched", "runs"))
    assert without(watched / "metrics.csv", VOLATILE_COLUMNS) == without(
        plain / "metrics.csv", VOLATILE_COLUMNS
    )
    name = "checkpoints/step-00000012/model.safetensors"
    assert (watched / name).read_bytes() == (plain / name).read_bytes()


def test_a_log_file_gets_plain_lines_and_not_one_for_each_step(capsys):
    texts = []
    shown = choose_progress()
    assert isinstance(shown, Plain)  # pytest's stdout is no terminal
    for step in range(1, 1001):
        shown.update(step, 1000, lambda step=step: texts.append(step) or f"step {step}")
    shown.close()
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "1/1,000 (0%)  step 1",
        "1,000/1,000 (100%)  step 1000",
    ]
    assert texts == [1, 1000]
