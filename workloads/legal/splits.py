"""Judgments dealt to training, validation and test: whole ones, by folds, and checked for leaks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lib.errors import BadInput, first_ten, printable
from lib.training.splits import makes_a_split, part_of, stratify
from workloads.legal.documents import Document
from workloads.legal.settings import Split

LONG = 5  # words; shorter sentences ("Appeal dismissed") stand in many judgments and give nothing away
_SAME = 0.5  # share of a document's long sentences in another one that makes both the same judgment
_FEWEST = 3  # long sentences that can show it


def deal(documents: Sequence[Document], split: Split, ratio: float = 1.0) -> tuple[dict[str, list[int]], list[str]]:
    """Deals documents: one fold of several is the test, and a share of the others validates. Raises BadInput.

    Parts that files are named for count, and what they lack is split from the training documents, of which a
    share of `ratio` is left; a smaller one is part of a larger one. Returns sorted numbers by part, and notes.
    """
    order = sorted(range(len(documents)), key=lambda place: documents[place].name)  # and not the order of files
    ordered = [documents[place] for place in order]
    part_names, notes = of_files(ordered, split.fold) if split.given else ([""] * len(ordered), [])
    held_out, validating = (np.array([part == name for part in part_names]) for name in ("test", "validation"))
    if not held_out.any():
        rest = np.flatnonzero(~validating)
        if len(rest) < 2:
            raise BadInput("There is one document alone, and whole documents are trained on and tested. Give several.")
        if split.folds > len(rest):
            how = f"take 2 to {len(rest)} folds, or part documents by blank lines or a column `document`."
            raise BadInput(f"workload.split.folds is {split.folds}, and there are {len(rest)} documents: {how}")
        shares = [1 / split.folds] * split.folds
        held_out[rest] = _dealt([ordered[place] for place in rest], shares, split.partition) == split.fold
    if not validating.any():
        rest, shares = np.flatnonzero(~held_out), [1 - split.validation, split.validation]
        validating[rest] = _dealt([ordered[place] for place in rest], shares, split.partition) == 1
    masks = {"train": ~held_out & ~validating, "validation": validating, "test": held_out}
    parts = {name: [order[place] for place in np.flatnonzero(mask)] for name, mask in masks.items()}
    for name, part in parts.items():
        if not part:
            how = f"there are {len(documents)} in all. Give more documents, or change workload.split."
            raise BadInput(f"No document is left for {name}: {how}")
    notes += check_leaks(documents, parts)
    drawn = np.random.default_rng(split.partition).permutation(len(parts["train"]))
    parts["train"] = [parts["train"][place] for place in drawn[: int(np.ceil(ratio * len(drawn) - 1e-9))]]
    return {name: sorted(part) for name, part in parts.items()}, notes


def of_files(documents: Sequence[Document], fold: int = 0) -> tuple[list[str], list[str]]:
    """Returns the part of each document by its file's name, "" where these make no split, and a sentence on it."""
    parts = [part_of(Path(document.file)) for document in documents]
    if makes_a_split(parts):
        if fold and "test" in parts:
            how = "the files' own test has no folds. Set workload.split.given: false to deal all documents."
            raise BadInput(f"workload.split.fold is {fold}, and {how}")
        return parts, ["The split is that of the files' names; workload.split.given: false deals the documents anew."]
    names = ", ".join(sorted({*parts}))
    lacks = f"Files are named for {names} and none is named for train, so the documents are dealt anew."
    return [""] * len(parts), [lacks] if len({*parts} - {"train"}) > 1 and "" not in parts else []


def _dealt(documents: Sequence[Document], shares: Sequence[float], seed: int) -> np.ndarray:
    """Returns (documents) the part of each, so that every part has its share of each category, else of each role."""
    kinds = sorted({document.category for document in documents})
    counts = np.array([[document.category == kind for kind in kinds] for document in documents], float)
    if len(kinds) < 2:
        roles = sorted({role for document in documents for role in document.roles})
        counts = np.array([[document.roles.count(role) for role in roles] for document in documents], float)
    return stratify(counts, shares, seed)


def check_leaks(documents: Sequence[Document], parts: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns notes on sentences in two parts. Raises BadInput for documents of two parts with most of them alike."""
    texts = [frozenset(s.casefold() for s in document.sentences if s.count(" ") + 1 >= LONG) for document in documents]
    copies, notes = list[str](), list[str]()
    holders: dict[str, list[tuple[str, int]]] = {}  # part and number of the earlier parts' documents, by long sentence
    for part, chosen in parts.items():
        for place in chosen:
            shared = Counter(holder for text in texts[place] for holder in holders.get(text, ()))
            for (other, twin), count in shared.most_common(1):
                if count >= _FEWEST and count > _SAME * min(len(texts[place]), len(texts[twin])):
                    names = f"{documents[place].name} ({part}) and {documents[twin].name} ({other})"
                    copies.append(f"{names}, which begin in {documents[place].place}; {documents[twin].place}")
        for place in chosen:
            for text in texts[place]:
                holders.setdefault(text, []).append((part, place))
    if copies:
        some = "document is" if len(copies) == 1 else "documents are"
        advice = "What is tested would have been trained on. Remove the copy."
        raise BadInput(f"{len(copies):,} {some} in two parts. {advice}\n{first_ten(copies)}")
    trained = {text for place in parts["train"] for text in texts[place]}
    for name in ("validation", "test"):
        if shared_texts := [text for place in parts.get(name, ()) for text in texts[place] if text in trained]:
            stand = "sentence stands" if len(shared_texts) == 1 else "sentences stand"
            notes.append(
                f"Of {LONG} words and more, {len(shared_texts):,} {stand} in {name} and in training, say: "
                f"{printable(min(shared_texts, key=len), most=80)}"
            )
    return notes
