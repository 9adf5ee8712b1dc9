"""Proposes the block of settings from a competition's files, each with its reason, or asks."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from lib.errors import BadInput, printable
from trainbook.supervised import encoded, tables
from trainbook.supervised.names import folded, listed, part_of
from trainbook.supervised.notes import collecting
from trainbook.supervised.tables import Table, number_of
from workloads.competition import files

_TABLES = (".csv", ".tsv", ".parquet")
_SAMPLE = re.compile("sample|submission|submit")
_RUNS = re.compile(r"(\d+ \d+)( \d+ \d+)*")
_MOST_CLASSES = 20  # different whole numbers of a target that are classes
_FEWEST_GROUPS = 5
_PARTS = 3  # rows of a group on average, at least


class Training(NamedTuple):
    """How long to train, by what is learned."""

    epochs: int
    batch: int
    starts: bool  # from a simple method's answers


_TRAINING = {
    "picture": Training(20, 32, True),
    "mask": Training(30, 16, False),
    "sound": Training(30, 32, True),
    "text": Training(8, 32, True),
    "table": Training(60, 32, True),
}
_ROWS_A_STEP = 400  # of a table: its steps then are few hundred an epoch at most
_MOST_AT_ONCE = 256


@dataclass
class Block:
    """Settings with the reason for each, and sentences on what the files do not tell."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)

    def put(self, key: str, value: Any, reason: str) -> None:
        self.values[key] = value
        self.reasons[key] = reason

    def ask(self, key: str, question: str, value: Any = "") -> None:
        self.put(key, value, "no file tells it: name it")
        self.questions.append(f"workload.{key}: {question}")


def propose(folder: Path) -> Block:
    """Returns the block for the files in a folder. Raises BadInput without tables."""
    known = _tables(folder)
    block = Block()
    sample = _sample(folder, known, block)
    train = _train(folder, known, sample, block)
    _key_and_target(train, sample, block)
    _inputs(folder, known, train, sample, block)
    if sample:
        block.put("sample", *_shown_sample(folder, sample))
    _group(train, known, block)
    _metric(train, sample, block)
    return block


def has_sample(folder: Path) -> bool:
    """Returns whether a table at the top of a folder is called as a sample submission."""
    return any(_SAMPLE.search(path.stem.casefold()) for path in _paths(folder))


def _paths(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in _TABLES]


def _tables(folder: Path) -> list[Table]:
    """Returns the tables at the top of a folder."""
    paths = _paths(folder)
    if not paths:
        raise BadInput(
            f"There is no table at the top of {printable(folder)}. Give the folder of a competition, with "
            "train.csv and sample_submission.csv, or begin by --like images, text, ..."
        )
    with collecting():
        return [tables.read(path, printable(path.name)) for path in paths]


def _name(folder: Path, table: Table) -> str:
    return table.path.relative_to(folder).as_posix()


def _sample(folder: Path, known: Sequence[Table], block: Block) -> Table | None:
    """Returns the sample submission: the table that is called so, the plainest name first."""
    called = [table for table in known if _SAMPLE.search(table.path.stem.casefold())]
    if not called:
        block.ask(
            "sample",
            "no table is called as a sample submission. Name it, or no submission is made.",
        )
        return None
    return min(called, key=lambda table: (len(table.path.stem), table.path.stem))


def _shown_sample(folder: Path, sample: Table) -> tuple[str, str]:
    return _name(folder, sample), f"{len(sample.rows):,} rows of {listed(sample.columns)}"


def _train(folder: Path, known: Sequence[Table], sample: Table | None, block: Block) -> Table:
    """Returns the training table: by its name, or the one with most columns. Raises BadInput without one."""
    others = [table for table in known if table is not sample]
    others = [table for table in others if not _SAMPLE.search(table.path.stem.casefold())]
    called = [table for table in others if part_of(table.path.stem) == "train"]
    unnamed = [table for table in others if part_of(table.path.stem) != "test"]
    choice = called or unnamed
    if not choice:
        raise BadInput(
            f"None of the tables in {printable(folder)} can be the training's: "
            f"{listed(table.path.name for table in known)}. Call it train.csv."
        )
    train = max(choice, key=lambda table: len(table.columns))
    why = "called as the training" if called else "neither the test nor the sample"
    block.put(
        "table", _name(folder, train), f"{why}: {len(train.rows):,} rows of {listed(train.columns)}"
    )
    return train


# --- key and target ---------------------------------------------------------------------------------------------------


