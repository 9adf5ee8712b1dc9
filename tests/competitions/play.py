"""Plays a competition by the command line, and joins the answers by hand beside it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd

from tests.competitions.layouts import Layout

ROOT = Path(__file__).parents[2]
TASKS = Path(__file__).with_name("tasks")


Pair = tuple[
    pd.DataFrame, pd.DataFrame
]  # the truth and answers, with the same ids in the same order


def pairs(layout: Layout, folder: Path, steps: int = 0, seed: int = 0) -> dict[str, Pair]:
    """Plays a competition in an empty folder, as proposed with 0 steps; returns truth and answers by sample."""
    data = folder / "input"
    truth = layout.write(data, *layout.rows)
    _train(layout, folder, data, steps, seed)
    if not layout.task:
        _check_handed_in(folder, data)
    return {sample: _submitted(layout, folder, data / sample, truth) for sample in layout.samples}


def _train(layout: Layout, folder: Path, data: Path, steps: int, seed: int) -> None:
    options = {"data.dir": data, "data.num_workers": 0, "seed": seed, **layout.options}
    if layout.task:
        call(folder, "new", "my", "--like", layout.like)
        name, _, task = layout.task.partition(":")
        shutil.copy(TASKS / f"{name}.py", folder)
        options["task"] = f"{name}.py:{task}"
    else:
        call(folder, "new", "my", "--like", layout.like, "--data", str(data))
    if layout.metric:
        options["workload.metric"] = layout.metric
    if steps:
        options |= {"training.epochs": 0, "training.max_steps": steps}
        options |= {"training.evaluate_every_epochs": 0, "scheduler.warmup_epochs": 0}
        options["training.evaluate_every_steps"] = max(1, steps // 3)
    changes = [f"--set={key}={value}" for key, value in options.items()]
    call(folder, "train", "my.yaml", *changes)


def _check_handed_in(folder: Path, data: Path) -> None:
    """Raises AssertionError unless the run itself ended with a submission in the form of its sample."""
    wanted = read(data / "sample_submission.csv")
    submission = read(folder / "runs" / "submission.csv")
    key = wanted.columns[0]
    assert [*submission.columns] == [*wanted.columns]
    assert [*submission[key]] == [*wanted[key]]
    assert not submission.equals(wanted)
    expected = json.loads((folder / "runs" / "my" / "export" / "expected.json").read_text("utf-8"))
    assert expected["way"] == "test"


def _submitted(layout: Layout, folder: Path, sample: Path, truth: pd.DataFrame) -> Pair:
    """Returns the truth and a submission. Raises AssertionError if its form or score differs."""
    out = folder / f"answers-{sample.stem}"
    new = sample.parent / layout.new
    options = ["--sample", str(sample)]
    if layout.task:
        options.append("--trust")
    call(folder, "predict", "runs/outputs.tar.gz", str(new), out.name, *options)
    wanted = read(sample)
    submission = read(out / "submission.csv")
    assert [*submission.columns] == [*wanted.columns]
    key = wanted.columns[0]
    assert [*submission[key]] == [*wanted[key]]
    for column in wanted.columns[1:]:
        has_numbers = pd.to_numeric(wanted[column], errors="coerce").notna().any()
        if has_numbers:
            assert pd.to_numeric(submission[column]).notna().all(), column
    assert not submission.equals(wanted)
    by_hand = joined(read(out / "predictions.csv"), new, wanted)
    truth = truth.astype({key: str})
    score_of = layout.samples[sample.name]
    pair = aligned(truth, submission)
    score = score_of(*pair)
    score_by_hand = score_of(*aligned(truth, by_hand))
    assert score == score_by_hand, f"{score} and {score_by_hand} by hand"
    return pair


def read(path: Path) -> pd.DataFrame:
    """Reads a table whose first column has ids, which are text: 00012 is not 12."""
    first = pd.read_csv(path, nrows=0).columns[0]
    return pd.read_csv(path, dtype={first: str}, keep_default_na=False)


def joined(predictions: pd.DataFrame, new: Path, sample: pd.DataFrame) -> pd.DataFrame:
    """Returns answers in the columns of a sample, as a user joins them: by file names or rows."""
    key, *columns = sample.columns
    if new.is_dir():
        part = "name" if sample[key].str.contains(".", regex=False).all() else "stem"
        ids = [getattr(Path(name), part) for name in predictions["sample"]]
    else:  # a line for each answer, in their order
        ids = pd.read_csv(new, dtype={key: str})[key].to_list()
    if columns[0] in predictions:
        renamed = predictions
    else:
        renamed = predictions.rename(columns={"prediction": columns[0]})
    return renamed[columns].assign(**{key: ids})[[key, *columns]]


def aligned(truth: pd.DataFrame, table: pd.DataFrame) -> Pair:
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
    """Runs a command of Trainbook. Raises AssertionError if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "trainbook", *arguments]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    output = process.stdout[-3000:] + process.stderr[-3000:]
    assert process.returncode == 0, f"{' '.join(arguments)}:\n{output}"
