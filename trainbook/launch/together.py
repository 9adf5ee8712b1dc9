"""Joins the folds and seeds of a completed queue: a table over all samples, oof.csv, and what to expect of them.

Each sample is answered by the runs that did not train on it; of seeds alone it is one of the test.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lib.config import Config, to_yaml
from lib.machine import disk
from lib.task import find_task
from lib.text import aligned
from lib.training.summary import Summary
from trainbook.outputs import result
from trainbook.supervised import folds, gate, held, prediction, scoring
from trainbook.supervised.expected import Expected
from trainbook.supervised.held import Held
from trainbook.supervised.methods import Compared
from trainbook.supervised.scoring import Judged

OUT_OF_FOLDS = "oof.csv"
ANSWER = "together"  # the row of what all runs answer
_FOLDER = "-together"  # behind the name of the queue
_LEAST = 1e-7  # of a probability in a loss


class Member(NamedTuple):
    """A completed run of a queue: its folder, its fold and its seed."""

    folder: Path
    fold: int
    seed: int


class Joined(NamedTuple):
    """The answers of each method to all samples, in the order of their numbers, and the fold of each sample."""

    rows: dict[str, Judged]
    fold: np.ndarray
    about: Held


def folder_of(run: Path, name: str) -> Path:
    """Returns the folder of what the runs of a queue are together; `run` is that of one of them."""
    return run.parent / f"{name}{_FOLDER}"


def report(name: str, config: Config, members: Sequence[Member]) -> str:
    """Writes oof.csv, expected.json and a summary of completed folds and seeds; returns their table.

    Returns "" for a task whose answers to its test were not kept.
    """
    kind: Any = find_task(config.task)
    if len(members) < 2 or kind.fold_key != folds.KEY:
        return ""
    tests = [test for member in members if (test := held.read(member.folder))]
    if len(tests) < len(members):
        return ""
    names = tests[0].names
    if any(test.names != names for test in tests):
        return "The runs have other classes, so they have no answer together: list all classes in a setting `classes`."
    task = kind(config)
    task.take_learned({"classes": names} if names else {})
    joined = _joined(task, members, tests)
    if joined is None or not task.metrics:
        return ""
    folder = folder_of(members[0].folder, name)
    return _report(task, joined, [member.folder.name for member in members], folder)


def _report(task: Any, joined: Joined, members: Sequence[str], folder: Path) -> str:
    """Judges the answers, and writes the folder of the runs together; returns the table and what to expect."""
    share = None
    rows = dict(joined.rows)
    if _can_mix(task, rows):
        share = _share(task, joined)
        rows[ANSWER] = _mixed(task, rows, share)
    else:
        rows[ANSWER] = rows.pop("network")
    best = "simple" if "simple" in rows else ANSWER
    compared = task._compared(_ranked(task, rows, joined.fold), best, joined.about.units)
    options = task.config.folds
    expected = Expected(
        scoring.name_of(task.metrics[0]),
        "min" if task._signs[0] < 0 else "max",
        *compared.scores[ANSWER][0],
        way="folds" if options.number else "test",
        share=share,
        members=list(members),
    )
    disk.make_folders(folder)
    _write(task, folder, expected, compared)
    lines = [_about(task, joined, len(members)), _table(task, compared, best)]
    lines += filter(None, compared.about.values())
    if share is not None:
        lines.append(_about_share(share))
    if task._kind.has_rows(rows[ANSWER]):
        place = result.write_table(folder / OUT_OF_FOLDS, _answers(task, joined, rows[ANSWER]))
        lines.append(f"The answer to each sample: {place}")
    if options.number and not options.nested:
        lines.append("The same samples chose the step of each run: the scores are slightly high.")
    return "\n".join([*lines, f"{expected}"])


# --- joining ----------------------------------------------------------------------------------------------------------


def _joined(task: Any, members: Sequence[Member], tests: Sequence[Held]) -> Joined | None:
    """Returns the answers to all samples, of several seeds their mean; None if seeds answered other samples."""
    by_seed: dict[int, list[tuple[int, Held]]] = {}
    for member, test in zip(members, tests, strict=True):
        by_seed.setdefault(member.seed, []).append((member.fold, test))
    wholes = [_whole(tested) for tested in by_seed.values()]
    first = wholes[0]
    if len(wholes) == 1:
        return first
    is_same = all(whole.about.numbers == first.about.numbers for whole in wholes)
    if not is_same or task._kind.has_positions:
        return None
    rows = {}
    for method in first.rows:
        rows[method] = _mean(task, [whole.rows[method] for whole in wholes])
    return first._replace(rows=rows)


def _whole(tested: Sequence[tuple[int, Held]]) -> Joined:
    """Returns the answers of one seed's folds in the order of the samples."""
    tests = [test for _, test in tested]
    sizes = [len(test.numbers) for test in tests]
    numbers = np.array([number for test in tests for number in test.numbers])
    if len(np.unique(numbers)) < len(numbers):  # numbered by place, as a task changed its samples
        numbers = np.arange(len(numbers))
    order = np.argsort(numbers)
    place = np.argsort(order)
    starts = np.cumsum([0, *sizes])
    rows = {}
    for method in tests[0].rows:
        if all(method in test.rows for test in tests):
            rows[method] = _concatenated([test.rows[method] for test in tests], starts, place)
    units = [unit for test in tests for unit in test.units]
    cells = [row for test in tests for row in test.cells]
    fold = np.repeat([number for number, _ in tested], sizes)
    about = tests[0]._replace(
        numbers=numbers[order].tolist(),
        units=[units[number] for number in order],
        cells=[cells[number] for number in order],
    )
    return Joined(rows, fold[order], about)


