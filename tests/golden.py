"""Holds seven small runs to the bytes that they had: `make golden`, after every change that should change none.

Each run trains 20 steps, is killed at its first checkpoint, resumes to its end and predicts from its archive. Hashed
are the weights, metrics.csv without columns of clock and machine, and every table of evaluation and prediction. The
processes use instructions that all x86-64 processors have, so that the hashes are those of any of them.

    python -m tests.golden [NAME ...]           compares with tests/golden.json
    python -m tests.golden --record [NAME ...]  writes it anew
"""

import argparse
import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import rasterio
import torch
from PIL import Image

from lib.machine import disk

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_suffix(".json")
COMMAND = [sys.executable, "-m", "trainbook"]
PORTABLE = {
    "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "1",
    "OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
}  # fmt: skip
STEPS = 20
SAVED_AT = 7
CLOCKED = re.compile(
    r"(samples|steps)_per_second|.*_bytes|.*_seconds|.*_share|.*_utili[sz]ation"
)  # and of the machine
UNMEASURED = {".png", ".svg", ".html"}


def sources(folder: Path) -> Path:
    """Writes a small Python package to predict."""
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "__init__.py").write_text("from .cart import Cart\n")
    code = """
import json


class Cart:
    def __init__(self, items):
        self.items = list(items)

    def total(self, prices):
        return sum(prices.get(item, 0) for item in self.items)

    def dump(self, path):
        with open(path, "w") as file:
            json.dump(self.items, file)
"""
    (folder / "shop" / "cart.py").write_text(code)
    return folder


def judgment(folder: Path) -> Path:
    """Writes a text of ten sentences, one a line."""
    folder.mkdir()
    about = (
        "appeal",
        "order",
        "section 302",
        "evidence",
        "accused",
        "petition",
        "court",
        "witness",
        "act",
        "bail",
    )
    lines = (
        f"The {what} was considered by the learned judge in paragraph {n}."
        for n, what in enumerate(about)
    )
    (folder / "case.txt").write_text("\n".join(lines))
    return folder


def questions(folder: Path) -> Path:
    """Draws two pictures with a question each."""
    folder.mkdir()
    for name, colour in (("red", (220, 30, 30)), ("blue", (30, 30, 220))):
        picture = Image.new("RGB", (64, 64), (255, 255, 255))
        picture.paste(colour, (16, 16, 48, 48))
        picture.save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text("Hình này có màu gì?\n", "utf-8")
    return folder


def generated_scenes(folder: Path) -> Path:
    """Returns the scenes that the run itself generated."""
    return min((folder.parent / "cache").rglob("generated-*"))


def made_by_new(like: str) -> Callable[[Path], Path]:
    return lambda folder: folder.parent / f"own_{like}_data"


RUNS: dict[str, Callable[[Path], Path]] = {
    "graphmer_small": sources,
    "legal_small": judgment,
    "vqa_small": questions,
    "glacier_pretrain_small": generated_scenes,
    "images": made_by_new("images"),
    "tabular": made_by_new("tabular"),
    "text": made_by_new("text"),
}


def hashes_of(name: str, folder: Path) -> dict[str, str]:
    """Trains, kills, resumes and predicts in an empty folder; returns a hash by name of each result."""
    config = ROOT / "configs" / f"{name}.yaml"
    if not config.is_file():
        call(folder, "new", f"own_{name}", "--like", name)
        config = folder / f"own_{name}.yaml"
    options = {
        "output_dir": folder / "runs", "training.max_steps": STEPS, "training.evaluate_every_steps": 10,
        "checkpoint.every_steps": SAVED_AT, "checkpoint.every_minutes": 0, "data.num_workers": 0, "run.name": "golden",
        "training.log_every_steps": 5,
    }  # fmt: skip
    train = ["train", str(config), *(f"--set={key}={value}" for key, value in options.items())]
    kill_at_first_checkpoint(folder, train)
    call(folder, *train)
    call(
        folder,
        "predict",
        "runs/outputs.tar.gz",
        str(RUNS[name](folder / "new")),
        "answers",
        "--trust",
    )
    return {
        **hashes_of_run(folder / "runs" / "golden"),
        **hashes_of_tables(folder / "answers", "answers/"),
    }


