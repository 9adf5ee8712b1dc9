"""Injects faults into disk operations as the C library sees them.

    python -m tests.faults.disk_calls                                        all of it; part of `make faults`
    python -m tests.faults.disk_calls --run toy --mode kill --stride 7       a part of it, which is printed and not kept
    python -m tests.faults.disk_calls --fast                                 a sample, in seconds

At every operation of the toy run, and at drawn ones of two real workloads, a run is killed, its write torn, or its disk
full or broken; then it is started again, twice at most. A fault is borne if folder and archive end in the bytes of the
undisturbed run, and no start hangs, prints a raw traceback or ends with another code than 0, 1, 2, 75 or 130. Figures
go to tests/bench/records/faults_libc.json. An interrupted campaign resumes from .cache/faults; other code begins anew.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.bench.record import RECORDS, head, write

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_suffix(".c")
RECORD = RECORDS / "faults_libc.json"
KEPT = ROOT / ".cache" / "faults"
CODE = ("lib/**/*.py", "configs/*.yaml", "tests/*.py", "tests/faults/*.py", "tests/faults/*.c")
TOY_RUN = "toy"
REAL = ("graphmer_small", "glacier_pretrain_small")
GROWS = 2
WRITES = 4  # as in disk_calls.c
KINDS = {  # of the operations that a mode can meet
    "kill": 7, "torn write, then kill": WRITES, "torn write": WRITES, "ENOSPC once": 7,
    "ENOSPC from then on": GROWS | WRITES, "EIO once": 7,
}  # fmt: skip
DRAWN = {
    "runs": 60,
    "cache": 20,
}  # operations of a real workload: below its output folder and below its caches
RERUNS = 2  # starts after the disturbed one, at most
SAMPLE = 12
Choice = tuple[str, str, int]  # run, mode, number of the operation


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes below end too
    with tempfile.TemporaryDirectory(prefix="disk-calls-") as temporary:
        library = Path(temporary, "disk_calls.so")
        if missing := build(library):
            print(missing)
            return 0
        kept = Path(temporary, "kept") if options.fast else KEPT / _digest()
        kept.mkdir(parents=True, exist_ok=True)
        if options.fast:
            _wait(_start(kept, library, "sample", SAMPLE))
        surveys = _surveys(kept, library, [options.run] if options.run else [TOY_RUN, *REAL])
        if options.fast:
            found = results(kept)
        else:
            found = run(
                kept,
                library,
                choose(surveys, options.mode or list(KINDS), options.stride),
                options.processes,
            )
    figures = count(found, surveys)
    print(json.dumps(figures, indent=1))
    if not (options.fast or options.run or options.mode or options.stride > 1):
        write(RECORD, _head() | figures)
        shutil.rmtree(KEPT)
    return 1 if figures["not borne"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", choices=[TOY_RUN, *REAL], help="this run alone")
    parser.add_argument(
        "--mode", action="append", choices=KINDS, help="this fault alone; may be repeated"
    )
    parser.add_argument("--stride", type=int, default=1, metavar="N", help="every N-th operation")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="trials at a time")
    parser.add_argument(
        "--fast", action="store_true", help="a sample of faults of the toy run, in seconds"
    )
    options = parser.parse_args()
    options.run = TOY_RUN if options.fast else options.run
    return options


def build(library: Path) -> str:
    """Compiles disk_calls.c; returns a sentence where that is not possible here, else nothing."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or not compiler:
        return "Faults below Python are skipped: they need Linux and a C compiler (gcc), and there is none here."
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
        "-lpthread",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return f"Faults below Python are skipped: {SOURCE.name} does not compile here.\n{done.stderr[-1000:]}"
    ctypes.CDLL(str(library))
    return ""


def _digest() -> str:
    """A name for this code: what another code has borne says nothing about it."""
    digest = hashlib.sha256(json.dumps(_head()["versions"]).encode())
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _head() -> dict:
    found = head("torch", "safetensors", "matplotlib")
    found["versions"]["libc"] = " ".join(platform.libc_ver())
    return found


def _surveys(kept: Path, library: Path, runs: list[str]) -> dict[str, dict]:
    """The undisturbed runs: what each asks of the disk, and how it ends."""
    missing = [run for run in runs if not (kept / f"survey-{run}.json").is_file()]
    if missing:
        _wait(_start(kept, library, "survey", *missing))
    return {run: json.loads((kept / f"survey-{run}.json").read_text("utf-8")) for run in runs}


