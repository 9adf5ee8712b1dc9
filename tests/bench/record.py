"""How every record under tests/bench/records begins, and how it is written.

python -m tests.bench.record    lists the records that are older than what they measure
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"

# What each record measures
MEASURED = {
    "answers": "trainbook/supervised trainbook/new",
    "chat": "workloads/chat configs/chat-base configs/chat_small.yaml",
    "command": "trainbook/run",
    "competitions": "trainbook/supervised trainbook/new tests/competitions",
    "doors": "trainbook/new trainbook/supervised",
    "faults": "lib/checkpoint lib/machine/disk.py lib/training/state.py",
    "faults_chat": "workloads/chat lib/checkpoint lib/training/state.py",
    "faults_libc": "lib/checkpoint lib/machine/disk.py lib/training/state.py",
    "faults_scripts": "trainbook/run tests/faults/habits",
    "fp16": "workloads lib/training trainbook/supervised trainbook/new",
    "folds": "trainbook/supervised trainbook/launch/together.py trainbook/new/examples/tabular.py",
    "glacier_encoder": "workloads/glacier trainbook/published",
    "glacier_scores": "workloads/glacier",
    "gpu": "lib workloads trainbook tests/gpu",
    "gpu_plans": "lib/planner lib/training workloads",
    "graphmer": "workloads/graphmer configs/graphmer_small.yaml",
    "graphmer_open": "workloads/graphmer workloads/codegraph",
    "kaggle_image": "tests/notebooks/kaggle-image.txt",
    "legal": "workloads/legal",
    "out_of_memory": "lib/training/step.py lib/training/evaluation.py",
    "overhead": "lib/training lib/report",
    "planner": "lib/planner",
    "published": "trainbook/supervised/simple trainbook/supervised/encoders.py trainbook/new/examples",
    "ranks": "lib/ranks trainbook/launch",
    "readings": "lib/planner",
    "save": "lib/checkpoint",
    "session": "lib/training/session.py",
    "verdicts": "trainbook/supervised",
    "vqa": "workloads/vqa",
}


def head(*packages: str, **machine: object) -> dict:
    """Returns date, machine, versions and commit; `packages` beside Python's own, `machine` tells it from others."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "cpus": os.cpu_count(), "processor": platform.machine(), "platform": platform.system(), **machine,
        },
        "versions": {"python": platform.python_version(), **versions},
        "commit": git("rev-parse", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else ""),
    }  # fmt: skip


def of_card(name: str, card: str) -> Path:
    """Returns where the record of this name for a GPU lies."""
    return RECORDS / f"{name}_{card.lower().replace(' ', '_')}.json"


def train(config: Path | str, options: Mapping[str, object], **environment: str) -> None:
    """Trains by the command line in a fresh process; a run that was killed resumes."""
    pairs = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "trainbook", "train", str(config), *pairs]
    subprocess.run(command, cwd=RECORDS.parents[2], env={**os.environ, **environment}, check=True)


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(float(value), 4) for name, value in figures.items()}


def options_of(
    rows: Iterable[str], seeds: str, arguments: list[str], about: str
) -> argparse.Namespace:
    """Parses `--rows`, `--seeds`, `--again` and `--scratch` of a bench. Exits where a row is unknown."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--rows", default=",".join(rows), type=lambda text: text.split(","))
    parser.add_argument(
        "--seeds", default=seeds, type=lambda text: [int(seed) for seed in text.split(",")]
    )
    parser.add_argument("--again", action="store_true", help="measure what the record has, too")
    parser.add_argument(
        "--scratch", default=Path(tempfile.gettempdir()) / "trainbook-bench", type=Path
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.rows) - set(rows):
        raise SystemExit(f"There are no rows {sorted(unknown)}. Known are {list(rows)}.")
    options.scratch.mkdir(parents=True, exist_ok=True)
    return options


def git(*arguments: str) -> str:
    """Returns what git prints about this checkout; nothing outside of one."""
    try:
        command = ["git", "-C", str(RECORDS), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def outdated() -> list[str]:
    """Returns a sentence for each record that is older than what it measures."""
    sentences = []
    for path in sorted(RECORDS.glob("*.json")):
        commit = json.loads(path.read_text("utf-8")).get("commit", "")
        written = commit or git("log", "-1", "--format=%H", "--", str(path))
        about = MEASURED[path.stem.partition("_nvidia_")[0]]
        measured = [str(RECORDS.parents[2] / name) for name in about.split()]
        if written and (
            later := git(
                "log", "--format=%h", f"{written.split()[0]}..HEAD", "--", *measured
            ).split()
        ):
            sentences.append(f"{path.name} is older than {about}: {len(later)} commits since.")
    return sentences


def write(path: Path, record: dict) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def publish(name: str, record: dict) -> None:
    """Writes the record of this name, and prints it."""
    write(RECORDS / f"{name}.json", record)
    print(json.dumps(record, indent=1))


def runs_of(path: Path) -> dict[str, Any]:
    """Returns the runs that a record has, by their names."""
    if path.is_file():
        return json.loads(path.read_text("utf-8"))["runs"]
    return {}


def add_run(
    path: Path, name: str, run: Mapping[str, Any], summed_up: Callable[..., Any], *packages: str
) -> Any:
    """Adds a run to a record, and the tables that `summed_up` makes of all of its runs; returns the tables.

    A run is a line: it has the answers of each question or document, which nobody reads.
    """
    runs = {**runs_of(path), name: run}
    tables = summed_up(runs)
    text = json.dumps({**head(*packages), "tables": tables, "runs": dict.fromkeys(runs)}, indent=1)
    for one, own in runs.items():
        text = text.replace(f"{json.dumps(one)}: null", f"{json.dumps(one)}: {json.dumps(own)}")
    path.write_text(text + "\n", "utf-8")
    return tables


def measure(
    path: Path,
    rows: Iterable[str],
    seeds: str,
    measured: Callable[..., Any],
    summed_up: Callable[..., Any],
    about: str,
) -> None:
    """Measures the rows and seeds that a command line asks for and the record lacks, each in a folder of its own.

    A run that was killed finds what it left there; one that is to be measured again finds nothing.
    """
    options = options_of(rows, seeds, sys.argv[1:], about)
    for row, seed in product(options.rows, options.seeds):
        name = f"{row}, seed {seed}"
        place = options.scratch / path.stem / name.replace(",", "").replace(" ", "-")
        if options.again:
            shutil.rmtree(place, ignore_errors=True)
        if options.again or name not in runs_of(path):
            place.mkdir(parents=True, exist_ok=True)
            run = measured(row, seed, place)
            add_run(path, name, run, summed_up, "torch")
            print(name, json.dumps(run), flush=True)


if __name__ == "__main__":
    for sentence in outdated():
        print(f"Warning: {sentence} Measure it again before you cite it.")
