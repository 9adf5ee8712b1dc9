"""New data, read without targets, and what models answer, as predictions.csv. Each `task` is a `Supervised`."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.config.files import absolute
from lib.errors import BadInput, printable
from lib.report.progress import choose_progress, time_left
from lib.report.result import write_image, write_table
from lib.supervised import simple, text
from lib.supervised.evaluation import classes_last
from lib.supervised.samples import IGNORED, in_order, path_of, reading, target_of, with_target
from lib.task.batches import in_batches
from lib.task.place import naming

FILE = "predictions.csv"
_AT_ONCE = 32  # samples, where no micro-batch is set: training, which fits, takes more memory


def read(task: Any, source: Path) -> list[Any]:
    """Returns samples to predict; of their targets, which nobody knows, none counts, and they may be None.

    By default every file with a suffix of the training's, where a sample is a file and its target, in the folder of the
    training's where targets are files too; else what `read` finds, in one list. Raises BadInput.
    """
    suffixes, name = set(task.learned().get("suffixes", [])), type(task).__name__
    advice = f"Give data laid out as the training data, targets aside, or write read_new(source) in {name}."
    if suffixes:
        folder = source / task.learned().get("folder", "")  # beside that of masks, say
        is_below = folder.is_dir() and folder.resolve().is_relative_to(source.resolve())  # an archive is untrusted
        paths = [source] if source.is_file() else (folder if is_below else source).rglob("*")
        samples = [(path, None) for path in paths if path.suffix in suffixes and path.is_file()]
    else:
        with naming(f"{name}.read", advice), reading(source, is_new=True):
            parts = task.read(source)
            lists = [list(rows) for rows in (parts.values() if isinstance(parts, Mapping) else [parts]) if rows]
        samples = [sample for rows in lists for sample in rows]
        names = {path_of(sample) for sample in samples} - {None}
        if len(lists) > 1 and len(names) < len(samples):
            what = f"{name}.read returns the new data in {len(lists)} parts, whose rows no number in {FILE} would name"
            raise BadInput(f"{what}. Write read_new(source) in {name}, which returns one list, or deal by split().")
    if not samples:
        what = f"file ending in {', '.join(sorted(suffixes))}" if suffixes else f"sample that {name}.read finds"
        raise BadInput(f"There is no {what} in {printable(source)}. {advice}")
    return in_order(samples, source)


def predict(task: Any, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
    """Returns a row for each new sample by its file, or its number; writes predictions.csv into `out`."""
    if not isinstance(source, Path) or not source.exists():
        raise BadInput(f"There is no {printable(source)}. Give one folder or file with new data.")

    def answered(some: Sequence[Any]) -> list[Mapping[str, Any]]:
        with torch.inference_mode():
            answers = task.answers(models, [_completed(task, sample) for sample in some])
        if len(answers) != len(some):
            raise BadInput(f"{type(task).__name__}.answers returned {len(answers)} rows for {len(some)} samples.")
        return [row if isinstance(row, Mapping) else {"prediction": row} for row in answers]

    samples, progress, line = list(task.read_new(source)), choose_progress(), time_left("samples predicted")
    rows: list[Mapping[str, Any]] = []
    for more in in_batches(answered, samples, task.config.training.micro_batch or _AT_ONCE):
        rows += more
        progress.update(len(rows), len(samples), partial(line, len(rows), len(samples)))
    progress.close()
    answers = dict(zip(_names(samples, source), rows, strict=True))
    if out is not None:
        _write(answers, out)
    return answers


def _completed(task: Any, sample: Any) -> Any:
    """Gives a new sample the example's target; tokens keep theirs, whose length counts. Raises BadInput."""
    example, is_row = task.example(), isinstance(sample, tuple | list)
    if isinstance(sample, Mapping) and isinstance(example, Mapping) and sample.keys() >= {*[*example][:-1]}:
        last = [*example][-1]
        sample = {**{key: value for key, value in sample.items() if key != last}, last: sample.get(last)}
    elif is_row and len(sample) == len(example) - 1:
        sample = [*sample, None] if isinstance(sample, list) else (*sample, None)
    elif not is_row or len(sample) != len(example):
        new, whole = (printable(repr(value), most=100) for value in (sample, example))
        what = f"A new sample is {new}, and {type(task).__name__}.example() is {whole}, its target last"
        raise BadInput(f"{what}. Let read, or read_new, return all of that; the target may be None or left out.")
    value = target_of(sample)
    is_there = value is not None and not (isinstance(value, Path) and not value.exists())
    if is_there and task.kind in ("tokens", "next_tokens"):
        return sample
    return with_target(sample, target_of(task.numbered(example)))


