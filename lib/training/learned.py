"""What a task learned from its data, on its way into a checkpoint and back."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from lib import checkpoint, ranks
from lib.errors import BadInput, printable
from lib.task import Task

_MOST_BYTES = 12 * 2**20  # as JSON; a state.json of more than 16 MiB is not read, because it may be a stranger's


def take(task: Task, saved: checkpoint.Checkpoint | None, note: Callable[[str], None]) -> Task:
    """Lets a task take what it learned from data, what is saved or else its own; returns the task.

    It gets them as JSON gives them back either way, so a resumed run has the very same values. Only the first rank's
    `saved` counts. Raises BadInput.
    """
    now = of(task)
    is_resumed, values = ranks.from_first((saved is not None, saved.state.get("learned", {}) if saved else now))
    values = values or now  # of a checkpoint from before the task learned anything
    different = sorted(name for name in {*now, *values} if now.get(name) != values.get(name))
    if is_resumed and different:
        note(
            f"What was learned from data differs from what the run began with: {', '.join(map(printable, different))}. "
            "The saved values are used, to which the weights belong. For the others start a run under another run.name."
        )
    if values:
        task.take_learned(json.loads(json.dumps(values, sort_keys=True)))  # whole numbers, as keys, became text
    return task


def of(task: Task) -> dict[str, Any]:
    """Returns what a task has learned, as JSON gives it back. Raises BadInput for what cannot be kept."""
    name, values = type(task).__name__, task.learned()
    if not isinstance(values, Mapping):
        raise BadInput(f"{name}.learned returned a {type(values).__name__}. Return a dict of values by name.")
    try:
        text = json.dumps(dict(values), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        advice = "Return text, finite numbers, lists, and dicts whose keys are text: str(key)."
        raise BadInput(f"{name}.learned returned values that JSON cannot hold ({printable(error)}). {advice}") from None
    if len(text) > _MOST_BYTES:
        raise BadInput(
            f"{name}.learned returned {len(text):,} bytes, which every checkpoint would hold; at most {_MOST_BYTES:,} "
            "are kept. Keep a large table as a buffer of the model."
        )
    if values and type(task).take_learned is Task.take_learned:
        raise BadInput(f"{name} has learned() and no take_learned(values), which a resumed run needs. Write it too.")
    return json.loads(text)


def facts(task: Task) -> dict[str, Any]:
    """Returns the part of a checkpoint's state that `take` reads; none where nothing was learned."""
    values = task.learned()
    return {"learned": dict(values)} if values else {}
