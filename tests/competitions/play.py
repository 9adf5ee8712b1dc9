"""Plays a competition by the command line, and joins the answers by hand beside it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd

from tests.competitions.layouts import Layout

ROOT = Path(__file__).parents[2]
TASKS = Path(__file__).with_name("tasks")


def scores(layout: Layout, folder: Path, steps: int) -> dict[str, float]:
    """Returns the score by sample of a competition that is played in an empty folder."""
    data = folder / "input"
    truth = layout.write(data, *layout.rows)
    _train(layout, folder, data, steps)
    return {sample: _score(layout, folder, data / sample, truth) for sample in layout.samples}


def _train(layout: Layout, folder: Path, data: Path, steps: int) -> None:
    call(folder, "new", "my", "--like", layout.like)
    options = {
        "data.dir": data / layout.train, "data.num_workers": 0, "training.epochs": 0, "training.max_steps": steps,
        "training.evaluate_every_epochs": 0, "training.evaluate_every_steps": max(1, steps // 3),
        "scheduler.warmup_epochs": 0, **layout.options,
    }  # fmt: skip
    if layout.task:
        name, _, task = layout.task.partition(":")
        shutil.copy(TASKS / f"{name}.py", folder)
        options["task"] = f"{name}.py:{task}"
    call(folder, "train", "my.yaml", *(f"--set={key}={value}" for key, value in options.items()))


def _score(layout: Layout, folder: Path, sample: Path, truth: pd.DataFrame) -> float:
    """Returns the score of a submission. Raises AssertionError where it is not the one that was asked for."""
    out = folder / f"answers-{sample.stem}"
    call(folder, "predict", "runs/outputs.tar.gz", str(sample.parent / layout.new), out.name, "--trust",
         "--sample", str(sample))  # fmt: skip
    wanted = read(sample)
    submission = read(out / "submission.csv")
    assert [*submission.columns] == [*wanted.columns]
    key = wanted.columns[0]
    assert [*submission[key]] == [*wanted[key]]
    for column in wanted.columns[1:]:
        numbers = pd.to_numeric(wanted[column], errors="coerce")
        assert numbers.isna().all() or pd.to_numeric(submission[column]).notna().all(), column
    assert not submission[wanted.columns[1:]].equals(wanted[wanted.columns[1:]])
    by_hand = joined(read(out / "predictions.csv"), sample.parent / layout.new, wanted)
    truth = truth.astype({key: str})
    score, score_by_hand = (
        layout.samples[sample.name](*aligned(truth, table)) for table in (submission, by_hand)
    )
    assert score == score_by_hand, f"{score} and {score_by_hand} by hand"
    return score


def read(path: Path) -> pd.DataFrame:
    """Reads a table whose first column has ids, which are text: 00012 is not 12."""
    first = pd.read_csv(path, nrows=0).columns[0]
    return pd.read_csv(path, dtype={first: str}, keep_default_na=False)


def joined(predictions: pd.DataFrame, new: Path, sample: pd.DataFrame) -> pd.DataFrame:
    """Returns answers in the columns of a sample, as a user writes it: ids are stems or names of files, else rows."""
    key, *columns = sample.columns
    if new.is_dir():
        has_suffixes = sample[key].str.contains(".", regex=False).all()
        ids = [
            Path(name).name if has_suffixes else Path(name).stem for name in predictions["sample"]
        ]
    else:
        ids = pd.read_csv(new, dtype={key: str})[
            key
        ].to_list()  # a line for each answer, in their order
    if columns[0] in predictions:
        renamed = predictions
    else:
        renamed = predictions.rename(columns={"prediction": columns[0]})
    return renamed[columns].assign(**{key: ids})[[key, *columns]]


def aligned(truth: pd.DataFrame, table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns both tables with the same ids in the same order."""
    key = truth.columns[0]
    assert sorted(truth[key]) == sorted(table[key])
    return tuple(part.sort_values(key).reset_index(drop=True) for part in (truth, table))


def lines_of(layout: Layout) -> int:
    """Returns how many lines of Python a user writes beside the example."""
    if not layout.task:
        return 0
    text = (TASKS / f"{layout.task.partition(':')[0]}.py").read_text("utf-8")
    return sum(bool(line.strip()) for line in text.splitlines())


def call(folder: Path, *arguments: str) -> None:
    """Runs a command of Trainbook. Raises AssertionError where it fails."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "trainbook", *arguments]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, (
        f"{' '.join(arguments)}:\n{process.stdout[-3000:]}{process.stderr[-3000:]}"
    )
