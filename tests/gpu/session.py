"""Proves on a GPU what only a GPU can prove, in a given number of minutes: `make gpu MINUTES=12 [PART=speed]`.

    python -m tests.gpu.session --minutes 12 [--part smoke --part speed] [--tiny]

Parts come in the order of what would hurt most, and each has rows. A row is a process of its own; its result is in the
record (tests/bench/records/gpu_<card>.json) as soon as it ends. So a session can be cut anywhere: the next one leaves
out the rows that the record has of the same code, and tries again what was killed. `--tiny` runs the small form of
the rows on a CPU.
"""

import argparse
import datetime
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.record import RECORDS, head, of_card, write
from tests.conftest import ROOT

HOUSES = ("lib", "trainbook", "workloads", "configs", "tests/gpu")
READ = {".py", ".yaml", ".json", ".jinja", ".txt"}  # kinds of files whose change makes a result old
RESERVE = 3.0  # seconds that stay for the end of killed processes and the last write
# Seconds below which no row is started: a process that imports torch takes most of them
LEAST = 10.0

Result = dict[str, Any]
Start = Callable[["Part", Sequence[str], float], Iterator[tuple[str, Result]]]


@dataclass(frozen=True)
class Part:
    """Rows that belong together, the seconds that they may take, and how many of them run at once."""

    name: str
    about: str
    seconds: float
    rows: tuple[str, ...]
    at_once: int = 1


@dataclass
class Record:
    """The results of all rows on one card, written after each of them."""

    path: Path
    facts: Result
    code: str
    results: dict[str, dict[str, Result]]

    @classmethod
    def open(cls, path: Path, facts: Result, code: str) -> "Record":
        results = json.loads(path.read_text("utf-8"))["parts"] if path.is_file() else {}
        return cls(path, facts, code, results)

    def add(self, part: str, row: str, result: Result) -> None:
        dated = {"date": datetime.date.today().isoformat(), "code": self.code, **result}
        self.results.setdefault(part, {})[row] = dated
        aside = self.path.with_suffix(".new")
        write(aside, {**self.facts, "code": self.code, "parts": self.results})
        aside.replace(self.path)

    def waiting(self, part: Part) -> list[str]:
        """Lists the rows that this code has no result of, those that were killed last."""
        results = self.results.get(part.name, {})
        current = {row: result for row, result in results.items() if result["code"] == self.code}
        untried = [row for row in part.rows if row not in current]
        return untried + [row for row in part.rows if "killed" in current.get(row, {})]


def run(
    parts: Sequence[Part], minutes: float, record: Record, start: Start, clock: Callable[[], float]
) -> None:
    """Runs what the record lacks, in order, and ends within `minutes`; `start` yields results as rows end."""
    end = clock() + 60 * minutes
    for part in parts:
        rows = record.waiting(part)
        seconds = min(part.seconds, end - clock() - RESERVE)
        if not rows:
            print(
                f"{part.name}: the record has all {len(part.rows)} rows of this code.", flush=True
            )
            continue
        if seconds < LEAST:
            print(f"{part.name}: {len(rows)} rows wait for the next session.", flush=True)
            continue
        print(f"{part.name}: {part.about}; {len(rows)} rows in {seconds:.0f} s.", flush=True)
        for row, result in start(part, rows, seconds):
            record.add(part.name, row, result)
            print(f"  {row}: {json.dumps(result)[:400]}", flush=True)


def started(tiny: bool, scratch: Path) -> Start:
    """Returns what runs each row of a part in a process, several at once, and kills what outlasts the part."""

    def start(part: Part, rows: Sequence[str], seconds: float) -> Iterator[tuple[str, Result]]:
        deadline = time.monotonic() + seconds
        waiting = list(rows)
        running: dict[str, RowProcess] = {}
        try:
            while waiting or running:
                while (
                    waiting and len(running) < part.at_once and deadline - time.monotonic() > LEAST
                ):
                    row = waiting.pop(0)
                    running[row] = RowProcess(part.name, row, scratch, tiny)
                ended = [row for row, process in running.items() if process.is_over()]
                for row in ended:
                    yield row, running.pop(row).result()
                if not running or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            for row, process in running.items():
                yield (
                    row,
                    {"killed": f"after {process.seconds():.0f} s, at the end of the part's time"},
                )
        finally:
            for process in running.values():
                process.kill()

    return start


