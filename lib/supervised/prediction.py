"""New data, read without targets, and what models answer, as predictions.csv. Each `task` is a `Supervised`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.config.files import absolute
from lib.errors import BadInput, printable
from lib.report.progress import Remaining, choose_progress
from lib.report.result import write_image, write_table
from lib.supervised import marks
from lib.supervised.samples import IGNORED, in_order, path_of, reading, target_of, with_target
from lib.task.batches import in_batches

FILE = "predictions.csv"
_AT_ONCE = 32  # samples, where no micro-batch is set: training, which fits, takes more memory


def read(task: Any, source: Path) -> list[Any]:
    """Returns new samples: all files like those of the training, or what `read` of the task finds. Raises BadInput."""
    suffixes, name = set(task.learned().get("suffixes", [])), type(task).__name__
    advice = f"Give data laid out as the training data, targets aside, or write read_new(source) in {name}."
    if suffixes:
        folder = source / task.learned().get("folder", "")  # beside that of masks, say
        is_below = folder.is_dir() and folder.resolve().is_relative_to(source.resolve())  # an archive may be anybody's
        below = folder if is_below else source
        files = [source] if source.is_file() else [path for path in below.rglob("*") if path.is_file()]
        found = [(path, None) for path in files if path.suffix in suffixes]
        what = f"no file ending in {', '.join(sorted(suffixes))}"
    else:
        try:
            with reading(source, is_new=True):
                parts = task.read(source)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = printable(f"{type(error).__name__}: {error}", most=200)
            raise BadInput(f"{name}.read cannot read {printable(source)} ({why}). {advice}") from error
        lists = [list(one) for one in (parts.values() if isinstance(parts, Mapping) else [parts]) if one is not None]
        found = [sample for samples in lists for sample in samples]
        _check_order([samples for samples in lists if samples], name)
        what = f"no sample that {name}.read finds"
    if not found:
        raise BadInput(f"There is {what} in {printable(source)}. {advice}")
    return in_order(found, source)


def _check_order(lists: list[list[Any]], name: str) -> None:
    """Raises BadInput where a number would not say which sample of the data is meant: they were dealt to parts."""
    paths = [path_of(sample) for samples in lists for sample in samples]
    if len(lists) > 1 and not (all(paths) and len(set(paths)) == len(paths)):
        raise BadInput(
            f"{name}.read returns the new data in {len(lists)} parts, so the numbers in {FILE} would not be those of "
            f"its rows. Write read_new(source) in {name}, which returns new samples in the order of the data. Or let "
            "read return one list, or what lib.supervised.split returns, which does not deal new data."
        )


def predict(task: Any, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
    """Returns the answers by sample, and writes them into `out`. Raises BadInput where there are no new samples."""
    if not isinstance(source, Path):
        raise BadInput(f"Give one folder or file to predict, not a {type(source).__name__}.")
    if not source.exists():
        raise BadInput(f"There is no {printable(source)}. Give the folder or file with new data.")
    samples = list(task.read_new(source))
    answers = dict(zip(_names(samples, source), _in_batches(task, models, samples), strict=True))
    if out is not None:
        _write(answers, out)
    return answers


def _in_batches(task: Any, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
    """Returns a row for each sample."""
    progress, remaining = choose_progress(), Remaining()
    rows: list[Mapping[str, Any]] = []
    for more in in_batches(partial(_rows, task, models), samples, task.config.training.micro_batch or _AT_ONCE):
        rows += more
        progress.update(len(rows), len(samples), partial(remaining.text, "samples predicted", len(rows), len(samples)))
    progress.close()
    return rows


def _rows(task: Any, models: list[nn.Module], samples: Sequence[Any]) -> list[Mapping[str, Any]]:
    with torch.inference_mode():
        found = task.answers(models, [_completed(task, sample) for sample in samples])
    if len(found) != len(samples):
        raise BadInput(f"{type(task).__name__}.answers returned {len(found)} rows for {len(samples)} samples.")
    return [row if isinstance(row, Mapping) else {"prediction": row} for row in found]


def _completed(task: Any, sample: Any) -> Any:
    """Returns a new sample with the example's target in the place of its own: nobody knows it, and it may be absent.

    Raises BadInput where more than the target is missing, or there is more than in the example.
    """
    example = task.example()
    target = target_of(example)
    if marks.names_in(task.kind, target):
        stands_for = 0 if task.kind == "classes" else [0.0] * len(task.known_names())
    else:
        stands_for = target
    if isinstance(example, Mapping):
        return _completed_dict(task, sample, example, stands_for)
    if not isinstance(sample, tuple | list) or len(example) - len(sample) not in (0, 1):
        has = f"has {len(sample)} values" if isinstance(sample, tuple | list) else f"is a {type(sample).__name__}"
        raise _other_than_example(task, has, f"{len(example)}, its target last")
    if len(sample) < len(example):
        return [*sample, stands_for] if isinstance(sample, list) else (*sample, stands_for)
    return sample if _is_labelled(task, target_of(sample)) else with_target(sample, stands_for)


def _is_labelled(task: Any, target: Any) -> bool:
    """Says whether a new sample's own target is used: of tokens, because its length belongs to the sample."""
    is_there = target is not None and not (isinstance(target, Path) and not target.exists())
    return task.kind in ("tokens", "next_tokens") and is_there


