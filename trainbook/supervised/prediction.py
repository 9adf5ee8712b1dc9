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
from trainbook.supervised import calibration, evaluation, scoring, simple
from trainbook.supervised.batches import in_batches, without_texts
from trainbook.supervised.notes import collecting, note
from trainbook.supervised.samples import (
    MOST_CLASSES,
    in_order,
    path_of,
    reading,
    target_of,
    with_target,
)

FILE = "predictions.csv"
CHOICES = ("network", "simple")  # of the command's --answer
_AT_ONCE = 32  # samples, if no micro-batch is set: training, which fits, takes more memory
_COLUMNS = ("sample", "target", "prediction", "probability")  # no class has one of these
_Members = list[tuple[Any, list[nn.Module]]]  # tasks, each with its models


def read(task: Any, source: Path) -> list[Any]:
    """Returns samples to predict; their targets may be None. Raises BadInput without samples.

    By default every file with a suffix of the training's, if a sample is a file and its target, in the folder of the
    training's if targets are files too; else what `read` finds, in one list.
    """
    suffixes = set(task.learned().get("suffixes", []))
    name = type(task).__name__
    advice = f"Give data laid out as the training data, targets aside, or write read_new(source) in {name}."
    if suffixes:
        samples = _files(task, source, suffixes)
        wanted = f"file ending in {', '.join(sorted(suffixes))}"
    else:
        samples = _read_parts(task, source, advice)
        wanted = f"sample that {name}.read finds"
    if not samples:
        raise BadInput(f"There is no {wanted} in {printable(source)}. {advice}")
    return in_order(samples, source)


def _files(task: Any, source: Path, suffixes: set[str]) -> list[Any]:
    """Returns (path, None) for a file, or for each in a folder with one of the suffixes."""
    folder = source / task.learned().get("folder", "")  # for example beside a folder of masks
    # an archive, which names the folder, is untrusted
    is_below = folder.is_dir() and folder.resolve().is_relative_to(source.resolve())
    paths = (folder if is_below else source).rglob("*")
    if source.is_file():
        paths = [source]
    return [(path, None) for path in paths if path.suffix in suffixes and path.is_file()]


def _read_parts(task: Any, source: Path, advice: str) -> list[Any]:
    """Returns what `read` finds, in one list. Raises BadInput for several parts whose rows nothing names."""
    name = type(task).__name__
    with naming(f"{name}.read", advice), reading(source, is_new=True):
        parts = task.read(source)
        lists = [*parts.values()] if isinstance(parts, Mapping) else [parts]
        lists = [list(rows) for rows in lists if rows]
    samples = [sample for rows in lists for sample in rows]
    paths = {path_of(sample) for sample in samples} - {None}
    if len(lists) > 1 and len(paths) < len(samples):
        raise BadInput(
            f"{name}.read returns the new data in {len(lists)} parts, whose rows no number in "
            f"{FILE} would name. Write read_new(source) in {name}, which returns one list, "
            "or deal by split()."
        )
    return samples


