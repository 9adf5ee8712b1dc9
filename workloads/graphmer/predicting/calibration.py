"""Probabilities of predictions: fitted on validation files by hiding known references, and measured on the test's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.text import aligned
from lib.training.order import mix, permutation
from workloads.graphmer.answering import Answering
from workloads.graphmer.data import Data
from workloads.graphmer.predicting.references import Asking, Choices, calibration_error, fit
from workloads.graphmer.ranking import COMBINED, ENCODER
from workloads.graphmer.settings import OF_REFERENCES

SURE = 0.9
_MOST = 4000  # questions: as many as say something, and no more time
_OF_ENCODER = ("trust", "likeness")


def weights_of(model: nn.Module) -> np.ndarray:
    """Returns (2, F) the weights of the counts alone, and those that were chosen on validation."""
    return model.get_buffer("of_references").double().cpu().numpy()


@dataclass(frozen=True)
class Hidden:
    """References whose answers are known: their choices, the file of each, and which are of an object's attribute."""

    choices: Choices
    file: np.ndarray
    of_object: np.ndarray


class Calibration:
    """Hides what the graph knows of some files, and asks for it."""

    def __init__(self, data: Data, leave_out: bool = False):
        self.data, self.asking = data, Asking(data, leave_out)

    def fit(self, model: nn.Module) -> None:
        """Sets the model's weights of probabilities to those that fit the validation files.

        The encoder takes part if it makes the answers of files likelier with which it was not fitted.
        """
        hidden = self.hidden(self.data.corpus.windows_of("validation"), Answering(self.data, model))
        if hidden is None:
            return
        choices, half = hidden.choices, hidden.file % 2 == 0
        start = np.array([float(name == "counts") for name in OF_REFERENCES])
        alone = np.array([name not in _OF_ENCODER for name in OF_REFERENCES])
        free, losses = {"alone": alone, "with": np.ones_like(alone)}, {}
        for name, mask in free.items():  # the mean loss of each half of the files with weights of the other one
            halves = ((half, ~half), (~half, half))
            total = sum(choices[b].loss(fit(choices[a], start, mask)) * b.sum() for a, b in halves)
            losses[name] = total / max(1, len(half))
        best = min(losses, key=lambda name: (round(losses[name], 4), name))
        rows = np.stack([fit(choices, start, free[name]) for name in ("alone", best)])
        model.get_buffer("of_references").copy_(torch.from_numpy(rows))

    def hidden(self, windows: np.ndarray, answering: Answering, most: int = _MOST) -> Hidden | None:
        """Returns `most` known references of windows at most, with what a model says; None if there are none."""
        corpus = self.data.corpus
        known = self.asking.known(np.flatnonzero(np.isin(corpus.window_of, windows)))
        if not len(known):
            return None
        known = known[np.sort(permutation(mix(len(known)), 0, len(known))[:most])]  # the same ones in every run
        with torch.no_grad():
            batches = list(self.asking.ask(known, answering))
        order, of_object = (np.concatenate([getattr(b, name) for b in batches]) for name in ("chosen", "of_object"))
        choices = Choices.joined([batch.choices for batch in batches])
        return Hidden(choices, corpus.window_file[known.window[order]], of_object)

    def measured(self, model: nn.Module) -> list[dict[str, Any]]:
        """Returns the rows of predictions.csv: what the weights of a model reach on the test files."""
        hidden = self.hidden(self.data.corpus.windows_of("test"), Answering(self.data, model))
        if hidden is None:
            return []
        groups = {"all": np.ones(len(hidden.file), bool), "of an object": hidden.of_object}
        return [
            {"references": group, "method": method, **judged(hidden.choices[mask], weights)}
            for method, weights in zip((COMBINED, ENCODER), weights_of(model), strict=True)
            for group, mask in groups.items()
            if mask.any()
        ]


def judged(choices: Choices, weights: np.ndarray) -> dict[str, float]:
    """Returns the number of questions, how many answers are right, also of the sure ones, and the calibration error.

    `resolved` is the share of right answers where one is right and another one competes, without the answer none.
    """
    place, probability = choices.best(weights)
    right = np.where(choices.gold >= 0, place == choices.gold, place < 0)
    is_first = choices.first(weights) == choices.gold
    several = (choices.gold >= 0) & (np.diff(choices.begin) > 1)
    sure = probability >= SURE
    return {
        "number": len(choices),
        "right": float(right.mean()),
        "resolved": float(is_first[several].mean()) if several.any() else float("nan"),
        "sure": float(sure.mean()),
        "right of the sure": float(right[sure].mean()) if sure.any() else float("nan"),
        "calibration error": calibration_error(probability, right),
    }


def as_text(rows: list[Mapping[str, Any]]) -> str:
    """Returns a table of what was measured, a column for each row."""
    columns = [[f"{value:.3f}" if isinstance(value, float) else f"{value}" for value in row.values()] for row in rows]
    lines = [[name, *values] for name, *values in zip(rows[0], *columns, strict=True)]
    return (
        "References of the test's files, hidden: which entity of the name is meant, or none that the graph has. Of an "
        "object: as in `x.get()`, where the text does not say what x is, which most unresolved ones are. Sure: given "
        f"{SURE:g} or more.\n{aligned(lines, left=(0,))}"
    )
