"""Runs the examples that `new` writes: `make faults`, or `python -m tests.faults.examples [KIND ...]`.

Each example is trained whole, and again with SIGKILL at random moments: weights, table, scores and answers must have
the same bytes. Its run is planned, its notebook is pushed to an imitated Kaggle, and its archive predicts in an empty
folder. Every step is the command that a user types. Figures go to tests/bench/records/examples.json, after minutes.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib import checkpoint
from lib.report.metrics import read
from tests.bench.record import RECORDS, head, write
from tests.conftest import ROOT, VOLATILE_COLUMNS
from tests.trainbook.kaggle import stub
from trainbook import new

RECORD = RECORDS / "examples.json"
KILLS = 3
SET = (
    "--set=checkpoint.every_steps=2",  # a kill at any moment loses little and falls into a save now and then
    "--set=checkpoint.every_minutes=0",
    "--set=training.max_steps=300",  # some seconds also where a step takes a hundredth of one
)


class Failed(Exception):
    """A command that ended otherwise than it should."""


def start(folder: Path, *words: str, environment: dict | None = None) -> subprocess.Popen:
    """Starts a command of ours in a folder, with its output in log.txt there."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})}
    with (folder / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "trainbook", *words]
        return subprocess.Popen(command, cwd=folder, env=given, stdout=log, stderr=log)


def command(folder: Path, *words: str, environment: dict | None = None) -> str:
    """Runs it to its end and returns what it printed; raises Failed with the end of that."""
    before = (folder / "log.txt").stat().st_size if (folder / "log.txt").exists() else 0
    code = start(folder, *words, environment=environment).wait()
    said = (folder / "log.txt").read_text("utf-8", "replace")[before:]
    if code:
        raise Failed(f"{' '.join(words)} ended with {code}:\n{said[-3000:]}")
    return said


def written(folder: Path, kind: str) -> Path:
    folder.mkdir(parents=True)
    command(folder, "new", "my", "--like", kind)
    return folder


def newest(folder: Path) -> int:
    return max(checkpoint.steps(folder / "runs" / "my" / "checkpoints"), default=0)


def starts_and_saves(folder: Path) -> subprocess.Popen:
    """Starts the training, or resumes it; returns when a newer checkpoint is on the disk or the run has ended."""
    before, process = newest(folder), start(folder, "train", "my.yaml", *SET)
    while process.poll() is None and newest(folder) <= before:
        time.sleep(0.002)
    return process


def train(folder: Path) -> float:
    """Trains to the end; returns the seconds from the first newer checkpoint on."""
    process = starts_and_saves(folder)
    begin = time.perf_counter()
    if process.wait():
        raise Failed(f"The training ended with {process.returncode}:\n{(folder / 'log.txt').read_text()[-3000:]}")
    return time.perf_counter() - begin


def killed(folder: Path, seconds: float, draw: random.Random) -> list[int]:
    """Trains with kills at random moments after a newer checkpoint; returns the steps that were on the disk then."""
    steps = []
    for _ in range(KILLS):
        process = starts_and_saves(folder)
        time.sleep(draw.uniform(0, seconds / (3 * KILLS)))
        if process.poll() is None:
            process.kill()
            steps.append(newest(folder))
        process.wait()
    train(folder)
    return steps


def result(folder: Path) -> dict[str, object]:
    """What must be equal: the newest checkpoint and the best weights byte for byte, the table's figures, the scores."""
    run = folder / "runs" / "my"
    last = checkpoint.path_of(run / "checkpoints", newest(folder))
    weights = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in run.glob("best/*/model.safetensors")}
    weights |= {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
    rows = [[v for k, v in row.items() if k not in VOLATILE_COLUMNS] for row in read(run / "metrics.csv")]
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    scores = {name: summary[name] for name in ("step", "reason", "best", "metrics", "test_loss", "baseline")}
    return {"weights": weights, "rows": rows, "scores": scores}


def predicted(folder: Path, archive: Path, data: Path) -> dict[str, str]:
    """Predicts from the archive in an empty folder; returns the text of each file that comes out."""
    folder.mkdir()
    shutil.copy(archive, folder / "outputs.tar.gz")
    shutil.copytree(data, folder / "data")
    said = command(folder, "predict", "outputs.tar.gz", "data", "out", "--trust")
    (folder / "said.txt").write_text(said)
    return {path.name: path.read_text("utf-8") for path in sorted((folder / "out").glob("*.csv"))}


def pushed(folder: Path, base: Path) -> str:
    """The three commands to a notebook that is asked to run; returns the name that it got."""
    base.mkdir()
    with stub.serving(base) as (served, environment):
        command(folder, "kaggle", "dataset", "my.yaml", "--slug", "my-data", environment=environment)
        command(folder, "kaggle", "push", "my.yaml", "--dataset", "ada/my-data", environment=environment)
        request = served.sessions[0].request
    if "DATA_DIR = 'ada/my-data'" not in request["text"]:
        raise Failed("The notebook that was pushed does not name its data set.")
    return request["slug"]


def planned(folder: Path) -> dict[str, object]:
    """Plans the run on Kaggle's two T4s; returns the first micro-batch that fits, with its peak."""
    said = command(folder, "plan", "my.yaml", "--gpu", "t4", "--gpus", "2", "--json")
    (plan,) = json.loads(said[said.index("[\n") :])  # behind what libraries write into the same log as they load
    option = next(each for each in plan["options"] if each["prediction"]["fits"])
    peak = option["prediction"]["reserved_bytes"]
    return {"micro_batch": option["micro_batch"], "reserved_bytes": peak, "layers": plan["layers"]}


def tried(base: Path, kind: str) -> dict[str, object]:
    """The whole way of one example; raises Failed with the first thing that was not as it should be."""
    whole, broken = written(base / "whole", kind), written(base / "broken", kind)
    seconds = train(whole)
    steps = killed(broken, seconds, random.Random(kind))
    if len(steps) < KILLS:
        raise Failed(f"{kind}: only {len(steps)} kills fell into the run.")
    expected, ended = result(whole), result(broken)
    differing = [name for name in expected if expected[name] != ended[name]]
    if differing:
        raise Failed(f"{kind}: the killed run ended with other {', '.join(differing)}.")
    plan = planned(whole)
    name = pushed(whole, base / "kaggle")
    archive = whole / "runs" / "outputs.tar.gz"
    answers = predicted(base / "empty", archive, whole / "my_data")
    again = predicted(base / "again", broken / "runs" / "outputs.tar.gz", whole / "my_data")
    if answers != again or not answers:
        raise Failed(f"{kind}: the archive of the killed run predicts otherwise.")
    scores = expected["scores"]
    return {
        "steps": scores["step"], "seconds": round(seconds, 1), "killed with checkpoints of steps": steps,
        "same bytes": True, "test": scores["metrics"], "baseline": scores["baseline"],
        "planned for two T4s": plan, "pushed as": name,
        "answers": {file: len(text.splitlines()) - 1 for file, text in answers.items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=list(new.KINDS), metavar="KIND", help=", ".join(new.KINDS))
    record = head("torch", "transformers")
    for kind in parser.parse_args().kinds:
        with tempfile.TemporaryDirectory() as temporary:
            record[kind] = tried(Path(temporary), kind)
        print(json.dumps({kind: record[kind]}), flush=True)
    write(RECORD, record)


if __name__ == "__main__":
    main()
