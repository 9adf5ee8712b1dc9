"""Records dealt to training, validation and test: whole pictures, each with all of its questions."""

from collections.abc import Sequence

import numpy as np

from lib.errors import BadInput
from lib.training.splits import makes_a_split, refuse_leaks, stratify
from workloads.vqa.records.record import Record
from workloads.vqa.records.settings import Split

PARTS = ("train", "validation", "test")


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
            raise BadInput(
                f"No picture is left for {name}: there are {len({one.picture for one in records})} in all. Give more "
                "pictures, or change workload.split."
            )
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