def _key_and_target(train: Table, sample: Table | None, block: Block) -> None:
    if sample is None:
        block.ask("key", f"which column of {train.path.name} has the ids? {listed(train.columns)}")
        block.ask("target", f"which columns are predicted? {listed(train.columns)}", [])
        return
    first, *wanted = sample.columns
    by_name = {folded(name): name for name in train.columns}
    key = by_name.get(folded(first))
    if key:
        block.put("key", key, f"the first column of {sample.path.name}, and one of the training's")
    else:
        unique = [name for name in train.columns if _is_unique(train.column(name))]
        if not unique:
            block.ask("key", f"no column is called {first}, and none names each row once.")
        else:
            block.put(
                "key", unique[0], f"the first column that names each row once ({first} is none)"
            )
    _target(train, sample, [name for name in wanted if name in train.columns], wanted, block)


def _is_unique(cells: Sequence[str]) -> bool:
    return len({*cells}) == len(cells)


def _target(
    train: Table, sample: Table, shared: Sequence[str], wanted: Sequence[str], block: Block
) -> None:
    if len(shared) == len(wanted):
        block.put(
            "target", [*wanted], f"the columns of {sample.path.name} that {train.path.name} has"
        )
        return
    for name in train.columns:
        if {*wanted} == {cell.strip() for cell in train.column(name)} - {""}:
            reason = f"its {len(wanted)} values are the columns of {sample.path.name}"
            block.put("target", [name], reason)
            return
    rest = [name for name in train.columns if name != block.values.get("key")]
    block.ask(
        "target",
        f"{train.path.name} has no columns {listed(wanted)}, and no column with these values. Which are "
        f"predicted? {listed(rest)}",
        [],
    )


# --- files ------------------------------------------------------------------------------------------------------------


def _inputs(
    folder: Path, known: Sequence[Table], train: Table, sample: Table | None, block: Block
) -> None:
    """Names the folders of training and test files, or the table of the test and its columns of text."""
    stems = _stems(folder)
    key = block.values.get("key")
    names = train.column(key) if key else []
    place, number = _most_named(stems, names)
    if number:
        block.put("folder", place, f"{number:,} of {len(names):,} cells of {key} name its files")
        if not _is_unique(names):
            block.questions.append(
                f"{train.path.name} has several rows for a file, as of boxes or parts. No task here learns "
                "that: docs/competition.md has the way by a script of your own."
            )
    ids = sample.column(sample.columns[0]) if sample else []
    others = {pattern: inner for pattern, inner in stems.items() if pattern != place}
    if number:
        test, matches = _most_named(others, ids)
        if matches:
            block.put("test", test, f"{matches:,} of {len(ids):,} ids of the sample name its files")
        else:
            block.ask(
                "test", "no folder has files that the sample's ids name. Name it, as test/*.png."
            )
        return
    _test_table(folder, known, train, sample, block)


def _stems(folder: Path) -> dict[str, set[str]]:
    """Returns the names and stems of pictures and sounds, by the pattern of their folder."""
    stems: dict[str, set[str]] = {}
    for path in folder.rglob("*"):
        inner = path.relative_to(folder)
        pattern = (inner.parent / f"*{path.suffix}").as_posix()
        if path.is_file() and files.form_of(pattern):
            stems.setdefault(pattern, set()).update((folded(path.stem), folded(path.name)))
    return stems


def _most_named(stems: Mapping[str, set[str]], names: Sequence[str]) -> tuple[str, int]:
    """Returns the pattern whose files most names name, and how many; 0 if fewer than half do."""
    counts = {
        pattern: sum(folded(name.strip()) in inner for name in names)
        for pattern, inner in stems.items()
    }
    best = max(counts, key=lambda pattern: counts[pattern], default="")
    if not best or 2 * counts[best] < len(names):
        return "", 0
    return best, counts[best]


def _test_table(
    folder: Path, known: Sequence[Table], train: Table, sample: Table | None, block: Block
) -> None:
    tests = [table for table in known if part_of(table.path.stem) == "test"]
    key = block.values.get("key")
    ids = {*sample.column(sample.columns[0])} if sample else set()
    fitting = [table for table in tests if key in table.columns]
    matching = [table for table in fitting if ids <= {*table.column(str(key))}]
    if not matching:
        block.ask("test", "no table called as a test has the sample's ids. Name it.")
        return
    test = matching[0]
    block.put("test", _name(folder, test), f"its {key} has all {len(ids):,} ids of the sample")
    target = block.values.get("target", [])
    inputs = [name for name in test.columns if name in train.columns and name not in (key, *target)]
    rows = [{name: row.get(name) for name in inputs} for row in train.rows]
    if not inputs:
        return
    columns = encoded.learned(rows)
    texts = [name for name in inputs if columns[name]["as"] == "text"]
    if texts == [name for name in inputs if columns[name]["as"] != "left out"]:
        block.put("text", texts, "the only columns of the test, and words")


