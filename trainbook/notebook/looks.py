"""What a notebook shows of images, before the training and after the test, and the submission at its end."""

import contextlib
import csv
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib.errors import BadInput, printable
from lib.machine import inputs, platform
from lib.prepared import Run
from lib.task import Batch, Task
from lib.task.place import naming
from lib.text import aligned
from trainbook.launch import EXPORT, ensemble
from trainbook.launch.queue import Entry
from trainbook.outputs import figure
from trainbook.supervised import expected, kinds, prediction, submission
from trainbook.supervised.batches import in_batches
from trainbook.supervised.targets import class_counts

_AT_ONCE = 32  # samples of a test, if no micro-batch is set
_COLUMNS = 8  # of pictures, and of answers that are printed
_ROWS = 5  # of predictions that are printed


def batch(run: Run, number: int = 16) -> io.BytesIO | None:
    """Draws images of the training as its batches have them, with their classes; None without images of classes."""
    task: Any = run.task
    part = task.datasets()["train"]
    places = np.linspace(0, len(part) - 1, min(number, len(part)))
    with naming(f"{type(task).__name__}.collate()"):
        samples = [part[int(place)] for place in places]
        data = task.collate(samples, torch.Generator())
    images = _images(run, data)
    if images is None:
        return None
    counts = class_counts(task, "train").tolist()
    classes = [f"{prediction.named(task, label)} ({count:,})" for label, count in enumerate(counts)]
    print("Training images:", ", ".join(classes))
    return _drawn(images, [prediction.named(task, label) for label in data["labels"].tolist()])


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
        return f"true {prediction.named(task, label)}\npredicted {prediction.named(task, guess)}: {shares[guess]:.0%}"

    def judged(indices: Sequence[int]) -> list[tuple[float, int, str]]:
        """Returns the probability of the true class, the index and a title of each sample."""
        data = task.collate([part[index] for index in indices], torch.Generator())
        device = next(model.parameters()).device
        data = {name: value.to(device) for name, value in data.items()}
        labels = data["labels"].tolist()
        shares = prediction.of_batch(task, model, data).tolist()
        judgments = []
        for place, is_known in enumerate(task._kind.known(data["labels"])):
            if is_known:
                label = labels[place]
                row = shares[place]
                judgments.append((row[label], indices[place], title(label, row)))
        return judgments

    size = run.config.training.micro_batch or _AT_ONCE
    batches: Any = in_batches(judged, range(len(part)), size)
    rows = sorted(itertools.chain.from_iterable(batches))[:number]
    samples = [part[index] for _, index, _ in rows]
    images = _images(run, task.collate(samples, torch.Generator()))
    if images is None:
        return None
    return _drawn(images, [title for *_, title in rows])


def _images(run: Run, data: Batch) -> Tensor | None:
    """Returns the images, (samples, 1 or 3, height, width), of a batch with a class for each sample."""
    if kinds.name_of(run.task) != "classes":
        return None
    for value in data.values():
        if value.dim() == 4 and value.shape[1] in (1, 3):
            return value
    return None


def _drawn(images: Tensor, titles: Sequence[str]) -> io.BytesIO:
    """Draws (samples, 1 or 3, height, width) images, each from its lowest to its highest value, as a PNG."""
    columns = min(_COLUMNS, -(-len(titles) // 2))
    drawn, axes = figure.grid(-(-len(titles) // columns), columns, 1.4)
    for ax, image, title in zip(axes.flat, images.float(), titles, strict=False):
        low = image.amin()
        high = image.amax()
        shown = ((image - low) / (high - low).clamp_min(1e-9)).permute(1, 2, 0)
        ax.imshow(shown.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1)
        ax.set_title(printable(title, lines=True, most=40), fontsize="small")
    picture = io.BytesIO()
    drawn.savefig(picture, format="png", dpi=110)
    return picture


def _best(run: Run) -> tuple[Task, list[nn.Module]]:
    with contextlib.redirect_stdout(io.StringIO()):  # it names the run, which is the notebook's
        return ensemble.load(run.folder, run.config.task)


def handed_in(run: Run) -> str:
    """Returns the first rows of the submission that a competition's run wrote, and what to expect of it."""
    export = run.folder / EXPORT
    hoped = expected.read(export)
    places = [folder / submission.FILE for folder in (run.output_dir, export)]
    place = next(filter(Path.is_file, places), None)
    if hoped is None or place is None:
        return "This run has no submission: its settings name no sample. NEW_DATA is predicted."
    with place.open(encoding="utf-8") as file:
        rows = [*itertools.islice(csv.reader(file), 1 + _ROWS)]
    table = [[printable(cell, most=40) for cell in row[:_COLUMNS]] for row in rows]
    return f"{aligned(table, left={0})}\n{place}\n{hoped}"


def predict(run: Run, source: str, sample: str = "", tta: bool = False, id_column: str = "") -> str:
    """Predicts new data by the best weights; returns a text on the files, with a submission like `sample`.

    What is refused is returned as a sentence: the cells below, which pack the run, are still to come.
    """
    return _predicted(run.output_dir, partial(_best, run), source, sample, tta, id_column)


def predict_together(
    runs: Sequence[Entry], source: str, sample: str = "", tta: bool = False, id_column: str = ""
) -> str:
    """Predicts new data by all folds and seeds of a completed queue together, as `predict` does by one run."""
    folders = [entry.folder for entry in runs if not entry.is_earlier]
    load = partial(ensemble.load_members, folders, runs[-1].config.task, name="")
    return _predicted(folders[0].parent, load, source, sample, tta, id_column)


def _predicted(
    out: Path,
    load: Callable[[], tuple[Any, list[nn.Module]]],
    source: str,
    sample: str,
    tta: bool,
    id_column: str,
) -> str:
    here = platform.detect()
    lines = list[str]()
    try:
        data = inputs.find_input(source, here)
        task, models = load()
        task._tta = tta
        answers = task.predict(models, data, out)
        lines.append(_table(answers))
        lines.append(f"{len(answers):,} predictions: {out / prediction.FILE}")
        if sample:
            path = inputs.find_input(sample, here)
            place = out / submission.FILE
            lines.append(submission.write(task, answers, data, path, place, id_column))
            runs = [out / name for name in task.members]
            if hoped := ensemble.expectation(runs, task.members):
                hoped.write(out)
                lines.append(str(hoped))
    except BadInput as error:
        consequence = "No submission was written." if lines else "Nothing was predicted."
        lines.append(f"{consequence} {error}")
    return "\n".join(lines)


def _table(answers: Mapping[str, Any]) -> str:
    """Returns the first answers as a table; an answer that is not a row is the prediction."""
    rows = {}
    for name in [*answers][:_ROWS]:
        answer = answers[name]
        rows[name] = answer if isinstance(answer, Mapping) else {"prediction": answer}
    columns = [*next(iter(rows.values()))][:_COLUMNS]
    table = [["sample", *map(printable, columns)]]
    for name, row in rows.items():
        cells = [printable(row.get(column, ""), most=40) for column in columns]
        table.append([printable(name), *cells])
    return aligned(table, left={0})
