"""Runs several commands at once, one a card: each is a separate run in a separate process."""

import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

from lib.config import environment
from lib.machine import clock, disk, platform
from lib.training.summary import Reason, Summary
from trainbook.outputs import packing
from trainbook.run import along, cards, restoring, settings
from trainbook.run.child import die_with_parent, handling
from trainbook.run.settings import Settings

EXIT_CODES: dict[str, int] = {"completed": 0, "deadline": 75, "interrupted": 130, "failed": 1}
_WORST: tuple[Reason, ...] = ("failed", "interrupted", "deadline", "completed")
_AT_ONCE = 2  # without a GPU
_POLL_SECONDS = 0.25
_LEAST_SECONDS = 120.0  # of a session, beside its margin, in which one more command is begun


def run(chosen: Settings) -> int:
    """Runs the commands of `two_cards: each`; returns the worst exit code of all."""
    runs = settings.parts(chosen)
    names = cards.visible()
    places = len(names) or _AT_ONCE
    where = f"one on each of {places} GPUs" if names else f"{places} at once: there is no GPU"
    print(f"{len(runs)} commands, {where}.", flush=True)
    output = platform.output_dir(chosen.output_dir)
    beside = _Beside(chosen, runs, output, places)
    with beside.catching_signals(), tempfile.TemporaryDirectory(prefix="trainbook-") as folder:
        beside.run(Path(folder))
        summaries = [beside.end_of(one) for one in runs]
        archive = packing.package(output)
    reason = worst(summaries)
    print(f"{reason}: see {', '.join(one.name for one in runs)} in {output}, and {archive}.")
    return EXIT_CODES[reason]


def worst(summaries: Sequence[Summary]) -> Reason:
    reasons = [summary.reason for summary in summaries]
    return next(reason for reason in _WORST if reason in reasons)


class _Started(NamedTuple):
    """A run's process, and the thread that prints its output."""

    run: Settings
    process: subprocess.Popen[bytes]
    shown: threading.Thread


class _Beside:
    """Commands side by side, one a place."""

    def __init__(self, chosen: Settings, runs: list[Settings], output: Path, places: int):
        self.output = output
        self.latest = settings.deadline_of(chosen) - chosen.session.margin_seconds - _LEAST_SECONDS
        self.waiting = deque(runs)
        self.free = deque(range(places))
        self.processes: dict[int, _Started] = {}  # by place
        self.codes: dict[str, int] = {}
        self.signals: list[int] = []  # to this process
        self._passed = 0  # how many of them the commands were sent
        self._printing = threading.Lock()

    def run(self, folder: Path) -> None:
        while self.processes or (self.waiting and self._may_begin()):
            while self.waiting and self.free and self._may_begin():
                self._start(self.waiting.popleft(), self.free.popleft(), folder)
            time.sleep(_POLL_SECONDS)
            self._pass_signals_on()
            self._collect()

    def _may_begin(self) -> bool:
        is_first = not self.codes and bool(self.free)
        return not self.signals and (is_first or clock.now() < self.latest)

    def _start(self, one: Settings, place: int, folder: Path) -> None:
        file = folder / f"{one.name}.yaml"
        file.write_text(settings.as_yaml(one), "utf-8")
        variables = {
            environment.SESSION_START: clock.handed_down(),
            **cards.environment_of(place, one.command),
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainbook.run", str(file), "--part"],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C of a terminal comes here first
            preexec_fn=die_with_parent,
        )
        output: IO[bytes] = process.stdout  # type: ignore[assignment]
        shown = threading.Thread(target=self._show, args=(one.name, output), daemon=True)
        shown.start()
        self.processes[place] = _Started(one, process, shown)

    def _show(self, name: str, output: IO[bytes]) -> None:
        """Prints the lines of a command behind its name; a progress bar counts by its last state."""
        for line in output:
            text = line.decode("utf-8", "replace").rstrip().rpartition("\r")[2]
            with self._printing:
                print(f"{name}: {text}", flush=True)

    def _pass_signals_on(self) -> None:
        for number in self.signals[self._passed :]:
            self._passed += 1
            for started in self.processes.values():
                started.process.send_signal(number)

    def _collect(self) -> None:
        for place, started in [*self.processes.items()]:
            code = started.process.poll()
            if code is not None:
                started.shown.join(timeout=5)
                del self.processes[place]
                self.free.append(place)
                self.codes[started.run.name] = code

    def end_of(self, one: Settings) -> Summary:
        """Returns the summary of a command, or writes one if it is missing; a chain reads all of them."""
        folder = self.output / one.name
        code = self.codes.get(one.name)
        summary = Summary.read(folder)
        if summary and code in EXIT_CODES.values():
            return summary
        if code is None and not summary:
            earlier = restoring.find_earlier(one.name, folder, Path(one.keep or "."))
            along.bring(earlier, folder)
            summary = Summary.read(folder)
        if code is None and summary:
            return summary
        disk.make_folders(folder)
        summary = self._left(one, code)
        summary.write(folder)
        return summary

    def _left(self, one: Settings, code: int | None) -> Summary:
        task = shlex.join(one.command)
        if code is not None:
            error = f"the run ended with exit code {code}; its output says why"
            return Summary(run=one.name, task=task, reason="failed", error=error)
        print(f"{one.name} was not begun: there was no time left.", flush=True)
        reason: Reason = "interrupted" if self.signals else "deadline"
        return Summary(run=one.name, task=task, reason=reason)

    @contextmanager
    def catching_signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)

        with handling(handle):
            yield
