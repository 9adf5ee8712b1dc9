"""Runs of `trainbook train` below disk_calls.c, each in a fork of one process that has imported everything.

    python -m tests.faults.preloaded FOLDER survey RUN ...      writes FOLDER/survey-RUN.json: operations, end, seconds
    python -m tests.faults.preloaded FOLDER trials PART PARTS   makes every PARTS-th trial of FOLDER/trials.json
    python -m tests.faults.preloaded FOLDER sample NUMBER       both for the toy run, in seconds

They are started by tests/faults/disk_calls.py, which builds the library and preloads it.
"""

import contextlib
import ctypes
import errno
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch._dynamo  # which an optimizer imports anyway: once, before runs are forked
from matplotlib.figure import Figure

from lib.config import environment
from tests.conftest import ROOT, TOY
from tests.faults import ends
from tests.faults.disk_calls import KINDS, RERUNS, TOY_RUN, Choice, choose, results
from trainbook import commands as command_line
from trainbook import launch
from trainbook.outputs import figure

CODES = {0, 1, 2, 75, 130}  # what a command may end with
HANG_SECONDS = 60
HANG_FACTOR = 20  # longer than both, the undisturbed run's seconds times the factor, is a hang
MEMORY = Path("/dev/shm")  # where a sync takes no time


MODES = {  # the fault's number in disk_calls.c, and the error that it answers with
    "kill": (4, 0),
    "torn write, then kill": (5, 0),
    "torn write": (3, errno.ENOSPC),
    "ENOSPC once": (1, errno.ENOSPC),
    "ENOSPC from then on": (2, errno.ENOSPC),
    "EIO once": (1, errno.EIO),
}
assert MODES.keys() == KINDS.keys()

# A configuration, and what makes of it a run of seconds
RUNS: dict[str, tuple[str, dict[str, object]]] = {
    TOY_RUN: (
        "../toy.yaml",
        {
            "training.micro_batch": 4, "training.micro_batch_slots": 2, "training.log_every_steps": 1,
            "training.evaluate_every_steps": 3, "training.ema_decay": 0.9, "optimizer.lr": 0.3,
            "scheduler.name": "plateau", "scheduler.patience": 0, "scheduler.factor": 0.5, "checkpoint.every_steps": 4,
            "checkpoint.keep_last": 2, "checkpoint.keep_best": 1, "workload.dropout": 0.2, "workload.batch_norm": True,
        },
    ),
    "graphmer_small": (
        f"{ROOT}/configs/graphmer_small.yaml",
        {
            "data.dir": ROOT / "lib", "training.max_steps": 12, "training.effective_batch": 8,
            "training.micro_batch": 8, "training.log_every_steps": 3, "training.evaluate_every_steps": 4,
            "checkpoint.every_steps": 3, "workload.evaluation.validation_triples": 16,
            "workload.evaluation.test_triples": 32,
            "workload.model.hidden": 32, "workload.model.feed_forward": 64, "workload.chain.vocabulary": 1024,
        },
    ),
    "glacier_pretrain_small": (
        f"{ROOT}/configs/glacier_pretrain_small.yaml",
        {
            "training.epochs": 0, "training.max_steps": 12, "training.evaluate_every_epochs": 0,
            "training.evaluate_every_steps": 4, "training.log_every_steps": 3, "training.ema_decay": 0.9,
            "optimizer.lr": 0.3, "scheduler.patience": 0, "checkpoint.every_epochs": 0, "checkpoint.every_steps": 3,
            "workload.generator.scenes": 10, "workload.generator.size": 128, "workload.tiles.size": 64,
            "workload.tiles.stride": 32, "workload.model.widths": [8, 8, 16, 16, 16],
            "workload.model.decoder": [16, 16, 8, 8, 8],
        },
    ),
}  # fmt: skip


@dataclass
class Start:
    """How one start of a run ended."""

    code: int | str  # minus the signal where one ended it; "hang"
    met: list[str]  # of the operation that met the fault, or of all: number, name, kind, path
    log: str

    @property
    def wrong(self) -> str:
        """What no start may do, killed or not."""
        if self.code == "hang":
            return "hangs"
        if "Traceback (most recent call last)" in self.log:
            return "ends in a raw traceback"
        killed = self.code == -signal.SIGKILL and self.met
        if killed or self.code in CODES:
            return ""
        return f"ends with {self.code}"


