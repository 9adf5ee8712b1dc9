"""What answers are judged beside: rules that see no picture, question types, and pictures of where the model looks."""

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.report.figure import grid, save
from lib.supervised.text import commonest, exact, normal, words
from workloads.vqa.data import OTHER, Record

_SLOT = "_"  # in a question, for words that answers are made of
_MOST_TYPES, _LEAST_QUESTIONS = 20, 20  # of more types than these, those of fewer questions share a row
_LINE = 34  # letters beside a picture


class Rules:
    """Rules that answer by the question alone, learned of training records."""

    def __init__(self, train: Sequence[Record]):
        self.train = train
        self.answer_words = {word for record in train for word in words(record.answer)}

    def type_of(self, record: Record) -> str:
        """Returns the question's type: its own, else its wording without words that answers are made of."""
        if record.kind:
            return record.kind
        text = " ".join(_SLOT if word in self.answer_words else word for word in words(record.question))
        return re.sub(rf"{_SLOT}( {_SLOT})+", _SLOT, text)

    def types(self, records: Sequence[Record]) -> list[str]:
        """Returns the type of each question; of more than 20, those of fewer questions than 20 are together."""
        kinds = [self.type_of(record) or OTHER for record in records]
        counts = Counter(kinds)
        return [k if len(counts) <= _MOST_TYPES or counts[k] >= _LEAST_QUESTIONS else OTHER for k in kinds]

    def answers(self, records: Sequence[Record]) -> dict[str, list[str]]:
        """Returns the answers of each rule by its name; a rule that has none takes that of the one before it."""
        by_type, by_question = self._commonest(self.type_of), self._commonest(lambda record: normal(record.question))
        majority = commonest(r.answer for r in self.train)
        of_type = [by_type.get(self.type_of(record), majority) for record in records]
        of_question = [by_question.get(normal(r.question), other) for r, other in zip(records, of_type, strict=True)]
        return {"by question type": of_type, "by question": of_question}

    def _commonest(self, key: Callable[[Record], str]) -> dict[str, str]:
        groups: dict[str, list[str]] = defaultdict(list)
        for record in self.train:
            groups[key(record)].append(record.answer)
        return {name: commonest(answers) for name, answers in groups.items()}


class Sample(NamedTuple):
    """A picture with a question about it, the right answer, the written one, and where the network looked."""

    picture: np.ndarray  # (S, S, 3) uint8
    question: str
    right: str
    answer: str
    attention: np.ndarray  # (rows, columns) of patches, not negative


def draw(samples: Sequence[Sample], path: Path, columns: int = 4) -> Path:
    """Draws pictures with their texts, each beside one with the attention on it, the brighter the more."""
    figure, axes = grid(-(-len(samples) // columns), 2 * min(columns, len(samples)), 2.6)
    for sample, (plain, seen) in zip(samples, axes.reshape(-1, 2), strict=False):
        lines = (sample.question, f"= {sample.right}", f"> {sample.answer}")
        text = "\n".join("\n".join(textwrap.wrap(line, _LINE)[:3]) for line in lines)
        colour = "black" if exact(sample.right, sample.answer) else "#b03030"
        plain.imshow(sample.picture)
        plain.set_title(text.replace("$", r"\$"), fontsize=8, color=colour, loc="left")  # $ would begin a formula
        side = sample.picture.shape[0]
        seen.imshow(sample.picture.mean(-1), cmap="gray", vmin=0, vmax=255)
        seen.imshow(sample.attention / max(float(sample.attention.max()), 1e-9), cmap="inferno", alpha=0.6, vmin=0,
                    vmax=1, interpolation="bilinear", extent=(-0.5, side - 0.5, side - 0.5, -0.5))  # fmt: skip
    return save(figure, path)