def answers(task: Any, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
    """Returns a row for each sample by the mean of the models; of pixels an array of classes, written as a PNG."""
    if task.kind == "text":
        best = [max(row.items(), key=lambda pair: pair[1]) for row in text.together(task, models, samples)]
        return [{"prediction": written, "probability": round(share, 6)} for written, share in best]
    if task.kind == "next_tokens":
        raise BadInput(f"Write answers(models, samples) in {type(task).__name__}: how a text goes on is generated.")
    name, device = task.named, next(models[0].parameters()).device
    batch = {key: value.to(device) for key, value in simple.batch(task, task.labelled(samples)).items()}
    batches, outputs = [batch], []
    if task.tta and task.kind in ("classes", "labels", "numbers"):
        batches.append({key: value.flip(-1) if value.dim() == 4 else value for key, value in batch.items()})
    for model, each in itertools.product(models, batches):
        answer = task.passed(model, each).float()
        answer = simple.gated(model, answer, batch[simple.KEY]) if task.starts else answer
        outputs.append(classes_last(task.kind, answer, batch["labels"]))
    if task.kind == "numbers":
        mean = torch.stack(outputs).mean(0).reshape(len(samples), -1)
        keys = ["prediction"] if mean.shape[1] == 1 else [f"prediction_{k + 1}" for k in range(mean.shape[1])]
        return [dict(zip(keys, row, strict=True)) for row in mean.tolist()]
    if task.kind == "labels":
        rows = torch.stack([each.sigmoid() for each in outputs]).mean(0).tolist()
        likely = [[(name(k), f"{share:.6f}") for k, share in enumerate(row) if share > 0.5] for row in rows]
        return [{"prediction": "; ".join(n for n, _ in r), "probability": "; ".join(p for _, p in r)} for r in likely]
    shares, classes = torch.stack([each.softmax(-1) for each in outputs]).mean(0).max(-1)
    if classes.dim() > 2:
        kind = np.uint8 if outputs[0].shape[-1] <= 256 else np.uint16
        return [{"prediction": image.cpu().numpy().astype(kind)} for image in classes]
    if classes.dim() > 1:
        known = zip(classes, batch["labels"] != IGNORED, strict=True)
        return [{"prediction": " ".join(map(name, row[is_known].tolist()))} for row, is_known in known]
    pairs = zip(classes.tolist(), shares.tolist(), strict=True)
    return [{"prediction": name(k), "probability": round(share, 6)} for k, share in pairs]


def _names(samples: list[Any], source: Path) -> list[str]:
    """Returns the file of each sample below `source`, or its number: all are numbers where two have the same name."""
    base = absolute(source if source.is_dir() else source.parent)
    paths = [absolute(path) for sample in samples if (path := path_of(sample))]
    names = [p.relative_to(base).as_posix() if p.is_relative_to(base) else str(n) for n, p in enumerate(paths)]
    return names if len(set(names)) == len(samples) else [str(number) for number in range(len(samples))]


def _write(answers: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Writes a table; an image of labels (height, width) becomes a PNG, and its path is the cell."""

    def cell(value: Any, name: str) -> Any:
        if not isinstance(value, np.ndarray) or value.ndim != 2:
            return value
        path = (out / name).with_suffix(".png") if Path(name).suffix else out / f"{name}.png"
        return write_image(path, value).relative_to(out).as_posix()

    columns = dict.fromkeys(column for row in answers.values() for column in row)
    rows = ([name, *(cell(row.get(c, ""), f"{c}s/{name}") for c in columns)] for name, row in answers.items())
    write_table(out / FILE, [["sample", *columns], *rows])
