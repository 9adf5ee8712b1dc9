"""What a notebook shows of images, before the training and after the test, and the submission at its end."""

import contextlib
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput, printable
from lib.launch import ensemble
from lib.launch.run import Run
from lib.machine import inputs, platform
from lib.report import figure
from lib.report.result import write_table
from lib.task import Batch, Task
from lib.task.batches import in_batches
from lib.task.place import naming
from lib.text import aligned

_AT_ONCE = 32  # samples of a test, where no micro-batch is set
_COLUMNS = 8  # of pictures
_ROWS = 5  # of predictions that are printed


def batch(run: Run, number: int = 16) -> io.BytesIO | None:
    """Draws images of the training as its batches have them, with their classes; None without images of classes."""
    task: Any = run.task
    part = task.datasets()["train"]
    with naming(f"{type(task).__name__}.collate()"):
        some = [part[int(index)] for index in np.linspace(0, len(part) - 1, min(number, len(part)))]
        data = task.collate(some, torch.Generator())
    if (images := _images(run, data)) is None:
        return None
    counts = task.class_counts("train").tolist()
    print("Training images:", ", ".join(f"{task.named(label)} ({count:,})" for label, count in enumerate(counts)))
    return _drawn(images, [task.named(label) for label in data["labels"].tolist()])


@torch.inference_mode()
def worst(run: Run, number: int = 12) -> io.BytesIO | None:
    """Draws the test images whose class is the least probable by the best weights; None without images of classes."""
    task: Any = run.task
    part = task.datasets()["test"]
    if _images(run, task.collate([part[0]], torch.Generator())) is None:
        return None
    _, (model,) = _best(run)

    def title(label: int, shares: Sequence[float]) -> str:
        guess = int(np.argmax(shares))
        return f"true {task.named(label)}\npredicted {task.named(guess)}: {shares[guess]:.0%}"

    def judged(indices: Sequence[int]) -> list[tuple[float, int, str]]:
        data = task.collate([part[index] for index in indices], torch.Generator())
        data = {name: value.to(next(model.parameters()).device) for name, value in data.items()}
        shares = task.outputs(model, data).float().softmax(-1)
        rows = zip(indices, data["labels"].tolist(), shares.tolist(), task.known(data["labels"]), strict=True)
        return [(row[label], index, title(label, row)) for index, label, row, is_known in rows if is_known]

    batches: Any = in_batches(judged, range(len(part)), run.config.training.micro_batch or _AT_ONCE)
    rows = sorted(judgment for judgments in batches for judgment in judgments)[:number]
    images = _images(run, task.collate([part[index] for _, index, _ in rows], torch.Generator()))
    return None if images is None else _drawn(images, [title for *_, title in rows])


def _images(run: Run, data: Batch) -> Tensor | None:
    """Returns the first tensor (samples, 1 or 3, height, width) of a batch whose samples have a class each."""
    fitting = (value for value in data.values() if value.dim() == 4 and value.shape[1] in (1, 3))
    return next(fitting, None) if getattr(run.task, "kind", "") == "classes" else None


def _drawn(images: Tensor, titles: Sequence[str]) -> io.BytesIO:
    """Draws (samples, 1 or 3, height, width) images, each from its lowest to its highest value, as a PNG."""
    columns = min(_COLUMNS, -(-len(titles) // 2))
    drawn, axes = figure.grid(-(-len(titles) // columns), columns, 1.4)
    for ax, image, title in zip(axes.flat, images.float(), titles, strict=False):
        low, high = image.amin(), image.amax()
        shown = ((image - low) / (high - low).clamp_min(1e-9)).permute(1, 2, 0)
        ax.imshow(shown.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_title(printable(title, lines=True, most=40), fontsize="small")
    picture = io.BytesIO()
    drawn.savefig(picture, format="png", dpi=110)
    return picture


def _best(run: Run) -> tuple[Task, list[nn.Module]]:
    with contextlib.redirect_stdout(io.StringIO()):  # it names the run, which is the notebook's
        return ensemble.load(run.folder, run.config.task)


def predict(run: Run, source: str, sample: str = "", tta: bool = False) -> str:
    """Predicts a folder by the best weights; returns what was written, with a submission in the form of `sample`."""
    here = platform.detect()
    task, models = _best(run)
    task.tta = tta  # type: ignore[attr-defined]
    answers = task.predict(models, inputs.find_input(source, here), run.output_dir)
    first = [(name, *map(str, row.values())) for name, row in [*answers.items()][:_ROWS]]
    lines = [aligned([("file", *next(iter(answers.values()))), *first], left={0})]
    lines += [f"{len(answers):,} predictions: {run.output_dir / 'predictions.csv'}"]
    if sample:
        path = submission(answers, inputs.find_input(sample, here), run.output_dir / "submission.csv")
        lines += [f"The submission: {path}"]
    return "\n".join(lines)


def submission(answers: Mapping[str, Mapping[str, Any]], sample: Path, out: Path) -> Path:
    """Writes the `prediction` of each id, a file's path or name, of a sample submission; returns `out`."""
    with sample.open(encoding="utf-8-sig", newline="") as file:
        head, *rows = [row for row in csv.reader(file) if row] or [[]]
    if len(head) != 2:
        what = f"{printable(sample)} has the columns {printable(', '.join(head), most=200)}"
        raise BadInput(f"{what}. A submission is written of two: an id and the answer. Make yours of predictions.csv.")
    by_id: dict[str, Any] = {}
    for name, row in answers.items():
        path = PurePosixPath(name)
        for key in {name, str(path.with_suffix("")), path.name, path.stem}:
            by_id[key] = None if key in by_id else row["prediction"]  # None: two files of one name
    if missing := [row[0] for row in rows if by_id.get(row[0]) is None]:
        which = f"{len(missing):,} of {len(rows):,} ids in {printable(sample)}"
        one, other = (printable(name, most=60) for name in (missing[0], next(iter(answers))))
        what = f"{which}, such as {one}, are the name of no predicted file, or of two. A file is {other}"
        raise BadInput(f"{what}. Give the folder with the files that the ids name.")
    return write_table(out, [head, *([row[0], by_id[row[0]]] for row in rows)])
