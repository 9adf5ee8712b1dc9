"""Probabilities of predictions: fitted on validation files by hiding known facts, and measured on those of the test."""

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
from workloads.graphmer.predicting.choices import Choices, calibration_error, fit, reliability
from workloads.graphmer.predicting.gaps import Filling
from workloads.graphmer.predicting.references import Asking
from workloads.graphmer.settings import OF_GAPS, OF_REFERENCES
from workloads.graphmer.tables import COMBINED, ENCODER

REFERENCES, GAPS = "references", "missing facts"
AT_K = (10, 50, 100, 500)
SURE = 0.9
_PREDICTED = "predicted "
_MOST = 4000  # questions of a kind: as many as say something, and no more time
_OF_ENCODER = ("trust", "likeness")
_NAMES = {REFERENCES: OF_REFERENCES, GAPS: OF_GAPS}
_BUFFERS = {REFERENCES: "of_references", GAPS: "of_gaps"}


def weights_of(model: nn.Module, kind: str) -> np.ndarray:
    """Returns (2, F) the weights of the counts alone, and those that were chosen on validation."""
    return model.get_buffer(_BUFFERS[kind]).double().cpu().numpy()


@dataclass(frozen=True)
class Hidden:
    """Questions whose answers are known: their choices, the file of each, and which are of an object's attribute."""

    choices: Choices
    file: np.ndarray
    of_object: np.ndarray


class Calibration:
    """Hides what the graph knows of some files, and asks for it."""

    def __init__(self, data: Data, leave_out: bool = False):
        self.data, self.corpus = data, data.corpus
        self.asking = Asking(data, leave_out)
        self.filling = Filling(data, self.asking, leave_out)

    def fit(self, model: nn.Module) -> None:
        """Sets the model's weights of probabilities to those that fit the validation files.

        The encoder takes part where it makes the answers of files likelier with which it was not fitted.
        """
        windows = self.corpus.windows_of("validation")
        for kind, hidden in self.hidden(windows, Answering(self.data, model)).items():
            start = np.array([float(name == "counts") for name in _NAMES[kind]])
            alone = np.array([name not in _OF_ENCODER for name in _NAMES[kind]])
            free = {"alone": alone, "with": np.ones_like(alone)}
            losses = {name: _crossed(hidden, start, chosen) for name, chosen in free.items()}
            chosen = min(losses, key=lambda name: (round(losses[name], 4), name))
            rows = np.stack([fit(hidden.choices, start, free[name]) for name in ("alone", chosen)])
            buffer = model.get_buffer(_BUFFERS[kind])
            buffer.copy_(torch.from_numpy(rows))

    def hidden(self, windows: np.ndarray, answering: Answering, most: int = _MOST) -> dict[str, Hidden]:
        """Returns the questions of both kinds about windows, with what a model says: `most` of each at most."""
        corpus = self.corpus
        with torch.no_grad():
            known = self.asking.known(np.flatnonzero(np.isin(corpus.window_of, windows)))
            known = known[_some(len(known), most)]
            asked = list(self.asking.ask(known, answering))
            gaps = self.filling.questions(windows)
            gaps = self.filling.open(self.filling.hiding(gaps[_some(len(gaps), most)]))
            filled = list(self.filling.ask(gaps, answering))
        found = {}
        if asked:
            order = np.concatenate([part.chosen for part in asked])
            of_object = np.concatenate([part.of_object for part in asked])
            choices = Choices.joined([part.choices for part in asked])
            found[REFERENCES] = Hidden(choices, corpus.window_file[known.window[order]], of_object)
        if filled:
            order = np.concatenate([part.chosen for part in filled])
            choices = Choices.joined([part.choices for part in filled])
            found[GAPS] = Hidden(choices, corpus.window_file[gaps.window[order]], np.zeros(len(order), bool))
        return found

    def measured(self, model: nn.Module) -> list[dict[str, Any]]:
        """Returns the rows of predictions.csv: what the weights of a model reach on the test files."""
        rows = []
        windows = self.corpus.windows_of("test")
        for kind, hidden in self.hidden(windows, Answering(self.data, model)).items():
            for method, weights in zip((COMBINED, ENCODER), weights_of(model, kind), strict=True):
                groups = {"all": np.ones(len(hidden.file), bool)}
                if kind == REFERENCES:
                    groups["of an object"] = hidden.of_object
                for group, chosen in groups.items():
                    if chosen.any():
                        place = {"questions": kind, "group": group, "method": method}
                        rows += [{**place, **row} for row in _figures(hidden.choices[chosen], weights)]
        return rows


