"""How runs end: what a failed rank leaves for the launcher, and errors after training, which cost no run its end."""

import contextlib
import json
import re
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lib import ranks
from lib.errors import BadInput, OutOfMemory, TrainingFailed
from lib.machine.disk import whole

# Errors that say nothing but that another rank is gone or does not answer.
_LOST = re.compile(r"gloo|NCCL|Connection (closed|reset|refused)|Broken pipe|[Tt]imed out", re.DOTALL)


class RankFailed(RuntimeError):
    """A rank raised an error; its text is that rank's traceback."""


def write_last_words(folder: Path, number: int, error: BaseException) -> None:
    """Writes a rank's error where the launcher finds it. `lost` ones say nothing but that another rank is gone."""
    for_a_person = isinstance(error, BadInput | TrainingFailed)
    words = {
        "rank": number,
        "kind": type(error).__name__,
        "text": str(error),
        "micro_batch": getattr(error, "micro_batch", 0),
        "before": getattr(error, "before", 0),
        "lost": isinstance(error, RuntimeError) and not for_a_person and bool(_LOST.search(str(error))),
        "traceback": "".join(traceback.format_exception(error)),
        "time": time.time(),
    }
    with whole(folder / f"failed-{number}.json", cache=True) as aside:
        aside.write_text(json.dumps(words), "utf-8")


def read_words(place: Path) -> list[dict[str, Any]]:
    """Returns the errors that ranks left."""
    return [json.loads(path.read_text("utf-8")) for path in place.glob("failed-*.json")]


def error_of(words: Mapping[str, Any]) -> Exception:
    """Returns the exception that a rank left."""
    if words["kind"] == "OutOfMemory":
        return OutOfMemory(words["text"], words["micro_batch"], before=words["before"])
    kinds = {"BadInput": BadInput, "TrainingFailed": TrainingFailed}
    if kind := kinds.get(words["kind"]):
        return kind(words["text"])
    return RankFailed(f"Rank {words['rank']} failed:\n{words['traceback']}")


def failed(place: Path) -> set[int]:
    """Returns the ranks that torchrun saw fail, without those that it ended itself because of the others."""
    codes = {int(path.stem.partition("-")[2]): path.read_text("utf-8") for path in place.glob("ended-*")}
    return {number for number, code in codes.items() if code and int(code) not in (0, -signal.SIGTERM)}


def ending_of(place: Path, number: int) -> str:
    """Returns a sentence on how a rank ended, by the exit code that torchrun saw."""
    path = place / f"ended-{number}"
    code = path.read_text("utf-8") if path.exists() else ""
    if not code:
        return f"Rank {number} was killed or crashed."
    if int(code) >= 0:
        return f"Rank {number} ended with exit code {code} and left no error."
    ended_by = signal.Signals(-int(code))
    hint = " The system does this where the machine's RAM is full." if ended_by == signal.SIGKILL else ""
    return f"Rank {number} was ended by signal {ended_by.value} ({ended_by.name}).{hint}"


@contextlib.contextmanager
def noting(missing: dict[str, str], name: str, alone: bool = False) -> Iterator[None]:
    """Notes an error of the block in `missing` and prints it; what comes after training must not cost the run its end.

    An error that only several ranks together can answer is raised: memory that runs out, or a rank that is gone;
    `alone` says that no other rank takes part in the block.
    """
    try:
        yield
    except Exception as error:
        for_a_person = isinstance(error, BadInput | TrainingFailed | OSError) and not isinstance(error, OutOfMemory)
        if ranks.world() > 1 and not alone and isinstance(error, RuntimeError) and not for_a_person:
            raise
        missing[name] = f"{type(error).__name__}: {error}"
        print("" if for_a_person else traceback.format_exc(), end="")
        print(
            f"Warning: the {name} failed ({missing[name]}). The run itself is whole. Correct the cause, or free room "
            "on the disk, and run again: what is missing is made, and nothing is trained again.",
            flush=True,
        )