def start(
    folder: Path, run: str, fault: tuple[str, int] | None = None, watch=True, seconds=600.0
) -> Start:
    """Starts a run in a fork with a group of its own, below the library, and waits for its end.

    `fault` is a mode and the number of the operation that meets it.
    """
    (folder / "work").mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(TOY)
    log = folder / "log.txt"
    met = folder / "met.txt"
    for path in (log, met):
        path.unlink(missing_ok=True)
    if not (process := os.fork()):
        _train(folder, run, fault, watch)
    until = time.monotonic() + seconds
    try:
        while not (ended := os.waitpid(process, os.WNOHANG))[0] and time.monotonic() < until:
            time.sleep(0.005)
        code = os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hang"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # also of what the run has left of loader processes
    if code == "hang":
        os.waitpid(process, 0)
    return Start(code, met.read_text().splitlines(), log.read_text("utf-8", "replace"))


def _train(folder: Path, run: str, fault: tuple[str, int] | None, watch: bool) -> None:
    """The forked process: the command as a person gives it, then the end of the process."""
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(folder / "work")
        log, met = (
            os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            for name in ("log.txt", "met.txt")
        )
        os.dup2(log, 1), os.dup2(log, 2)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        tempfile.tempdir = str(folder / "tmp")
        os.environ[environment.CACHE] = "cache"
        if watch:
            mode, number = fault or ("", 0)
            kind, error = MODES.get(mode, (0, 0))
            below = os.fsencode(folder / "work")
            ctypes.CDLL(None).faults_set(below, kind, ctypes.c_long(number), error, met)
        code = _command(run)
        if fault is None:
            (folder / "modules.txt").write_text("\n".join(sorted(sys.modules)))
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    finally:
        os._exit(code)


def _command(run: str) -> int:
    config, overrides = RUNS[run]
    pairs = {"output_dir": "runs", **overrides}
    try:
        return command_line.main(
            ["train", config, *(f"--set={key}={value}" for key, value in pairs.items())]
        )
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code
        return 1
    except BaseException:
        traceback.print_exc()
        return 1


@dataclass(frozen=True)
class Survey:
    """The undisturbed run: its operations, each as disk_calls.c writes it down, its end, and its seconds."""

    run: str
    operations: list[list[str]]
    end: ends.End
    modules: list[str]  # that it has imported
    seconds: float


@dataclass(frozen=True)
class Trial:
    """One fault, and what became of the run."""

    run: str
    mode: str
    number: int
    operation: str  # that met the fault; empty where the run ended before it
    path: str
    code: int | str
    reruns: int
    why: str  # it was not borne; empty: it was
    log: str  # the last lines, where it was not borne
    seconds: float


def survey(folder: Path, run: str, twice: bool = True) -> Survey:
    """Runs a workload undisturbed, twice to see that it repeats itself; imports here what it has imported."""
    surveys = []
    for _ in range(2 if twice else 1):
        shutil.rmtree(folder, ignore_errors=True)
        begin = time.monotonic()
        first = start(folder, run)
        assert first.code == 0, f"{run} ends with {first.code}:\n{first.log[-3000:]}"
        assert not first.wrong, f"{run} ends with {first.code}:\n{first.log[-3000:]}"
        seconds = round(time.monotonic() - begin, 1)
        modules = (folder / "modules.txt").read_text().split()
        import_all(modules)
        end = ends.end(folder / "work" / "runs")
        surveys.append(Survey(run, [line.split("\t") for line in first.met], end, modules, seconds))
    changed = ends.difference(surveys[0].end, surveys[-1].end)
    assert not changed, f"{run} does not repeat itself: {', '.join(changed)}"
    return surveys[-1]


def import_all(modules: list[str]) -> None:
    """Imports here what a run would import anew in every fork."""
    for name in modules:
        with contextlib.suppress(ImportError):  # a name that the run itself has made
            importlib.import_module(name)


