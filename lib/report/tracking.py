"""Hands each row of metrics.csv to TensorBoard and Weights & Biases, whose clients write in the background.

A tracker that fails costs a warning and gets nothing more in this session. Only with `online` is anything sent.
"""

import contextlib
import json
import os
import shutil
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from lib.config import Tracking
from lib.machine import disk
from lib.report import metrics
from lib.report.metrics import LAST_COLUMNS, MACHINE_COLUMNS
from lib.report.printing import KEY, Informing

FOLDER = "tracking"  # in a run's folder
STATE = "ids.json"
END_SECONDS = 60.0  # for sending the rest at the end
_OF_MACHINE = {*LAST_COLUMNS, *MACHINE_COLUMNS} - {"lr"}


class TensorBoard:
    """Event files, one more for each session, which TensorBoard shows as one run."""

    def __init__(self, tracked: "Tracked"):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(tracked.folder / "tensorboard"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def end(self, completed: bool, step: int, values: Mapping[str, float]) -> None:
        self.log(step, values)
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; `wandb sync` sends what was written offline, all sessions into the same run."""

    def __init__(self, tracked: "Tracked"):
        import wandb

        online = tracked.options.online
        if online and not _key():
            raise LookupError(
                f"tracking.online needs {KEY}: add it under Add-ons > Secrets on Kaggle (the key icon on Colab), or "
                "set it as an environment variable"
            )
        if not online:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # which is sent offline too
        self._run = wandb.init(
            project=tracked.options.project,
            name=tracked.name,
            id=tracked.id,
            resume="allow",
            dir=str(tracked.folder),
            mode="online" if online else "offline",
            config=dict(tracked.settings),
            settings=wandb.Settings(console="off", silent=True, init_timeout=30.0),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def end(self, completed: bool, step: int, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))
        self._run.finish(exit_code=0 if completed else 1)


def _key() -> str:
    """Returns the key of W&B from the environment, Kaggle's Secrets or Colab's; leaves it in the environment."""
    if not os.environ.get(KEY):
        with contextlib.suppress(Exception):  # no such module elsewhere; errors of many classes
            from kaggle_secrets import UserSecretsClient

            os.environ[KEY] = UserSecretsClient().get_secret(KEY) or ""
    if not os.environ.get(KEY):
        with contextlib.suppress(Exception):
            from google.colab import userdata

            os.environ[KEY] = userdata.get(KEY) or ""
    return os.environ.get(KEY, "")


class Tracked:
    """Sends a run's rows for as long as the `with` block lasts. `is_resumed`: an earlier session's runs continue."""

    def __init__(self, run: Path, options: Tracking, name: str, settings: Mapping[str, Any], is_resumed: bool):
        self.folder, self.options, self.name, self.settings = run / FOLDER, options, name, settings
        self._is_resumed = is_resumed
        self.id = ""
        self._sent: dict[str, int] = {}  # the last step of each split that the trackers have
        self._trackers: list[tuple[Informing, TensorBoard | WeightsAndBiases]] = []

    def __enter__(self) -> "Tracked":
        if not (self.options.tensorboard or self.options.wandb):
            return self
        self._restore()
        for name, make in (("tensorboard", TensorBoard), ("wandb", WeightsAndBiases)):
            if not getattr(self.options, name):
                continue
            guard = Informing(name, "Nothing more is sent there in this session; training continues.")
            with guard:
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    self._trackers.append((guard, make(self)))
                except ImportError as error:
                    raise ImportError(f"its package is missing ({error}); install {name}") from error
        if self._trackers:
            self._remember()
            metrics.on_row.append(self._send)
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end(False, {})

    def _restore(self) -> None:
        """Takes id and steps of an earlier session; a run that starts anew has other rows, so nothing of it stays."""
        if not self._is_resumed:
            shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            state = json.loads((self.folder / STATE).read_text("utf-8"))
            self.id, self._sent = str(state["id"]), {str(k): int(step) for k, step in state["sent"].items()}
        self.id = self.id or uuid.uuid4().hex[:12]

    def _remember(self) -> None:
        with contextlib.suppress(OSError), disk.whole(self.folder / STATE, cache=True) as aside:
            aside.write_text(json.dumps({"id": self.id, "sent": self._sent}), "utf-8")

    def _send(self, row: Mapping[str, float | int | str]) -> None:
        """Hands a row on; a step that is trained again after a resume was sent before."""
        step, split = int(row["step"]), str(row["split"])
        if step <= self._sent.get(split, -1):
            return
        numbers = {name: value for name, value in row.items() if name != "step" and not isinstance(value, str)}
        values = {f"{'machine' if name in _OF_MACHINE else split}/{name}": float(v) for name, v in numbers.items()}
        for guard, tracker in self._trackers:
            if not guard.failed:
                with guard:
                    tracker.log(step, values)
        self._sent[split] = step
        self._remember()

    def end(self, completed: bool, values: Mapping[str, float]) -> None:
        """Sends the test's metrics, and ends all runs, within a limit of time."""
        if self._send not in metrics.on_row:
            return
        metrics.on_row.remove(self._send)
        named = {f"test/{name}": value for name, value in values.items()}
        ending = threading.Thread(target=self._end, args=(completed, named), name="tracking ends", daemon=True)
        ending.start()
        ending.join(END_SECONDS)
        if ending.is_alive():
            print(f"Warning: the trackers have not ended after {END_SECONDS:.0f} s and are left behind.", flush=True)

    def _end(self, completed: bool, values: Mapping[str, float]) -> None:
        for guard, tracker in self._trackers:
            with guard:
                tracker.end(completed, max(self._sent.values(), default=0), values)
        with contextlib.suppress(OSError):
            for path in [path for path in self.folder.rglob("*") if path.is_symlink()]:
                path.unlink()  # to the newest log of wandb; an archive could not hold what it points to
