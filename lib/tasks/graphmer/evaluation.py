"""Tail prediction by the encoder beside the baselines: ranks, figures, tables."""

import csv
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import nn

from lib.task import Batch
from lib.tasks.graphmer import ranking, tokens
from lib.tasks.graphmer.baselines import Baselines
from lib.tasks.graphmer.chains import Query
from lib.tasks.graphmer.corpus import Corpus
from lib.tasks.graphmer.ranking import Candidates, Ranked
from lib.tasks.graphmer.settings import CONDITIONS


class Evaluator:
    """Ranks the candidates of each query. `structural` (relations) is True where a rule on names gives the answer."""

    def __init__(self, corpus: Corpus, structural: np.ndarray):
        self.corpus, self.structural = corpus, structural
        self.candidates = Candidates(corpus)

    @cached_property
    def baselines(self) -> Baselines:
        return Baselines(self.corpus, self.candidates)

    def rank(self, model: nn.Module, batches: Iterable[Batch], among_all: bool) -> tuple[list[Ranked], float]:
        """Ranks tails by the summed log-probability of their leaf's pieces, if asked for among all entities too.

        Returns the ranks, and the mean over pieces of the negative log-probability of the right tails.
        """
        ranked, total, pieces = [], 0.0, 0
        for batch in batches:
            hidden = model(batch)[:, batch["roots"].shape[1] :]  # (B, K, d)
            log_probabilities = model.logits(hidden).float().log_softmax(-1).cpu().numpy()
            for row, triple in enumerate(batch["triple"].tolist()):
                condition = CONDITIONS[int(batch["condition"][row])]
                scores = leaf_scores(log_probabilities[row], self.corpus.leaves)
                candidates = self.candidates.of_relation[self.corpus.relation[triple]]
                everything = self.candidates.everything
                wide = self.candidates.rank(triple, scores, everything) if among_all else None
                rank = self.candidates.rank(triple, scores[candidates], candidates)
                ranked.append(Ranked(triple, condition, rank, wide))
                total -= float(scores[self.corpus.tail[triple]])
                pieces += int((self.corpus.leaves[self.corpus.tail[triple]] != tokens.PAD).sum())
        return ranked, total / max(1, pieces)

    def headline(self, ranked: Iterable[Ranked]) -> dict[str, float]:
        return ranking.headline(ranked, self.corpus, self.structural)

    def report(self, ranked: list[Ranked], queries: Iterable[Query], folder: Path) -> str:
        """Writes evaluation.csv with every table of the protocol; returns the headline as text."""
        methods = {
            "frequency": self.baselines.rank(queries, trivial=False),
            "trivial": self.baselines.rank(queries, trivial=True),
            "encoder": ranked,
        }
        rows = ranking.table(methods, self.candidates, self.structural)
        with (folder / "evaluation.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return ranking.headline_text(rows)


def leaf_scores(log_probabilities: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    """(K, V) log-probabilities and (E, K) pieces of the candidates -> (E) sums over each one's pieces but PAD."""
    total = np.zeros(len(leaves), np.float32)
    for k in range(leaves.shape[1]):
        by_piece = log_probabilities[k].copy()
        by_piece[tokens.PAD] = 0.0
        total += by_piece[leaves[:, k]]
    return total
