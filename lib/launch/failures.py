"""Why a rank ended, whether a starting one still lives, and which micro-batch memory allows the next session."""

import contextlib
import json
import re
import signal
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.machine.disk import whole
from lib.ranks import boot
from lib.report.summary import Summary

# Errors that name no cause but another rank that is gone or does not answer.
_LOST = re.compile(r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|[Tt]imed out", re.DOTALL)
# Without a sign of life from a starting rank. A thread gives one every second; only loading a large library blocks it,
# and meanwhile the process uses the CPU or the disk.
SILENT_SECONDS = 60.0
_LOOK_SECONDS = 1.0  # of silence that one look may count: a machine that was asleep gives everyone time to answer


class RankFailed(RuntimeError):
    """A rank raised an error; its text is that rank's traceback."""


def write_last_words(folder: Path, number: int, error: BaseException) -> None:
    """Writes a rank's error for the launcher. `lost` ones name no cause but that another rank is gone."""
    text, chain = str(error), "".join(traceback.format_exception(error))
    is_lost = isinstance(error, RuntimeError) and not isinstance(error, BadInput | TrainingFailed)
    words = {
        "rank": number, "kind": type(error).__name__, "text": text, "traceback": chain, "time": time.time(),
        "micro_batch": getattr(error, "micro_batch", 0), "before": getattr(error, "before", 0),
        "lost": is_lost and bool(_LOST.search(text)),
    }  # fmt: skip
    with whole(folder / f"failed-{number}.json", cache=True) as aside:
        aside.write_text(json.dumps(words), "utf-8")


def read_words(place: Path) -> list[dict[str, Any]]:
    """Returns the errors that ranks left."""
    return [json.loads(path.read_text("utf-8")) for path in place.glob("failed-*.json")]


def error_of(words: Mapping[str, Any]) -> Exception:
    """Returns the exception that a rank left."""
    match words["kind"]:
        case "OutOfMemory":
            return OutOfMemory(words["text"], words["micro_batch"], before=words["before"])
        case "BadInput":
            return BadInput(words["text"])
        case "TrainingFailed":
            return TrainingFailed(words["text"])
    return RankFailed(f"Rank {words['rank']} failed:\n{words['traceback']}")


def _codes(place: Path) -> dict[int, int]:
    """Returns the exit codes that torchrun saw, by rank."""
    texts = {int(path.stem.partition("-")[2]): path.read_text("utf-8") for path in place.glob("ended-*")}
    return {number: int(text) for number, text in texts.items() if text}


def silent(place: Path, words: Iterable[Mapping[str, Any]]) -> set[int]:
    """Returns the ranks that torchrun saw fail without `words`, none that it ended because of others."""
    failed = {number for number, code in _codes(place).items() if code not in (0, -signal.SIGTERM)}
    return failed - {error["rank"] for error in words}


def ending_of(place: Path, number: int) -> str:
    """Describes how a rank ended, by its exit code."""
    code = _codes(place).get(number)
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


def limit_after(folder: Path, sizes: Mapping[str, Any], error: BaseException) -> dict[str, Any]:
    """Returns the `limit` of a summary after an error: the smaller size of an OutOfMemory, or the earlier limit."""
    if size := getattr(error, "micro_batch", 0):
        return {"samples": size, **sizes}
    return earlier.limit if (earlier := Summary.read(folder)) else {}


def newest_limit(folders: Iterable[Path], sizes: Mapping[str, Any]) -> int:
    """Returns the most samples of a micro-batch by the first summary in `folders`; 0 without, or for other sizes."""
    earlier = next(filter(None, map(Summary.read, folders)), None)
    limit = dict(earlier.limit) if earlier else {}
    samples = limit.pop("samples", 0)
    return max(0, samples) if isinstance(samples, int) and limit == sizes else 0
