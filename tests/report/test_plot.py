"""The picture of metrics.csv."""

from lib.report import plot
from lib.report.metrics import MetricsLog
from lib.report.plot import draw_metrics


def test_the_plot_is_a_picture_even_when_little_was_logged(tmp_path):
    path = tmp_path / "metrics.csv"
    with MetricsLog(path, 0) as log:
        log.append({"step": 1, "split": "train", "loss": 1.0, "lr": 0.1, "samples_per_second": 3.0})
    out = draw_metrics(path, tmp_path / "plots" / "metrics.png", "toy", {"mrr": 0.2}, ["mrr"])
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 10_000
    assert [p.name for p in out.parent.iterdir()] == ["metrics.png"]


def test_the_running_mean_trails_over_a_twentieth_of_the_points():
    values = [float(n) for n in range(60)]  # so over three
    assert plot._running_mean(values)[:4] == [0, 0.5, 1, 2] and plot._running_mean(values)[59] == 58
    assert plot._running_mean([]) == []
