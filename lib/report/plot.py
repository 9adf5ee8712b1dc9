"""Draws metrics.csv."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.report.figure import save
from lib.report.metrics import read, series


def draw_metrics(csv_path: Path, out: Path, title: str, baseline: Mapping[str, float], shown: Sequence[str]) -> Path:
    """Draws losses, the validation metrics in `shown` beside their baselines, and learning rate and speed.

    Writes a PNG to `out`, whose folder it makes, and returns `out`.
    """
    from matplotlib.figure import Figure  # half a second that only a drawing needs

    rows = read(csv_path)
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    figure.suptitle(title)
    losses, metrics, speed = figure.subplots(1, 3)
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
    metrics.set_title("validation (dashed: trivial baseline)")
    if shown:
        metrics.legend(fontsize="small")
    speed.plot(*series(rows, "train", "samples_per_second"), color="C2")
    speed.set_title("speed and learning rate")
    speed.set_ylabel("samples per second", color="C2")
    speed.set_ylim(bottom=0)
    rate = speed.twinx()
    rate.plot(*series(rows, "train", "lr"), color="C3")
    rate.set_ylabel("learning rate", color="C3")
    rate.set_ylim(bottom=0)
    for axes in (losses, metrics, speed):
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
    return save(figure, out)


def _running_mean(values: Sequence[float]) -> list[float]:
    """Returns the trailing mean over a twentieth of the points, one value for each."""
    window = max(1, round(len(values) * 0.05))
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]
