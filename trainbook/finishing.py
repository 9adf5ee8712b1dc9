"""What callbacks for trainers from other projects share: the clock, the newest whole checkpoint, the end."""

import os
from pathlib import Path
from typing import ClassVar, NoReturn

from lib.config import environment
from lib.machine import disk
from lib.training.session import Reason
from lib.training.summary import Summary
from trainbook.keep import EXIT_DEADLINE, EXIT_INTERRUPTED, agreed, own_session, rank
from trainbook.run.restoring import newest_whole


class Finishing:
    """A session of a trainer from another project: it ends in time, with a whole checkpoint in `folder`."""

    pattern: ClassVar[str] = ""  # of the names of checkpoints in the folder
    unit: ClassVar[str] = "step"

    def __init__(
        self,
        folder: str | Path = "",
        *,
        session_minutes: float = 0.0,
        margin_seconds: float = 60.0,
    ):
        super().__init__()
        self.folder = Path(folder)
        self._session = own_session(session_minutes, margin_seconds)
        self._reason: Reason | None = None

    def newest(self, folder: str | Path = "") -> str | None:
        """Returns the newest whole checkpoint; None without one, or if all are torn."""
        self.folder = Path(folder or self.folder)
        entry = newest_whole(self.folder, self.pattern)
        return str(self.folder / entry) if entry else None

    def must_stop(self, needed_seconds: float = 0.0) -> bool:
        """Returns whether the session ends now, or before so many seconds; all ranks decide together."""
        self._reason = self._session.stop_reason()
        if self._session.remaining() < needed_seconds + self._session.margin_seconds:
            self._reason = self._reason or "deadline"
        (stop,) = agreed(self._reason is not None)
        return stop

    def leave(self, step: int) -> NoReturn:
        """Names the newest whole checkpoint, writes the summary, ends the process: 75, or 130 after a signal."""
        reason = self._reason or "deadline"
        found = self.newest()
        saved = f"{found} is whole" if found else f"{self.folder} has no whole checkpoint"
        print(
            f"Stopped ({reason}) after {self.unit} {step:,}: {saved}. Run the same command again.",
            flush=True,
        )
        self.sum_up(reason, step)
        raise SystemExit(EXIT_DEADLINE if reason == "deadline" else EXIT_INTERRUPTED)

    def sum_up(self, reason: Reason, step: int) -> None:
        """Writes summary.json beside the checkpoints. `trainbook run` writes one of the whole command."""
        if environment.DEADLINE in os.environ or rank():
            return
        disk.make_folders(self.folder)
        name = self.folder.resolve().name
        Summary(run=name, task=type(self).__module__, reason=reason, step=step).write(self.folder)
