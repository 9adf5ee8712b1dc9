"""New data, read without targets, and what models answer, as predictions.csv. Each `task` is a `Supervised`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib.config.files import absolute
from lib.errors import BadInput, printable
from lib.report.progress import choose_progress, time_left
from lib.task.place import naming
from trainbook.outputs.result import write_image, write_table
from trainbook.supervised import simple, text
from trainbook.supervised.batches import in_batches
from trainbook.supervised.evaluation import classes_last
from trainbook.supervised.notes import collecting, note
from trainbook.supervised.samples import (
    IGNORED,
    MOST_CLASSES,
    in_order,
    path_of,
    reading,
    target_of,
    with_target,
)

FILE = "predictions.csv"
_AT_ONCE = 32  # samples, where no micro-batch is set: training, which fits, takes more memory
_COLUMNS = (
    "sample",
    "target",
    "prediction",
    "probability",
)  # no class has one of these as its column
_Members = list[tuple[Any, list[nn.Module]]]  # tasks, each with its models


def read(task: Any, source: Path) -> list[Any]:
    """Returns samples to predict; of their targets, which nobody knows, none counts, and they may be None.

    By default every file with a suffix of the training's, where a sample is a file and its target, in the folder of the
    training's where targets are files too; else what `read` finds, in one list. Raises BadInput.
    """
    suffixes = set(task.learned().get("suffixes", []))
    name = type(task).__name__
    advice = f"Give data laid out as the training data, targets aside, or write read_new(source) in {name}."
    if suffixes:
        folder = source / task.learned().get("folder", "")  # beside that of masks, say
        is_below = folder.is_dir() and folder.resolve().is_relative_to(
            source.resolve()
        )  # an archive is untrusted
        paths = [source] if source.is_file() else (folder if is_below else source).rglob("*")
        samples = [(path, None) for path in paths if path.suffix in suffixes and path.is_file()]
    else:
        with naming(f"{name}.read", advice), reading(source, is_new=True):
            parts = task.read(source)
            lists = [
                list(rows)
                for rows in (parts.values() if isinstance(parts, Mapping) else [parts])
                if rows
            ]
        samples = [sample for rows in lists for sample in rows]
        names = {path_of(sample) for sample in samples} - {None}
        if len(lists) > 1 and len(names) < len(samples):
            what = f"{name}.read returns the new data in {len(lists)} parts, whose rows no number in {FILE} would name"
            raise BadInput(
                f"{what}. Write read_new(source) in {name}, which returns one list, or deal by split()."
            )
    if not samples:
        what = (
            f"file ending in {', '.join(sorted(suffixes))}"
            if suffixes
            else f"sample that {name}.read finds"
        )
        raise BadInput(f"There is no {what} in {printable(source)}. {advice}")
    return in_order(samples, source)


def predict(task: Any, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
    """Returns a row for each new sample by its file, or its number; writes predictions.csv into `out`."""
    if not isinstance(source, Path) or not source.exists():
        raise BadInput(f"There is no {printable(source)}. Give one folder or file with new data.")

    members = _members(task, models)
    items = _read_by_all(members, source)
    most = task.config.training.micro_batch or _AT_ONCE
    progress = choose_progress()
    line = time_left("samples predicted")
    rows: list[Mapping[str, Any]] = []
    with collecting() as notes, torch.inference_mode():
        for more in in_batches(partial(_answered, members), items, most):
            rows += more
            progress.update(len(rows), len(items), partial(line, len(rows), len(items)))
        progress.close()
        _note_empty(task, rows)
    for sentence in notes:
        print(sentence)
    names = _names([first for first, *_ in items], source)
    answers = dict(zip(names, rows, strict=True))
    if out is not None:
        _write(answers, out)
    return answers


def _members(task: Any, models: Sequence[nn.Module]) -> _Members:
    """Returns the tasks whose learned values models were trained with, each with its models."""
    members: dict[int, tuple[Any, list[nn.Module]]] = {}
    for model in models:
        owner = task.owners.get(model, task)
        owner.tta = task.tta
        _, own_models = members.setdefault(id(owner), (owner, []))
        own_models.append(model)
    return [*members.values()] or [(task, [])]


def new_samples(task: Any, source: Path) -> list[Any]:
    """Returns what `read_new` of a task reads, all of which `split` takes for a test. Raises BadInput for nothing."""
    with reading(source, is_new=True):
        samples = list(task.read_new(source))
    if not samples:
        what = f"{type(task).__name__}.read_new found no samples in {printable(source)}"
        raise BadInput(f"{what}. Give new data laid out as it reads it.")
    return samples


def _read_by_all(members: _Members, source: Path) -> list[tuple[Any, ...]]:
    """Returns each new sample as each member reads it. Raises BadInput where they read other numbers of samples."""
    samples = [new_samples(task, source) for task, _ in members]
    numbers = sorted({len(rows) for rows in samples})
    if len(numbers) > 1:
        what = f"The members read {' and '.join(map(str, numbers))} samples of {printable(source)}"
        raise BadInput(
            f"{what}. Let read, or read_new, return the same new samples whatever was learned."
        )
    return [*zip(*samples, strict=True)]


def _answered(members: _Members, items: Sequence[Sequence[Any]]) -> list[Mapping[str, Any]]:
    """Returns a row for each item, a sample as each member reads it, by the mean of all models. Raises BadInput."""
    first, models = members[0]
    samples = [
        [_completed(task, item[place]) for item in items] for place, (task, _) in enumerate(members)
    ]
    if len(members) == 1:
        return _own_rows(first, models, samples[0])
    if type(first).answers is answers and first.kind not in ("text", "next_tokens"):
        return _mean_rows(members, samples)
    rows = [
        _own_rows(task, models, some) for (task, models), some in zip(members, samples, strict=True)
    ]
    sizes = [len(models) for _, models in members]
    return [_averaged(first, each, sizes) for each in zip(*rows, strict=True)]


def _own_rows(task: Any, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
    rows = task.answers(models, samples)
    if len(rows) != len(samples):
        raise BadInput(
            f"{type(task).__name__}.answers returned {len(rows)} rows for {len(samples)} samples."
        )
    return [row if isinstance(row, Mapping) else {"prediction": row} for row in rows]


def _mean_rows(members: _Members, samples: Sequence[list[Any]]) -> list[Mapping[str, Any]]:
    """Returns rows by the mean of what the models of all members answer. Raises BadInput for other shapes."""
    sums = [
        _summed(task, models, some) for (task, models), some in zip(members, samples, strict=True)
    ]
    shapes = {tuple(total.shape[1:]) for total, _ in sums}
    if len(shapes) > 1:
        what = f"The members answer in different shapes: {', '.join(map(str, sorted(shapes)))}"
        raise BadInput(f"{what}. Choose one by --run NAME.")
    total = torch.stack([total for total, _ in sums]).sum(0)
    _, labels = sums[0]
    return _rows(members[0][0], total / sum(len(models) for _, models in members), labels)


def _averaged(task: Any, rows: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[str, Any]:
    """Returns the mean of the members' rows for a sample; what is no number must be equal. Raises BadInput."""
    row: dict[str, Any] = {}
    for column, value in rows[0].items():
        values = [other.get(column) for other in rows]
        if all(type(each) in (int, float) for each in values):
            total = sum(each * size for each, size in zip(values, sizes, strict=True))
            row[column] = total / sum(sizes)
        elif all(np.array_equal(each, value) for each in values):
            row[column] = value
        else:
            what = f"{type(task).__name__}.answers returns a {column} that is no number"
            advice = "Answer in numbers, such as a probability for each class, or choose one by --run NAME."
            raise BadInput(
                f"{what}, which members that learned different values cannot average. {advice}"
            )
    return row


