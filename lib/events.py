"""events.csv: what happened to a run that nobody planned, one row an event."""

import csv
from collections.abc import Callable
from pathlib import Path

COLUMNS = ["step", "kind", "before", "after", "text"]


def _say(text: str) -> None:
    print(text, flush=True)


class EventLog:
    """Says each event to the person, and appends it to `path` (None: it is only said).

    Nothing is held open and nothing waits in memory: events are rare, and the next one may be the end of the process.
    """

    def __init__(self, path: Path | None = None, say: Callable[[str], None] = _say):
        self.path, self.say = path, say

    def record(self, step: int, kind: str, before: float, after: float, text: str) -> None:
        """An event at a step that changed something from `before` to `after`. A full disk does not end the run."""
        self.say(text)
        if self.path is None:
            return
        try:
            fresh = not self.path.exists()
            with self.path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([COLUMNS] if fresh else [])
                writer.writerow([step, kind, before, after, text])
        except OSError as error:
            self.say(f"The event could not be written to {self.path}: {error.strerror}.")