def predict(task: Any, models: list[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
    """Returns a row for each new sample by its file, or its number; writes predictions.csv into `out`."""
    if not isinstance(source, Path) or not source.exists():
        raise BadInput(f"There is no {printable(source)}. Give one folder or file with new data.")

    members = _members(task, models)
    items = _read_by_all(members, source)
    most = task.config.training.micro_batch or _AT_ONCE
    rows: list[Mapping[str, Any]]
    with collecting() as notes, torch.inference_mode():
        if len(models) > 1 and task._averages_outputs and goes_by_ranks(task):
            rows = _rows_by_ranks(members, items, most)
        else:
            rows = _followed(partial(_answered, members), items, most, "samples predicted")
        task._kind.note_rows(rows)
    for sentence in filter(None, [*dict.fromkeys(notes), _about_answer(members)]):
        print(sentence)
    names = _names([first for first, *_ in items], source)
    answers = dict(zip(names, rows, strict=True))
    if out is not None:
        _write(answers, out)
    return answers


def _followed(answer: Any, items: Sequence[Any], most: int, words: str) -> list[Any]:
    """Returns a row for each item, answered in batches, with a line of progress."""
    progress = choose_progress()
    line = time_left(words)
    rows: list[Any] = []
    for more in in_batches(answer, items, most):
        rows += more
        progress.update(len(rows), len(items), partial(line, len(rows), len(items)))
    progress.close()
    return rows


def _members(task: Any, models: Sequence[nn.Module]) -> _Members:
    """Returns the tasks whose learned values models were trained with, each with its models."""
    members: dict[int, tuple[Any, list[nn.Module]]] = {}
    for model in models:
        owner = task._owners.get(model, task)
        owner._tta = task._tta
        owner._answer = task._answer
        owner._share = task._share
        _, own_models = members.setdefault(id(owner), (owner, []))
        own_models.append(model)
    return [*members.values()] or [(task, [])]


def new_samples(task: Any, source: Path) -> list[Any]:
    """Returns the samples of a task's `read_new`, all of them in the test. Raises BadInput without samples."""
    with reading(source, is_new=True):
        samples = list(task.read_new(source))
    if not samples:
        raise BadInput(
            f"{type(task).__name__}.read_new found no samples in {printable(source)}. "
            "Give new data laid out as it reads it."
        )
    return samples


def _read_by_all(members: _Members, source: Path) -> list[tuple[Any, ...]]:
    """Returns each new sample as each member reads it. Raises BadInput if they read other numbers of samples."""
    with collecting() as notes:
        samples = [new_samples(task, source) for task, _ in members]
    for sentence in notes:  # once, whatever members there are
        note(sentence)
    numbers = sorted({len(rows) for rows in samples})
    if len(numbers) > 1:
        raise BadInput(
            f"The members read {' and '.join(map(str, numbers))} samples of {printable(source)}. "
            "Let read, or read_new, return the same new samples whatever was learned."
        )
    return [*zip(*samples, strict=True)]


def _answered(members: _Members, items: Sequence[Sequence[Any]]) -> list[Mapping[str, Any]]:
    """Returns a row for each item, a sample as each member reads it, by the mean of all models. Raises BadInput."""
    first, models = members[0]
    by_member = zip(members, zip(*items, strict=True), strict=True)
    samples = [[_completed(task, sample) for sample in some] for (task, _), some in by_member]
    if len(members) == 1:
        return _own_rows(first, models, samples[0])
    if first._averages_outputs:
        return _mean_rows(members, samples)
    rows = [
        _own_rows(task, models, some) for (task, models), some in zip(members, samples, strict=True)
    ]
    sizes = [len(models) for _, models in members]
    return [_averaged(first, each, sizes) for each in zip(*rows, strict=True)]


def goes_by_ranks(task: Any) -> bool:
    """Returns whether all metrics of probabilities judge their order alone, so that members are averaged by ranks."""
    of_shares = [metric for metric in task.metrics if metric in scoring.PROBABILITIES]
    return bool(of_shares) and all(metric in scoring.OF_ORDER for metric in of_shares)


def _rows_by_ranks(
    members: _Members, items: Sequence[Sequence[Any]], most: int
) -> list[Mapping[str, Any]]:
    """Returns rows whose columns of classes are in the order of the models' mean ranks: see `in_order_of_ranks`."""
    shares = list[list[np.ndarray]]()
    for place, (task, models) in enumerate(members):
        samples = [_completed(task, item[place]) for item in items]
        for model in models:
            words = f"samples predicted by model {len(shares) + 1}"
            shares.append(_followed(partial(_shares, task, model), samples, most, words))
    first, _ = members[0]
    each = np.array(shares)  # (models, samples, classes)
    mean = each.mean(0)
    rows = first._kind.rows(first, torch.from_numpy(mean), None)
    ordered = in_order_of_ranks(each).tolist()
    note("Models are averaged by the ranks of their probabilities, as the metric judges the order.")
    pairs = zip(rows, ordered, strict=True)
    return [{**row, **class_shares(first, values)} for row, values in pairs]


def _shares(task: Any, model: nn.Module, samples: list[Any]) -> list[np.ndarray]:
    """Returns (classes) the probabilities of each sample."""
    total, _ = summed(task, [model], samples)
    return [*total.cpu().numpy()]


def in_order_of_ranks(shares: np.ndarray) -> np.ndarray:
    """(models, samples, classes) probabilities -> (samples, classes) their means, put in the order of mean ranks.

    Of each class the same values stay: a sample of a higher mean rank gets the larger one.
    """
    order = np.mean([ranks(each) for each in shares], 0)
    places = np.argsort(np.argsort(order, axis=0, kind="stable"), axis=0)
    return np.take_along_axis(np.sort(shares.mean(0), axis=0), places, 0)


def ranks(shares: np.ndarray) -> np.ndarray:
    """(samples, classes) probabilities -> their ranks by class, the middle one 0.5."""
    from scipy import stats  # a second that a process which only loads data does not need

    return (stats.rankdata(shares, axis=0) - 0.5) / len(shares)


def _own_rows(task: Any, models: list[nn.Module], samples: list[Any]) -> list[Mapping[str, Any]]:
    """Returns the rows of one task's models. Raises BadInput for another number of rows."""
    rows = task.answers(models, samples)
    if len(rows) != len(samples):
        raise BadInput(
            f"{type(task).__name__}.answers returned {len(rows)} rows for {len(samples)} samples."
        )
    return [row if isinstance(row, Mapping) else {"prediction": row} for row in rows]


def _mean_rows(members: _Members, samples: Sequence[list[Any]]) -> list[Mapping[str, Any]]:
    """Returns rows with the mean answer of all members' models. Raises BadInput for other shapes."""
    sums = [
        summed(task, models, some) for (task, models), some in zip(members, samples, strict=True)
    ]
    shapes = {tuple(total.shape[1:]) for total, _ in sums}
    if len(shapes) > 1:
        shown = ", ".join(map(str, sorted(shapes)))
        raise BadInput(
            f"The members answer in different shapes: {shown}. Choose one by --run NAME."
        )
    total = torch.stack([total for total, _ in sums]).sum(0)
    number = sum(len(models) for _, models in members)
    first, _ = members[0]
    _, labels = sums[0]
    return first._kind.rows(first, total / number, labels)


def _averaged(task: Any, rows: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[str, Any]:
    """Returns the mean of the members' rows for a sample; cells without a number must be equal. Raises BadInput."""
    row: dict[str, Any] = {}
    for column, value in rows[0].items():
        values: list[Any] = [other.get(column) for other in rows]
        if all(type(each) in (int, float) for each in values):
            total = sum(each * size for each, size in zip(values, sizes, strict=True))
            row[column] = total / sum(sizes)
        elif all(np.array_equal(each, value) for each in values):
            row[column] = value
        else:
            raise BadInput(
                f"{type(task).__name__}.answers returns a {column} that is no number, which "
                "members that learned different values cannot average. Answer in numbers, such as "
                "a probability for each class, or choose one by --run NAME."
            )
    return row


def _completed(task: Any, sample: Any) -> Any:
    """Gives a new sample the example's target; tokens keep theirs, whose length counts. Raises BadInput."""
    example = task.example()
    sample = _with_place(sample, example, type(task).__name__)
    value = target_of(sample)
    is_there = value is not None and not (isinstance(value, Path) and not value.exists())
    if is_there and task._kind.has_positions:
        return sample
    return with_target(sample, target_of(task._numbered(example)))


def _with_place(sample: Any, example: Any, name: str) -> Any:
    """Returns a new sample with a last element for its target, which may lack. Raises BadInput for another form."""
    if isinstance(sample, Mapping) and isinstance(example, Mapping):
        *inputs, last = example
        if sample.keys() >= {*inputs}:
            others = {key: value for key, value in sample.items() if key != last}
            return {**others, last: sample.get(last)}
    is_row = isinstance(sample, tuple | list)
    if is_row and len(sample) == len(example) - 1:
        return [*sample, None] if isinstance(sample, list) else (*sample, None)
    if is_row and len(sample) == len(example):
        return sample
    new = printable(repr(sample), most=100)
    whole = printable(repr(example), most=100)
    raise BadInput(
        f"A new sample is {new}, and {name}.example() is {whole}, its target last. "
        "Let read, or read_new, return all of that; the target may be None or left out."
    )


def summed(task: Any, models: Sequence[nn.Module], samples: list[Any]) -> tuple[Tensor, Tensor]:
    """Returns (samples, ..., classes) probabilities, or numbers, summed over models, and the batch's labels."""
    kind = task._kind
    device = next(models[0].parameters()).device
    made = task.labelled(samples)
    if _answer_of(task) != "network":
        made = simple.batch(task, made)
    batch = {key: value.to(device) for key, value in without_texts(made).items()}
    labels = batch["labels"]
    batches = [batch]
    if task._tta and not kind.has_positions and not kind.is_generated:
        batches.append({key: _mirrored(value) for key, value in batch.items()})
    total: Any = 0.0
    for model in models:
        for each in batches:
            total = total + of_batch(task, model, each) / len(batches)
    return total, labels


def of_batch(task: Any, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns (samples, ..., classes) probabilities, or numbers, of the answer to a batch of `collate`."""
    outputs = evaluation.outputs_of(task, model, {**batch}).float()
    scores = task._kind.arranged(outputs, batch["labels"])
    if task._share is None or task._answer or not task._starts:
        return task._kind.averaged(_of_answer(task, model, scores, batch))
    network = task._kind.averaged(calibration.power_of(model, "network") * scores)
    start = task._kind.averaged(simple.shaped(batch[simple.KEY], scores))
    return task._share * network + (1 - task._share) * start


def _of_answer(task: Any, model: nn.Module, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the scores of the answer that is asked for, under its power: by default what the gate lets through."""
    answer = _answer_of(task)
    if answer == "simple":
        outputs = simple.shaped(batch[simple.KEY], outputs)
    if answer == "answer":
        outputs = simple.gated(model, outputs, batch[simple.KEY])
    return calibration.power_of(model, answer) * outputs


def _answer_of(task: Any) -> str:
    """Returns whose answer is asked for: of a run that starts from a simple method the gate's, unless one is chosen."""
    if task._starts:
        return task._answer or "answer"
    return "network"


def choose(task: Any, answer: str) -> None:
    """Makes "network" or "simple" answer new samples; "" leaves that to the gate. Raises BadInput for another task."""
    if not answer:
        return
    if answer not in CHOICES:
        raise BadInput(
            f"--answer is {printable(answer, most=60)}. It is one of: {', '.join(CHOICES)}."
        )
    if not getattr(task, "_starts", False):
        raise BadInput(
            f"--answer {answer} is for runs that start from a simple method "
            "(training.start_from_baseline). This one has one answer: leave --answer out."
        )
    task._answer = answer


def _about_answer(members: _Members) -> str:
    """Returns a sentence on whose answers these are, and on the other ones; "" for a task with one answer alone."""
    task, _ = members[0]
    if not task._starts:
        return ""
    gates = [float(model.get_buffer(simple.GATE)) for _, models in members for model in models]
    shares = ", ".join(f"{gate:g}" for gate in sorted({*gates}))
    name = repr(task._simple.name)
    default = f"the network with a share of {shares}, beside {name}"
    if not any(gates):
        default = f"{name} alone"
    if all(gate == 1 for gate in gates):
        default = "the network alone"
    if task._share is not None and not task._answer:
        whose = {0: "those of the simple methods", 1: "those of the networks"}.get(task._share)
        whose = whose or f"{task._share:g} of the networks, and the simple methods for the rest"
        return f"The answers are {whose}: all folds and seeds together showed what surely gains."
    if task._answer:
        return f"The answers are those of --answer {task._answer}. The default is {default}."
    return (
        f"The answers are the default: {default}. "
        "--answer network or --answer simple chooses one of both."
    )


def _mirrored(values: Tensor) -> Tensor:
    """Returns images (samples, channels, height, width) from right to left; other tensors as they are."""
    return values.flip(-1) if values.dim() == 4 else values


def named(task: Any, number: int) -> str:
    """Returns the name of a class; its number if it has none."""
    names = task._known_names()
    return names[number] if number < len(names) else str(number)


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
    names = (named(task, number) for number in range(count))
    return [f"probability_{name}" if name in _COLUMNS else name for name in names]


def class_shares(task: Any, row: Sequence[float]) -> dict[str, float]:
    """Returns the probability of each class by its column, in 7 digits as fp32 has them; none of too many classes."""
    if len(row) > MOST_CLASSES:
        note(
            f"Only the likeliest of {len(row):,} classes is written: "
            f"more than {MOST_CLASSES:,} have no column each."
        )
        return {}
    columns = class_columns(task, len(row))
    return {column: float(f"{share:.7g}") for column, share in zip(columns, row, strict=True)}


def base_of(source: Path) -> Path:
    """Returns the folder that names of files in new data count from."""
    return absolute(source if source.is_dir() else source.parent)


def _names(samples: list[Any], source: Path) -> list[str]:
    """Returns the file of each sample below `source`, or its number; numbers for all if two have the same name."""
    base = base_of(source)
    paths = [absolute(path) for sample in samples if (path := path_of(sample))]
    names = []
    for number, path in enumerate(paths):
        is_below = path.is_relative_to(base)
        names.append(path.relative_to(base).as_posix() if is_below else str(number))
    if len(set(names)) == len(samples):
        return names
    return [str(number) for number in range(len(samples))]


def _write(answers: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Writes a table; an image of labels (height, width) becomes a PNG, and its path is the cell."""
    columns = dict.fromkeys(column for row in answers.values() for column in row)
    table = [["sample", *columns]]
    for name, row in answers.items():
        cells = [_cell(row.get(column, ""), out, f"{column}s/{name}") for column in columns]
        table.append([name, *cells])
    write_table(out / FILE, table)


def _cell(value: Any, out: Path, name: str) -> Any:
    """Returns a value as the table has it; an image is written into `out`, with its suffix replaced by .png."""
    if not isinstance(value, np.ndarray) or value.ndim != 2:
        return value
    path = out / f"{name}.png"
    if Path(name).suffix:
        path = (out / name).with_suffix(".png")
    return write_image(path, value).relative_to(out).as_posix()
