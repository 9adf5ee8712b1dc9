"""Progress of a run in a log and a terminal; its figure in a notebook: what it shows, and what it may cost."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest

from lib import launch
from lib.config import environment
from lib.machine import platform
from lib.report import progress as showing
from lib.report.metrics import MetricsLog
from lib.report.progress import Live, Plain, Relayed, Watched, Within, choose_progress, counted, time_left
from tests.conftest import VOLATILE_COLUMNS


def train_row(step, loss):
    return {"step": step, "split": "train", "epoch": step / 50, "loss": loss}


def validation_row(step, **scores):
    return {"step": step, "split": "validation", "epoch": step / 50, **scores}


class Shown(list):
    """The HTML and text that a notebook shows, in order; `made`: the number of its outputs."""

    made = 0

    def last(self, is_head):
        return [bundle for bundle in self if ("<progress" in bundle["text/html"]) == is_head][-1]


@pytest.fixture
def in_a_notebook(monkeypatch):
    """A notebook that a person runs, in which every step is drawn; returns what it shows."""
    shown = Shown()

    def update(bundle, raw=False):
        shown.extend([bundle] * raw)

    def show(bundle, raw=False, **_):
        shown.made += raw  # other progress is text
        update(bundle, raw)
        return SimpleNamespace(update=update)

    monkeypatch.setattr("IPython.display.display", show)
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    monkeypatch.setattr(Live, "interval", 0.0)
    return shown


@pytest.fixture
def written(tmp_path, in_a_notebook):
    """written(rows, **watched) -> the HTML of the head and the charts of these rows."""

    def draw(rows, **watched):
        (tmp_path / "metrics.csv").unlink(missing_ok=True)
        with MetricsLog(tmp_path / "metrics.csv", 0) as log:
            for row in rows:
                log.append(row)
        Live(Watched(tmp_path / "metrics.csv", "toy", 480, **watched)).update(120, 480, "epoch 2.40  0:10:00 left")
        return "".join(in_a_notebook.last(is_head)["text/html"] for is_head in (True, False))

    return draw


def test_the_charts_have_loss_metrics_the_best_the_baseline_and_epochs(written):
    rows = [train_row(50, 3.0), train_row(100, 1.0), validation_row(50, loss=2.0, mrr=0.5), train_row(120, 1.0)]
    rows += [validation_row(100, loss=1.5, mrr=0.25), validation_row(120, loss=1.25, mrr=0.375)]
    html = written(rows, shown=["mrr"], selection=("mrr", "max"), baseline={"mrr": 0.2})
    assert "120 of 480 steps (25%)" in html and "epoch 2.40 · 0:10:00 left" in html
    for name in ("train, as logged", "train, running mean", "mrr, baseline (test)", "best: 0.5 at step 50"):
        assert html.count(f">{name}</text>") == 1
    assert html.count(">epoch</text>") == 2
    assert "loss: train, as logged 1; train, running mean 1; validation 1.25" in html
    assert html.count("currentColor") > 20 and "<style" not in html, "it has the colours of its page, and gives none"
    rows = [validation_row(step, loss=loss) for step, loss in ((1, 3.0), (2, math.nan), (3, 1.0), (4, 1.0))]
    html = written([train_row(4, 1.0), *rows])
    assert "best: 1 at step 3" in html and ">epoch</text>" not in html, "the first epoch has not ended"


def test_no_name_and_number_of_a_stranger_and_no_failing_chart_breaks_the_page_or_ends_a_run(written, monkeypatch):
    rows = [train_row(1, 1.0), validation_row(1, **{"<b>&\"'": 0.5, "loss": 1.0})]
    html = written(rows, shown=["<b>&\"'"], baseline={"<b>&\"'": 0.1})
    assert "<b>&" not in html and html.count("&lt;b&gt;&amp;") > 2
    for values in ([], [math.nan], [math.inf, -math.inf], [0.0, 0.0], [1e300, -1e308]):
        assert "120 of 480 steps (25%)" in written([train_row(step, value) for step, value in enumerate(values, 1)])
    monkeypatch.setattr("lib.report.figure.svg", lambda draw: 1 / 0)
    assert "cannot be drawn: ZeroDivisionError" in written([])


@pytest.mark.parametrize("seconds", [0.004, 2.0])
def test_drawing_takes_less_than_a_percent_of_the_time_and_the_line_comes_every_few_seconds(
    monkeypatch, tmp_path, in_a_notebook, seconds
):
    now, drawn, lines = [0.0], [], []

    def draw(_):
        now[0] += seconds
        drawn.append(now[0])
        return "charts"

    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(showing, "time", clock)
    monkeypatch.setattr(Live, "charts", draw)
    monkeypatch.setattr(Live, "_gauges", lambda self: lines.append(now[0]) or [])
    monkeypatch.setattr(Live, "interval", 3.0)
    progress = Live(Watched(tmp_path / "metrics.csv", "toy", 20_001))
    for step in range(10_000):
        now[0] += 0.5
        progress.update(step, 20_001, "")
    assert len(drawn) > 1 and seconds * (len(drawn) - 1) < 0.01 * now[0]
    assert max(after - before for before, after in pairwise(lines)) < 4 + seconds


def test_the_drawing_stays_in_its_own_place_and_the_last_one_is_of_the_whole_run(in_a_notebook, tmp_path):
    progress = Live(Watched(tmp_path / "metrics.csv", "toy", 3))
    progress.close()
    assert not in_a_notebook, "nothing has begun"
    for step in range(1, 4):
        progress.update(step, 3, "going")
    progress.close()
    assert in_a_notebook.made == 2 and in_a_notebook.last(True)["text/plain"] == "3 of 3 steps (100%)  going"
    assert "<svg" in in_a_notebook[-1]["text/html"]
    progress.update(5, 7, "batches evaluated")
    assert in_a_notebook.last(True)["text/plain"] == "3 of 3 steps (100%)  5/7 batches evaluated"


def test_the_form_follows_the_place(monkeypatch, tmp_path):
    watched, forms = Watched(tmp_path / "metrics.csv", "toy", 1), []
    forms.append(choose_progress(watched))  # no notebook
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    forms.append(choose_progress(watched))
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    forms.append(choose_progress(watched))  # its notebook shows the plot at its end
    monkeypatch.setenv(environment.RELAY, "1")
    forms.append(choose_progress(watched))  # the process above shows it
    assert [*map(type, forms)] == [Plain, Live, Plain, Relayed]


def without(path, columns):
    lines = [line.split(",") for line in path.read_text().splitlines()]
    places = [place for place, name in enumerate(lines[0]) if name not in columns]
    return [[cells[place] for place in places] for cells in lines]


def test_a_run_that_is_watched_has_the_results_of_one_that_is_not(toy, tmp_path, quick, in_a_notebook, monkeypatch):
    launch.train(toy({"output_dir": str(tmp_path / "watched")}))
    assert "12 of 12 steps (100%)" in in_a_notebook.last(True)["text/html"] and len(in_a_notebook) > 5
    monkeypatch.setattr(platform, "in_notebook", lambda: False)
    launch.train(toy())
    watched, plain = (tmp_path / name / "toy" for name in ("watched", "runs"))
    assert without(watched / "metrics.csv", VOLATILE_COLUMNS) == without(plain / "metrics.csv", VOLATILE_COLUMNS)
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
    assert out.splitlines() == ["1/1,000 (0%)  step 1", "1,000/1,000 (100%)  step 1000"] and texts == [1, 1000]


def test_a_part_is_shown_in_the_line_of_the_whole_and_counted_items_with_the_time_left(capsys, monkeypatch):
    shown = Plain()
    for batch in range(1, 4):
        Within(shown, 7, 7).update(batch, 3, "batches evaluated")
    shown.update(7, 7, "loss 1.0")
    shown.close()
    assert capsys.readouterr().out.splitlines() == ["7/7 (100%)  1/3 batches evaluated", "7/7 (100%)  loss 1.0"]
    assert list(counted([3, 1, 2], "scenes")) == [3, 1, 2]
    assert "3/3 (100%)  scenes, 0:00:00 left" in capsys.readouterr().out
    now = iter([100.0, 130.0])
    monkeypatch.setattr(showing.time, "monotonic", lambda: next(now))
    assert time_left("tiles")(2, 6) == "tiles, 0:01:00 left"