def _completed(task: Any, sample: Any) -> Any:
    """Gives a new sample the example's target; tokens keep theirs, whose length counts. Raises BadInput."""
    example = task.example()
    is_row = isinstance(sample, tuple | list)
    if (
        isinstance(sample, Mapping)
        and isinstance(example, Mapping)
        and sample.keys() >= {*[*example][:-1]}
    ):
        last = [*example][-1]
        sample = {
            **{key: value for key, value in sample.items() if key != last},
            last: sample.get(last),
        }
    elif is_row and len(sample) == len(example) - 1:
        if isinstance(sample, list):
            sample = [*sample, None]
        else:
            sample = (*sample, None)
    elif not is_row or len(sample) != len(example):
        new, whole = (printable(repr(value), most=100) for value in (sample, example))
        what = f"A new sample is {new}, and {type(task).__name__}.example() is {whole}, its target last"
        raise BadInput(
            f"{what}. Let read, or read_new, return all of that; the target may be None or left out."
        )
    value = target_of(sample)
    is_there = value is not None and not (isinstance(value, Path) and not value.exists())
    if is_there and task.kind in ("tokens", "next_tokens"):
        return sample
    return with_target(sample, target_of(task.numbered(example)))


def answers(task: Any, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
    """Returns a row for each sample by the mean of the models; of pixels an array of classes, written as a PNG.

    Where a sample has classes, each has a column with its probability.
    """
    if task.kind == "text":
        best = [
            max(row.items(), key=lambda pair: pair[1])
            for row in text.together(task, models, samples)
        ]
        return [{"prediction": written, "probability": round(share, 6)} for written, share in best]
    if task.kind == "next_tokens":
        raise BadInput(
            f"Write answers(models, samples) in {type(task).__name__}: how a text goes on is generated."
        )
    total, labels = _summed(task, models, samples)
    return _rows(task, total / len(models), labels)


def _summed(task: Any, models: Sequence[nn.Module], samples: list[Any]) -> tuple[Tensor, Tensor]:
    """Returns (samples, ..., classes) probabilities, or numbers, summed over models, and the batch's labels."""
    device = next(models[0].parameters()).device
    batch = {
        key: value.to(device) for key, value in simple.batch(task, task.labelled(samples)).items()
    }
    batches = [batch]
    if task.tta and task.kind in ("classes", "labels", "numbers"):
        batches.append(
            {key: value.flip(-1) if value.dim() == 4 else value for key, value in batch.items()}
        )
    total: Any = 0.0
    for model in models:
        for each in batches:
            outputs = task.passed(model, each).float()
            if task.starts:
                outputs = simple.gated(model, outputs, batch[simple.KEY])
            else:
                outputs = outputs
            total = total + _shares(
                task.kind, classes_last(task.kind, outputs, batch["labels"])
            ) / len(batches)
    return total, batch["labels"]


def _shares(kind: str, outputs: Tensor) -> Tensor:
    if kind == "numbers":
        return outputs
    if kind == "labels":
        return outputs.sigmoid()
    return outputs.softmax(-1)


def _rows(task: Any, mean: Tensor, labels: Tensor) -> list[Mapping[str, Any]]:
    """Returns a row for each sample of (samples, ..., classes) probabilities, or numbers."""
    name = task.named
    if task.kind == "numbers":
        columns = mean.reshape(len(labels), -1)
        keys = number_columns(task, columns.shape[1])
        return [dict(zip(keys, row, strict=True)) for row in columns.tolist()]
    if task.kind == "labels":
        return [_of_labels(task, row) for row in mean.tolist()]
    shares, classes = mean.max(-1)
    if classes.dim() > 2:
        kind = np.uint8 if mean.shape[-1] <= 256 else np.uint16
        return [{"prediction": image.cpu().numpy().astype(kind)} for image in classes]
    if classes.dim() > 1:
        known = zip(classes, labels != IGNORED, strict=True)
        return [
            {"prediction": " ".join(map(name, row[is_known].tolist()))} for row, is_known in known
        ]
    each = [class_shares(task, row) for row in mean.tolist()]
    answered = zip(classes.tolist(), shares.tolist(), each, strict=True)
    return [
        {"prediction": name(k), "probability": round(share, 6), **columns}
        for k, share, columns in answered
    ]


def _of_labels(task: Any, row: list[float]) -> dict[str, Any]:
    likely = [(task.named(k), f"{share:.6f}") for k, share in enumerate(row) if share > 0.5]
    names, shares = (
        "; ".join(column) for column in (zip(*likely, strict=True) if likely else ((), ()))
    )
    return {"prediction": names, "probability": shares, **class_shares(task, row)}


def number_columns(task: Any, count: int) -> list[str]:
    """Returns the columns of `count` numbers a sample: the setting `targets`, if it names them, else their places."""
    if count == 1:
        return ["prediction"]
    names = getattr(task.settings, "targets", None)
    if isinstance(names, tuple | list) and len(names) == count:
        return [*map(str, names)]
    return [f"prediction_{number + 1}" for number in range(count)]


def class_columns(task: Any, count: int) -> list[str]:
    """Returns the column of each class, its name unless a file has such a column already."""
    names = (task.named(number) for number in range(count))
    return [f"probability_{name}" if name in _COLUMNS else name for name in names]


def class_shares(task: Any, row: Sequence[float]) -> dict[str, float]:
    """Returns the probability of each class by its column, in 7 digits as fp32 has them; none of too many classes."""
    if len(row) > MOST_CLASSES:
        note(
            f"Only the likeliest of {len(row):,} classes is written: more than {MOST_CLASSES:,} have no column each."
        )
        return {}
    return {
        column: float(f"{share:.7g}")
        for column, share in zip(class_columns(task, len(row)), row, strict=True)
    }


def _note_empty(task: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    if task.kind == "labels":
        empty = sum(row.get("prediction") == "" for row in rows)
    else:
        empty = 0
    if empty:
        about = f"{empty:,} of {len(rows):,} samples have no class with a probability above 0.5"
        note(
            f"{about}: their prediction is empty. The columns of the classes have the probabilities."
        )


def base_of(source: Path) -> Path:
    """Returns the folder that names of files in new data count from."""
    return absolute(source if source.is_dir() else source.parent)


def _names(samples: list[Any], source: Path) -> list[str]:
    """Returns the file of each sample below `source`, or its number: all are numbers where two have the same name."""
    base = base_of(source)
    paths = [absolute(path) for sample in samples if (path := path_of(sample))]
    names = [
        p.relative_to(base).as_posix() if p.is_relative_to(base) else str(n)
        for n, p in enumerate(paths)
    ]
    if len(set(names)) == len(samples):
        return names
    return [str(number) for number in range(len(samples))]


def _write(answers: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Writes a table; an image of labels (height, width) becomes a PNG, and its path is the cell."""

    def cell(value: Any, name: str) -> Any:
        if not isinstance(value, np.ndarray) or value.ndim != 2:
            return value
        if Path(name).suffix:
            path = (out / name).with_suffix(".png")
        else:
            path = out / f"{name}.png"
        return write_image(path, value).relative_to(out).as_posix()

    columns = dict.fromkeys(column for row in answers.values() for column in row)
    rows = (
        [name, *(cell(row.get(c, ""), f"{c}s/{name}") for c in columns)]
        for name, row in answers.items()
    )
    write_table(out / FILE, [["sample", *columns], *rows])
