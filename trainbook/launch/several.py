"""Trains on several GPUs out of one process: starts the ranks, watches them, and starts them again when one dies.

Each rank is a `python -m trainbook.command train`, as a fork of a kernel that has touched CUDA breaks. It dies with
this process.
"""

import contextlib
import dataclasses
import faulthandler
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from lib import checkpoint
from lib.config import Config, environment, to_yaml
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.machine import disk, hardware, memory
from lib.machine.clock import handed_down
from lib.ranks import boot
from lib.report.metrics import EVENTS, EventLog
from lib.report.progress import MARK, Progress
from lib.training.session import handling_signals
from lib.training.summary import Summary

LAUNCHES = 3  # in a row without a new checkpoint
GRACE_SECONDS = 2.0  # for the remaining ranks to report, before all are killed
_LAST_BYTES = 64 * 1024  # of the ranks' standard error
# Errors that name no cause but another rank that is gone or does not answer.
_LOST = re.compile(
    r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|[Tt]imed out", re.DOTALL
)
_LIBRARY = Path(__file__).resolve().parents[2]


class RankFailed(RuntimeError):
    """A rank raised an error; its text is that rank's traceback."""


class _Died(Exception):
    """A rank is gone, or does not answer, without an error."""


@contextlib.contextmanager
def as_rank() -> Iterator[None]:
    """Wraps a command in a rank: all but the first print nothing, and an error is left for the launcher."""
    number = int(os.environ.get("RANK", 0))
    place = os.environ.get(environment.RANK_FOLDER)
    if "RANK" in os.environ:
        faulthandler.enable()  # a crash in C prints its place
    with contextlib.ExitStack() as stack:
        if number:
            stack.enter_context(
                contextlib.redirect_stdout(
                    stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                )
            )
        elif place:
            os.dup2(1, 2)  # the first rank's warnings are seen beside its notes
        try:
            yield
        except BaseException as error:
            if not place:
                raise
            write_last_words(Path(place), number, error)
            raise SystemExit(1) from None  # the launcher prints it, once


def write_last_words(folder: Path, number: int, error: BaseException) -> None:
    """Writes a rank's error for the launcher. `lost` ones name no cause but that another rank is gone."""
    text = str(error)
    is_sentence = isinstance(error, BadInput | TrainingFailed)
    is_lost = isinstance(error, RuntimeError) and not is_sentence and bool(_LOST.search(text))
    words = {"rank": number, "kind": type(error).__name__, "text": text, "time": time.time()}
    words["traceback"] = "".join(traceback.format_exception(error))
    words["micro_batch"] = getattr(error, "micro_batch", 0)
    words["before"] = getattr(error, "before", 0)
    words["lost"] = is_lost
    with disk.whole(folder / f"failed-{number}.json", cache=True) as aside:
        aside.write_text(json.dumps(words), "utf-8")


def train(config: Config, folder: Path, count: int, progress: Progress) -> Summary:
    """Trains in `count` processes, again if one dies or hangs; returns the summary. Raises a rank's error."""
    disk.check_writable(folder)
    events = EventLog(folder / EVENTS, progress.note)
    memory.clear_memory()  # frees this process's GPU memory of a smoke test for a rank
    left = LAUNCHES
    reached = checkpoint.newest_step(folder / "checkpoints")
    while True:
        launched = _Launch(config, count, progress)
        failure = launched.run()
        progress.close()
        if not failure:
            if summary := Summary.read(folder):
                return summary
            raise TrainingFailed(
                f"The ranks ended without a summary in {folder}. Run again: it resumes."
            )
        now = checkpoint.newest_step(folder / "checkpoints")
        if isinstance(failure, OutOfMemory) and (size := failure.micro_batch):
            earlier = Summary.read(folder) or Summary(
                config.run.name, config.task, "failed", session=0
            )
            limit = {"samples": size, **config.training.sizes}
            dataclasses.replace(earlier, limit=limit).write(
                folder
            )  # the configuration stays, and with it the draws
            text = f"Memory ran out on a rank: starting again in micro-batches of {size}."
            events.record(now, "oom_relaunch", failure.before, size, text)
            continue
        if not isinstance(failure, _Died):
            raise failure
        left = (LAUNCHES if now > reached else left) - 1
        reached = max(now, reached)
        if not left:
            text = f"{failure} This happened {LAUNCHES} times without a new checkpoint in between."
            raise TrainingFailed(f"{text} What the ranks printed last:\n{launched.errors}")
        text = f"{failure} Starting again from step {now:,} ({left} more without a new checkpoint)."
        events.record(now, "relaunch", count, count, text)