def _concatenated(parts: Sequence[Judged], starts: np.ndarray, place: np.ndarray) -> Judged:
    """Returns answers to the targets of several parts, sorted by the place of their samples."""
    sample = [part.sample + start for part, start in zip(parts, starts, strict=False)]
    places = place[np.concatenate(sample)]
    order = np.argsort(places, kind="stable")
    fields: dict[str, Any] = {}
    for field in ("true", "guess", "counts", "shares"):
        values = [getattr(part, field) for part in parts]
        if not any(value is None for value in values):
            fields[field] = np.concatenate(values)[order]
    return Judged(sample=places[order], **fields)


def _mean(task: Any, rows: Sequence[Judged]) -> Judged:
    return _decided(task, rows[0], np.mean([_values(row) for row in rows], 0))


def _values(judged: Judged) -> np.ndarray:
    """Returns what is averaged: probabilities, or numbers."""
    return judged.guess if judged.shares is None else judged.shares


def _decided(task: Any, judged: Judged, values: np.ndarray) -> Judged:
    """Returns the answer by mean probabilities or numbers."""
    guess = task._kind.decided(torch.from_numpy(values)).numpy()
    return judged._replace(guess=guess, shares=None if judged.shares is None else values)


# --- the simple method as a member ------------------------------------------------------------------------------------


def _can_mix(task: Any, rows: Mapping[str, Judged]) -> bool:
    """Returns whether runs keep their simple method, and both have numbers or probabilities by sample."""
    if not task._starts or task._kind.has_positions or "simple" not in rows:
        return False
    is_number = not task._kind.has_probabilities
    return is_number or all(judged.shares is not None for judged in rows.values())


def _mixed(task: Any, rows: Mapping[str, Judged], share: float) -> Judged:
    """Returns the answer with a share of the networks, and the simple methods for the rest."""
    network = rows["network"]
    values = share * _values(network) + (1 - share) * _values(rows["simple"])
    return _decided(task, network, values)


def _share(task: Any, joined: Joined) -> float:
    """Returns the share of the networks that is surely better than the simple method alone, by the gate's rule."""
    rows = [_mixed(task, joined.rows, share) for share in gate.GATES]
    if task._kind.has_classes:  # which weights of balanced classes follow from
        task._seen["classes of train"] = np.bincount(rows[0].true)
    names, unit = np.unique(joined.about.units, return_inverse=True)
    units = min(len(names), gate.MOST_UNITS)
    scores = [_scores(task, row) for row in rows]
    named = {str(place): row for place, row in enumerate(rows)}
    ranked = [*_ranked(task, named, joined.fold).values()]
    gains = gate.Gains(task, ranked, unit % gate.MOST_UNITS, units, scores)
    place = gate.chosen(gains, [gains.of(place, 0) for place in range(len(rows))])
    return gate.GATES[place or 0]


