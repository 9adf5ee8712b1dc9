"""Training on several GPUs out of one process: torchrun in a subprocess, watched, and started again when a rank dies.

`python -m torch.distributed.run` starts `python -m lib train` once for each GPU, on the real files of lib: nothing is
forked from a notebook's kernel, which breaks as soon as that has touched CUDA. The ranks talk to this process in two
ways: the first one's standard output holds its notes and its progress, and a rank that fails leaves a file that says
why. Every process asks the system to be killed when the one above it goes, so kill -9 leaves no orphan.
"""

import contextlib
import faulthandler
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from lib import checkpoint, ranks
from lib.config import Config, environment, to_yaml, with_changes
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.machine import hardware, memory
from lib.report.metrics import EventLog
from lib.report.progress import MARK, Progress, choose_progress
from lib.training.session import handling_signals

LAUNCHES = 3  # in a row without a new checkpoint
GRACE_SECONDS = 2.0  # in which the ranks that are left may say why, before all are killed
_LIBRARY = Path(__file__).resolve().parents[2]

# Becomes torchrun after asking to be killed when its parent goes; the ranks learn its process id.
_EXEC = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)})
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.environ["{environment.AGENT}"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *sys.argv[2:]])
"""
# Errors that say nothing but that another rank is gone or does not answer.
_LOST = re.compile(r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|[Tt]imed out", re.DOTALL)


class RankFailed(RuntimeError):
    """A rank raised an error; its text is that rank's traceback."""


def processes(config: Config) -> int:
    """How many processes train this configuration; 1 where this one does, because it is a rank itself or for want of
    GPUs.

    Raises BadInput where more are asked for than there are GPUs, or than the slots can be dealt to.
    """
    slots = config.training.micro_batch_slots
    if ranks.under_torchrun() or ranks.world() > 1:
        if slots % ranks.world():
            raise BadInput(_not_dealt(slots, ranks.world()))
        return 1
    on = ranks.cards(config.device)
    asked = config.device.processes
    count = asked or len(on) or 1
    ranks.check_count(count, on)
    if slots % count == 0:
        return count
    if asked:
        raise BadInput(_not_dealt(slots, count))
    fitting = max(n for n in range(1, count) if slots % n == 0)
    print(f"{_not_dealt(slots, count)} Until then {fitting} of {count} GPUs are used.")
    return fitting


def _not_dealt(slots: int, count: int) -> str:
    return (
        f"training.micro_batch_slots is {slots}, which cannot be dealt to {count} processes in equal numbers. Set it "
        f"to {-(-slots // count) * count} in a new run (the slots decide which samples go together, so a run keeps "
        "its own)."
    )


def told() -> dict[str, Any]:
    """What the process above gave this rank for its summary."""
    return json.loads(os.environ.get(environment.SUMMARY, "{}"))


def is_watched() -> bool:
    """Whether this is a rank that `train` started, which speaks through the process above."""
    return environment.RANK_FOLDER in os.environ


# --- in a rank --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def as_rank() -> Iterator[None]:
    """What `python -m lib` runs under: all ranks but the first are silent, and last words go to the launcher."""
    number, place = int(os.environ.get("RANK", 0)), os.environ.get(environment.RANK_FOLDER)
    if "RANK" in os.environ:
        faulthandler.enable()  # a crash in C says where
    with contextlib.ExitStack() as stack:
        if number:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        elif place:
            os.dup2(1, 2)  # the first rank's warnings are seen beside its notes
        try:
            yield
        except BaseException as error:
            if not place:
                raise
            _write(Path(place) / f"failed-{number}.json", _last_words(number, error))
            raise SystemExit(1) from None  # the process above says it, once
    if place:
        _write(Path(place) / f"done-{number}.json", {})


def _last_words(number: int, error: BaseException) -> dict[str, Any]:
    return {
        "rank": number,
        "kind": type(error).__name__,
        "text": str(error),
        "micro_batch": getattr(error, "micro_batch", 0),
        "lost": isinstance(error, RuntimeError) and not _is_said(error) and bool(_LOST.search(str(error))),
        "traceback": "".join(traceback.format_exception(error)),
        "time": time.time(),
    }


