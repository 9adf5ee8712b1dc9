"""An evaluation: answers that are written freely, and where the network looks while it writes some of them."""

from typing import Any

import torch
from torch import nn

from lib.task import Batch
from workloads.vqa import decoding
from workloads.vqa.decoding import Answer
from workloads.vqa.figures import Shown
from workloads.vqa.records import Record

_SHOWN, _A_BATCH = 12, 4  # samples in a picture, and of one batch


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
        found = self.answers.values()
        records = [self.samples.records[n] for n in self.answers]
        return records, [one.text for one in found], [one.is_valid for one in found]

    def add(self, model: nn.Module, batch: Batch) -> None:
        """Answers the questions of a batch."""
        written, loss, count = self.writer.write(model, batch, self.beams)  # type: ignore[arg-type]
        numbers = batch["number"].tolist()
        self.answers |= {n: decoding.parsed(one, self.task.writer) for n, one in zip(numbers, written, strict=True)}
        self._sum, self._count = self._sum + loss, self._count + count
        if self.samples.part == "test" and len(self.shown) < _SHOWN:
            self._show(model, batch, numbers)

    def _show(self, model: nn.Module, batch: Batch, numbers: list[int]) -> None:
        """Keeps one question about each of some pictures, with how much the decoder attends to each patch."""
        first = {place: row for row, place in reversed([*enumerate(batch["picture"].tolist())])}
        rows = sorted(first.values())[: min(_A_BATCH, _SHOWN - len(self.shown))]
        looks = model.looks({name: value[rows] for name, value in batch.items()}).cpu()  # type: ignore[operator]
        side = int(looks.shape[1] ** 0.5)
        for row, look in zip(rows, looks, strict=True):
            record, answer = self.samples.records[numbers[row]], self.answers[numbers[row]]
            picture = batch["pixels"][row].permute(1, 2, 0).cpu().numpy()
            heat = look.view(side, side).to(torch.float32).numpy()
            self.shown.append(Shown(picture, record.question, record.answer, answer.text, heat))
