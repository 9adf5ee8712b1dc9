"""Runs any training command within a session: carried over, stopped in time, packed.

    trainbook run --keep checkpoints --resume "--resume {newest}" -- python train.py

The command is not changed. It gets TRAINBOOK_DEADLINE, the Unix time at which it will be asked to end.
"""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trainbook
from lib.config import environment
from lib.errors import BadInput, printable
from lib.machine import clock, disk, platform
from lib.report.metrics import EVENTS, METRICS, EventLog, MetricsLog
from lib.text import amount, duration
from lib.training.summary import Reason, Summary
from trainbook.outputs import packing
from trainbook.run import along, cards, restoring, sent, settings, several, store, tracked
from trainbook.run.along import LOG
from trainbook.run.child import Child, handling
from trainbook.run.figures import Figures
from trainbook.run.restoring import Restored
from trainbook.run.settings import Settings
from trainbook.run.store import Index, Store

EXIT_CODES = several.EXIT_CODES
POLL_SECONDS = 0.25
SAVING_SECONDS = 30.0  # at least so long a command may take to save when it is asked to end
SAVING_FACTOR = 1.5  # of the longest save that was seen
INTERRUPT_SECONDS = 5.0  # from SIGINT, the second request, to SIGKILL
DESCENDANT_SECONDS = 10.0  # for processes that the command leaves behind, such as an upload
PACKING_SECONDS = 10.0


def run(chosen: Settings, packs: bool = True) -> int:
    """Runs the command of the settings; returns 0 completed, 75 deadline, 130 interrupted or 1 failed.

    Completed is a command that ended by itself with exit code 0 and, where `done` is given, with
    that text in its output or that file. `packs` is whether it writes the archive. Raises BadInput.
    """
    with sent.linked(chosen.inputs):
        return several.run(chosen) if chosen.sets else _run_one(chosen, packs)


def _run_one(chosen: Settings, packs: bool) -> int:
    keep = _keep_folder(chosen.keep)
    folder = _folder(chosen, keep)
    disk.check_writable(folder)
    with disk.lock(folder, f"Another trainbook run works in {folder}. Give a --name of its own."):
        earlier = restoring.find_earlier(chosen.name, folder, Path(chosen.keep or "."))
        before = Summary.read(earlier.folder) if earlier and earlier.folder else None
        if before and before.reason == "completed" and before.task == _line(chosen):
            print(f"{chosen.name} is completed already. Give another --name to run it again.")
            if along.bring(earlier, folder) and keep:
                restoring.restore(earlier, keep, chosen.also)
            return 0
        tracked.bring(earlier.folder if earlier else None, folder)
        along.bring_tables(earlier, folder)
        restored = Restored()
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
            restored = restoring.restore(earlier, keep, chosen.also)
        sessions = max(before.session if before else 0, earlier.index.session if earlier else 0)
        session = _Session(chosen, keep, folder, sessions + 1, packs)
        session.first_step = before.step if before else 0
        return session.run(restored)


def _line(chosen: Settings) -> str:
    return shlex.join(chosen.command)


def _keep_folder(configured: str) -> Path | None:
    """Returns the kept folder. Raises BadInput for one that holds the working folder."""
    if not configured:
        return None
    keep = Path(configured)
    here = Path.cwd()
    if here.is_relative_to(keep.resolve()):
        raise BadInput(
            f"--keep {printable(keep)} holds the working folder. Give the folder of the checkpoints "
            "alone, such as checkpoints."
        )
    if keep.exists() and not keep.is_dir():
        raise BadInput(f"--keep {printable(keep)} is a file. Give the folder that it lies in.")
    return keep


def _folder(chosen: Settings, keep: Path | None) -> Path:
    """Returns the run's folder, which never lies in the kept one: the command may delete that."""
    output = platform.output_dir(chosen.output_dir)
    if keep and output.resolve().is_relative_to(keep.resolve()):
        if chosen.output_dir:
            raise BadInput(
                f"output_dir {printable(output)} lies in the kept folder {printable(keep)}, which the "
                "command may delete. Give a folder beside it."
            )
        output = Path("trainbook-runs")
        print(f"The run is kept in {output}, as {keep} is the command's own folder.")
    return output / chosen.name


def _python_path() -> str:
    """Returns PYTHONPATH with Trainbook's folder at its end: the command may import another `lib`."""
    home = str(trainbook.HOME)
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*(entry for entry in entries if entry not in ("", home)), home])


