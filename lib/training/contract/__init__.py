"""Whether a task keeps the contract of lib.task.Task, asked before quota is spent.

A test of one's own is one line: `def test_contract(): check("my.yaml")`.
"""

import dataclasses
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from lib.config import Config
from lib.config.lengths import resolve_lengths
from lib.errors import BadInput
from lib.machine import memory
from lib.task import Task, load_config, load_task
from lib.training.contract import losses, samples, scores
from lib.training.contract.asked import Asked
from lib.training.contract.scores import baseline_of, known_baseline
from lib.training.contract.sentences import explained, place_of, same_error
from lib.training.data import subset

__all__ = [
    "Asked", "Findings", "baseline_of", "check", "examine", "explained", "findings", "known_baseline", "place_of",
    "require",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Findings:
    """Sentences on a task: what is wrong in it, and what is doubtful but may be meant."""

    wrong: list[str]
    doubts: list[str]


def check(config: str | Path | Config) -> None:
    """Raises BadInput with a sentence for each promise that a configuration's task does not keep.

    What is only doubtful is a warning.
    """
    config = config if isinstance(config, Config) else load_config(config)
    task = load_task(config)
    found = examine(task, config)
    for sentence in found.doubts:
        warnings.warn(sentence, stacklevel=2)
    _refuse(task, found)


_kept: "weakref.WeakSet[Task]" = weakref.WeakSet()


def require(task: Task, config: Config) -> list[str]:
    """Checks a task before it trains in this process, once; returns what is doubtful. Raises BadInput as `check` does.

    Data sets and model are made once: a second copy of large ones might not fit beside the run.
    """
    if task in _kept:
        return []
    found = examine(task, config, thorough=False)
    _refuse(task, found)
    _kept.add(task)
    return found.doubts


def _refuse(task: Task, found: Findings) -> None:
    if found.wrong:
        raise BadInput(_text(task, found.wrong))


def _text(task: Task, wrong: list[str]) -> str:
    """Returns the sentences as a list, with the name of the task above them."""
    many = f"in {len(wrong)} places" if len(wrong) > 1 else "in one place"
    lines = "\n".join(f"- {sentence}" for sentence in wrong)
    return f"The task {type(task).__name__} breaks its contract {many}. Correct that before a run costs quota:\n{lines}"


def findings(task: Task, config: Config) -> list[str]:
    """Returns a sentence for each promise that a task does not keep, each with its mend; none for a sound task."""
    return examine(task, config).wrong


def examine(task: Task, config: Config, thorough: bool = True) -> Findings:
    """Checks a task on some samples of its data, on this machine's device: a dozen passes of four samples each.

    Unless `thorough`, data sets and model are made once, which takes less time and memory. Where memory runs out the
    rest is not checked, which is a doubt.
    """
    former, asked = task.config, Asked(task, config, thorough)
    wrong: list[str] = []
    try:
        for sentence in _all(asked):
            if not any(same_error(sentence, earlier) for earlier in wrong):
                wrong.append(sentence)
    except Exception as error:
        if not memory.is_oom(error):
            raise
        memory.clear_memory()
        asked.doubts.append(f"Memory ran out while the contract of {asked.name} was checked, so a part of it was not.")
    finally:
        task.config = former
        if asked.device.type == "cuda":
            memory.clear_memory()  # what the checks held, so that the card is the run's
    return Findings(wrong, asked.doubts)


def _all(asked: Asked) -> Iterator[str]:
    """Yields every sentence. What cannot be checked because something before it is wrong is left out."""
    yield from _said(lambda: samples.descriptions(asked))
    drawn, wrong = _made(lambda: _data(asked))
    yield from wrong
    model, wrong = _made(lambda: losses.build(asked))
    yield from wrong
    if drawn is not None:
        changing = _said(lambda: samples.repeated(asked))
        yield from changing or _said(lambda: samples.read_again(asked))  # which would find the same again
        yield from _said(lambda: samples.shared(asked))
        yield from _said(lambda: samples.example(asked, drawn))
    scored: dict[str, dict[str, float]] = {}
    if model is not None:
        yield from _said(lambda: losses.made_again(asked, model))
    if model is not None and drawn is not None:
        yield from _said(lambda: losses.losses(asked, model, drawn))
        scored, wrong = scores.evaluated(asked, model)
        yield from wrong
    if drawn is not None:
        yield from _said(lambda: scores.baseline(asked, scored))


def _data(asked: Asked) -> list[Any]:
    """Returns some training batches, with the configuration's lengths in steps."""
    train_set = subset(asked.sets["train"], asked.config.data.subset_ratio, asked.config.seed)
    asked.config, _ = resolve_lengths(asked.config, len(train_set))
    asked.task.config = asked.config
    list(samples.items(asked))
    return samples.batches(asked)


def _said(check: Callable[[], Iterable[str]]) -> list[str]:
    """Returns the sentences of a check; an error in it that is written for a person is one of them."""
    found: list[str] = []
    try:
        for sentence in check():
            found.append(sentence)
    except BadInput as error:
        found.append(str(error))
    return found


def _made(make: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Returns what is made and no sentence, or None and why not."""
    try:
        return make(), []
    except BadInput as error:
        return None, [str(error)]
