"""Draws metrics.csv."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.report.figure import save
from lib.report.metrics import Row, read, series


def draw_metrics(csv_path: Path, out: Path, title: str, baseline: Mapping[str, float], shown: Sequence[str]) -> Path:
    """Draws losses, the validation metrics in `shown` beside the baselines that are known, speed and learning rate.

    Writes a PNG to `out`, whose folder it makes, and returns `out`.
    """
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    rows = read(csv_path)
    figure = Figure(figsize=(18, 4.2), layout="constrained")
    figure.suptitle(title)
    losses, metrics, speed, rate = figure.subplots(1, 4, width_ratios=(3, 3, 2, 2))
    steps, values = series(rows, "train", "loss")
    losses.plot(steps, values, alpha=0.3, color="C0", label="train, as logged")
    losses.plot(steps, _running_mean(values), color="C0", label="train, running mean")
    steps, values = series(rows, "validation", "loss")
    if steps:
        losses.plot(steps, values, "o-", color="C1", label="validation")
    losses.set_title("loss")
    losses.legend()
    for number, name in enumerate(shown):
        colour = f"C{number}"
        metrics.plot(*series(rows, "validation", name), "o-", color=colour, label=name)
        if name in baseline:
            metrics.axhline(baseline[name], color=colour, linestyle="--", alpha=0.7, label=f"{name}, trivial (test)")
    dashed = any(name in baseline for name in shown)
    metrics.set_title("validation (dashed: trivial baseline)" if dashed else "validation")
    if shown:
        metrics.legend(fontsize="small")
    speed.plot(*series(rows, "train", "samples_per_second"), color="C2")
    speed.set_title("samples per second")
    rate.plot(*series(rows, "train", "lr"), color="C3")
    rate.set_title("learning rate")
    for axes in (speed, rate):
        axes.set_ylim(bottom=0)
    for axes in (losses, metrics, speed, rate):
        axes.grid(alpha=0.25)
        _set_steps(axes, rows)
    for axes in (losses, metrics):
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


def _running_mean(values: Sequence[float]) -> list[float]:
    """Returns the trailing mean over a twentieth of the points, one value for each."""
    window = max(1, round(len(values) * 0.05))
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]
