"""Filtered ranks of tails, and what is reported of them.

Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NIPS 2013, section 4.2: other true tails of
the same head and relation do not count against the right one.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lib.tasks.graphmer.chains import CONDITIONS
from lib.tasks.graphmer.corpus import Corpus

HITS = (1, 3, 10)


class Candidates:
    """Which tails compete: those of the relation that training has seen; or, in a second table, all entities."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self.everything = np.arange(len(corpus.entities))
        train = corpus.triples_of("train")
        self.of_relation = [
            np.unique(corpus.tail[train[corpus.relation[train] == r]]) for r in range(len(corpus.relations))
        ]

    @cached_property
    def _true_tails(self) -> dict[tuple[int, int], list[int]]:
        """All tails of (head, relation) in any split: what is filtered."""
        true: dict[tuple[int, int], list[int]] = defaultdict(list)
        heads = self.corpus.head[self.corpus.window_of]
        for head, relation, tail in zip(heads, self.corpus.relation, self.corpus.tail, strict=True):
            true[int(head), int(relation)].append(int(tail))
        return true

    def seen(self, triple: int) -> bool:
        """Whether training has the triple's tail as a tail of its relation."""
        candidates = self.of_relation[self.corpus.relation[triple]]
        place = np.searchsorted(candidates, self.corpus.tail[triple])
        return bool(place < len(candidates) and candidates[place] == self.corpus.tail[triple])

    def rank(self, triple: int, scores: np.ndarray, candidates: np.ndarray) -> float:
        """The filtered rank of the triple's tail; ties take the mean rank, and a tail that training never saw is last.

        `scores` belong to `candidates`, which are sorted.
        """
        corpus = self.corpus
        if not self.seen(triple):
            return float(len(candidates) + 1)
        head = int(corpus.head[corpus.window_of[triple]])
        gold = corpus.tail[triple]
        own = scores[np.searchsorted(candidates, gold)]
        others = [t for t in self._true_tails[head, int(corpus.relation[triple])] if t != gold]
        places = np.searchsorted(candidates, np.intersect1d(others, candidates))
        better = (scores > own).sum() - (scores[places] > own).sum()
        equal = (scores == own).sum() - (scores[places] == own).sum()
        return float(better + (equal + 1) / 2)


@dataclass(frozen=True)
class Ranked:
    """One answered query: the triple, the condition, and the rank among each set of candidates."""

    triple: int
    condition: str
    among_relation: float
    among_all: float | None = None


def figures(ranks: Iterable[float]) -> dict[str, float]:
    """MRR and Hits@1/3/10 of ranks; zeros where there are none."""
    values = np.array(list(ranks), float)
    if not len(values):
        return {"mrr": 0.0, **{f"hits{k}": 0.0 for k in HITS}}
    return {"mrr": float((1 / values).mean()), **{f"hits{k}": float((values <= k).mean()) for k in HITS}}


def headline(ranked: Iterable[Ranked], corpus: Corpus, structural: np.ndarray) -> dict[str, float]:
    """`mrr_masked`, `hits1_masked`, ... for every condition: non-structural relations, tails of the relation.

    `mrr` is the mean of the conditions': one number to select weights by, steadier than each of them.
    """
    kept = [r for r in ranked if not structural[corpus.relation[r.triple]]]
    found = {
        f"{key}_{condition}": value
        for condition in CONDITIONS
        for key, value in figures(r.among_relation for r in kept if r.condition == condition).items()
    }
    return {"mrr": sum(found[f"mrr_{condition}"] for condition in CONDITIONS) / len(CONDITIONS), **found}


def table(
    methods: Mapping[str, list[Ranked]], candidates: Candidates, structural: np.ndarray
) -> list[dict[str, str | float | int]]:
    """Every table of the protocol as rows: condition, relations, candidates, tails (all, seen, unseen), method."""
    rows: list[dict[str, str | float | int]] = []
    relation = candidates.corpus.relation
    seen = {r.triple: candidates.seen(r.triple) for ranked in methods.values() for r in ranked}
    for condition in CONDITIONS:
        for kind in ("non-structural", "structural"):
            for tails in ("all", "seen", "unseen"):
                for method, ranked in methods.items():
                    chosen = [
                        r
                        for r in ranked
                        if r.condition == condition
                        and structural[relation[r.triple]] == (kind == "structural")
                        and tails in ("all", "seen" if seen[r.triple] else "unseen")
                    ]
                    where = {"condition": condition, "relations": kind, "tails": tails, "method": method}
                    rows.append(
                        {
                            **where,
                            "candidates": "of the relation",
                            "triples": len(chosen),
                            **figures(r.among_relation for r in chosen),
                        }
                    )
                    wide = [r.among_all for r in chosen if r.among_all is not None]
                    if wide:
                        rows.append({**where, "candidates": "all entities", "triples": len(wide), **figures(wide)})
    return rows
