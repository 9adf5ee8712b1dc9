"""Judgments dealt to training, validation and test: whole ones, by folds, and checked for leaks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lib.errors import BadInput, first_ten
from lib.training.splits import makes_a_split, part_of, stratify
from workloads.legal.documents import Document
from workloads.legal.settings import Split

LONG = 5  # words; shorter sentences ("Appeal dismissed") stand in many judgments and give nothing away
_SAME = 0.5  # share of a document's long sentences in another one that makes both the same judgment
_FEWEST = 3  # long sentences that can show it


def deal(documents: Sequence[Document], split: Split, ratio: float = 1.0) -> dict[str, list[int]]:
    """Deals documents: one fold of several is the test, and a share of the others validates. Raises BadInput.

    Parts that files are named for count, and what they lack is split from the training documents, of which a
    share of `ratio` is left; a smaller one is part of a larger one. Returns sorted numbers by part.
    """
    order = sorted(range(len(documents)), key=lambda place: documents[place].name)  # and not the order of files
    ordered = [documents[place] for place in order]
    part_names = of_files(ordered, split.fold)
    held_out, validating = (np.array([part == name for part in part_names]) for name in ("test", "validation"))
    if not held_out.any():
        rest = np.flatnonzero(~validating)
        shares = [1 / split.folds] * split.folds
        held_out[rest] = _dealt([ordered[place] for place in rest], shares, split.partition) == split.fold
    if not validating.any() and not held_out.all():
        rest, shares = np.flatnonzero(~held_out), [1 - split.validation, split.validation]
        validating[rest] = _dealt([ordered[place] for place in rest], shares, split.partition) == 1
    masks = {"train": ~held_out & ~validating, "validation": validating, "test": held_out}
    parts = {name: [order[place] for place in np.flatnonzero(mask)] for name, mask in masks.items()}
    for name, part in parts.items():
        if not part:
            how = f"there are {len(documents)} in all. Give more documents, or change workload.split."
            raise BadInput(f"No document is left for {name}: {how}")
    check_leaks(documents, parts)
    drawn = np.random.default_rng(split.partition).permutation(len(parts["train"]))
    parts["train"] = [parts["train"][place] for place in drawn[: int(np.ceil(ratio * len(drawn) - 1e-9))]]
    return {name: sorted(part) for name, part in parts.items()}


def of_files(documents: Sequence[Document], fold: int = 0) -> list[str]:
    """Returns the part of each document by its file's name, "" where these make no split. Raises BadInput."""
    parts = [part_of(Path(document.file)) for document in documents]
    if not makes_a_split(parts):
        return [""] * len(parts)
    if fold and "test" in parts:
        raise BadInput(f"workload.split.fold is {fold}, and the test that files are named for has no folds.")
    return parts


def _dealt(documents: Sequence[Document], shares: Sequence[float], seed: int) -> np.ndarray:
    """Returns (documents) the part of each, so that every part has its share of each category, else of each role."""
    kinds = sorted({document.category for document in documents})
    counts = np.array([[document.category == kind for kind in kinds] for document in documents], float)
    if len(kinds) < 2:
        roles = sorted({role for document in documents for role in document.roles})
        counts = np.array([[document.roles.count(role) for role in roles] for document in documents], float)
    return stratify(counts, shares, seed)


def check_leaks(documents: Sequence[Document], parts: Mapping[str, Sequence[int]]) -> None:
    """Raises BadInput for documents of two parts with most of their long sentences alike."""
    texts = [frozenset(s.casefold() for s in document.sentences if s.count(" ") + 1 >= LONG) for document in documents]
    copies = list[str]()
    holders: dict[str, list[int]] = {}  # numbers of the earlier parts' documents, by long sentence
    for chosen in parts.values():
        for place in chosen:
            shared = Counter(holder for text in texts[place] for holder in holders.get(text, ()))
            for twin, count in shared.most_common(1):
                if count >= _FEWEST and count > _SAME * min(len(texts[place]), len(texts[twin])):
                    copies.append(" and ".join(f"{documents[n].name} ({documents[n].place})" for n in (place, twin)))
        for place in chosen:
            for text in texts[place]:
                holders.setdefault(text, []).append(place)
    if copies:
        advice = "What is tested would have been trained on. Remove the copy."
        raise BadInput(f"Documents that are in two parts: {len(copies):,}. {advice}\n{first_ten(copies)}")