def _scores(task: Any, judged: Judged) -> Tensor:
    """Returns the scores whose probabilities are the answer's; of numbers the answer."""
    values = torch.from_numpy(_values(judged)).float()
    if not task._kind.has_probabilities:
        return values
    values = values.clamp(_LEAST, 1 - _LEAST)
    return values.log() if task._kind.has_classes else values.logit()


def _ranked(task: Any, rows: Mapping[str, Judged], fold: np.ndarray) -> dict[str, Judged]:
    """Returns answers with ranks within each fold for probabilities, if metrics judge the order alone."""
    if not prediction.goes_by_ranks(task):
        return dict(rows)
    ranked = {}
    for name, judged in rows.items():
        assert judged.shares is not None
        shares = np.empty(judged.shares.shape)
        fold_of_target = fold[judged.sample]
        for number in np.unique(fold):
            here = fold_of_target == number
            shares[here] = prediction.ranks(judged.shares[here])
        ranked[name] = judged._replace(shares=shares)
    return ranked


# --- what is written and printed --------------------------------------------------------------------------------------


def _write(task: Any, folder: Path, expected: Expected, compared: Compared) -> None:
    """Writes config.yaml, summary.json and expected.json, so that the archive and a chain have them."""
    names = [*map(scoring.name_of, task.metrics)]
    scores = {}
    for method, intervals in compared.scores.items():
        values = [interval.value for interval in intervals]
        scores[method] = dict(zip(names, values, strict=True))
    config = task.config
    summary = Summary(
        folder.name,
        config.task,
        "completed",
        members=expected.members,
        metrics=scores[ANSWER],
        baseline=scores.get("simple", {}),
    )
    disk.write_text(folder / "config.yaml", to_yaml(config))
    expected.write(folder)
    summary.write(folder)


def _about(task: Any, joined: Joined, runs: int) -> str:
    number = f"{len(joined.about.numbers):,} samples"
    if not task.config.folds.number:
        return f"{runs} runs together on the test, {number}:"
    return f"{runs} runs together, {number}, each answered by runs that did not train on it:"


def _table(task: Any, compared: Compared, best: str) -> str:
    """Returns a row a method: its metrics, and its gain over the simple method."""
    names = [*map(scoring.name_of, task.metrics)]
    head = ["", *names]
    if best != ANSWER:
        side = "less than" if task._signs[0] < 0 else "above"
        head.append(f"{names[0]} {side} {best!r}")
    table = [head]
    for method, scores in compared.scores.items():
        gain = "" if method == best else compared.gains[method][0].signed
        row = [method, *map(str, scores), gain]
        table.append(row[: len(head)])
    return aligned(table, left={0})


def _about_share(share: float) -> str:
    if not share:
        return "The networks do not surely gain, so the simple method of each run answers alone."
    if share == 1:
        return "The networks answer alone."
    return f"The answer is {share:g} of the networks, and the simple methods for the rest."


def _answers(task: Any, joined: Joined, answer: Judged) -> Iterator[list[Any]]:
    """Yields a head and a row a sample: what names it, its fold, its target, the answer and probabilities."""
    kind = task._kind
    about = joined.about
    columns = dict.fromkeys(name for row in about.cells for name in row)
    true = answer.true.tolist()
    guess = answer.guess.tolist()
    shares: list[Mapping[str, float]] = [{}] * len(true)
    if answer.shares is not None:
        shares = [prediction.class_shares(task, row) for row in answer.shares.tolist()]
    heads = ["target"], ["prediction"]
    if isinstance(true[0], list) and not kind.has_names:
        names = prediction.number_columns(task, len(true[0]))
        heads = [f"target_{name}" for name in names], names
    yield [*columns, "fold", *heads[0], *heads[1], *shares[0]]
    for place, sample in enumerate(answer.sample.tolist()):
        cells = [about.cells[sample].get(name, "") for name in columns]
        pair = [*_cells(task, true[place]), *_cells(task, guess[place])]
        yield [*cells, int(joined.fold[sample]), *pair, *shares[place].values()]


def _cells(task: Any, value: Any) -> list[Any]:
    """Returns the cells of a target or guess: one of a class or classes, of numbers one each."""
    if isinstance(value, list) and not task._kind.has_names:
        return value
    return [task._kind.cell(task, value)]
