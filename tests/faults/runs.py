"""Training runs in child processes that are killed; the next start must end in the same bytes."""

import contextlib
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch._dynamo  # which an optimizer imports anyway: once, before runs are forked

from lib import checkpoint
from lib.config import Config
from lib.errors import BadInput, TrainingFailed
from lib.task import load_config
from tests.conftest import TOY
from tests.faults import ends
from trainbook import launch

ATTEMPTS = 20  # starts of one run until it must have ended


def fork(folder: Path, overrides: dict) -> int:
    """Starts a run in a process of its own group and returns its id."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.yaml").write_text(TOY)

    config = {"output_dir": str(folder / "runs"), **overrides}
    return forked(folder, lambda: train(load_config(folder / "toy.yaml", config)))


def forked(folder: Path, work: Callable[[], int]) -> int:
    """Does `work` in a forked process, which spares it seconds of imports; its output goes to log.txt in the folder."""
    if process := os.fork():
        return process
    code = 70
    try:
        os.setsid()
        log = os.open(folder / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        torch.set_num_threads(1)
        code = work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def train(config: Config) -> int:
    """Trains without a plot, which takes half a second; returns the exit code of the command line."""
    launch.plot = lambda *_: None
    try:
        launch.train(config)
    except (TrainingFailed, BadInput) as error:
        print(error, flush=True)
        return 2 if isinstance(error, BadInput) else 1
    return 0


def wait(process: int) -> int:
    """The exit code, or minus the signal; what the run has left of loader processes is ended with it."""
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def finish(folder: Path, overrides: dict) -> None:
    """Starts the run again, undisturbed, until it is completed."""
    for _ in range(ATTEMPTS):
        if wait(fork(folder, overrides)) == 0:
            return
    raise AssertionError(
        f"The run in {folder} never ended:\n{(folder / 'log.txt').read_text()[-2000:]}"
    )


def random_kills(base: Path, runs: int, **overrides: object) -> dict:
    """Kills runs at random moments, each three times at most, until they end in the bytes of an undisturbed one."""
    overrides = {"checkpoint.every_steps": 2, **overrides}
    assert wait(fork(base / "run", overrides)) == 0  # which warms up caches
    shutil.rmtree(base / "run")
    begin = time.perf_counter()
    process = fork(base / "run", overrides)
    assert _saves(base / "run", process, than=0)
    to_first = time.perf_counter() - begin
    assert wait(process) == 0
    from_first = time.perf_counter() - begin - to_first
    expected = ends.end(base / "run" / "runs")
    draw = random.Random(0)
    counts = Counter(runs=runs)
    for _ in range(runs):
        folder = base / "run"
        shutil.rmtree(folder, ignore_errors=True)
        for _ in range(3):
            before = _newest(folder)
            process = fork(folder, overrides)
            if draw.random() < 0.25:  # while it starts, which takes longer than all of its steps
                time.sleep(draw.uniform(0.1, 1) * to_first)
            elif _saves(folder, process, than=before):
                time.sleep(draw.uniform(0, 0.7) * from_first)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            counts["kills"] += wait(process) == -signal.SIGKILL
            counts["kills that left a half-written checkpoint"] += any(
                (folder / "runs").glob("toy/*/step-*.tmp")
            )
        finish(folder, overrides)
        assert not (changed := ends.difference(expected, ends.end(folder / "runs"))), (
            f"another end: {changed}"
        )
        counts["equal"] += 1
    return {"random kills": dict(counts)}


def _newest(folder: Path) -> int:
    return max(checkpoint.steps(folder / "runs" / "toy" / "checkpoints"), default=0)


def _saves(folder: Path, process: int, than: int) -> bool:
    """Waits for a checkpoint that is newer; False where the run ends before."""
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if _newest(folder) > than:
            return True
        time.sleep(0.002)
    return _newest(folder) > than
