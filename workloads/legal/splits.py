"""Judgments dealt to training, validation and test: whole ones, by folds, and checked for leaks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lib.errors import BadInput, printable
from lib.training.splits import makes_a_split, part_of, stratify
from workloads.legal.documents import Document

LONG = 5  # words; shorter sentences ("Appeal dismissed") stand in many judgments and give nothing away
_SAME = 0.5  # share of a document's long sentences in another one that makes both the same judgment
_FEWEST = 3  # long sentences that can show it
_NAMED = 3  # documents that a message names


class Parts(NamedTuple):
    """Sorted numbers of documents, and sentences on what a reader should know."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def by_name(self) -> dict[str, tuple[int, ...]]:
        return {"train": self.train, "validation": self.validation, "test": self.test}


def deal(
    documents: Sequence[Document], folds: int = 5, fold: int = 0, seed: int = 0, validation: float = 0.15,
    subset_ratio: float = 1.0, given: bool = True,
) -> Parts:  # fmt: skip
    """Deals documents: one fold of `folds` is the test, and a share of the others validates. Raises BadInput.

    Parts that files are `given` names for count, and what they lack is dealt from the training documents. A subset is
    one of the training documents, and a smaller one is part of a larger one.
    """
    names = [document.name for document in documents]
    order = sorted(range(len(documents)), key=names.__getitem__)  # the parts hang on names, not on the order of files
    ordered = [documents[place] for place in order]
    own, notes = of_files(ordered, fold) if given else ([""] * len(ordered), [])
    held_out, validating = (np.array([part == name for part in own]) for name in ("test", "validation"))
    if not held_out.any():
        rest = np.flatnonzero(~validating)
        if len(rest) < 2:
            raise BadInput("There is one document alone, and whole documents are trained on and tested. Give several.")
        if not 2 <= folds <= len(rest):
            how = f"take 2 to {len(rest)} folds, or part documents by blank lines or a column `document`."
            raise BadInput(f"workload.split.folds is {folds}, and there are {len(rest)} documents: {how}")
        held_out[rest] = _dealt([ordered[place] for place in rest], [1 / folds] * folds, seed) == fold
    if validation and not validating.any():
        rest = np.flatnonzero(~held_out)
        validating[rest[_dealt([ordered[place] for place in rest], [1 - validation, validation], seed) == 1]] = True
    parts = {"train": ~held_out & ~validating, "validation": validating, "test": held_out}
    chosen = {name: [order[place] for place in np.flatnonzero(part)] for name, part in parts.items()}
    for name, part in chosen.items():
        if not part and (name != "validation" or validation):
            how = f"there are {len(documents)} in all. Give more documents, or change workload.split."
            raise BadInput(f"No document is left for {name}: {how}")
    notes += check_leaks(documents, chosen)
    drawn = np.random.default_rng(seed).permutation(len(chosen["train"]))
    train = [chosen["train"][place] for place in drawn[: int(np.ceil(subset_ratio * len(drawn) - 1e-9))]]
    return Parts(*(tuple(sorted(part)) for part in (train, chosen["validation"], chosen["test"])), tuple(notes))


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
    """Returns notes on sentences in two parts. Raises BadInput for a document, or most of it, in two parts."""
    texts = [frozenset(s.casefold() for s in document.sentences if s.count(" ") + 1 >= LONG) for document in documents]
    _refuse_shared(documents, parts, texts)
    trained = {text for place in parts["train"] for text in texts[place]}
    notes = []
    for name in ("validation", "test"):
        if shared := [text for place in parts.get(name, ()) for text in texts[place] if text in trained]:
            example = printable(min(shared, key=len), most=80)
            stand = "sentence stands" if len(shared) == 1 else "sentences stand"
            notes.append(f"Of {LONG} words and more, {len(shared):,} {stand} in {name} and in training, say: {example}")
    return notes


def _refuse_shared(
    documents: Sequence[Document], parts: Mapping[str, Sequence[int]], texts: Sequence[frozenset[str]]
) -> None:
    """Raises BadInput where a document, or another one with most of its sentences, is in two parts."""
    named: dict[str, tuple[str, int]] = {}  # part and number of the documents of earlier parts
    places: dict[str, list[tuple[str, int]]] = {}  # those of each long sentence
    copies = []
    for part, chosen in parts.items():
        for place in chosen:
            document, own = documents[place], texts[place]
            shared = Counter(other for text in own for other in places.get(text, ())).most_common(1)
            like = [o for o, n in shared if n >= _FEWEST and n > _SAME * min(len(own), len(texts[o[1]]))]
            if document.name in named or like:
                first, twin = named.get(document.name) or like[0]
                where = f"{document.place(0)}; {documents[twin].place(0)}"
                copies.append(f"{document.name} ({part}) and {documents[twin].name} ({first}), which begin in {where}")
        for place in chosen:
            named.setdefault(documents[place].name, (part, place))
            for text in texts[place]:
                places.setdefault(text, []).append((part, place))
    if copies:
        some = "document is" if len(copies) == 1 else "documents are"
        shown = "; ".join(map(printable, copies[:_NAMED])) + ("; ..." if len(copies) > _NAMED else "")
        raise BadInput(
            f"{len(copies):,} {some} in two parts: {shown}. What is tested would have been trained on. Remove the copy."
        )
