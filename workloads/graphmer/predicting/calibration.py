"""Probabilities of predictions: fitted on validation files by hiding known references, and measured on the test's."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.text import aligned
from lib.training.order import mix, permutation
from workloads.graphmer.counts.answering import Answering
from workloads.graphmer.data import Data
from workloads.graphmer.predicting.references import SURE, Asking, Choices
from workloads.graphmer.settings import COMBINED, ENCODER, OF_REFERENCES, Array

_MOST = 4000  # questions: as many as say something, and no more time
_SHRINKAGE = 0.3  # of the weights, in units of squared weight: what few questions say is not believed at once
_STEPS = 60  # of Newton's method at most
_OF_ENCODER = ("trust", "likeness")


def fit(choices: Choices, start: Array, free: Array) -> Array:
    """Returns (F) weights of most likelihood near `start`, of which those not `free` stay, by Newton's method."""
    weights = start.astype(float)
    if not len(choices) or not free.any():
        return weights
    features, begin, prior = choices.features[:, free], choices.begin, _SHRINKAGE * np.eye(int(free.sum()))
    for _ in range(_STEPS):
        shares = choices.probabilities(weights)[:, None]
        mean = np.add.reduceat(shares * features, begin)
        gradient = (mean - features[choices.gold]).sum(0) + prior @ (weights - start)[free]
        spread = features - mean[choices.question]
        step = np.linalg.solve(prior + (spread * shares).T @ spread, gradient)
        step *= min(1.0, 2.0 / max(1e-12, float(np.abs(step).max())))  # far from the minimum a whole step overshoots
        weights[free] -= step
        if np.abs(step).max() < 1e-6:
            break
    return weights


def weights_of(model: nn.Module) -> Array:
    """Returns (2, F) the weights of the counts alone, and those that were chosen on validation."""
    return model.get_buffer("of_references").double().cpu().numpy()


class Calibration:
    """Hides what the graph knows of some files, and asks for it."""

    def __init__(self, data: Data, leave_out: bool = False):
        self.data, self.asking = data, Asking(data, leave_out)

    def fit(self, model: nn.Module) -> None:
        """Fits the weights of probabilities on validation; the encoder takes part if it helps unseen files."""
        choices, files = self.hidden(self.data.corpus.triples_of("validation"), Answering(self.data, model))
        if choices is None:
            return
        half = files % 2 == 0
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

    def hidden(self, triples: Array, answering: Answering,
               most: int = _MOST) -> tuple[Choices, Array] | tuple[None, None]:  # fmt: skip
        """Returns known references with what a model says, and their files; None twice if there are none."""
        corpus, known = self.data.corpus, self.asking.known(triples)
        if not len(known):
            return None, None
        known = known[np.sort(permutation(mix(len(known)), 0, len(known))[:most])]  # the same ones in every run
        with torch.no_grad():
            choices = Choices.joined([*self.asking.ask(known, answering)])
        return choices, corpus.window_file[corpus.window_of[known[choices.reference]]]

    def measured(self, model: nn.Module) -> list[dict[str, Any]]:
        """Returns the rows of predictions.csv: what the weights of a model reach on the test files."""
        choices, _ = self.hidden(self.data.corpus.triples_of("test"), Answering(self.data, model))
        if choices is None:
            return []
        kinds = {"of an object": choices[choices.of_object], "all": choices}
        pairs = itertools.product(kinds.items(), zip((COMBINED, ENCODER), weights_of(model), strict=True))
        return [{"references": name, "method": method, **of.judged(w)} for (name, of), (method, w) in pairs if len(of)]

    @staticmethod
    def text(rows: Sequence[Mapping[str, Any]]) -> str:
        columns = [[f"{v:.3f}" if isinstance(v, float) else f"{v}" for v in row.values()] for row in rows]
        return ("References of the test's files, hidden: which entity of the name is meant, or none that the graph "
                "has. Expect the figures of those of an object, as in `x.get()`, where the text does not say what x "
                f"is: most unresolved ones are such. Sure: given {SURE:g} or "
                f"more.\n{aligned([*zip(rows[0], *columns, strict=True)], left=(0,))}")  # fmt: skip