class RowProcess:
    """A row in a process group of its own, which can be killed as a whole."""

    def __init__(self, part: str, row: str, scratch: Path, tiny: bool):
        self.begin = time.monotonic()
        self.folder = scratch / part / row.replace(" ", "-").replace("/", "-").replace(",", "")
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.gpu.row", part, row, str(self.folder)]
        environment = {
            **os.environ,
            "TRAINBOOK_CACHE": str(self.folder / "cache"),
            "TRAINBOOK_GPU_SCRATCH": str(scratch),
        }
        self.log = (self.folder / "log.txt").open("w")
        self.process = subprocess.Popen(
            command + (["--tiny"] if tiny else []), cwd=ROOT, env=environment, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def result(self) -> Result:
        """Returns what the row wrote, or the last lines of its output where it wrote nothing."""
        self.kill()  # what the row left behind
        path = self.folder / "result.json"
        took = {"seconds": round(self.seconds(), 1)}
        if path.is_file():
            return {**json.loads(path.read_text("utf-8")), **took}
        lines = (self.folder / "log.txt").read_text("utf-8", "replace").strip().splitlines()
        return {
            "ok": False,
            "error": f"exit code {self.process.returncode}: {' | '.join(lines[-3:])}"[-600:],
            **took,
        }

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


def code_of_tree(root: Path = ROOT) -> str:
    """Hashes the files that the rows run, wherever the tree lies and whether or not git is there."""
    digest = hashlib.sha256()
    for house in HOUSES:
        for path in sorted((root / house).rglob("*")):
            if path.suffix in READ and "__pycache__" not in path.parts:
                digest.update(
                    path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes()
                )
    return digest.hexdigest()[:16]


def verdict(record: Record, parts: Sequence[Part]) -> list[str]:
    """Lists the rows that failed, missed a goal, or were not run, as sentences."""
    sentences = []
    for part in parts:
        results = record.results.get(part.name, {})
        for row in part.rows:
            result: Mapping[str, Any] = results.get(row, {})
            if result.get("code") != record.code:
                sentences.append(f"{part.name}, {row}: not run on this code yet.")
            elif not result.get("ok"):
                why = (
                    result.get("error") or result.get("killed") or result.get("missed") or "failed"
                )
                sentences.append(f"{part.name}, {row}: {why}")
    return sentences


def main() -> int:
    from tests.gpu.parts import PARTS, TINY

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument(
        "--part", action="append", default=[], choices=[part.name for part in PARTS]
    )
    parser.add_argument("--record", type=Path, help="another file than that of the card")
    parser.add_argument("--tiny", action="store_true", help="small rows, which a CPU computes")
    options = parser.parse_args()
    begin = time.monotonic()
    card = _card()
    if not (card or options.tiny):
        print("There is no GPU here. `--tiny` runs the small form of every part on the CPU.")
        return 2
    facts = head("torch", "transformers", **({"gpu": card} if card else {}))
    path = options.record or (
        of_card("gpu", card) if card else Path(tempfile.gettempdir()) / "gpu_tiny.json"
    )
    parts = [
        part
        for part in (TINY if options.tiny else PARTS)
        if not options.part or part.name in options.part
    ]
    record = Record.open(path, facts, code_of_tree())
    minutes = options.minutes - (time.monotonic() - begin) / 60
    with tempfile.TemporaryDirectory() as scratch:
        run(parts, minutes, record, started(options.tiny, Path(scratch)), time.monotonic)
    missed = verdict(record, parts)
    print(*missed, sep="\n")
    print(
        f"{path.relative_to(ROOT) if path.is_relative_to(RECORDS) else path}: {len(missed)} rows to look at."
    )
    return int(bool(missed))


def _card() -> str:
    """Returns the name of the first GPU, read in a process that ends: this one holds no memory of the card."""
    command = (
        "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    )
    return subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
