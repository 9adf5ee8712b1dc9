"""Hands rows of metrics.csv to TensorBoard and Weights & Biases; one that fails costs a warning and no run."""

import contextlib
import importlib
import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lib.config import Tracking
from lib.machine import disk
from lib.report import metrics
from lib.report.metrics import LAST_COLUMNS, MACHINE_COLUMNS
from lib.report.printing import KEY, Informing
from trainbook.outputs.packing import TRACKING

STATE = "ids.json"
END_SECONDS = 60.0  # for sending the rest at the end
_OF_MACHINE = {*LAST_COLUMNS, *MACHINE_COLUMNS} - {"lr"}
Log = Callable[[int, dict[str, float]], None]  # (step, values)
End = Callable[[bool], None]  # (completed)


def tensorboard(tracked: "Tracked") -> tuple[Log, End]:
    """Writes event files, one more for each session, which TensorBoard shows as one run."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tracked.folder / "tensorboard"))

    def log(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, lambda completed: writer.close()


def wandb(tracked: "Tracked") -> tuple[Log, End]:
    """Makes a run of Weights & Biases; `wandb sync` sends offline data, all sessions into the same run."""
    import wandb as client

    if tracked.options.online:
        mode = "online"
        _find_key()
    else:
        mode = "offline"
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # which is sent offline too
    run = client.init(
        project=tracked.options.project,
        name=tracked.name,
        id=tracked.id,
        resume="allow",
        dir=str(tracked.folder),
        mode=mode,
        config=dict(tracked.settings),
        settings=client.Settings(console="off", silent=True, init_timeout=30.0),
    )

    def log(step: int, values: dict[str, float]) -> None:
        run.log(values, step=step)
        is_test = all(name.startswith("test/") for name in values)
        if is_test:  # a step that an earlier session logged takes no more
            run.summary.update(values)

    return log, lambda completed: run.finish(exit_code=int(not completed))


def _find_key() -> None:
    """Leaves the key of Kaggle's or Colab's secrets in the environment. Raises LookupError."""
    for secret in (_of_kaggle, _of_colab):
        if not os.environ.get(KEY):
            with contextlib.suppress(Exception):  # no such module elsewhere; errors of many classes
                os.environ[KEY] = secret() or ""
    if not os.environ.get(KEY):
        raise LookupError(
            f"tracking.online needs {KEY}: add it under Add-ons > Secrets on Kaggle (the key icon on Colab), or as an "
            "environment variable"
        )


def _of_kaggle() -> str | None:
    return importlib.import_module("kaggle_secrets").UserSecretsClient().get_secret(KEY)


def _of_colab() -> str | None:
    return importlib.import_module("google.colab.userdata").get(KEY)


class Tracked:
    """Sends a run's rows until `end`. `is_resumed`: an earlier session's runs continue."""

    def __init__(
        self, run: Path, options: Tracking, name: str, settings: Mapping[str, Any], is_resumed: bool
    ):
        self.folder = run / TRACKING
        self.options = options
        self.name = name
        self.settings = settings
        self.id = ""
        self._sent: dict[str, int] = {}  # the last step of each split that the trackers have
        self._trackers: list[tuple[Informing, Log, End]] = []
        starts = [start for start in (tensorboard, wandb) if getattr(options, start.__name__)]
        if starts and not is_resumed:  # a new run has other rows
            shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            state = json.loads((self.folder / STATE).read_text("utf-8"))
            sent = {str(split): int(step) for split, step in state["sent"].items()}
            self.id = str(state["id"])
            self._sent = sent
        self.id = self.id or uuid.uuid4().hex[:12]
        consequence = "Nothing more is sent there in this session; training continues."
        for start in starts:
            guard = Informing(start.__name__, consequence)
            with guard:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._trackers.append((guard, *start(self)))
        if self._trackers:
            metrics.on_row.append(self._send)

    def _send(self, row: Mapping[str, float | int | str]) -> None:
        """Hands a row on; a step that is trained again after a resume was sent before."""
        step = int(row["step"])
        split = str(row["split"])
        if step <= self._sent.get(split, -1):
            return
        values = {}
        for name, value in row.items():
            if name != "step" and not isinstance(value, str):
                group = "machine" if name in _OF_MACHINE else split
                values[f"{group}/{name}"] = float(value)
        self._log(step, values)
        self._sent[split] = step
        with contextlib.suppress(OSError), disk.whole(self.folder / STATE, cache=True) as aside:
            aside.write_text(json.dumps({"id": self.id, "sent": self._sent}), "utf-8")

    def _log(self, step: int, values: dict[str, float]) -> None:
        for guard, log, _ in self._trackers:
            with guard:
                if not guard.failed:
                    log(step, values)

    def end(self, completed: bool, values: Mapping[str, float]) -> None:
        """Sends the test's metrics, and ends all runs, within a limit of time."""
        if self._send not in metrics.on_row:
            return
        metrics.on_row.remove(self._send)

        def end_all() -> None:
            scores = {f"test/{name}": value for name, value in values.items()}
            if scores:
                self._log(max(self._sent.values(), default=0), scores)
            for guard, _, end in self._trackers:
                with guard:
                    end(completed)

        ending = threading.Thread(target=end_all, name="tracking ends", daemon=True)
        ending.start()
        ending.join(END_SECONDS)
        if ending.is_alive():
            print(
                f"Warning: the trackers have not ended after {END_SECONDS:.0f} s and are left behind.",
                flush=True,
            )
