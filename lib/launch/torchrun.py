"""Trains on several GPUs out of one process: runs torchrun, watches it, and restarts it when a rank dies.

Each rank is a `python -m lib train`: a fork of a kernel that has touched CUDA breaks. Notes and progress come on the
first rank's standard output, errors in files. Every process dies with the one above it, so kill -9 leaves no orphan.
"""

import contextlib
import dataclasses
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from lib import checkpoint
from lib.config import Config, environment, to_yaml
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.machine import disk, hardware, memory
from lib.ranks import boot
from lib.report.metrics import EVENTS, EventLog
from lib.report.progress import MARK, Progress
from lib.report.summary import Summary
from lib.training.session import handed_down, handling_signals

LAUNCHES = 3  # in a row without a new checkpoint
GRACE_SECONDS = 2.0  # in which the ranks that are left may say why, before all are killed
# Without a sign of life from a starting rank. A thread gives one every second; only loading a large library blocks it,
# and meanwhile the process uses the CPU or the disk.
SILENT_SECONDS = 60.0
_LOOK_SECONDS = 1.0  # of silence that one look may count: a machine that was asleep gives everyone time to answer
# Errors that name no cause but another rank that is gone or does not answer.
_LOST = re.compile(r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|[Tt]imed out", re.DOTALL)
_LIBRARY = Path(__file__).resolve().parents[2]


class RankFailed(RuntimeError):
    """A rank raised an error; its text is that rank's traceback."""


class _Died(Exception):
    """A rank is gone, or does not answer, without an error of its own."""


@contextlib.contextmanager
def as_rank() -> Iterator[None]:
    """Wraps `python -m lib` in a rank: all but the first print nothing, and an error is left for the launcher."""
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
            write_last_words(Path(place), number, error)
            raise SystemExit(1) from None  # the launcher prints it, once
    if place:
        (Path(place) / f"done-{number}").touch()


def write_last_words(folder: Path, number: int, error: BaseException) -> None:
    """Writes a rank's error for the launcher. `lost` ones name no cause but that another rank is gone."""
    text, is_sentence = str(error), isinstance(error, BadInput | TrainingFailed)
    words = {
        "rank": number, "kind": type(error).__name__, "text": text, "time": time.time(),
        "traceback": "".join(traceback.format_exception(error)),
        "micro_batch": getattr(error, "micro_batch", 0), "before": getattr(error, "before", 0),
        "lost": isinstance(error, RuntimeError) and not is_sentence and bool(_LOST.search(text)),
    }  # fmt: skip
    with disk.whole(folder / f"failed-{number}.json", cache=True) as aside:
        aside.write_text(json.dumps(words), "utf-8")


def train(config: Config, folder: Path, count: int, progress: Progress) -> Summary:
    """Trains in `count` processes until they end cleanly; returns the run's summary.

    When a rank dies or hangs, all resume. Raises what a rank raised; TrainingFailed after LAUNCHES deaths in a row.
    """
    events = EventLog(folder / EVENTS, progress.note)
    memory.clear_memory()  # what a smoke test left on this process's GPU is a rank's now
    left, reached = LAUNCHES, checkpoint.newest_step(folder / "checkpoints")
    while True:
        launched = _Launch(config, count, progress)
        failure = launched.run()
        progress.close()
        if not failure:
            if summary := Summary.read(folder):
                return summary
            raise TrainingFailed(f"The ranks ended without a summary in {folder}. Run again: it resumes.")
        now = checkpoint.newest_step(folder / "checkpoints")
        if isinstance(failure, OutOfMemory) and (size := failure.micro_batch):
            earlier = Summary.read(folder) or Summary(config.run.name, config.task, "failed", session=0)
            limit = {"samples": size, **config.training.sizes}
            dataclasses.replace(earlier, limit=limit).write(folder)  # the configuration stays, and with it the draws
            text = f"Memory ran out on a rank: starting again in micro-batches of {size}."
            events.record(now, "oom_sharded", failure.before, size, text)
            continue
        if not isinstance(failure, _Died):
            raise failure
        left, reached = (LAUNCHES if now > reached else left) - 1, max(now, reached)
        if not left:
            raise TrainingFailed(
                f"{failure} This happened {LAUNCHES} times without a new checkpoint in between, so it is not tried "
                f"again. What the ranks printed last:\n{launched.errors}"
            )
        text = f"{failure} Starting again from step {now:,} ({left} more without a new checkpoint)."
        events.record(now, "relaunch", count, count, text)


class _Launch:
    """One start of torchrun, from its first line to the end of its last process."""

    def __init__(self, config: Config, count: int, progress: Progress):
        self.config, self.count, self.progress = config, count, progress
        self.errors = ""  # the end of standard error
        self._signals = 0
        self._agent: subprocess.Popen | None = None
        self._ranks: dict[int, psutil.Process] = {}
        self._hung = ""  # a sentence on a rank that hung while it started

    def run(self) -> Exception | None:
        """Returns None after a clean end, otherwise why it ended."""
        with tempfile.TemporaryDirectory(prefix="trainbook-ranks-") as name:
            self._place = Path(name)
            (self._place / "config.yaml").write_text(to_yaml(self.config), "utf-8")
            with (self._place / "stderr.txt").open("wb") as errors, handling_signals(self._on_signal):
                self._agent = self._start(errors)
                try:
                    self._watch(self._agent)
                finally:
                    self._end(self._agent)
            self.errors = "\n".join((self._place / "stderr.txt").read_text("utf-8", "replace").splitlines()[-30:])
            return self._verdict(self._agent.returncode)

    def _start(self, errors: Any) -> subprocess.Popen:
        options = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={self.count}"]
        program = [boot.__file__, "rank", "train", str(self._place / "config.yaml")]
        environ = {
            "OMP_NUM_THREADS": str(hardware.cpus_per_process(self.count)),
            "GLOO_SOCKET_IFNAME": "lo",  # on one machine; looking up its own name fails in some containers
            **os.environ,
            environment.SESSION_START: handed_down(),
            "PYTHONPATH": os.pathsep.join([str(_LIBRARY), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONUNBUFFERED": "1",
            environment.RELAY: "1",
            environment.RANK_FOLDER: str(self._place),
        }
        command = [sys.executable, boot.__file__, "agent", str(os.getpid()), *options, *program]
        # in a session of its own: an interrupt of the kernel or the terminal comes here first
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
        return subprocess.Popen(command, env=environ, start_new_session=True, **streams)

    def _watch(self, agent: subprocess.Popen) -> None:
        """Shows what the ranks print until torchrun ends; a rank that is gone or failed ends it after a moment."""
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            for raw in agent.stdout or ():
                lines.put(raw.decode("utf-8", "replace").rstrip("\n"))
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        signs, until, looked = Signs(self._place), float("inf"), 0.0
        while time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                line = lines.get(timeout=0.2)
                if line is None:
                    return
                counts = None
                with contextlib.suppress(ValueError):  # two ranks wrote into one line
                    counts = json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else None
                self.progress.update(*counts) if counts else self.progress.note(line)
            if time.monotonic() - looked >= 0.2:
                looked = time.monotonic()
                self._look_for_ranks()
                self._hung, words = signs.look(self._ranks), self._words()
                if self._hung or self._silent(words) or not all(error["lost"] for error in words):
                    return  # the cause is known
                if agent.poll() is not None or words:
                    until = min(until, looked + GRACE_SECONDS)

    def _look_for_ranks(self) -> None:
        if self._agent and len(self._ranks) < self.count:
            with contextlib.suppress(psutil.Error, KeyError, ValueError):
                for child in psutil.Process(self._agent.pid).children():
                    if child.pid not in {process.pid for process in self._ranks.values()}:
                        self._ranks[int(child.environ()["RANK"])] = child

    def _end(self, agent: subprocess.Popen) -> None:
        """Kills torchrun, and ranks that lost it; loader workers and trackers end with their rank."""
        left = [*self._ranks.values()]
        with contextlib.suppress(psutil.Error):
            left += [child for child in psutil.Process(agent.pid).children(recursive=True) if child not in left]
        for process in [agent, *self._ranks.values()]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        agent.wait()
        for process in psutil.wait_procs(left, timeout=10)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _words(self) -> list[dict[str, Any]]:
        """Returns the errors that ranks left."""
        return [json.loads(path.read_text("utf-8")) for path in self._place.glob("failed-*.json")]

    def _silent(self, words: Iterable[Mapping[str, Any]]) -> set[int]:
        """Returns the ranks that torchrun saw fail without `words`, none that it ended because of others."""
        failed = {number for number, code in exit_codes(self._place).items() if code not in (0, -signal.SIGTERM)}
        return failed - {error["rank"] for error in words}

    def _verdict(self, code: int) -> Exception | None:
        words = self._words()
        if not words and code == 0:
            return None
        if self._signals:
            raise KeyboardInterrupt
        if causes := [error for error in words if not error["lost"]]:
            first = min(causes, key=lambda error: error["time"])
            if first["kind"] == "OutOfMemory":
                return OutOfMemory(first["text"], first["micro_batch"], before=first["before"])
            kind = {"BadInput": BadInput, "TrainingFailed": TrainingFailed}.get(first["kind"])
            return kind(first["text"]) if kind else RankFailed(f"Rank {first['rank']} failed:\n{first['traceback']}")
        if self._hung:
            return _Died(self._hung)
        if silent := self._silent(words):
            return _Died(ending_of(self._place, min(silent)))
        ended = {number for number in range(self.count) if (self._place / f"done-{number}").exists()}
        if words and (mute := set(range(self.count)) - ended - {error["rank"] for error in words}):
            late = any(re.search("[Tt]imed out", error["text"]) for error in words)
            return _Died(f"Rank {min(mute)} hung." if late else ending_of(self._place, min(mute)))
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


def exit_codes(place: Path) -> dict[int, int]:
    """Returns the exit codes that torchrun saw, by rank."""
    texts = {int(path.stem.partition("-")[2]): path.read_text("utf-8") for path in place.glob("ended-*")}
    return {number: int(text) for number, text in texts.items() if text}


def ending_of(place: Path, number: int) -> str:
    """Describes how a rank ended, by its exit code."""
    code = exit_codes(place).get(number)
    if code is None:
        return f"Rank {number} was killed or crashed."
    if code >= 0:
        return f"Rank {number} ended with exit code {code} and left no error."
    name = signal.Signals(-code).name
    hint = " The system does this where the machine's RAM is full." if code == -signal.SIGKILL else ""
    return f"Rank {number} was ended by signal {-code} ({name}).{hint}"


class Signs:
    """Signs of life of starting ranks: until its first step a rank that hangs looks like one that is slow."""

    def __init__(self, place: Path):
        self.place, self._looked = place, time.monotonic()
        self._shown: dict[int, Any] = {}
        self._silent: dict[int, float] = {}

    def look(self, processes: Mapping[int, psutil.Process]) -> str:
        """Describes a rank without a sign of life for SILENT_SECONDS; empty while there is none."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _LOOK_SECONDS), now
        for number, process in processes.items():
            stage = boot.read_stage(self.place, number)
            shown: Any = now  # of a process that has just ended, which is seen elsewhere
            with contextlib.suppress(OSError, psutil.Error):  # time of its last touch, CPU time, bytes from the disk
                path, times = self.place / f"alive-{number}", process.cpu_times()
                read = process.io_counters().read_bytes if hasattr(process, "io_counters") else 0  # not on macOS
                shown = path.stat().st_mtime_ns if path.exists() else 0, times.user + times.system, read
            is_alive = stage == boot.TRAINING or shown != self._shown.get(number)
            self._shown[number] = shown
            self._silent[number] = 0.0 if is_alive else self._silent.get(number, 0.0) + passed
            if self._silent[number] >= SILENT_SECONDS:
                where = f"in the stage {stage!r}" if stage else "before its first line"
                return f"Rank {number} hung while it started, {where}: no sign of life for {SILENT_SECONDS:.0f} s."
        return ""
