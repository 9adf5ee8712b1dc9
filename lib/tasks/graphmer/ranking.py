"""Filtered ranks of tails, and the figures and tables made of them.

Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NIPS 2013, section 4.2: other true tails of
the same head and relation do not count against the right one.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lib.tasks.graphmer.corpus import Corpus
from lib.tasks.graphmer.settings import CONDITIONS

HITS = (1, 3, 10)


class Candidates:
    """The tails that compete: those that training has seen with the relation, or all entities."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self.everything = np.arange(len(corpus.entities))
        train = corpus.triples_of("train")
        self.of_relation = [
            np.unique(corpus.tail[train[corpus.relation[train] == r]]) for r in range(len(corpus.relations))
        ]

    @cached_property
    def _true_tails(self) -> dict[tuple[int, int], list[int]]:
        """(head, relation) -> all its tails in any split, which are filtered out."""
        true: dict[tuple[int, int], list[int]] = defaultdict(list)
        heads = self.corpus.head[self.corpus.window_of]
        for head, relation, tail in zip(heads, self.corpus.relation, self.corpus.tail, strict=True):
            true[int(head), int(relation)].append(int(tail))
        return true

    def seen(self, triple: int) -> bool:
        """Returns whether training has the triple's tail as a tail of its relation."""
        candidates = self.of_relation[self.corpus.relation[triple]]
        place = np.searchsorted(candidates, self.corpus.tail[triple])
        return bool(place < len(candidates) and candidates[place] == self.corpus.tail[triple])

    def rank(self, triple: int, scores: np.ndarray, candidates: np.ndarray) -> float:
        """Returns the filtered rank of the triple's tail, from 1. Ties take the mean rank; an unseen tail is last.

        `candidates` (N) are entities in ascending order, `scores` (N) their scores.
        """
        corpus = self.corpus
        if not self.seen(triple):
            return float(len(candidates) + 1)
        head = int(corpus.head[corpus.window_of[triple]])
        gold = corpus.tail[triple]
        own = scores[np.searchsorted(candidates, gold)]
        others = [t for t in self._true_tails[head, int(corpus.relation[triple])] if t != gold]
        filtered = scores[np.searchsorted(candidates, np.intersect1d(others, candidates))]
        better = (scores > own).sum() - (filtered > own).sum()
        equal = (scores == own).sum() - (filtered == own).sum()
        return float(better + (equal + 1) / 2)


@dataclass(frozen=True)
class Ranked:
    """One answered query: the triple, the condition, and the rank among each set of candidates."""

    triple: int
    condition: str
    among_relation: float
    among_all: float | None = None


def figures(ranks: Iterable[float]) -> dict[str, float]:
    """Returns MRR and Hits@1, 3 and 10 of ranks; zeros where there are none."""
    values = np.array(list(ranks), float)
    if not len(values):
        return {"mrr": 0.0, **{f"hits{k}": 0.0 for k in HITS}}
    return {"mrr": float((1 / values).mean()), **{f"hits{k}": float((values <= k).mean()) for k in HITS}}


def headline(ranked: Iterable[Ranked], corpus: Corpus, structural: np.ndarray) -> dict[str, float]:
    """Returns `mrr_masked`, `hits1_masked`, ... for every condition, over relations that are not structural.

    `structural` (relations) is True for those that a rule on names answers. Candidates are the tails of the relation.
    `mrr` is the mean over conditions: one number to select weights by, steadier than each of them.
    """
    ranks: dict[str, list[float]] = {condition: [] for condition in CONDITIONS}
    for answer in ranked:
        if not structural[corpus.relation[answer.triple]]:
            ranks[answer.condition].append(answer.among_relation)
    by_condition = {
        f"{key}_{condition}": value for condition in CONDITIONS for key, value in figures(ranks[condition]).items()
    }
    mean = sum(by_condition[f"mrr_{condition}"] for condition in CONDITIONS) / len(CONDITIONS)
    return {"mrr": mean, **by_condition}


def table(methods: Mapping[str, list[Ranked]], candidates: Candidates, structural: np.ndarray) -> list[dict[str, Any]]:
    """Returns every table of the protocol as rows: condition, relations, tails (all, seen, unseen), method, candidates.

    `structural` (relations) is True for relations that a rule on names answers.
    """
    rows: list[dict[str, Any]] = []
    relation = candidates.corpus.relation
    seen = {r.triple: candidates.seen(r.triple) for ranked in methods.values() for r in ranked}
    for condition, kind, tails in itertools.product(
        CONDITIONS, ("non-structural", "structural"), ("all", "seen", "unseen")
    ):
        for method, ranked in methods.items():
            chosen = [
                r
                for r in ranked
                if r.condition == condition
                and structural[relation[r.triple]] == (kind == "structural")
                and tails in ("all", "seen" if seen[r.triple] else "unseen")
            ]
            narrow = [r.among_relation for r in chosen]
            wide = [r.among_all for r in chosen if r.among_all is not None]
            group = {"condition": condition, "relations": kind, "tails": tails, "method": method}
            rows.append({**group, "candidates": "of the relation", "triples": len(narrow), **figures(narrow)})
            if wide:
                rows.append({**group, "candidates": "all entities", "triples": len(wide), **figures(wide)})
    return rows


_TRIVIAL_NAMES = {"full_text": "text match", "masked": "context words", "name_only": "head name"}


def headline_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns sentences on the rows of `table`: what was asked, what is trivial in each condition, where they are."""
    place = ("masked", "non-structural", "all")
    asked = next(row["triples"] for row in rows if (row["condition"], row["relations"], row["tails"]) == place)
    trivial = ", ".join(f"{_TRIVIAL_NAMES[condition]} in {condition}" for condition in CONDITIONS)
    return (
        f"Filtered tail prediction on {asked:,} triples of held-out files, non-structural relations. Trivial is "
        f"{trivial}. Full text is copying: the tail's name stands in the text. evaluation.csv has every table, the "
        "frequency of tails too."
    )
