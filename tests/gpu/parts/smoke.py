"""Every workload and example in fp16 and bf16: 20 steps, killed at a checkpoint, resumed, then a prediction."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import golden
from tests.conftest import ROOT
from trainbook import commands, new

STEPS = 20
SAVED_AT = 7
PRECISIONS = ("fp16", "bf16")
_ALONE = (
    "folds=0",
    "queue.before=[]",
    "queue.start_from=",
)  # a queue's first run, without the others


def chat_questions(folder: Path) -> Path:
    folder.mkdir()
    (folder / "questions.txt").write_text(
        "Turn on the light in the kitchen.\nWhat time is it?\n", "utf-8"
    )
    return folder / "questions.txt"


def made(folder: Path) -> Path:
    """Returns the data that `trainbook new` made beside the configuration."""
    return folder.parent / "my_data"


NEW_DATA: dict[str, Callable[[Path], Path]] = {
    "tabular": made, "graphmer_small": golden.sources, "glacier_pretrain_small": golden.generated_scenes,
    "chat_small": chat_questions, "legal_small": golden.judgment, "vqa_small": golden.questions, "images": made,
    "segmentation": made, "text": made, "tokens": made, "glacier_finetune_small": golden.generated_scenes,
}  # fmt: skip
# Questions and answers of an evaluation: as many as show that it works
FEWER = {
    "chat_small": (
        "workload.generated=400",
        "workload.validation_rows=8",
        "workload.test_rows=8",
        "workload.answer=20",
    ),
    "graphmer_small": (
        "workload.evaluation.validation_triples=100",
        "workload.evaluation.test_triples=200",
    ),
}
ROWS = tuple(f"{name} {precision}" for name in NEW_DATA for precision in PRECISIONS)


def measure(row: str, folder: Path, tiny: bool) -> dict[str, Any]:
    """Trains, kills, resumes and predicts; raises where a command fails. `tiny` takes fp32, which a CPU computes."""
    name, precision = row.split()
    config = ROOT / "configs" / f"{name}.yaml"
    is_example = not config.is_file()
    if is_example:
        new.write("my", name, folder)
        config = folder / "my.yaml"
    options = [
        f"output_dir={folder / 'runs'}", "run.name=smoke", f"training.max_steps={STEPS}", "training.epochs=0",
        f"training.precision={'fp32' if tiny else precision}", f"training.evaluate_every_steps={STEPS // 2}",
        f"checkpoint.every_steps={SAVED_AT}", "checkpoint.every_minutes=0", "data.num_workers=0", "device.processes=1",
        "training.log_every_steps=1", *(_ALONE if "finetune" in name else ()),
    ]  # fmt: skip
    options += FEWER.get(name, ())
    train = ["train", str(config), *(f"--set={option}" for option in options)]
    begin = time.monotonic()
    kill_at_a_checkpoint(folder, train)
    killed_at = time.monotonic() - begin
    call(folder, *train)
    summary = json.loads((folder / "runs" / "smoke" / "summary.json").read_text("utf-8"))
    call(
        folder,
        "predict",
        "runs/outputs.tar.gz",
        str(NEW_DATA[name](folder / "new")),
        "answers",
        "--trust",
    )
    ended = summary["reason"] == "completed" and summary["step"] == STEPS
    figures = {
        name: summary[name]
        for name in ("steps_per_second", "peak_memory_bytes", "skipped_steps", "precision")
    }
    return {"ok": ended, "killed_after_seconds": round(killed_at, 1), **figures}


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    environment["TRAINBOOK_CACHE"] = str(folder / "cache")
    out = (folder / "commands.txt").open("a")
    command = [sys.executable, "-m", "trainbook", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, text=True)


def call(folder: Path, *arguments: str) -> None:
    """Runs a command in this process, which has imported torch already. Raises RuntimeError where it fails."""
    os.environ["TRAINBOOK_CACHE"] = str(folder / "cache")
    with contextlib.chdir(folder):
        code = commands.main(list(arguments))
    if code:
        raise RuntimeError(f"trainbook {arguments[0]} ended with {code}")


def kill_at_a_checkpoint(folder: Path, train: list[str]) -> None:
    """Starts the training and kills it as soon as its first checkpoint lies there."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    process = start(folder, *train)
    checkpoint = folder / "runs" / "smoke" / "checkpoints" / f"step-{SAVED_AT:08d}"
    while process.poll() is None and not checkpoint.is_dir():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not checkpoint.is_dir():
        raise RuntimeError(
            f"The training ended without a checkpoint: {(folder / 'commands.txt').read_text()[-400:]}"
        )