def _is_said(error: BaseException) -> bool:
    return isinstance(error, BadInput | TrainingFailed)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(content), "utf-8")
    aside.replace(path)


# --- above the ranks --------------------------------------------------------------------------------------------------


def train(config: Config, folder: Path, count: int, session: int, told: Mapping[str, Any]) -> None:
    """Trains in `count` processes until they end cleanly; the run's summary says how, with what it is
    `told` here.

    A rank that dies or hangs is answered by a fresh launch, which goes on from the newest checkpoint. Raises what a
    rank raised: BadInput and TrainingFailed as they are, others as RankFailed; TrainingFailed after LAUNCHES deaths
    without a new checkpoint, KeyboardInterrupt when a second signal came.
    """
    progress = choose_progress()
    events = EventLog(folder / "events.csv", progress.note)
    memory.clear_memory()  # what a smoke test left on this process's GPU is a rank's now
    left, reached = LAUNCHES, _step(folder)
    while True:
        launched = _Launch(config, count, session, told, progress)
        failure = launched.run()
        progress.close()
        if failure is None:
            return
        if isinstance(failure, OutOfMemory) and failure.micro_batch:
            config = with_changes(config, {"training.micro_batch": failure.micro_batch})
            events.record(
                _step(folder), "oom_sharded", 2 * failure.micro_batch, failure.micro_batch,
                f"Memory ran out on a rank: starting again in micro-batches of {failure.micro_batch}.",
            )  # fmt: skip
            continue
        if not isinstance(failure, _Died):
            raise failure
        now = _step(folder)
        left, reached = (LAUNCHES if now > reached else left) - 1, max(now, reached)
        if not left:
            raise TrainingFailed(
                f"{failure} That was the {LAUNCHES}. time without a new checkpoint in between, so it is not tried "
                f"again. What the ranks said last:\n{launched.said}"
            )
        events.record(
            now, "relaunch", count, count,
            f"{failure} Starting again from step {now:,} ({left} more without a new checkpoint).",
        )  # fmt: skip


def _step(folder: Path) -> int:
    return max(checkpoint.steps(folder / "checkpoints"), default=0)


class _Died(Exception):
    """A rank is gone, or does not answer, without an error of its own."""


