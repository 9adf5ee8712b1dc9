"""The sentences of a part as the encoder and the head take them, and a drawing of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib.report import figure
from workloads.legal.counting.features import position_features
from workloads.legal.documents import Document

_HEAD = 0.7  # of a sentence that is too long; the rest is its end
_COLOURS = ("#0072B2", "#E69F00", "#009E73")  # of Okabe and Ito, for any kind of colour vision


class Sample(NamedTuple):
    """One sentence, whose role is its target."""

    document: str
    number: int  # in it, from 0
    tokens: np.ndarray  # (tokens) int32
    positions: np.ndarray  # (POSITIONS) float32
    category: int  # 0: not known
    role: str | int  # 0 where it is not known


class Sentences:
    """The sentences of documents: those of training in their order, others by length, so that batches pad little."""

    def __init__(self, documents: Sequence[Document], in_order: bool = False):
        self.documents, self.in_order, self.inputs = documents, in_order, list[np.ndarray]()

    def cut(self, task: Any) -> "Sentences":
        """Cuts the sentences into tokens, once; then there are `lengths`."""
        if not self.inputs:
            tokens, most = task.tokens, task.settings.context.length
            cut = [numbers for document in self.documents for numbers in tokens.numbers(document.sentences)]
            inputs = [np.array(input_of(numbers, most, tokens.cls, tokens.sep), np.int32) for numbers in cut]
            known = {name: number for number, name in enumerate(task.learned()["categories"], 1)}
            counts = np.array([*map(len, inputs)])
            self.categories = [known.get(document.category, 0) for document in self.documents]
            self.positions = [position_features(document).astype(np.float32) for document in self.documents]
            self.owners = np.repeat(np.arange(len(self.documents)), [*map(len, self.documents)])
            self.places = np.arange(len(counts)) if self.in_order else np.argsort(counts, kind="stable")
            self.starts = np.concatenate([[0], np.cumsum([*map(len, self.documents)])])
            self.inputs, self.lengths = inputs, counts[self.places]
        return self

    def __len__(self) -> int:
        return sum(map(len, self.documents))

    def __getitem__(self, index: int) -> Sample:
        place = int(self.places[index])
        owner = int(self.owners[place])
        document, number = self.documents[owner], place - int(self.starts[owner])
        role = document.roles[number] if document.roles else 0
        positions = self.positions[owner][number]
        return Sample(document.name, number, self.inputs[place], positions, self.categories[owner], role)

    def subset(self, share: float, seed: int) -> "Sentences":
        """Returns all of it: the documents of a smaller share were left out before."""
        return self


def input_of(sentence: Sequence[int], length: int, cls: int, sep: int) -> list[int]:
    """Returns [CLS] sentence [SEP], of a sentence that is too long its beginning and its end."""
    most = length - 2
    head = round(_HEAD * most)
    fitting = sentence if len(sentence) <= most else [*sentence[:head], *sentence[len(sentence) - (most - head) :]]
    return [cls, *fitting, sep]


def draw(
    truths: Mapping[str, np.ndarray], names: Sequence[str], lengths: np.ndarray, most: int, folder: Path
) -> list[Path]:
    """Draws how often each role comes in each part of the data, and how long the training inputs are."""
    drawing, ((ax,),) = figure.grid(1, 1, 5.0)
    height = 0.8 / len(truths)
    ax.set_axis_on()
    for number, (part, truth) in enumerate(truths.items()):
        places = np.arange(len(names)) + (number - (len(truths) - 1) / 2) * height
        shares = np.bincount(truth, minlength=len(names)) / max(1, len(truth))
        ax.barh(places, shares, height, color=_COLOURS[number], label=f"{part}: {len(truth):,} sentences")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("share of the sentences")
    ax.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0))  # above, where no bar is
    classes = figure.save(drawing, folder / "classes.png")
    drawing, ((ax,),) = figure.grid(1, 1, 4.2)
    ax.set_axis_on()
    ax.hist(lengths, bins=min(60, max(10, int(lengths.max()))), color=_COLOURS[0])
    ax.axvline(most, color="black", linestyle="--", linewidth=1, label=f"workload.context.length: {most}")
    ax.set(xlabel="tokens of an input", ylabel="training sentences")
    ax.legend(fontsize="small")
    return [classes, figure.save(drawing, folder / "lengths.png")]
