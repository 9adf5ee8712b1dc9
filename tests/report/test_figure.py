"""The picture of metrics.csv, and other figures."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

from lib.report import figure
from lib.report.metrics import MetricsLog


@pytest.fixture
def figures(monkeypatch):
    drawn = []
    monkeypatch.setattr(figure, "save", lambda drawing, path: drawn.append(drawing) or path)
    return drawn


@pytest.fixture
def drawn(tmp_path, figures):
    """drawn(rows, baseline) -> the axes of the plot."""

    def draw(rows, baseline=None):
        write(tmp_path / "metrics.csv", rows)
        figure.draw_metrics(tmp_path / "metrics.csv", tmp_path / "metrics.png", "toy", baseline or {}, ["mrr"])
        return figures[-1].axes

    return draw


def write(path, rows):
    with MetricsLog(path, 0) as log:
        for row in rows:
            log.append(row)


ROWS = [
    {"step": step, "split": "train", "epoch": step / 50, "loss": 1.0, "lr": 0.1, "samples_per_second": 3.0}
    for step in (50, 100, 120)
] + [{"step": 120, "split": "validation", "epoch": 2.4, "loss": 1.0, "mrr": 0.5}]


def test_the_plot_is_a_picture_even_when_little_was_logged(tmp_path):
    write(tmp_path / "metrics.csv", ROWS[:1])
    out = tmp_path / "plots" / "metrics.png"
    assert figure.draw_metrics(tmp_path / "metrics.csv", out, "toy", {"mrr": 0.2}, ["mrr"]) == out
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 10_000
    assert [path.name for path in out.parent.iterdir()] == ["metrics.png"]


def test_every_panel_shows_all_steps_and_epochs_above_where_there_are_several(drawn):
    axes = drawn(ROWS)
    assert axes[1].get_title() == "validation" and "dashed: baseline" in drawn(ROWS, {"mrr": 0.2})[1].get_title()
    assert len(axes) == 4 and all(ax.get_xlim() == (-0.02 * 120, 1.02 * 120) for ax in axes)
    assert [ax.get_title() for ax in axes[2:]] == ["samples per second", "learning rate"]
    assert [inner.get_xlabel() for inner in axes[0].child_axes] == ["epoch"]
    assert not drawn([row | {"epoch": row["step"] / 500} for row in ROWS])[0].child_axes


def test_a_single_value_is_seen_its_axis_begins_at_zero_and_the_running_mean_trails(drawn):
    axes = drawn([row | {"loss": 120.0} for row in (ROWS[2], ROWS[3])])
    assert axes[0].get_ylim() == (0, 132) and axes[1].get_ylim() == (0, 0.55)
    assert all(line.get_marker() != "None" for ax in axes for line in ax.get_lines())
    assert drawn(ROWS, {"mrr": 0.2})[1].get_ylim()[0] > 0.1, "several values"
    axes = drawn([ROWS[0] | {"step": step + 1, "loss": float(step)} for step in range(60)])  # a mean over three
    mean = list(axes[0].get_lines()[1].get_ydata())
    assert mean[:4] == [0, 0.5, 1, 2] and mean[59] == 58


def test_metrics_are_told_apart_without_colours():
    axes = Figure().subplots()
    figure.draw_validation(axes, [ROWS[3] | {f"m{n}": "0.5" for n in range(9)}], {}, [f"m{n}" for n in range(9)])
    assert len({(line.get_color(), line.get_marker()) for line in axes.get_lines()}) == 9


def test_a_row_below_has_memory_the_use_of_the_gpu_and_the_wait_for_data(drawn):
    taken = {"peak_memory_bytes": 2**30, "gpu_memory_bytes": 2**31, "ram_share": 0.5, "data_wait_share": 0.25}
    axes = drawn([row | taken | {"gpu_use": 0.75} for row in ROWS[:3]])
    titles = ["memory, GiB", "RAM in use", "GPU use", "share of the time that waits for data"]
    assert [ax.get_title() for ax in axes[4:]] == titles
    lines = [ax.get_lines() for ax in axes[4:]]
    assert [list(line.get_ydata()) for line in lines[0]] == [[1.0] * 3, [2.0] * 3]
    assert len({line.get_linestyle() for line in lines[0]}) == 2, "told apart without colours"
    assert list(lines[2][0].get_ydata()) == [0.75] * 3
    assert list(lines[3][1].get_ydata()) == [0.2, 0.2], "above it training waits too long"
    assert all(ax.get_xlim() == (-0.02 * 120, 1.02 * 120) and ax.get_ylim()[0] == 0 for ax in axes[4:])


def test_a_stage_has_a_line_with_its_name_where_it_begins(drawn):
    names = {50: "FIRST", 100: "SECOND", 120: "SECOND"}
    axes = drawn([row | {"stage": names[row["step"]]} for row in ROWS])
    for ax in axes[:2]:
        assert [(text.get_text(), text.xy[0]) for text in ax.texts] == [("FIRST", 0), ("SECOND", 50)]
        assert [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"] == [0, 50]
    assert not drawn(ROWS)[0].texts and not axes[2].texts


@pytest.mark.parametrize(("classes", "name"), [(7, "Ruling by Present Court"), (13, "STATUTE")])
def test_a_confusion_matrix_has_shares_of_true_classes_and_many_names_do_not_cover_each_other(
    figures, tmp_path, classes, name
):
    figure.confusion(np.array([[3, 1], [0, 0]]), ("land", "ice"), tmp_path / "a.png", unit="pixels")
    ((ax,),) = [drawing.axes for drawing in figures]
    assert [text.get_text() for text in ax.texts] == ["75.0%", "25.0%"], "none for what never came"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["land\n4", "ice\n0"]
    assert ax.get_ylabel() == "true (pixels)"
    figure.confusion(np.diag([99] * classes) + 1, [f"{name} {n}" for n in range(classes)], tmp_path / "a.png")
    figures[1].draw_without_rendering()
    cells = [text.get_window_extent() for text in figures[1].axes[0].texts[:classes]]
    assert all(left.x1 < right.x0 for left, right in pairwise(cells))
    ticks = figures[1].axes[0].get_xticklabels()
    between = ticks[1].get_window_extent().x1 - ticks[0].get_window_extent().x1
    assert between > 1.2 * ticks[0].get_fontsize(), "lines of text that lean stand further apart than they are high"