def trial(folder: Path, run: str, mode: str, number: int, whole: Survey) -> Trial:
    """Disturbs one run and starts it again, RERUNS times at most, until its end is that of the undisturbed run."""
    begin = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    seconds = max(HANG_SECONDS, HANG_FACTOR * whole.seconds)
    starts = [start(folder, run, (mode, number), seconds=seconds)]
    while (
        (why := _unlike(folder, starts, whole.end))
        and not starts[-1].wrong
        and len(starts) <= RERUNS
    ):
        starts.append(start(folder, run, watch=False, seconds=seconds))
    if starts[0].met:
        met = starts[0].met[0].split("\t")
    else:
        met = [""] * 4
    if why:
        log = "\n".join("\n".join(each.log.splitlines()[-25:]) for each in starts)[-6000:]
    else:
        log = ""
    taken = round(time.monotonic() - begin, 1)
    return Trial(
        run, mode, number, met[1], met[3], starts[0].code, len(starts) - 1, why, log, taken
    )


def _unlike(folder: Path, starts: list[Start], expected: ends.End) -> str:
    """Says what distinguishes the run from one that bore its fault; empty: nothing does."""
    for number, each in enumerate(starts):
        if each.wrong:
            return f"start {number + 1} {each.wrong}"
    if starts[-1].code != 0:
        return f"start {len(starts)} still ends with {starts[-1].code}"
    log = "\n".join(each.log for each in starts)
    paths = re.findall(
        r"^Could not delete (?:runs/)?(.*?) \(", log, re.MULTILINE
    )  # these may be left over
    names = [path + end for path in paths for end in ("/", ".del/")]
    left = (*names, *(f"{ends.ARCHIVE}/{name}" for name in names))
    changed = ends.difference(expected, ends.end(folder / "work" / "runs"))
    changed = [name for name in changed if not name.startswith(left)]
    if changed:
        return f"another end: {', '.join(changed)}"
    return ""


def main(folder: Path, what: str, *more: str) -> None:
    torch.set_num_threads(1)  # threads of a parent do not live on in forked runs
    # The plot's file without its drawing, which takes 94 % of a toy run's time
    launch.plot = lambda run, baseline: figure.save(
        Figure(figsize=(1, 1)), run.folder / launch.PICTURE
    )
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # from disk_calls.py; the folder is removed on the way
    with tempfile.TemporaryDirectory(
        dir=MEMORY if MEMORY.is_dir() else None, prefix="faults-"
    ) as temporary:
        place = Path(temporary, "run")
        if what == "survey":
            for run in more:
                _keep(folder, survey(place, run))
        elif what == "sample":
            whole = survey(place, TOY_RUN, twice=False)
            _keep(folder, whole)
            chosen = choose({TOY_RUN: asdict(whole)}, list(MODES), 1)
            _trials(place, folder, chosen[: int(more[0])], "results-0.jsonl")
        else:
            todo = [tuple(each) for each in json.loads((folder / "trials.json").read_text("utf-8"))]
            _trials(place, folder, todo[int(more[0]) :: int(more[1])], f"results-{more[0]}.jsonl")


def _keep(folder: Path, whole: Survey) -> None:
    (folder / f"survey-{whole.run}.json").write_text(json.dumps(asdict(whole)), "utf-8")


def _trials(place: Path, folder: Path, todo: list[Choice], name: str) -> None:
    """Makes the trials that no earlier campaign made, and writes down each when it ends."""
    wholes = {
        path.stem.split("-", 1)[1]: Survey(**json.loads(path.read_text()))
        for path in folder.glob("survey-*")
    }
    done = {(each["run"], each["mode"], each["number"]) for each in results(folder)}
    import_all([module for each in wholes.values() for module in each.modules])
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write("\n")  # ends a line that an earlier process was killed in
        for run, mode, number in todo:
            if (run, mode, number) not in done:
                print(
                    json.dumps(asdict(trial(place, run, mode, number, wholes[run]))),
                    file=file,
                    flush=True,
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