def _completed_dict(task: Any, sample: Any, example: Mapping[str, Any], stands_for: Any) -> dict[str, Any]:
    *inputs, last = example
    if not isinstance(sample, Mapping) or not sample.keys() >= {*inputs}:
        has = f"has {', '.join(map(repr, sample))}" if isinstance(sample, Mapping) else f"is a {type(sample).__name__}"
        raise _other_than_example(task, has, f"{', '.join(map(repr, inputs))}, and {last!r} as its target")
    if _is_labelled(task, sample.get(last)):
        return dict(sample)
    return {**{key: value for key, value in sample.items() if key != last}, last: stands_for}


def _other_than_example(task: Any, has: str, example: str) -> BadInput:
    name = type(task).__name__
    return BadInput(
        f"A new sample {printable(has, most=200)}, and {name}.example() has {example}. Let {name}.read, or read_new, "
        "return new samples with all of that; the target may be None or left out."
    )


def answers(task: Any, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
    """Returns a row for each sample by the mean of all models. Raises BadInput where that says nothing."""
    if task.kind == "next_tokens":
        raise BadInput(
            f"What follows a text is generated, and how is for you to say. Write answers(models, samples) in "
            f"{type(task).__name__}, which returns a text for each sample."
        )
    device = next(models[0].parameters()).device
    batch = {name: value.to(device) for name, value in task.labelled(samples).items()}
    outputs = [task.outputs(model, batch).float() for model in models]
    if task.kind == "numbers":
        mean = torch.stack(outputs).mean(0).reshape(len(samples), -1)
        names = ["prediction"] if mean.shape[1] == 1 else [f"prediction_{k + 1}" for k in range(mean.shape[1])]
        return [dict(zip(names, row, strict=True)) for row in mean.tolist()]
    if task.kind == "labels":
        return marks.rows(torch.stack([each.sigmoid() for each in outputs]).mean(0), task.known_names())
    shares, chosen = torch.stack([each.softmax(-1) for each in outputs]).mean(0).max(-1)
    if chosen.dim() > 2:
        kind = np.uint8 if outputs[0].shape[-1] <= 256 else np.uint16
        return [{"prediction": image.cpu().numpy().astype(kind)} for image in chosen]
    if chosen.dim() > 1:  # whatever the kind: a class for each position
        rows = zip(chosen, batch["labels"] != IGNORED, strict=True)
        return [{"prediction": " ".join(_name(task, k) for k in row[known].tolist())} for row, known in rows]
    pairs = zip(chosen.tolist(), shares.tolist(), strict=True)
    return [{"prediction": _name(task, k), "probability": round(share, 6)} for k, share in pairs]


def _name(task: Any, number: int) -> str:
    names = task.known_names()
    return names[number] if number < len(names) else str(number)


def _names(samples: list[Any], source: Path) -> list[str]:
    """Returns the file of each sample below `source`; its number from 0 where it lies elsewhere.

    Where two have the same, or one has none, all are numbers.
    """
    base = absolute(source if source.is_dir() else source.parent)
    paths = [absolute(path) for sample in samples if (path := path_of(sample))]
    names = [p.relative_to(base).as_posix() if p.is_relative_to(base) else str(n) for n, p in enumerate(paths)]
    return names if len(set(names)) == len(samples) else [str(number) for number in range(len(samples))]


def _write(answers: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    columns = dict.fromkeys(name for row in answers.values() for name in row)
    rows = ([name, *(_cell(row.get(c, ""), f"{c}s/{name}", out) for c in columns)] for name, row in answers.items())
    write_table(out / FILE, [["sample", *columns], *rows])


def _cell(value: Any, name: str, out: Path) -> Any:
    """Returns what the table has of a value; an image of labels (height, width) becomes a PNG, and its path is it."""
    if not isinstance(value, np.ndarray) or value.ndim != 2:
        return value
    path = (out / name).with_suffix(".png") if Path(name).suffix else out / f"{name}.png"
    return write_image(path, value).relative_to(out).as_posix()
