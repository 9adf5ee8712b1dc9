"""The picture of metrics.csv."""

import pytest
from matplotlib.figure import Figure

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


def test_every_panel_shows_all_steps_also_below_a_single_point(drawn):
    axes = drawn(ROWS)
    assert axes[1].get_title() == "validation" and "dashed: trivial" in drawn(ROWS, {"mrr": 0.2})[1].get_title()
    assert len(axes) == 4 and all(ax.get_xlim() == (-0.02 * 120, 1.02 * 120) for ax in axes)
    assert [ax.get_title() for ax in axes[2:]] == ["samples per second", "learning rate"]


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
    assert list(axes[6].get_lines()[0].get_ydata()) == [0.75] * 3
    assert list(axes[7].get_lines()[1].get_ydata()) == [0.2, 0.2], "above it training waits too long"
    assert all(ax.get_xlim() == (-0.02 * 120, 1.02 * 120) and ax.get_ylim()[0] == 0 for ax in axes[4:])
    without_a_gpu = drawn([row | {"peak_memory_bytes": 2**30, "ram_share": 0.5} for row in ROWS[:3]])
    assert [ax.get_title() for ax in without_a_gpu[4:]] == titles[:2]


def test_lines_are_told_apart_without_colours(drawn):
    axes = drawn([row | {"peak_memory_bytes": 2**30, "gpu_memory_bytes": 2**31} for row in ROWS])
    assert len({line.get_linestyle() for line in axes[4].get_lines()}) == 2
    many = Figure().subplots()
    plot.draw_validation(many, [ROWS[3] | {f"m{n}": "0.5" for n in range(9)}], {}, [f"m{n}" for n in range(9)])
    assert len({(line.get_color(), line.get_marker()) for line in many.get_lines()}) == 9
    assert len(set(plot._DASHED)) == 4, "and so are baselines"


def test_epochs_stand_above_where_there_are_several(drawn):
    def above(axes):
        return [inner.get_xlabel() for inner in axes.child_axes]

    assert above(drawn(ROWS)[0]) == ["epoch"]
    assert above(drawn([row | {"epoch": row["step"] / 500} for row in ROWS])[0]) == []


def test_a_stage_has_a_line_with_its_name_where_it_begins(drawn):
    names = {50: "FIRST", 100: "SECOND", 120: "SECOND"}
    axes = drawn([row | {"stage": names[row["step"]]} for row in ROWS])
    for ax in axes[:2]:
        assert [(text.get_text(), text.xy[0]) for text in ax.texts] == [("FIRST", 0), ("SECOND", 50)]
        assert [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"] == [0, 50]
    assert not drawn(ROWS)[0].texts and not axes[2].texts


def test_the_running_mean_trails_over_a_twentieth_of_the_points():
    values = [float(n) for n in range(60)]  # so over three
    assert plot._running_mean(values)[:4] == [0, 0.5, 1, 2] and plot._running_mean(values)[59] == 58
    assert plot._running_mean([]) == []