def emptied(folder: Path) -> Path:
    """Makes a folder anew: always the same one, because some results name it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def kill_at_first_checkpoint(folder: Path, train: list[str]) -> None:
    process = start(folder, *train)
    while (
        process.poll() is None
        and not (folder / f"runs/golden/checkpoints/step-{SAVED_AT:08d}").is_dir()
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def hashes_of_run(run: Path) -> dict[str, str]:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["reason"] == "completed", summary
    assert summary["step"] == STEPS, summary
    found = {
        "scores": digest(
            json.dumps([summary["metrics"], summary["baseline"]], sort_keys=True).encode()
        )
    }
    weights = run / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors"
    return {**found, "weights": digest(weights.read_bytes()), **hashes_of_tables(run)}


def hashes_of_tables(folder: Path, predicted: str = "") -> dict[str, str]:
    """Hashes the tables of a folder by name, and everything that was `predicted` by kind of file; no pictures."""
    contents: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*") if predicted else folder.iterdir()):
        is_result = (
            path.suffix not in UNMEASURED if predicted else path.suffix in (".csv", ".jsonl")
        )
        if path.is_file() and is_result and path.name != "events.csv":
            name = f"{predicted}*{path.suffix}" if predicted else path.name
            content = READERS.get(path.suffix, Path.read_bytes)(path)
            contents[name] = contents.get(name, b"") + path.name.encode() + content
    return {name: digest(content) for name, content in contents.items()}


def without_clocks(path: Path) -> bytes:
    rows = list(csv.reader(io.StringIO(path.read_text("utf-8"))))
    if rows:
        keep = [n for n, column in enumerate(rows[0]) if not CLOCKED.fullmatch(column)]
    else:
        keep = []
    return json.dumps([[row[n] for n in keep if n < len(row)] for row in rows]).encode()


def pixels(path: Path) -> bytes:
    """Returns the values and the place of a raster, whose file also names versions."""
    with rasterio.open(path) as raster:
        return f"{raster.crs} {raster.transform}".encode() + raster.read().tobytes()


READERS = {".csv": without_clocks, ".tif": pixels}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **PORTABLE,
        "PYTHONPATH": str(ROOT),
        "TRAINBOOK_CACHE": str(folder / "cache"),
    }
    out = (folder / "log.txt").open("a")
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environment, stdout=out, stderr=out, text=True
    )


def call(folder: Path, *arguments: str) -> None:
    if code := start(folder, *arguments).wait():
        sys.exit(
            f"{' '.join(arguments)} ended with {code}:\n{(folder / 'log.txt').read_text()[-3000:]}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    parser.add_argument("--record", action="store_true", help="write the hashes anew")
    options = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    versions = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }
    if not options.record and record.get("versions") != versions:
        sys.exit(
            f"The hashes are of {record.get('versions')}, not of {versions}. Record the base of a change first."
        )
    different = 0
    for name in options.names or RUNS:
        begin = time.perf_counter()
        place = Path(gettempdir()).resolve() / "trainbook-golden"
        place.mkdir(exist_ok=True)
        with disk.lock(place):  # waits for the golden runs of another checkout
            hashes = hashes_of(name, emptied(place / name))
        before = record.get("runs", {}).get(name, {})
        changed = sorted(key for key in hashes | before if hashes.get(key) != before.get(key))
        different += bool(changed)
        outcome = f"differs: {', '.join(changed)}" if changed else "same"
        print(f"{name:24} {time.perf_counter() - begin:4.0f} s  {outcome}", flush=True)
        if options.record:
            record = {"versions": versions, "runs": {**record.get("runs", {}), name: hashes}}
            RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return 0 if options.record else bool(different)


if __name__ == "__main__":
    sys.exit(main())