# --- group and metric -------------------------------------------------------------------------------------------------


def _group(train: Table, known: Sequence[Table], block: Block) -> None:
    """Names a column that only the training has, each of whose values several rows share."""
    taken = {block.values.get("key"), *block.values.get("target", [])}
    tests = [table for table in known if part_of(table.path.stem) == "test"]
    in_test = {name for table in tests for name in table.columns}
    for name in train.columns:
        if name in taken or name in in_test:
            continue
        cells = [cell for cell in train.column(name) if cell.strip()]
        values = len({*cells})
        is_number = all(np.isfinite(number_of(cell)) and "." in cell for cell in cells)
        if is_number or values < _FEWEST_GROUPS or values * _PARTS > len(cells):
            continue
        reason = f"{values:,} values, each in several rows, and none for the test: they stay in one split"
        block.put("group", name, reason)
        return


def _metric(train: Table, sample: Table | None, block: Block) -> None:
    """Names the usual metric of what the target is: the files do not have the competition's."""
    targets = block.values.get("target") or []
    if not targets:
        block.ask("metric", "it follows from the target. Write the competition's.")
        return
    what, metric = _kind(train, sample, targets, block)
    block.put("metric", metric, f"{what}; write the competition's, in its words")
    block.questions.append(
        f"workload.metric: no file names it. {metric} is usual for {what}: write the competition's."
    )


def _kind(
    train: Table, sample: Table | None, targets: Sequence[str], block: Block
) -> tuple[str, str]:
    """Returns what the targets are, in words, and the usual metric."""
    cells = {name: [c.strip() for c in train.column(name) if c.strip()] for name in targets}
    first = cells[targets[0]]
    form = files.form_of(block.values.get("folder", ""))
    if form and form.word == "picture" and first and all(map(_RUNS.fullmatch, first)):
        return "masks in run lengths", "dice"
    numbers = [number_of(cell) for column in cells.values() for cell in column]
    are_numbers = bool(numbers) and bool(np.isfinite(numbers).all())
    different = len({*numbers})
    if len(targets) > 1:
        if are_numbers and {*numbers} <= {0.0, 1.0}:
            return f"{len(targets)} labels, each 0 or 1", "roc_auc"
        return f"{len(targets)} numbers", "rmse"
    has_shares = sample is not None and len(sample.columns) > 2
    is_whole = all(number == int(number) for number in numbers) if are_numbers else False
    if are_numbers and not has_shares and not (is_whole and different <= _MOST_CLASSES):
        return f"a number ({different:,} different ones)", "rmse"
    classes = Counter(first)
    if has_shares:
        return f"{len(classes):,} classes, and their probabilities are asked for", "log_loss"
    if sample is not None and _asks_for_shares(sample, {*classes}):
        return "two classes, and the probability of one is asked for", "roc_auc"
    return f"{len(classes):,} classes", "accuracy"


def _asks_for_shares(sample: Table, classes: set[str]) -> bool:
    values = [number_of(value) for value in sample.column(sample.columns[1])]
    is_fraction = any(not float(value).is_integer() for value in values if np.isfinite(value))
    return len(classes) == 2 and is_fraction


# --- the configuration ------------------------------------------------------------------------------------------------


def text(folder: Path, shown: str, block: Block) -> str:
    """Returns the configuration with the block, a line a key; `shown` is the folder as the user gave it."""
    form = files.form_of(block.values.get("folder", ""))
    learned = form.word if form else "table"
    if block.values.get("text"):
        learned = "text"
    if block.values.get("metric") == "dice":
        learned = "mask"
    plan = _TRAINING[learned]
    batch = plan.batch
    if learned == "table":
        with collecting():
            rows = len(tables.read(folder / block.values["table"], "the table").rows)
        while batch < _MOST_AT_ONCE and batch * _ROWS_A_STEP < rows:
            batch *= 2
    training = {"epochs": plan.epochs, "effective_batch": batch, "evaluate_every_epochs": 1}
    if plan.starts:
        training["start_from_baseline"] = True
    workers = 0 if form is None else 2
    lines = ["task: competition"]
    lines.append(f"data: {_flow({'dir': shown, 'num_workers': workers})}")
    lines.append(f"training: {_flow(training)}")
    lines.append("workload:")
    order = (
        "table",
        "key",
        "target",
        "folder",
        "text",
        "test",
        "sample",
        "group",
        "metric",
        "flip",
    )
    for key in order:
        if key in block.values:
            lines.append(f"  {key}: {_flow(block.values[key])}  # {block.reasons[key]}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """Returns a value in one line of YAML."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
        .removesuffix("...\n")
        .strip()
    )