def _start(kept: Path, library: Path, *arguments: object) -> subprocess.Popen:
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults.preloaded", str(kept), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def _wait(process: subprocess.Popen) -> None:
    if process.wait():
        raise SystemExit("A process that makes runs ended with an error; see above.")


def choose(surveys: dict[str, dict], modes: list[str], stride: int) -> list[Choice]:
    """Every operation of the toy run in every mode, drawn ones of the others; of these every `stride`-th, shuffled."""
    chosen: list[Choice] = []
    for run, survey in surveys.items():
        for_mode = {mode: meetable(survey["operations"], mode) for mode in modes}
        if run == TOY_RUN:
            chosen += [
                (run, mode, n + 1)
                for mode, met in for_mode.items()
                for n in range(0, len(met), stride)
            ]
        else:
            drawn = [
                choice
                for below, number in DRAWN.items()
                for choice in _draw(run, for_mode, below, number)
            ]
            chosen += drawn[::stride]
    random.Random(0).shuffle(chosen)
    return chosen


def meetable(operations: list[list[str]], mode: str) -> list[list[str]]:
    """The operations that a mode can meet, as it numbers them."""
    return [each for each in operations if int(each[2]) & KINDS[mode]]


def _draw(run: str, for_mode: dict[str, list[list[str]]], below: str, number: int) -> list[Choice]:
    """Draws operations and modes for them: a kind of file first, because most of all operations write tensors."""
    draw = random.Random(f"{run} {below}")
    groups = {}
    for mode, met in for_mode.items():
        for n, (_, name, _, path) in enumerate(met, 1):
            if path.split("/")[0] == below:
                groups.setdefault((mode, name, re.sub(r"[0-9a-f]{8,}|\d+", "#", path)), []).append(
                    n
                )
    chosen: set[Choice] = set()
    while groups and len(chosen) < number:
        mode, name, path = key = draw.choice(list(groups))
        chosen.add((run, mode, groups[key].pop(draw.randrange(len(groups[key])))))
        if not groups[key]:
            del groups[key]
    return sorted(chosen)


def run(kept: Path, library: Path, chosen: list[Choice], processes: int) -> list[dict]:
    """Makes the trials that were not made before, printing progress; returns the result of each."""
    (kept / "trials.json").write_text(json.dumps(chosen), "utf-8")
    wanted = set(chosen)

    def made() -> list[dict]:
        return [
            each for each in results(kept) if (each["run"], each["mode"], each["number"]) in wanted
        ]

    print(f"{len(chosen):,} faults, {len(made()):,} of them tried before.", flush=True)
    workers = [_start(kept, library, "trials", part, processes) for part in range(processes)]
    named: set[str] = set()
    try:
        while any(worker.poll() is None for worker in workers):
            time.sleep(30)
            trials = made()
            for text in sorted({_describe(each) for each in trials if each["why"]} - named):
                print(f"NOT BORNE: {text}", flush=True)
                named.add(text)
            print(f"{len(trials):,} of {len(chosen):,} tried, {len(named)} not borne.", flush=True)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    if any(worker.returncode for worker in workers):
        raise SystemExit(
            "A process that made trials ended before all were made; see above. Start again: it resumes."
        )
    return made()


def results(kept: Path) -> list[dict]:
    """The results so far; a line that a process was killed in is none."""
    found = []
    for path in kept.glob("results-*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def _describe(each: dict) -> str:
    return f"{each['run']}: {each['mode']} at {each['number']} ({each['operation']} {each['path']}): {each['why']}"


def count(trials: list[dict], surveys: dict[str, dict]) -> dict:
    """Returns figures for each run: its operations, and for each mode those tried and borne; names those not borne."""
    met = [each for each in trials if each["operation"]]
    figures: dict[str, dict] = {}
    for run, survey in surveys.items():
        modes = {}
        for mode in KINDS:
            if tried := [each for each in met if (each["run"], each["mode"]) == (run, mode)]:
                modes[mode] = {
                    "tried": len(tried), "borne": sum(not each["why"] for each in tried),
                    "by starts needed": dict(sorted(Counter(str(each["reruns"] + 1) for each in tried).items())),
                    "seconds": round(sum(each["seconds"] for each in tried)),
                }  # fmt: skip
        by_name = dict(sorted(Counter(name for _, name, *_ in survey["operations"]).items()))
        figures[run] = {"operations": by_name, "seconds": survey["seconds"], **modes}
    return {
        "runs": figures, "tried": len(met), "borne": sum(not each["why"] for each in met),
        "ended before the operation": len(trials) - len(met),
        "not borne": [_describe(each) for each in trials if each["why"]],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
