"""Hands the rows of metrics.csv to trackers, on a thread that reads the table from time to time.

Training knows nothing of it. A tracker that fails costs a warning and is left alone until the next session, which sends
what this one did not.
"""

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from lib.config import Tracking
from lib.machine import disk
from lib.report import trackers
from lib.report.metrics import LAST_COLUMNS, MACHINE_COLUMNS, Row, Tail
from lib.report.printing import Informing
from lib.report.trackers import Place, Tracker

FOLDER = "tracking"  # in a run's folder
IDS = "ids.json"
SECONDS = 10.0  # between two looks at the table
END_SECONDS = 60.0  # for sending what is left at the end, of all trackers together
_OF_MACHINE = {*LAST_COLUMNS, *MACHINE_COLUMNS} - {"lr"}


@dataclass
class _Open:
    """A tracker that takes rows, and the last step of each split that it has."""

    name: str
    tracker: Tracker
    sent: dict[str, int] = field(default_factory=dict)


class Tracked:
    """Sends a run's rows for as long as the `with` block lasts. `is_resumed`: an earlier session's runs go on."""

    def __init__(self, run: Path, options: Tracking, name: str, settings: Mapping[str, Any], is_resumed: bool):
        self.folder = run / FOLDER
        self._options, self._name, self._settings, self._is_resumed = options, name, settings, is_resumed
        self._tail = Tail(run / "metrics.csv")
        self._open: list[_Open] = []
        self._ended = threading.Event()
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)

    def __enter__(self) -> "Tracked":
        options = self._options
        asked = {
            "tensorboard": (options.tensorboard, trackers.TensorBoard),
            "wandb": (options.wandb, trackers.WeightsAndBiases),
            "mlflow": (options.mlflow, trackers.MLflow),
        }
        wanted = {name: make for name, (is_on, make) in asked.items() if is_on}
        if not wanted:
            return self
        earlier = self._earlier()
        for name, make in wanted.items():
            self._make(name, make, earlier.get(name, {}))
        if self._open:
            self._remember(earlier)
            self._thread.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end(False, {})

    def end(self, completed: bool, values: Mapping[str, float]) -> None:
        """Sends the rows that are left and the test's metrics, and ends all runs, within a limit of time."""
        if self._ended.is_set() or not self._open:
            return
        self._ended.set()
        named = {f"test/{name}": value for name, value in values.items()}
        ending = threading.Thread(target=self._end, args=(completed, named), name="tracking ends", daemon=True)
        ending.start()
        ending.join(END_SECONDS)
        if ending.is_alive():
            print(f"Warning: the trackers have not ended after {END_SECONDS:.0f} s and are left behind.", flush=True)

    def _end(self, completed: bool, values: Mapping[str, float]) -> None:
        self._thread.join()
        self.send()
        for one in [*self._open]:
            self._trying(one, lambda one=one: one.tracker.end(completed, values))
        with contextlib.suppress(OSError):
            for path in [path for path in self.folder.rglob("*") if path.is_symlink()]:
                path.unlink()  # to the newest log of wandb; an archive could not hold what it points to

    def _earlier(self) -> dict[str, Any]:
        """Returns what an earlier session left; a run that starts anew has other rows, so nothing is left of it."""
        if not self._is_resumed:
            shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError, ValueError):
            known = json.loads((self.folder / IDS).read_text("utf-8"))
            return known if isinstance(known, dict) else {}
        return {}

    def _make(self, name: str, make: Callable[[Place], Tracker], earlier: Mapping[str, Any]) -> None:
        place = Place(
            self.folder, self._options.project, self._name, self._options.online, str(earlier.get("id", "")),
            self._settings,
        )  # fmt: skip
        with Informing(name, "Nothing is sent there; training continues."):
            self.folder.mkdir(parents=True, exist_ok=True)
            sent = {str(split): int(step) for split, step in dict(earlier.get("sent", {})).items()}
            try:
                tracker = make(place)
            except ImportError as error:
                raise ImportError(f"its package is missing ({error}); install {name}") from error
            self._open.append(_Open(name, tracker, sent))

    def _run(self) -> None:
        while not self._ended.wait(SECONDS):
            self.send()

    def send(self) -> None:
        """Hands on the rows that are new, and notes how far each tracker has them."""
        with self._sending:
            _, rows = self._tail.look()
            for one in [*self._open]:
                self._trying(one, lambda one=one: _hand_on(one, rows))
            if rows and self._open:
                self._remember({})

    def _trying(self, one: _Open, action: Callable[[], None]) -> None:
        with Informing(one.name, "The next session sends the rest; training continues.") as guard:
            action()
        if guard.failed:
            self._open.remove(one)

    def _remember(self, earlier: Mapping[str, Any]) -> None:
        """Writes the ids of the runs, and how far they are, for the next session; what else is there stays."""
        with contextlib.suppress(OSError):  # then the next session sends more than it must
            path = self.folder / IDS
            known = dict(earlier) or (json.loads(path.read_text("utf-8")) if path.is_file() else {})
            known |= {one.name: {"id": one.tracker.id, "sent": one.sent} for one in self._open}
            with disk.whole(path, cache=True) as aside:
                aside.write_text(json.dumps(known), "utf-8")


def _hand_on(one: _Open, rows: Sequence[Row]) -> None:
    """Hands a tracker the rows that it does not have yet; those of a step that was trained again it has."""
    for row in rows:
        step, split = int(row["step"]), row.get("split", "")
        if step > one.sent.get(split, -1):
            one.tracker.log(step, _values(row, split))
            one.sent[split] = step


def _values(row: Row, split: str) -> dict[str, float]:
    """Returns the numbers of a row, those of the machine apart from those of training and validation."""
    values = {}
    for column, cell in row.items():
        if column not in ("step", "split"):
            with contextlib.suppress(ValueError):
                values[f"{'machine' if column in _OF_MACHINE else split}/{column}"] = float(cell)
    return values
