"""The loss terms of an evaluation, each in a step of the player that it belongs to, and the steps that are asked."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import nn

from lib.errors import BadInput

_ALL = 100_000  # steps: as many calls of an ordinary hook take a few hundredths of a second


def steps_to_ask(total: int, near: int = 0) -> Iterable[int]:
    """Returns the steps of a run; of a very long one its first and last ones, those about `near`, and some between."""
    if total <= _ALL:
        return range(total)
    about = range(max(0, near - 1000), min(total, near + 1000))
    between = range(0, total, 2 * total // _ALL)
    return sorted({*range(_ALL // 2), *about, *between, *range(total - 1000, total)})


_players: "weakref.WeakKeyDictionary[Any, tuple[int, set[Any]]]" = weakref.WeakKeyDictionary()  # by task


def turns(task: Any) -> dict[str | None, int]:
    """Returns the step nearest to `task.step` in which each player of a task has its turn, by name; `None` is last."""
    total, near = task.config.training.max_steps, task.step
    if _players.get(task, (None,))[0] != total:
        _players[task] = total, {*_nearest(task, steps_to_ask(total, near))}
    players = _players[task][1]
    if len(players) < 2:
        return dict.fromkeys(players or {None}, near)
    found = _nearest(task, range(max(0, near - 1000), min(total, near + 1000)))
    if not found.keys() >= players:
        found = _nearest(task, steps_to_ask(total, near))
    return {player: found[player] for player in sorted(found, key=lambda name: (name is None, name))}


def _nearest(task: Any, steps: Iterable[int]) -> dict[str | None, int]:
    nearest: dict[str | None, int] = {}
    for step in steps:
        player = task.player(step)
        if player is not None and not isinstance(player, str):
            continue  # which training refuses
        if player not in nearest or abs(step - task.step) < abs(nearest[player] - task.step):
            nearest[player] = step
    return nearest


class TermMeans:
    """The mean of each loss term over the batches of an evaluation.

    `loss` may leave out the terms of players at rest, so it is asked in a step of each player: whose turn it is when a
    validation is due decides nothing. A term that it never computes in evaluation mode has no mean.
    """

    def __init__(self, task: Any):
        self.task = task
        found = turns(task)
        self._turns = found if len(found) > 1 else {None: task.step}  # one that plays alone leaves out no term
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}  # of the terms that were computed
        self._is_due = False  # whether any term had targets

    def add(self, model: nn.Module, batch: Any) -> None:
        """Adds the sums and counts of a batch."""
        former = self.task.step
        taken: set[str] = set()
        try:
            for player, step in self._turns.items():
                self.task.step = step
                left_out = taken if player is None else taken | {*self._turns} - {player}
                taken |= self._add_step(model, batch, left_out)
        finally:
            self.task.step = former

    def _add_step(self, model: nn.Module, batch: Any, left_out: set[str]) -> set[str]:
        """Adds the terms of one step, without those that are left out; returns the names of those that it computed."""
        counts, sums = self.task.count(batch), self.task.loss(model, batch)[0]
        added = [term for term in counts if term not in left_out]
        self._is_due |= any(counts[term] for term in added)
        for term in added:
            if term in sums:
                self._counts[term] = self._counts.get(term, 0) + counts[term]
                self._sums[term] = self._sums.get(term, 0.0) + float(sums[term])
        return {term for term in added if term in sums}

    def means(self) -> dict[str, float]:
        """Returns the mean of each term, and as "loss" their sum. Raises BadInput where no term was computed."""
        if self._is_due and not self._sums:
            name = type(self.task).__name__
            raise BadInput(
                f"{name}.loss returns no term in evaluation mode, so there is nothing to choose the best weights by. "
                f"Return the terms there too, or write {name}.evaluate(model, loader)."
            )
        means = {term: self._sums[term] / number for term, number in self._counts.items() if number}
        return {**means, "loss": sum(means.values())}
