"""An evaluation: answers that are written freely, and a figure of where the network looks while it writes some."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from lib.report.figure import grid, save
from lib.task import Batch
from workloads.vqa import decoding
from workloads.vqa.decoding import Answer
from workloads.vqa.records import Record
from workloads.vqa.scoring import exact

_SHOWN, _A_BATCH = 12, 4  # samples in a picture, and of one batch
_LINE = 34  # letters


class Shown(NamedTuple):
    """A picture with a question about it, the right answer, the one that was given, and where the network looked."""

    picture: np.ndarray  # (S, S, 3) uint8
    question: str
    right: str
    answer: str
    attention: np.ndarray  # (rows, columns) of patches, not negative


class Tested:
    """The answers to the questions of a data set, and some of them with their pictures."""

    def __init__(self, task: Any, samples: Any):
        self.task, self.samples = task, samples
        writing = task.settings.writing
        self.beams = writing.validation_beams if samples.part == "validation" else writing.beams
        self.writer = decoding.Writer(writing.at_once, task.settings.decoder.length)
        self.answers: dict[int, Answer] = {}  # by their number in the data set
        self.shown: list[Shown] = []
        self._sum = self._count = 0.0

    @property
    def loss(self) -> float:
        return self._sum / self._count

    @property
    def judged(self) -> tuple[list[Record], list[str], list[bool]]:
        """The records, what was answered to each, and whether it had the form that was asked for."""
        answers = self.answers.values()
        records = [self.samples.records[n] for n in self.answers]
        return records, [one.text for one in answers], [one.is_valid for one in answers]

    def add(self, model: nn.Module, batch: Batch) -> None:
        """Answers the questions of a batch; of some pictures of a test keeps one, with where the decoder looks."""
        written, loss, count = self.writer.write(model, batch, self.beams)  # type: ignore[arg-type]
        numbers = batch["number"].tolist()
        self.answers |= {n: decoding.parsed(one, self.task.writer) for n, one in zip(numbers, written, strict=True)}
        self._sum, self._count = self._sum + loss, self._count + count
        if self.samples.part != "test" or len(self.shown) >= _SHOWN:
            return
        first = {place: row for row, place in reversed([*enumerate(batch["picture"].tolist())])}
        rows = sorted(first.values())[: min(_A_BATCH, _SHOWN - len(self.shown))]
        looks = model.looks({name: value[rows] for name, value in batch.items()}).cpu().float()  # type: ignore
        side = int(looks.shape[1] ** 0.5)
        for row, look in zip(rows, looks, strict=True):
            record, answer = self.samples.records[numbers[row]], self.answers[numbers[row]]
            picture = batch["pixels"][row].permute(1, 2, 0).cpu().numpy()
            heat = look.view(side, side).numpy()
            self.shown.append(Shown(picture, record.question, record.answer, answer.text, heat))


def draw(shown: Sequence[Shown], out: Path, columns: int = 4) -> Path:
    """Draws pictures with their texts, each beside one with the attention on it, the brighter the more."""
    figure, axes = grid(-(-len(shown) // columns), 2 * min(columns, len(shown)), 2.6)
    for one, place in zip(shown, axes.reshape(-1, 2), strict=False):
        lines = (one.question, f"= {one.right}", f"> {one.answer}")
        text = "\n".join("\n".join(textwrap.wrap(line, _LINE)[:3]) for line in lines)
        colour = "black" if exact(one.answer, one.right) else "#b03030"
        place[0].imshow(one.picture)
        place[0].set_title(text.replace("$", r"\$"), fontsize=8, color=colour, loc="left")  # $ would begin a formula
        side = one.picture.shape[0]
        place[1].imshow(one.picture.mean(-1), cmap="gray", vmin=0, vmax=255)
        place[1].imshow(
            one.attention / max(float(one.attention.max()), 1e-9), cmap="inferno", alpha=0.6, vmin=0, vmax=1,
            interpolation="bilinear", extent=(-0.5, side - 0.5, side - 0.5, -0.5),
        )  # fmt: skip
    return save(figure, out)