def _some(number: int, most: int) -> np.ndarray:
    """Returns which of so many are asked, ascending: all of them, or `most`, the same ones in every run."""
    return np.sort(permutation(mix(number), 0, number)[:most]) if number else np.zeros(0, np.int64)


def _crossed(hidden: Hidden, start: np.ndarray, free: np.ndarray) -> float:
    """Returns the mean loss of each half of the files with weights that are fitted on the other one."""
    half = hidden.file % 2 == 0
    total = 0.0
    for fitted, asked in ((half, ~half), (~half, half)):
        weights = fit(hidden.choices[fitted], start, free)
        total += hidden.choices[asked].loss(weights) * asked.sum()
    return total / max(1, len(half))


def judged(choices: Choices, weights: np.ndarray) -> dict[str, float]:
    """Returns the number of questions, how many answers are right, also of the sure ones, and the calibration error.

    `resolved` is the share of right answers where one is right and another one competes, without the answer none.
    """
    place, probability = choices.best(weights)
    right = np.where(choices.gold >= 0, place == choices.gold, place < 0)
    first = choices.first(weights)
    several = (choices.gold >= 0) & (np.diff(choices.begin) > 1)
    sure = probability >= SURE
    return {
        "number": len(choices),
        "right": float(right.mean()),
        "resolved": float((first == choices.gold)[several].mean()) if several.any() else float("nan"),
        "sure": float(sure.mean()),
        "right of the sure": float(right[sure].mean()) if sure.any() else float("nan"),
        "calibration error": calibration_error(reliability(probability, right)),
    }


def _figures(choices: Choices, weights: np.ndarray) -> list[dict[str, Any]]:
    """Returns rows with a figure each: shares, the reliability by bins, and the precision of the k most probable."""
    found = [{"figure": name, "value": value} for name, value in judged(choices, weights).items()]
    place, probability = choices.best(weights)
    right = np.where(choices.gold >= 0, place == choices.gold, place < 0)
    for one in reliability(probability, right):
        name = f"{_PREDICTED}{one.low:g} to {one.high:g}"
        found.append({"figure": name, "value": one.observed, "predicted": one.predicted, "answers": one.number})
    first = choices.first(weights)
    of_answer, _ = choices.probabilities(weights)
    probability = np.full(len(first), -1.0)
    probability[first >= 0] = of_answer[first[first >= 0]]
    order = np.argsort(-probability, kind="stable")
    for k in AT_K:
        if k <= len(order):
            best = order[:k]
            value = float(((first == choices.gold) & (choices.gold >= 0))[best].mean())
            found.append({"figure": f"precision at {k}", "value": value, "answers": int((choices.gold >= 0).sum())})
    return [{"figure": "", "value": "", "predicted": "", "answers": "", **row} for row in found]


def as_text(rows: list[Mapping[str, Any]]) -> str:
    """Returns a table of what was measured."""
    names = ("number", "right", "resolved", "sure", "right of the sure", "calibration error")
    names += tuple(f"precision at {k}" for k in AT_K)
    values = {(r["questions"], r["group"], r["method"], r["figure"]): r["value"] for r in rows}
    columns = list(dict.fromkeys((r["questions"], r["group"], r["method"]) for r in rows))
    lines = [["questions", "group", "method", *names]]
    for column in columns:
        found = [values.get((*column, name), "") for name in names]
        lines.append([*column, *(f"{v:,}" if isinstance(v, int) else f"{v:.3f}" if v != "" else "" for v in found)])
    turned = [list(line) for line in zip(*lines, strict=True)]
    return (
        "Predictions about the test's files, of which known facts were hidden. References: which entity of the name "
        "is meant, or none that the graph has; of an object: as in `x.get()`, where the text does not say what x is, "
        f"which most unresolved ones are. Sure: given {SURE:g} or more. Missing facts: results of functions, of which "
        f"half of the known ones are hidden.\n{aligned(turned, left=(0,))}\nProbabilities of {ENCODER}, and how many "
        f"of these answers are right; predictions.csv has the same of all groups and methods.\n{_bins_as_text(rows)}"
    )


def _bins_as_text(rows: list[Mapping[str, Any]]) -> str:
    lines = [["questions", "probability", "mean", "right", "answers"]]
    for row in rows:
        if (row["group"], row["method"]) == ("all", ENCODER) and row["figure"].startswith(_PREDICTED):
            values = [f"{row['predicted']:.3f}", f"{row['value']:.3f}", f"{row['answers']:,}"]
            lines.append([row["questions"], row["figure"].removeprefix(_PREDICTED), *values])
    return aligned(lines, left=(0, 1))
