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
        self.documents, self.in_order, self.samples = documents, in_order, list[Sample]()

    def cut(self, task: Any) -> "Sentences":
        """Cuts the sentences into tokens, once; then there are `lengths`, and `places` in the order of documents."""
        if not self.samples:
            tokens, most = task.tokens, task.settings.context.length
            category = {name: number for number, name in enumerate(task.learned()["categories"], 1)}
            samples = []
            for document in self.documents:
                positions = position_features(document).astype(np.float32)
                for number, cut in enumerate(tokens.numbers(document.sentences)):
                    numbers = np.array(input_of(cut, most, tokens.cls, tokens.sep), np.int32)
                    role = document.roles[number] if document.roles else 0
                    samples.append(Sample(
                        document.name, number, numbers, positions[number], category.get(document.category, 0), role,
                    ))  # fmt: skip
            lengths = np.array([len(sample.tokens) for sample in samples])
            self.places = np.arange(len(samples)) if self.in_order else np.argsort(lengths, kind="stable")
            self.samples, self.lengths = [samples[place] for place in self.places], lengths[self.places]
        return self

    def __len__(self) -> int:
        return sum(map(len, self.documents))

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]

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
