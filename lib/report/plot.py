"""Draws metrics.csv."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.report.chart import COLOURS, MARKS, axis_of_one
from lib.report.figure import save
from lib.report.metrics import Row, read, series
from lib.report.sampler import WAIT_LIMIT

_GIB = 2**30
_WIDTH, _IN_A_ROW = 10.0, 3  # inches, which on paper or a narrow screen are six: letters of 6 points
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^"}
_DASHES = ("-", "--", ":", "-.")  # which tell lines apart in print
_DASHED = ("--", ":", "-.", (0, (8, 2, 1, 2, 1, 2)))  # the baselines'
_MEMORY = {  # of metrics.csv
    "peak_memory_bytes": "peak of a step",
    "gpu_allocated_bytes": "allocated",
    "gpu_reserved_bytes": "reserved by the allocator",
    "gpu_memory_bytes": "taken on the GPU by all",
}


def draw_metrics(csv_path: Path, out: Path, title: str, baseline: Mapping[str, float], shown: Sequence[str]) -> Path:
    """Draws losses, the validation metrics in `shown` beside the baselines that are known, speed and learning rate.

    Below them stand memory, GPU use and the wait for data, where the table has any of them. Writes a PNG to `out`,
    whose folder it makes, and returns `out`.
    """
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    rows = read(csv_path)
    machine = _machine(rows)
    height = -(-(2 + len(machine)) // _IN_A_ROW)  # rows of small panels: speed, learning rate, and the machine's
    figure = Figure(figsize=(_WIDTH, 3.6 + 2.3 * height), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(2, 1, height_ratios=(3.6, 2.3 * height))
    losses, metrics = grid[0].subgridspec(1, 2).subplots()
    small = grid[1].subgridspec(height, _IN_A_ROW)
    speed, rate, *below = (figure.add_subplot(small[divmod(n, _IN_A_ROW)]) for n in range(2 + len(machine)))
    _draw_losses(losses, rows)
    _draw_validation(metrics, rows, baseline, shown)
    speed.plot(*series(rows, "train", "samples_per_second"), color=COLOURS[2])
    speed.set_title("samples per second")
    rate.plot(*series(rows, "train", "lr"), color=COLOURS[3])
    rate.set_title("learning rate")
    for axes, draw in zip(below, machine, strict=True):
        draw(axes)
    for axes in (speed, rate, *below):
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    for axes in (losses, metrics, speed, rate, *below):
        axes.grid(alpha=0.25)
        _set_steps(axes, rows)
        _mark_single_points(axes)
    for axes in (losses, metrics):
        _set_single_value(axes)
        _mark_stages(axes, rows)
    return save(figure, out)


def _mark_stages(axes: Any, rows: Sequence[Row]) -> None:
    """Draws a line at the last row before a stage of the run, with its name, if the run has stages."""
    former, step = "", 0
    for row in rows:
        if row["split"] == "train" and (name := row.get("stage", "")) != former:
            former = name
            axes.axvline(step, color="grey", linestyle=":", linewidth=1)
            axes.annotate(
                name, (step, 0.02), xycoords=("data", "axes fraction"), rotation=90, fontsize="x-small", color="grey",
                va="bottom",
            )  # fmt: skip
        step = int(row["step"])


def _draw_losses(axes: Any, rows: Sequence[Row]) -> None:
    steps, values = series(rows, "train", "loss")
    axes.plot(steps, values, color="0.6", linewidth=1, label="train, as logged")
    axes.plot(steps, _running_mean(values), color=COLOURS[0], linewidth=2, label="train, running mean")
    steps, values = series(rows, "validation", "loss")
    if steps:
        axes.plot(steps, values, "o-", color=COLOURS[1], label="validation")
    axes.set_title("loss")
    axes.legend()


def _draw_validation(axes: Any, rows: Sequence[Row], baseline: Mapping[str, float], shown: Sequence[str]) -> None:
    for number, name in enumerate(shown):
        colour = COLOURS[number % len(COLOURS)]
        marker = _MARKERS[MARKS[(number + number // len(COLOURS)) % len(MARKS)]]
        axes.plot(*series(rows, "validation", name), marker=marker, color=colour, label=name)
        if name in baseline:
            dashes = _DASHED[number % len(_DASHED)]
            axes.axhline(baseline[name], color=colour, linestyle=dashes, alpha=0.7, label=f"{name}, trivial (test)")
    dashed = any(name in baseline for name in shown)
    axes.set_title("validation (dashed: trivial baseline)" if dashed else "validation")
    if shown:
        axes.legend(fontsize="small")


def _machine(rows: Sequence[Row]) -> list[Callable[[Any], None]]:
    """Returns what draws each panel on the machine, as far as the table has values for it."""

    def share(column: str, title: str, colour: str, limit: float = 0.0) -> Callable[[Any], None]:
        def draw(axes: Any) -> None:
            axes.plot(*series(rows, "train", column), color=colour)
            if limit:
                axes.axhline(limit, color="0.4", linestyle="--", label=f"{limit:.0%}: too long")
                axes.legend(fontsize="small")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            axes.set_title(title)

        return draw

    def memory(axes: Any) -> None:
        known = [(column, name) for column, name in _MEMORY.items() if series(rows, "train", column)[0]]
        for number, (column, name) in enumerate(known):
            steps, sizes = series(rows, "train", column)
            colour, dashes = COLOURS[number % len(COLOURS)], _DASHES[number % len(_DASHES)]
            axes.plot(steps, [size / _GIB for size in sizes], dashes, color=colour, label=name)
        axes.legend(fontsize="small")
        axes.set_title("memory, GiB")

    shares = {
        "ram_share": share("ram_share", "RAM in use", COLOURS[0]),
        "gpu_use": share("gpu_use", "GPU use", COLOURS[2]),
        "data_wait_share": share("data_wait_share", "share of the time that waits for data", COLOURS[1], WAIT_LIMIT),
    }
    drawn = [draw for column, draw in shares.items() if series(rows, "train", column)[0]]
    return [*([memory] if series(rows, "train", "peak_memory_bytes")[0] else []), *drawn]


def _set_steps(axes: Any, rows: Sequence[Row]) -> None:
    """Gives the axis of steps the whole run, also below a single point, and one of epochs where there are several."""
    axes.set_xlabel("step")
    last = max((int(row["step"]) for row in rows), default=0)
    if not last:
        return
    axes.set_xlim(-0.02 * last, 1.02 * last)
    steps, epochs = series(rows, "train", "epoch")
    if steps and epochs[-1] > 1:
        each = steps[-1] / epochs[-1]
        top = axes.secondary_xaxis("top", functions=(lambda step: step / each, lambda epoch: epoch * each))
        top.set_xlabel("epoch")


def _mark_single_points(axes: Any) -> None:
    """Gives a line of one point a marker, without which it is not seen."""
    for line in axes.get_lines():
        if len(line.get_xdata()) == 1 and line.get_marker() == "None":
            line.set_marker("o")


def _set_single_value(axes: Any) -> None:
    """Lets the axis of a single value begin at 0: a narrow range around it would look like a measurement."""
    values = {float(value) for line in axes.get_lines() for value in line.get_ydata() if math.isfinite(value)}
    if len(values) == 1 and any(values):
        axes.set_ylim(*axis_of_one(values.pop()))


def _running_mean(values: Sequence[float]) -> list[float]:
    """Returns the trailing mean over a twentieth of the points, one value for each."""
    window = max(1, round(len(values) * 0.05))
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]
