"""The picture of metrics.csv, and other figures."""

import numpy as np

from lib.report.metrics import MetricsLog
from trainbook.outputs import figure


def test_the_plot_is_a_picture_even_when_little_was_logged(tmp_path):
    with MetricsLog(tmp_path / "metrics.csv", 0) as log:
        log.append(
            {
                "step": 50,
                "split": "train",
                "epoch": 1.0,
                "loss": 1.0,
                "lr": 0.1,
                "samples_per_second": 3.0,
            }
        )
    out = tmp_path / "plots" / "metrics.png"
    assert figure.draw_metrics(tmp_path / "metrics.csv", out, "toy", {"mrr": 0.2}, ["mrr"]) == out
    assert out.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in out.parent.iterdir()] == ["metrics.png"]


def test_a_confusion_matrix_has_shares_of_true_classes(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figure, "save", lambda drawing, path: drawn.append(drawing) or path)
    figure.confusion(np.array([[3, 1], [0, 0]]), ("land", "ice"), tmp_path / "a.png", unit="pixels")
    ((ax,),) = [drawing.axes for drawing in drawn]
    assert [text.get_text() for text in ax.texts] == ["75.0%", "25.0%"], "none for what never came"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["land\n4", "ice\n0"]