class _Launch:
    """One start of the ranks, from their first line to the end of their last process."""

    def __init__(self, config: Config, count: int, progress: Progress):
        self.config = config
        self.count = count
        self.progress = progress
        self.errors = ""  # the end of standard error
        self._signals = 0
        self._ranks: list[subprocess.Popen] = []
        self._lines: queue.Queue[str | None] = (
            queue.Queue()
        )  # of the first rank; None: it has ended
        self._reader: threading.Thread | None = None

    def run(self) -> Exception | None:
        """Returns None after a clean end, otherwise why it ended."""
        with tempfile.TemporaryDirectory(prefix="trainbook-ranks-") as name:
            self._place = Path(name)
            (self._place / "config.yaml").write_text(to_yaml(self.config), "utf-8")
            with (
                (self._place / "stderr.txt").open("wb") as errors,
                handling_signals(self._on_signal),
            ):
                try:
                    self._start(errors)
                    self._watch()
                finally:
                    codes = self._end()
                    self._show_rest()
            self.errors = _last_lines(self._place / "stderr.txt")
            return self._verdict(codes)

    def _start(self, errors: Any) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]  # free for the first rank, which the others find there
        environ = self._environ(port)
        module = ["-m", "trainbook.command", "train", str(self._place / "config.yaml")]
        command = [sys.executable, boot.__file__, str(os.getpid()), *module]
        for number in range(self.count):
            ranked = {**environ, "RANK": str(number), "LOCAL_RANK": str(number)}
            process = subprocess.Popen(
                command,
                env=ranked,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if number else subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # interrupts of kernel and terminal come here first
            )
            self._ranks.append(process)

    def _environ(self, port: int) -> dict[str, str]:
        """Returns the variables of all ranks."""
        environ = {
            "OMP_NUM_THREADS": str(hardware.cpus_per_process(self.count)),
            # On one machine; looking up its own name fails in some containers
            "GLOO_SOCKET_IFNAME": "lo",
            **os.environ,
        }
        paths = [str(_LIBRARY), os.environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environ["PYTHONUNBUFFERED"] = "1"
        environ["MASTER_ADDR"] = "127.0.0.1"
        environ["MASTER_PORT"] = str(port)
        environ["WORLD_SIZE"] = str(self.count)
        environ["LOCAL_WORLD_SIZE"] = str(self.count)
        environ[environment.SESSION_START] = handed_down()
        environ[environment.RELAY] = "1"
        environ[environment.RANK_FOLDER] = str(self._place)
        return environ

    def _watch(self) -> None:
        """Shows the first rank's output until all have ended; a failed rank ends the others after a moment."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        until = float("inf")
        looked = 0.0
        is_read = False
        while time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=0.2)
                if line is None:
                    is_read = True
                else:
                    self._show(line)
            if time.monotonic() - looked >= 0.2:
                looked = time.monotonic()
                codes = self._codes()
                words = self._words()
                if self._silent(codes, words) or not all(error["lost"] for error in words):
                    return  # the cause is known
                has_ended = None not in codes.values()
                if has_ended and is_read:
                    return
                if has_ended or words:
                    until = min(until, looked + GRACE_SECONDS)

    def _read(self) -> None:
        for raw in self._ranks[0].stdout or ():
            self._lines.put(raw.decode("utf-8", "replace").rstrip("\n"))
        self._lines.put(None)

    def _show_rest(self) -> None:
        """Shows the first rank's last output, which may be thousands of lines."""
        if self._reader is None:
            return
        # A process that the rank has started may hold its output open
        self._reader.join(GRACE_SECONDS)
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get_nowait()) is not None:
                self._show(line)

    def _show(self, line: str) -> None:
        counts = None
        with contextlib.suppress(ValueError):  # a library wrote into the same line
            counts = json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else None
        self.progress.update(*counts) if counts else self.progress.note(line)

    def _end(self) -> dict[int, int | None]:
        """Kills the ranks that are left, whose loader workers end with them; returns the exit codes of before."""
        codes = self._codes()
        for process in self._ranks:
            process.kill()
        for process in self._ranks:
            process.wait()
        return codes

    def _codes(self) -> dict[int, int | None]:
        return {number: process.poll() for number, process in enumerate(self._ranks)}

    def _words(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text("utf-8")) for path in self._place.glob("failed-*.json")]

    def _silent(self, codes: dict[int, int | None], words: list[dict[str, Any]]) -> set[int]:
        """Returns the ranks that failed without a word."""
        failed = {number for number, code in codes.items() if code}
        return failed - {error["rank"] for error in words}

    def _verdict(self, codes: dict[int, int | None]) -> Exception | None:
        words = self._words()
        if not words and all(code == 0 for code in codes.values()):
            return None
        if self._signals:
            raise KeyboardInterrupt
        causes = [error for error in words if not error["lost"]]
        if causes:
            return _error_of(min(causes, key=lambda error: error["time"]))
        silent = self._silent(codes, words)
        if silent:
            number = min(silent)
            return _Died(_how_it_ended(number, codes[number] or 0))
        running = {number for number, code in codes.items() if code is None}
        mute = running - {error["rank"] for error in words}
        if mute:
            is_late = any(re.search("[Tt]imed out", error["text"]) for error in words)
            return _Died(f"Rank {min(mute)} {'hung' if is_late else 'was killed or crashed'}.")
        return _Died(f"The ranks lost each other. {words[0]['text'].splitlines()[0]}")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Passes the first SIGINT or SIGTERM on to the ranks, which save and end; the second kills them."""
        self._signals += 1
        if self._signals > 1 or not self._ranks:
            raise KeyboardInterrupt
        for process in self._ranks:  # each of them leaves its evaluation
            process.send_signal(signal.SIGINT)


def _error_of(words: dict[str, Any]) -> Exception:
    """Returns the error that a rank wrote for the launcher."""
    text = words["text"]
    if words["kind"] == "OutOfMemory":
        return OutOfMemory(text, words["micro_batch"], before=words["before"])
    if words["kind"] == "BadInput":
        return BadInput(text)
    if words["kind"] == "TrainingFailed":
        return TrainingFailed(text)
    return RankFailed(f"Rank {words['rank']} failed:\n{words['traceback']}")


def _how_it_ended(number: int, code: int) -> str:
    if code >= 0:
        return f"Rank {number} ended with exit code {code} and left no error."
    sentence = f"Rank {number} was ended by signal {-code} ({signal.Signals(-code).name})."
    if code == -signal.SIGKILL:
        sentence += " The system does this where the machine's RAM is full."
    return sentence


def _last_lines(path: Path, number: int = 30) -> str:
    """Returns the last lines of a file; reads only its end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LAST_BYTES))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-number:])
