"""Scripts with seven habits, good and bad, under `trainbook run`, killed at random and carried over: `make faults`, or

    python -m tests.faults.scripts [--fast]

Each of 70 runs is killed three or five times. A kill is the end of a container (SIGKILL to all) or SIGTERM to the
command, which must leave no process behind. The output becomes a read-only input of the next session, in either of
Kaggle's layouts. Figures go to tests/bench/records/faults_scripts.json.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import psutil

from tests.bench.record import RECORDS, head, write
from tests.conftest import ROOT

HABITS = Path(__file__).with_name("habits")
STEPS = 40
LAYOUTS = ("before", "notebooks/ada/before")
KILLS = (3, 5)
ROUNDS = 5
MOST_SESSIONS = 12
LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Habit:
    """A script: its kept folder, how it resumes, the steps between its saves, and whether it saves folders."""

    keep: str
    interval: int
    resume: str = ""
    done: str = ""
    saves_folders: bool = False
    takes_sigterm: bool = True


HABIT = {
    "in_place": Habit("checkpoints", 5, "--resume {newest}"),
    "clean_start": Habit("results", 4, "--warm {newest}"),
    "folders": Habit("out", 5, "--resume_from_checkpoint {newest}", saves_folders=True),
    "versions": Habit("ckpts", 5, "--ckpt_path {newest}"),
    "run_folders": Habit("runs", 5, "resume={newest}", saves_folders=True),
    "stubborn": Habit("model", 8, takes_sigterm=False),
    "careful": Habit("drive", 10, done="test accuracy"),
}


@dataclass
class Session:
    """What one session of a script left."""

    code: int
    begin: int | None  # the step from which it went on; None: it was killed before
    last: int  # the last step that it took
    taken: int  # steps
    left: int  # processes that outlived the command


class Run:
    """One run of a script over its sessions, each in a fresh imitation of /kaggle."""

    def __init__(self, name: str, folder: Path, layout: str, seed: int):
        self.name, self.habit, self.folder, self.layout = name, HABIT[name], folder, layout
        self.draw = random.Random(seed)
        self.steps = folder / "steps"
        self.working = folder / "kaggle" / "working"

    def session(self, life: int | None, first: bool, plain: bool = False) -> Session:
        """Runs a session until it has taken `life` more steps (None: to its end), and ends it there."""
        self._mount(first)
        self.steps.write_bytes(b"")
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self._command(plain),
                cwd=self.working,
                env=self._environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            left = 0
            if life is not None:
                self._wait(process, life)
                left = self._end(process)
            process.wait(LIMIT_SECONDS)
        left += len(self._kill_marked()) if life is None else 0
        return self._seen(process.returncode, left)

    def _mount(self, first: bool) -> None:
        """Makes the output of the session before a read-only input of this one."""
        root = self.working.parent
        if not first and not self._has_begun():
            _writable(self.working)
            shutil.rmtree(self.working)  # nothing to mount: the output before it stays mounted
        elif not first:
            target = root / "input" / self.layout
            _writable(root / "input")
            shutil.rmtree(root / "input", ignore_errors=True)
            target.parent.mkdir(parents=True)
            self.working.rename(target)
            subprocess.run(["chmod", "-R", "a-w", target], check=True)
        shutil.copytree(HABITS, self.working, ignore=shutil.ignore_patterns("__pycache__"))

    def _has_begun(self) -> bool:
        """Returns whether the command had begun when the session ended, so that its output is one of the run."""
        return any(self.working.glob("run-*/checkpoints/index.json"))

    def _command(self, plain: bool) -> list[str]:
        script = [sys.executable, f"{self.name}.py"]
        if plain:
            return script
        own = [sys.executable, "-m", "trainbook", "run", "--keep", self.habit.keep]
        if self.habit.resume:
            own += ["--resume", self.habit.resume]
        if self.habit.done:
            own += ["--done", self.habit.done]
        return [*own, "--", *script]

    def _environment(self) -> dict[str, str]:
        own = {
            "HABIT_STEPS": str(self.steps),
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT),
            "TRAINBOOK_KAGGLE_ROOT": str(self.working.parent),
        }
        return {**os.environ, **own}

    def _taken(self) -> list[bytes]:
        return self.steps.read_bytes().splitlines()

    def _wait(self, process: subprocess.Popen, life: int) -> None:
        """Waits until the script has taken its steps, or, with no steps, for a moment of its start."""
        if not life:
            time.sleep(self.draw.uniform(0, 1.5))
            return
        until = time.monotonic() + LIMIT_SECONDS
        while len(self._taken()) <= life and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(self.draw.uniform(0, 0.15))  # also into a save

    def _end(self, process: subprocess.Popen) -> int:
        """Ends the session; returns the number of processes that outlived a command that was asked to end."""
        if self.draw.random() < 0.5:
            below = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait(LIMIT_SECONDS)  # before psutil, which would take its exit code away
            _kill(below)
            self._kill_marked()
            return 0
        process.send_signal(signal.SIGTERM)
        if not self.habit.takes_sigterm:
            time.sleep(0.8)
            process.send_signal(signal.SIGTERM)  # as a person who presses Ctrl-C again
        process.wait(LIMIT_SECONDS)
        return len(self._kill_marked())

    def _kill_marked(self) -> list[psutil.Process]:
        """Kills all processes of this run, in whatever sessions they are, and returns them."""
        mark = f"HABIT_STEPS={self.steps}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(psutil.Process(int(path.parent.name)))
            except (OSError, psutil.Error):  # another person's, or over
                continue
        return _kill(found)

    def _seen(self, code: int, left: int) -> Session:
        lines = self._taken()
        begins = [int(line.split()[1]) for line in lines if line.startswith(b"begin")]
        steps = [int(line) for line in lines if line.isdigit()]
        begin = begins[0] if begins else None
        last = steps[-1] if steps else begin or 0
        return Session(code, begin, last, len(steps), left)

    def files(self) -> int:
        """Counts the files of the output without the scripts themselves."""
        scripts = {path.name for path in HABITS.iterdir()}
        found = [path for path in self.working.rglob("*") if path.is_file()]
        return sum(path.parent != self.working or path.name not in scripts for path in found)


def _kill(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Kills processes; returns those that lived."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            is_over = process.status() == psutil.STATUS_ZOMBIE
            process.kill()
            alive += [] if is_over else [process]
    psutil.wait_procs(alive, timeout=10)
    return alive


def _writable(folder: Path) -> None:
    if folder.exists():
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)


def killed(name: str, folder: Path, layout: str, kills: int, seed: int) -> dict[str, int | str]:
    """Kills a script so often, lets it end, and returns what was lost and left."""
    run = Run(name, folder, layout, seed)
    figures = Counter(sessions=0, kills=0, lost=0, over=0, first_folders=0, left=0)
    known = 0  # the step that a next session must go on from, but for a save's interval
    settled = False  # a first folder is no checkpoint until nothing in it has changed for a second
    for number in range(MOST_SESSIONS):
        is_last = number >= kills
        share = run.draw.uniform(0.2, 0.9) / kills
        life = 0 if run.draw.random() < 0.15 else max(1, int(share * STEPS))
        one = run.session(None if is_last else life, first=number == 0)
        figures["sessions"] += 1
        figures["left"] += one.left
        if one.begin is not None:
            lost = max(0, known - one.begin)
            figures["lost"] = max(figures["lost"], lost)
            if lost > run.habit.interval + 1:
                is_first = run.habit.saves_folders and not settled
                figures["first_folders" if is_first else "over"] += 1
            settled |= one.begin > 0
            known = one.last
            settled |= one.taken > 2 * run.habit.interval
        if one.code == 0:
            figures["finished"] = 1
            break
        figures["kills"] += 1
        if is_last:
            break
    tail = (folder / "log").read_text(errors="replace")[-2000:] if not figures["finished"] else ""
    return {**figures, "files": run.files(), "log": tail}


def undisturbed(name: str, folder: Path) -> dict[str, int]:
    """Counts the files that a script leaves without a kill: alone, and under the command."""
    counts = {}
    for kind in ("alone", "under the command"):
        run = Run(name, folder / kind.replace(" ", "-"), LAYOUTS[0], 0)
        run.folder.mkdir(parents=True)
        one = run.session(None, first=True, plain=kind == "alone")
        assert one.code == 0, (folder / "log").read_text()
        counts[kind] = run.files()
    return counts


def campaign(base: Path, rounds: int, workers: int) -> dict[str, dict]:
    """Runs everything; returns a row of figures for each script."""
    jobs = [
        (name, kills, number) for number in range(rounds) for name, kills in product(HABIT, KILLS)
    ]

    def work(job: tuple[str, int, int]) -> tuple[str, dict]:
        name, kills, number = job
        folder = base / f"{name}-{kills}-{number}"
        folder.mkdir(parents=True)
        figures = killed(name, folder, LAYOUTS[(number + kills // 2) % 2], kills, hash(job[1:]))
        _writable(folder)
        shutil.rmtree(folder)
        return name, figures

    whole = {name: undisturbed(name, base / f"{name}-whole") for name in HABIT}
    rows: dict[str, list[dict]] = {name: [] for name in HABIT}
    with ThreadPoolExecutor(workers) as pool:
        for name, figures in pool.map(work, jobs):
            rows[name].append(figures)
            if figures["log"]:
                print(name, figures, flush=True)
    return {name: summed(runs, HABIT[name], whole[name]) for name, runs in rows.items()}


def summed(runs: list[dict], habit: Habit, whole: dict[str, int]) -> dict:
    files = max(run["files"] for run in runs)
    return {
        "runs": len(runs),
        "finished": sum(run.get("finished", 0) for run in runs),
        "sessions": sum(run["sessions"] for run in runs),
        "kills": sum(run["kills"] for run in runs),
        "interval": habit.interval,
        "most steps lost at a kill": max(run["lost"] for run in runs),
        "kills that lost more than an interval and one": sum(run["over"] for run in runs),
        "those within a second of the first folder": sum(run["first_folders"] for run in runs),
        "processes left": sum(run["left"] for run in runs),
        "files": {"killed, at most": files, **whole},
    }


def check(rows: dict[str, dict]) -> list[str]:
    """Returns a sentence for each goal that is missed."""
    missed = []
    for name, row in rows.items():
        if row["finished"] < row["runs"]:
            missed.append(f"{name}: {row['runs'] - row['finished']} runs did not finish.")
        if row["kills that lost more than an interval and one"]:
            missed.append(f"{name}: a kill lost {row['most steps lost at a kill']} steps.")
        if row["processes left"]:
            missed.append(f"{name}: {row['processes left']} processes lived on.")
        if row["files"]["killed, at most"] > row["files"]["under the command"] + 10:
            missed.append(f"{name}: the output has {row['files']['killed, at most']} files.")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="one round, and no record")
    parser.add_argument("--workers", type=int, default=5, help="they sleep most of the time")
    options = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = campaign(Path(folder), 1 if options.fast else ROUNDS, options.workers)
    missed = check(rows)
    record = {**head("psutil"), "seconds": round(time.perf_counter() - begin), "scripts": rows}
    if not options.fast:
        write(RECORDS / "faults_scripts.json", {**record, "missed": missed})
    print(json.dumps({"scripts": rows, "missed": missed}, indent=1), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
