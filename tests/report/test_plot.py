"""The picture of metrics.csv, and other figures."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

from lib.report import figure, plot
from lib.report.metrics import MetricsLog
from lib.report.plot import draw_metrics


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """drawn(rows, baseline) -> the axes of the plot."""
    figures = []
    monkeypatch.setattr(plot, "save", lambda figure, out: figures.append(figure))

    def draw(rows, baseline=None):
        with MetricsLog(tmp_path / "metrics.csv", 0) as log:
            for row in rows:
                log.append(row)
        draw_metrics(tmp_path / "metrics.csv", tmp_path / "metrics.png", "toy", baseline or {}, ["mrr"])
        return figures[-1].axes

    return draw


ROWS = [
    {"step": step, "split": "train", "epoch": step / 50, "loss": 1.0, "lr": 0.1, "samples_per_second": 3.0}
    for step in (50, 100, 120)
] + [{"step": 120, "split": "validation", "epoch": 2.4, "loss": 1.0, "mrr": 0.5}]


def test_the_plot_is_a_picture_even_when_little_was_logged(tmp_path):
    path = tmp_path / "metrics.csv"
    with MetricsLog(path, 0) as log:
        log.append(ROWS[0])
    out = draw_metrics(path, tmp_path / "plots" / "metrics.png", "toy", {"mrr": 0.2}, ["mrr"])
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 10_000
    assert [p.name for p in out.parent.iterdir()] == ["metrics.png"]


def test_every_panel_shows_all_steps_and_epochs_above_where_there_are_several(drawn):
    axes = drawn(ROWS)
    assert axes[1].get_title() == "validation" and "dashed: trivial" in drawn(ROWS, {"mrr": 0.2})[1].get_title()
    assert len(axes) == 4 and all(ax.get_xlim() == (-0.02 * 120, 1.02 * 120) for ax in axes)
    assert [ax.get_title() for ax in axes[2:]] == ["samples per second", "learning rate"]
    assert [inner.get_xlabel() for inner in axes[0].child_axes] == ["epoch"]
    assert not drawn([row | {"epoch": row["step"] / 500} for row in ROWS])[0].child_axes


def test_a_single_value_is_seen_and_its_axis_begins_at_zero(drawn):
    axes = drawn([row | {"loss": 120.0} for row in (ROWS[2], ROWS[3])])
    assert axes[0].get_ylim() == (0, 132) and axes[1].get_ylim() == (0, 0.55)
    assert all(line.get_marker() != "None" for ax in axes for line in ax.get_lines())
    several = drawn(ROWS, {"mrr": 0.2})
    assert several[1].get_ylim()[0] > 0.1


def test_a_row_below_has_memory_the_use_of_the_gpu_and_the_wait_for_data(drawn):
    taken = {"peak_memory_bytes": 2**30, "gpu_memory_bytes": 2**31, "ram_share": 0.5, "data_wait_share": 0.25}
    axes = drawn([row | taken | {"gpu_use": 0.75} for row in ROWS[:3]])
    titles = ["memory, GiB", "RAM in use", "GPU use", "share of the time that waits for data"]
    assert [ax.get_title() for ax in axes[4:]] == titles
    assert [list(line.get_ydata()) for line in axes[4].get_lines()] == [[1.0] * 3, [2.0] * 3]
    assert len({line.get_linestyle() for line in axes[4].get_lines()}) == 2, "told apart without colours"
    assert list(axes[6].get_lines()[0].get_ydata()) == [0.75] * 3
    assert list(axes[7].get_lines()[1].get_ydata()) == [0.2, 0.2], "above it training waits too long"
    assert all(ax.get_xlim() == (-0.02 * 120, 1.02 * 120) and ax.get_ylim()[0] == 0 for ax in axes[4:])


def test_metrics_are_told_apart_without_colours():
    axes = Figure().subplots()
    plot.draw_validation(axes, [ROWS[3] | {f"m{n}": "0.5" for n in range(9)}], {}, [f"m{n}" for n in range(9)])
    assert len({(line.get_color(), line.get_marker()) for line in axes.get_lines()}) == 9
    assert len(set(plot._DASHED)) == 4, "and so are baselines"


def test_a_stage_has_a_line_with_its_name_where_it_begins(drawn):
    names = {50: "FIRST", 100: "SECOND", 120: "SECOND"}
    axes = drawn([row | {"stage": names[row["step"]]} for row in ROWS])
    for ax in axes[:2]:
        assert [(text.get_text(), text.xy[0]) for text in ax.texts] == [("FIRST", 0), ("SECOND", 50)]
        assert [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"] == [0, 50]
    assert not drawn(ROWS)[0].texts and not axes[2].texts


def test_the_running_mean_trails_over_a_twentieth_of_the_points(drawn):
    axes = drawn([ROWS[0] | {"step": step + 1, "loss": float(step)} for step in range(60)])  # so over three
    mean = list(axes[0].get_lines()[1].get_ydata())
    assert mean[:4] == [0, 0.5, 1, 2] and mean[59] == 58


@pytest.fixture
def confusion(monkeypatch, tmp_path):
    """confusion(matrix, names) -> the axes of its figure."""
    figures = []
    monkeypatch.setattr(figure, "save", lambda made, path: figures.append(made) or path)

    def draw(matrix, names):
        figure.confusion(matrix, names, tmp_path / "a.png", unit="pixels")
        figures[-1].draw_without_rendering()
        return figures[-1].axes[0]

    return draw


def test_the_confusion_matrix_shows_shares_of_each_true_class(confusion):
    ax = confusion(np.array([[3, 1], [0, 0]]), ("land", "ice"))
    assert [text.get_text() for text in ax.texts] == ["75.0%", "25.0%", "0.0%", "0.0%"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["land\n4", "ice\n0"]
    assert ax.get_ylabel() == "true (pixels)"


@pytest.mark.parametrize(("classes", "name"), [(7, "Ruling by Present Court"), (13, "STATUTE")])
def test_names_and_numbers_of_many_classes_do_not_cover_each_other(confusion, classes, name):
    ax = confusion(np.eye(classes, dtype=int), [f"{name} {number}" for number in range(classes)])
    cells = [text.get_window_extent() for text in ax.texts[:classes]]
    assert all(one.x1 < other.x0 for one, other in pairwise(cells))
    ticks = ax.get_xticklabels()
    assert all(tick.get_rotation() == 40 and tick.get_ha() == "right" for tick in ticks)
    between = ticks[1].get_window_extent().x1 - ticks[0].get_window_extent().x1
    assert between > 1.2 * ticks[0].get_fontsize(), "lines of text that lean stand further apart than they are high"