class _Session:
    """One session of a command."""

    def __init__(
        self,
        chosen: Settings,
        keep: Path | None,
        folder: Path,
        number: int,
        packs: bool = True,
    ):
        self.chosen, self.keep, self.folder = chosen, keep, folder
        self.number = number
        self.packs = packs
        self.first_step = 0  # that an earlier session ended at
        self.events = EventLog(folder / EVENTS)
        self.deadline = settings.deadline_of(chosen)
        self.store = self._new_store() if keep else None
        self.begun = clock.now()
        self.is_done = False
        self.rank_codes: set[int] = set()  # exit codes of ranks, as torchrun prints them
        self._said: set[tuple[str, str]] = set()
        self.signal: int | None = None  # the first signal to this process

    def _new_store(self) -> Store:
        keep = self.keep or Path()
        place = self.folder / store.FOLDER
        disk.make_folders(place)
        index = Index.read(place) or Index()
        output = self.folder.parent.resolve()
        inside = keep.resolve().is_relative_to(output)
        index.keep = keep.resolve().relative_to(output).as_posix() if inside else ""
        index.session = self.number
        index.write(place)
        return Store(place, keep, index, self.chosen.newest, self.chosen.also)

    def run(self, restored: Restored) -> int:
        """Runs the command once; returns the exit code of the session."""
        with self._catching_signals():  # to the end: a late Ctrl-C must not cut the archive
            return self._run(restored)

    def _run(self, restored: Restored) -> int:
        command = self._command(restored)
        (self.folder / "config.yaml").write_text(settings.as_yaml(self.chosen), "utf-8")
        log = self.folder / LOG
        with log.open("a", encoding="utf-8") as file:
            file.write(f"=== session {self.number}: {shlex.join(command)}\n")
        if restored.times:
            self._copy(is_over=True)  # the command may delete them before it saves again
        done_file = self._done_file()
        end_tracking = tracked.start(self.chosen, self.folder, self.number)
        with MetricsLog(self.folder / METRICS, 10**17) as rows:
            figures = Figures(self.chosen.metrics, rows, self.first_step)

            def on_line(line: str) -> None:
                self.is_done |= bool(self.chosen.done) and self.chosen.done in line
                self.rank_codes |= cards.rank_codes(line)
                figures.take(line)

            try:
                child = Child(command, self._environment(), log, on_line)
            except OSError as error:
                raise BadInput(
                    f"The command {command[0]} cannot be started ({error.strerror}). Correct it."
                ) from None
            reason, code = self._watch(child, figures)
            killed = child.end(DESCENDANT_SECONDS if code == 0 else 1.0)
            figures.flush()
        end_tracking(code == 0, {})
        for pattern in figures.unmatched():
            self._note("no_figure", f"The output has no figure for {pattern}. Correct --metric.")
        if killed:
            self._note(
                "left_behind", f"{killed} processes of the command lived on and were killed."
            )
        if self.store:
            self.store.was_cut = code < 0
            self._copy(is_over=True)
        self.is_done |= self._done_file() != done_file and done_file is not None
        return self._end(self._verdict(reason, code), code, child, figures)

    def _command(self, restored: Restored) -> list[str]:
        """Returns the command with the arguments that resume it, and prints the restored files."""
        for line in restored.lines:
            print(line)
        resume = self.chosen.resume
        newest = {pattern: restored.newest(pattern) for pattern in settings.patterns_of(resume)}
        keep = self.keep or Path()
        arguments = settings.resume_arguments(resume, keep, newest)
        limit = self.deadline - clock.now()
        time_left = "" if limit == float("inf") else f"; {duration(max(0, limit))} are left"
        command = cards.placed([*self.chosen.command, *arguments])
        if self.chosen.torchrun:
            command = cards.under_torchrun(command, self.chosen.torchrun)
        print(f"Session {self.number} of {self.chosen.name}{time_left}: {shlex.join(command)}")
        sys.stdout.flush()
        return command

    def _environment(self) -> dict[str, str]:
        handed = {environment.SESSION_START: clock.handed_down(), "PYTHONUNBUFFERED": "1"}
        handed["PYTHONPATH"] = _python_path()
        if self.deadline < float("inf"):
            handed[environment.DEADLINE] = f"{self._stop_at():.0f}"
        return {**os.environ, **handed}

    def _saving_seconds(self) -> float:
        longest = self.store.longest_save if self.store else 0.0
        return max(SAVING_SECONDS, SAVING_FACTOR * longest + 5.0)

    def _stop_at(self) -> float:
        """Returns the time at which the command is asked to end: it must save, and the run be packed."""
        longest_copy = self.store.longest_copy if self.store else 0.0
        reserves = [
            self.chosen.session.margin_seconds,
            self._saving_seconds(),
            INTERRUPT_SECONDS,
            SAVING_FACTOR * longest_copy,
            PACKING_SECONDS,
        ]
        return self.deadline - sum(reserves)

    def _watch(self, child: Child, figures: Figures) -> tuple[Reason | None, int]:
        """Waits for the end; returns why it was asked to end (None: it ended by itself) and its exit code."""
        copying = threading.Thread(target=lambda: None)
        copying.start()
        while (code := child.wait(POLL_SECONDS)) is None:
            if self.store and not copying.is_alive():
                copying = threading.Thread(target=self._copy, daemon=True)
                copying.start()
            figures.sample()
            if self.signal is not None:
                code = self._ask_to_end(child, signal.Signals(self.signal))
                reason: Reason | None = "interrupted"
                break
            if clock.now() >= self._stop_at():
                code = self._ask_to_end(child, signal.SIGTERM)
                reason = "deadline"
                break
        else:
            reason = None
        copying.join()
        return reason, code

    def _copy(self, is_over: bool = False) -> None:
        if not self.store:
            return
        try:
            is_first = not self.store.saves
            lines = self.store.scan(is_over)
            if lines and is_first:
                print(lines[0], "The next ones are copied in silence.", flush=True)
            for entry, problem in self.store.problems.items():
                self._once("not_copied", entry, problem)
        except OSError as error:
            self._once("copy_failed", str(error), f"Checkpoints could not be copied ({error}).")

    def _ask_to_end(self, child: Child, first: signal.Signals) -> int:
        """Sends a signal, waits while the command saves, sends SIGINT, and kills the rest."""
        asked = self.signal  # before the message: it may be answered by a second Ctrl-C
        patience = self._saving_seconds()
        self._note("asked_to_end", f"The command was sent {first.name}, and has {patience:.0f} s.")
        for number, seconds in ((first, patience), (signal.SIGINT, INTERRUPT_SECONDS)):
            child.ask(number)
            until = clock.now() + seconds
            while clock.now() < until:
                code = child.wait(POLL_SECONDS)
                if code is not None:
                    return code
                self._copy()
                if self.signal != asked:  # a second Ctrl-C
                    break
        self._note("killed", "The command did not end, and was killed.")
        child.send(signal.SIGKILL)
        return child.process.wait()

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        count = 0

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal count
            count += 1
            self.signal = number if count == 1 else -number

        with handling(handle):
            yield

    def _done_file(self) -> float | None:
        """Returns the time of the file that proves the end; 0.0 if it is missing, None if `done` is not a path."""
        name = self.chosen.done
        if not name or "\0" in name or len(name) > 1000:
            return None
        path = Path(name)
        return path.stat().st_mtime if path.is_file() else 0.0

    def _verdict(self, reason: Reason | None, code: int) -> Reason:
        if reason:
            return reason
        if code == EXIT_CODES["deadline"] or cards.stopped_themselves(self.rank_codes):
            return "deadline"  # as `Keep` does
        if code != 0:
            return "failed"
        if self.chosen.done and not self.is_done:
            has_saved = self.store is not None and self.store.saves > 0
            text = f"The command ended with exit code 0 and without {self.chosen.done!r}."
            self._note("not_done", text)
            return "deadline" if has_saved else "failed"
        return "completed"

    def _once(self, kind: str, about: str, text: str) -> None:
        """Remembers warnings, so that each is printed once."""
        if (kind, about) not in self._said:
            self._said.add((kind, about))
            self._note(kind, text)

    def _note(self, kind: str, text: str) -> None:
        seconds = int(clock.now() - self.begun)
        self.events.record(seconds, kind, self.number, self.number, text)

    def _end(self, reason: Reason, code: int, child: Child, figures: Figures) -> int:
        """Writes summary and archive; returns the exit code of the session."""
        last = "\n".join(child.last_lines)
        error = f"exit code {code}: {child.last_lines[-1] if child.last_lines else ''}"
        summary = Summary(
            run=self.chosen.name,
            task=_line(self.chosen),
            reason=reason,
            step=figures.step,
            session=self.number,
            error=error if reason == "failed" else "",
            metrics=figures.latest,
            report=last,
        )
        summary.write(self.folder)
        places = f"{self.folder}"
        if self.packs:
            places += f" and {packing.package(self.folder.parent)}"
        print(f"{reason}: see {places}.{self._held()}", flush=True)
        return EXIT_CODES[reason]

    def _held(self) -> str:
        """Returns a warning near the platform's limits of files or bytes."""
        here = platform.detect()
        size, files = disk.held(self.folder.parent)
        warnings = []
        if here.output_files and files > 0.9 * here.output_files:
            warnings.append(f"{files:,} of {here.output_files:,} files")
        if here.output_bytes and size > 0.9 * here.output_bytes:
            warnings.append(f"{amount(size)} of {amount(here.output_bytes)}")
        return (
            f" The output has {' and '.join(warnings)} that the platform keeps." if warnings else ""
        )
