"""The picture of metrics.csv, and other figures."""

from itertools import pairwise

import numpy as np
import pytest

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


def test_a_confusion_matrix_has_shares_of_true_classes_and_many_names_do_not_cover_each_other(figures, tmp_path):
    figure.confusion(np.array([[3, 1], [0, 0]]), ("land", "ice"), tmp_path / "a.png", unit="pixels")
    ((ax,),) = [drawing.axes for drawing in figures]
    assert [text.get_text() for text in ax.texts] == ["75.0%", "25.0%"], "none for what never came"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["land\n4", "ice\n0"]
    assert ax.get_ylabel() == "true (pixels)"
    figure.confusion(np.diag([99] * 13) + 1, [f"STATUTE {n}" for n in range(13)], tmp_path / "a.png")
    figures[1].draw_without_rendering()
    cells = [text.get_window_extent() for text in figures[1].axes[0].texts[:13]]
    assert all(left.x1 < right.x0 for left, right in pairwise(cells))
