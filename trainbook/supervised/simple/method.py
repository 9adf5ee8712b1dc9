"""A fitted simple method: its columns, and its arrays."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import numpy as safe
from torch import Tensor

from lib.errors import BadInput
from lib.task import Batch
from lib.text import amount
from trainbook.supervised.simple import encoded
from trainbook.supervised.simple.columns import ENCODER, VIEWS, View
from trainbook.supervised.simple.models import Model, linked, scored
from trainbook.supervised.simple.seen import seen

FIELDS = ("name", "view", "how", "kind", "power", "arrays")  # of a method as JSON
_MOST_BYTES = 2**28  # of arrays in an archive
_MOST_TEXT = 8 * 2**20  # of all methods as JSON, which each checkpoint holds
_MOST_HALF = 1000.0  # of a weight in fp16: weights for prices are larger


@dataclass(frozen=True)
class Method:
    """A method of a task's `kind`. Probabilities come from `power` times the scores; for `how` see `fitted`."""

    name: str
    view: str
    how: str
    kind: str
    power: float
    model: Model
    columns: View

    @property
    def is_constant(self) -> bool:
        return self.how == "constant"

    def scores(self, task: Any, batch: Batch) -> Tensor:
        """Returns log-probabilities, classes last, or numbers or logits in the labels' shape. Raises BadInput."""
        labels = batch["labels"]
        rows = self._rows(task, batch)
        scores = self.answers(task._kind, rows)
        has_classes = task._kind.has_classes
        if not has_classes and scores.size != labels.numel():
            raise BadInput(
                f"The simple method {self.name!r} has {scores.shape[1]} outputs a sample, and the "
                f"labels have the shape {tuple(labels.shape)}. It was fitted to other data."
            )
        tensor = torch.from_numpy(self.power * scores).float()
        if has_classes:
            return tensor.log_softmax(-1).view(*labels.shape, -1)
        return tensor.view(labels.shape)

    def check(self, task: Any) -> None:
        """Raises BadInput if the method was fitted with an encoder, and the task has not the same one."""
        if self.columns.is_encoded:
            encoded.check(task, self.name, self.columns.arrays[ENCODER])

    def answers(self, kind: Any, rows: np.ndarray) -> np.ndarray:
        """Returns (rows, outputs) scores."""
        values = self.columns.columns(rows)
        return linked(kind, self.how, scored(values, self.model))

    def linear(self) -> tuple[Tensor, Tensor]:
        """Returns (numbers, outputs) weights and (outputs) bias of a linear method of numbers, times its power."""
        middle, spread = self.columns.arrays["middle"], self.columns.arrays["spread"]
        weights = self.model.weights / spread[:, None]
        bias = self.model.bias - middle @ weights
        return torch.from_numpy(self.power * weights), torch.from_numpy(self.power * bias)

    def _rows(self, task: Any, batch: Batch) -> np.ndarray:
        """Returns the method's rows of a batch. Raises BadInput if it was fitted to something else."""
        form, rows = seen(task, batch) or ("nothing", np.zeros(0))
        needs = self.columns.form
        self.check(task)
        if form == needs and self.columns.is_encoded:
            rows = encoded.paired(rows, encoded.vectors(task, batch))
        if form == needs and self.columns.fits(rows):
            return rows
        if "middle" in self.columns.arrays:
            needs = f"{needs}, {self.columns.width} numbers each"
        raise BadInput(
            f"The simple method {self.name!r} needs {needs}. "
            f"A batch has {form} of shape {rows.shape}: features() has changed."
        )

    def as_json(self) -> dict[str, Any]:
        model = {
            "weights": stored_weights(self.view, self.model.weights),
            "bias": self.model.bias.astype(np.float32),
            "trees": self.model.trees.astype(np.float32),
        }
        arrays = packed({**self.columns.arrays, **model})
        values = (self.name, self.view, self.how, self.kind, self.power, arrays)
        return dict(zip(FIELDS, values, strict=True))


def stored_weights(view: str, weights: np.ndarray) -> np.ndarray:
    """Returns weights in fp16 if columns are words: there are many, and few are large."""
    is_small = np.abs(weights).max(initial=0) < _MOST_HALF
    has_words = "middle" not in VIEWS[view].needs
    return weights.astype(np.float16 if has_words and is_small else np.float32)


def as_json(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Returns methods as a checkpoint holds them; prints which are left out, as too large."""
    kept = []
    left = _MOST_TEXT
    for method in methods:
        values = method.as_json()
        size = len(values["arrays"])
        if size > left:
            print(
                f"The {method.name} is not kept with the run: it takes {amount(size)}, and all "
                f"simple methods together may take {amount(_MOST_TEXT)}."
            )
            continue
        left -= size
        kept.append(values)
    return kept


def packed(arrays: Mapping[str, np.ndarray]) -> str:
    return base64.b64encode(zlib.compress(safe.save({**arrays}))).decode("ascii")


def unpacked(text: str) -> dict[str, np.ndarray]:
    """Returns the arrays that `packed` took. Raises ValueError for anything else."""
    try:
        compressed = base64.b64decode(text, validate=True)
        return safe.load(zlib.decompressobj().decompress(compressed, _MOST_BYTES))
    except (SafetensorError, zlib.error) as error:
        raise ValueError(error) from None
