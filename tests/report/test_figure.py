"""Figures have the shares of a confusion matrix in them and are written whole."""

from itertools import pairwise

import numpy as np
import pytest

from lib.report import figure


def test_the_confusion_matrix_shows_shares_of_each_true_class(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figure, "save", lambda made, path: drawn.append(made) or path)
    figure.confusion(np.array([[3, 1], [0, 0]]), ("land", "ice"), tmp_path / "a.png", unit="pixels")
    ax = drawn[0].axes[0]
    assert [text.get_text() for text in ax.texts] == ["75.0%", "25.0%", "0.0%", "0.0%"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["land\n4", "ice\n0"]
    assert ax.get_ylabel() == "true (pixels)"


@pytest.mark.parametrize(("classes", "name"), [(7, "Ruling by Present Court"), (13, "STATUTE")])
def test_names_and_numbers_of_many_classes_do_not_cover_each_other(tmp_path, monkeypatch, classes, name):
    drawn = []
    monkeypatch.setattr(figure, "save", lambda made, path: drawn.append(made) or path)
    names = [f"{name} {number}" for number in range(classes)]
    figure.confusion(np.eye(classes, dtype=int), names, tmp_path / "a.png")
    drawn[0].draw_without_rendering()
    ax = drawn[0].axes[0]
    cells = [text.get_window_extent() for text in ax.texts[:classes]]
    assert all(one.x1 < other.x0 for one, other in pairwise(cells))
    ticks = ax.get_xticklabels()
    assert all(tick.get_rotation() == 40 and tick.get_ha() == "right" for tick in ticks)
    between = ticks[1].get_window_extent().x1 - ticks[0].get_window_extent().x1
    assert between > 1.2 * ticks[0].get_fontsize(), "lines of text that lean stand further apart than they are high"


def test_a_figure_is_written_whole_or_not_at_all(tmp_path):
    made, axes = figure.grid(2, 3, 1.0)
    assert axes.shape == (2, 3)
    path = figure.save(made, tmp_path / "plots" / "a.png")
    before = path.read_bytes()
    assert before.startswith(b"\x89PNG")

    def fail(file, **options):
        file.write_bytes(b"half")
        raise OSError("no room")

    made.savefig = fail
    with pytest.raises(OSError, match="no room"):
        figure.save(made, path)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["a.png"]