@dataclass
class _Launch:
    """One start of torchrun, from its first line to the end of its last process."""

    config: Config
    count: int
    session: int
    told: Mapping[str, Any]
    progress: Progress
    said: str = ""  # the end of what stood on standard error
    _signals: int = 0
    _agent: subprocess.Popen | None = None
    _ranks: dict[int, psutil.Process] = field(default_factory=dict)

    def run(self) -> Exception | None:
        """None after a clean end, otherwise why it ended."""
        with tempfile.TemporaryDirectory(prefix="trainbook-ranks-") as name:
            place = Path(name)
            (place / "config.yaml").write_text(to_yaml(self.config), "utf-8")
            with (place / "stderr.txt").open("wb") as errors, handling_signals(self._on_signal):
                self._agent = self._start(place, errors)
                try:
                    self._watch(place)
                finally:
                    self._end()
            self.said = "\n".join((place / "stderr.txt").read_text("utf-8", "replace").splitlines()[-30:])
            return self._verdict(place)

    def _start(self, place: Path, errors: Any) -> subprocess.Popen:
        options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={self.count}"]
        program = ["-m", "lib", "train", str(place / "config.yaml")]
        return subprocess.Popen(
            [sys.executable, "-c", _EXEC, str(os.getpid()), *options, *program],
            env=self._environment(place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # an interrupt of the kernel or the terminal comes here first
        )

    def _environment(self, place: Path) -> dict[str, str]:
        path = [str(_LIBRARY), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "OMP_NUM_THREADS": str(hardware.cpus_per_process(self.count)),
            "GLOO_SOCKET_IFNAME": "lo",  # on one machine; looking up its own name fails in some containers
            environment.SESSION_START: str(psutil.Process().create_time()),
            **os.environ,
            environment.SESSION: str(self.session),
            environment.SUMMARY: json.dumps(self.told),
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            environment.RELAY: "1",
            environment.RANK_FOLDER: str(place),
        }

    def _watch(self, place: Path) -> None:
        """Shows what the ranks say until torchrun ends; a rank that is gone or failed ends it after a moment."""
        assert self._agent and self._agent.stdout
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(self._agent.stdout, lines), daemon=True).start()
        until = float("inf")
        looked = 0.0
        while time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                line = lines.get(timeout=0.2)
                if line is None:
                    return
                self._show(line)
            if time.monotonic() - looked >= 0.2:
                looked = time.monotonic()
                if self._is_clear(place):
                    return
                if self._agent.poll() is not None or any(place.glob("failed-*.json")):
                    until = min(until, looked + GRACE_SECONDS)

    def _show(self, line: str) -> None:
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):  # two ranks wrote into one line
                self.progress.update(*json.loads(line.removeprefix(MARK)))
                return
        self.progress.note(line)

    def _is_clear(self, place: Path) -> bool:
        """Whether it is known which rank ended all: one with an error of its own, or one gone without a word."""
        if any(not each["lost"] for each in _read_words(place)):
            return True
        self._look_for_ranks()
        gone = {number for number, process in self._ranks.items() if not _is_alive(process)}
        spoke = {int(path.stem.partition("-")[2]) for kind in ("done", "failed") for path in place.glob(f"{kind}-*")}
        return bool(gone - spoke)

    def _look_for_ranks(self) -> None:
        assert self._agent
        if len(self._ranks) == self.count:
            return
        with contextlib.suppress(psutil.Error, KeyError, ValueError):
            for child in psutil.Process(self._agent.pid).children():
                if child.pid not in {known.pid for known in self._ranks.values()}:
                    self._ranks[int(child.environ()["RANK"])] = child

    def _end(self) -> None:
        """Kills what is left. The ranks and their loader processes go with torchrun."""
        assert self._agent
        left = [*self._ranks.values()]
        if self._agent.poll() is None:
            self._agent.kill()
        self._agent.wait()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.wait(timeout=10)

    def _verdict(self, place: Path) -> Exception | None:
        words = _read_words(place)
        assert self._agent
        if not words and self._agent.returncode == 0:
            return None
        if self._signals:
            raise KeyboardInterrupt
        causes = sorted((each for each in words if not each["lost"]), key=lambda each: each["time"])
        done = {int(path.stem.partition("-")[2]) for path in place.glob("done-*.json")}
        silent = set(range(self.count)) - {each["rank"] for each in words} - done
        if causes:
            return _error(causes[0])
        if silent and words:
            late = [each for each in words if re.search("[Tt]imed out", each["text"])]
            how = "hung" if late else "was killed or crashed"
            return _Died(f"Rank {min(silent)} {how}.")
        return _Died(f"The ranks lost each other. {words[0]['text'].splitlines()[0]}" if words else "torchrun ended.")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Passes the first SIGINT or SIGTERM on to the ranks, which save and end; the second kills them."""
        self._signals += 1
        if self._signals > 1:
            raise KeyboardInterrupt
        self._look_for_ranks()
        if 0 in self._ranks:  # one is enough: they stop together
            with contextlib.suppress(psutil.Error):
                self._ranks[0].send_signal(signal.SIGINT)
        elif self._agent:
            self._agent.kill()


def _read_words(place: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text("utf-8")) for path in place.glob("failed-*.json")]


def _read(stream: Any, lines: "queue.Queue[str | None]") -> None:
    for raw in stream:
        lines.put(raw.decode("utf-8", "replace").rstrip("\n"))
    lines.put(None)


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _error(words: Mapping[str, Any]) -> Exception:
    """The exception that a rank left as its last words."""
    if words["kind"] == "BadInput":
        return BadInput(words["text"])
    if words["kind"] == "OutOfMemory":
        return OutOfMemory(words["text"], words["micro_batch"])
    if words["kind"] == "TrainingFailed":
        return TrainingFailed(words["text"])
    return RankFailed(f"Rank {words['rank']} failed:\n{words['traceback']}")
