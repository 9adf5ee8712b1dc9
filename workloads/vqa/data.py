"""The data of a run: records that are read or drawn, split by whole pictures, and the samples made of them."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput, printable
from lib.training.splits import makes_a_split, refuse_leaks, stratify
from workloads.vqa import generated, records
from workloads.vqa.records import Collection, Record
from workloads.vqa.samples import Questions
from workloads.vqa.settings import Settings, Split
from workloads.vqa.tokens import KINDS, Tokens

PARTS = ("train", "validation", "test")
_SPLIT_SEED = 0  # runs of all seeds are tested on the same pictures, and their models can answer together


class Data:
    """Records and their parts. Each is read once, when it is first needed."""

    def __init__(self, source: Path | None, settings: Settings):
        self.source, self.settings = source, settings
        self.samples: dict[str, Questions] = {}  # cut anew by other tokenizers

    @cached_property
    def collection(self) -> Collection:
        """All records, those that are drawn out of a cache of this machine. Raises BadInput."""
        if self.source is None:
            return generated.collection(self.settings.generator)
        return records.read(self.source, self.settings)

    @cached_property
    def parts(self) -> dict[str, list[Record]]:
        """The records of "train", "validation" and "test". Raises BadInput for a picture in two of them."""
        return split(self.collection.records, self.settings.split, _SPLIT_SEED)

    @cached_property
    def kinds(self) -> list[str]:
        """The types of training questions. Raises BadInput where there are more than tokens for them."""
        found = sorted({one.kind for one in self.parts["train"] if one.kind})
        if len(found) > KINDS:
            raise BadInput(
                f"The training questions are of {len(found)} types ({printable(', '.join(found), most=120)}), and at "
                f"most {KINDS} are told apart. Name another column as workload.columns.kind."
            )
        return found

    @property
    def texts(self) -> list[str]:
        """What a tokenizer of the run's own is trained on."""
        own = self.parts["train"]
        return [text for one in own for text in (one.question.lower(), one.answer, one.reasoning)]

    def fingerprint(self) -> str:
        """Hashes what the records say and show, and how they are divided."""
        content = [self.settings.split, records.fingerprint(self.collection.records)]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def datasets(self, reader: Tokens, writer: Tokens) -> dict[str, Questions]:
        """Returns the samples of each part, cut into tokens once."""
        if not self.samples:
            self.samples = {n: Questions(n, own, self.settings, reader, writer) for n, own in self.parts.items()}
        return self.samples

    def describe(self, learned: Mapping[str, Any]) -> str:
        """Returns where the records come from, how many there are of what, and what a reader should know of them."""
        where = "No data was given or found mounted. The embedded default is used: drawn shapes, asked in Vietnamese"
        if self.source:
            where = f"Data: {printable(self.source)}"
        counts = {name: (len(own), len({one.picture for one in own})) for name, own in self.parts.items()}
        sizes = ", ".join(f"{n:,} questions about {many:,} pictures in {name}" for name, (n, many) in counts.items())
        kinds = Counter(one.kind or "without a type" for one in self.parts["train"]).most_common(12)
        types = ", ".join(f"{printable(name, most=40)} {number:,}" for name, number in kinds)
        notes = "".join(f"\n{note}" for note in self.collection.notes)
        lengths = sorted(len(one.tokens) for one in self.samples["train"].targets)
        most = self.settings.decoder.length
        full = sum(length == most for length in lengths)
        names = [f"{part} {one['weights'] or 'from scratch'}" for part, one in learned["encoders"].items()]
        return (
            f"{where}. {sizes}. Training questions by type: {types}.{notes}\nTokens of an answer with its reasoning: "
            f"median {lengths[len(lengths) // 2]}, the longest {lengths[-1]}, "
            f"{full:,} full at {most}. Parts: {printable(', '.join(names), most=300)}."
        )


def split(records: Sequence[Record], settings: Split, seed: int) -> dict[str, list[Record]]:
    """Returns the records of "train", "validation" and "test", in their order. Raises BadInput.

    Every part has its share of each question type. The parts of the files count where every record is in one and there
    is one to train on and one to hold out; what is missing of three is dealt from the training pictures.
    """
    counts_given = settings.given and makes_a_split(record.part for record in records)
    kept = {name: [one for one in records if one.part == name] for name in PARTS if counts_given}
    rest = kept.get("train", list(records))
    shares = {name: getattr(settings, name) for name in PARTS[1:] if not kept.get(name)}
    parts = {**kept, **_dealt(rest, shares, seed)}
    for name in PARTS:
        if not parts[name]:
            how = f"there are {len({one.picture for one in records})} in all. Give more, or change workload.split."
            raise BadInput(f"No picture is left for {name}: {how}")
    places = np.cumsum([0, *(len(parts[name]) for name in PARTS)])
    groups = np.array([one.picture for name in PARTS for one in parts[name]])
    refuse_leaks(groups, {name: np.arange(places[n], places[n + 1]) for n, name in enumerate(PARTS)})
    return {name: parts[name] for name in PARTS}


def _dealt(records: Sequence[Record], held: dict[str, float], seed: int) -> dict[str, list[Record]]:
    """Returns the records of the parts in `held`, each with its share of the pictures, and of "train" the rest."""
    names = sorted({one.picture for one in records})  # the parts hang on pictures, not on the order of files
    kinds = sorted({one.kind for one in records})
    number = {name: place for place, name in enumerate(names)}
    counts = np.zeros((len(names), len(kinds)))
    for one in records:
        counts[number[one.picture], kinds.index(one.kind)] += 1
    parts = ("train", *held)
    dealt = np.zeros(len(names), int)
    if held and len(names) >= len(parts):
        dealt = stratify(counts, [1 - sum(held.values()), *held.values()], seed)
    return {part: [one for one in records if dealt[number[one.picture]] == k] for k, part in enumerate(parts)}
