"""Filtered ranks of tails among two sets of candidates, and the figures made of them.

Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NIPS 2013, section 4.2: other true tails of
the same head and relation do not count against the right one.
"""

from dataclasses import dataclass

import numpy as np

from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.scoring import Scorer
from workloads.graphmer.settings import CONDITIONS

HITS = (1, 3, 10)


@dataclass(frozen=True)
class Answers:
    """N answered questions: the triple and condition of each, and what became of it.

    `by_range` and `by_training` (N) are the ranks among the entities that the ontology lets the relation have, and
    among the tails that training has with it. `namesake` (N) is 1 where the right entity was the first of its name, a
    part where it shares that place, and NaN where no other candidate has the name. `seen` (N) says whether training has
    the tail with the relation.
    """

    triple: np.ndarray
    condition: np.ndarray
    by_range: np.ndarray
    by_training: np.ndarray
    namesake: np.ndarray
    seen: np.ndarray

    def __getitem__(self, chosen: np.ndarray) -> "Answers":
        return Answers(**{name: value[chosen] for name, value in vars(self).items()})

    @classmethod
    def joined(cls, parts: list["Answers"]) -> "Answers":
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])})


class Candidates:
    """The entities that compete for each relation: by range, and the part of them that training has seen."""

    def __init__(self, corpus: Corpus, scorer: Scorer):
        self.corpus, self.scorer = corpus, scorer
        self._of: dict[int, tuple[CandidateSet, np.ndarray]] = {}

    def of(self, relation: int) -> tuple[CandidateSet, np.ndarray]:
        """Returns the candidates of a relation (C), and which of them training has as its tails (C)."""
        if relation not in self._of:
            everything = np.arange(len(self.corpus.entity_type))
            allowed = self.scorer.is_allowed(np.array([relation]), everything)[0]
            among = CandidateSet(self.corpus, np.flatnonzero(allowed))
            self._of[relation] = among, self.scorer.counts.of_tail[relation, among.entities] > 0
        return self._of[relation]

    def hide_others(self, asked: Questions, tail: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Returns the scores (Q, C) without the other true tails of each head; all questions are of one relation."""
        among, _ = self.of(int(asked.relation[0]))
        scores = scores.copy()
        scores[self.scorer.other_tails(asked, tail, among)] = -np.inf
        return scores

    def rank(self, triple: np.ndarray, asked: Questions, scores: np.ndarray) -> Answers:
        """Ranks the tails of Q triples of one relation by the scores (Q, C). Ties take the mean rank.

        A tail that is no candidate is last.
        """
        tail = self.corpus.tail[triple]
        among, trained = self.of(int(asked.relation[0]))
        scores, column = self.hide_others(asked, tail, scores), among.place[tail]
        own = scores[np.arange(len(triple)), np.maximum(column, 0)]
        seen = (column >= 0) & trained[np.maximum(column, 0)]

        def rank(of: np.ndarray) -> np.ndarray:
            return (of > own[:, None]).sum(1) + ((of == own[:, None]).sum(1) + 1) / 2

        # The first of its name
        question, other = among.by_name.places(self.corpus.name[tail])
        score = scores[question, other]
        possible = np.isfinite(score) & (column >= 0)[question]
        question, score = question[possible], score[possible]
        better = np.bincount(question, score > own[question], len(tail))
        equal = np.bincount(question, score == own[question], len(tail))
        first = np.where(better > 0, 0.0, 1 / np.maximum(equal, 1))
        return Answers(
            triple,
            asked.condition,
            np.where(column >= 0, rank(scores), len(among) + 1.0),
            np.where(seen, rank(scores[:, trained]), trained.sum() + 1.0),
            np.where(np.bincount(question, minlength=len(tail)) > 1, first, np.nan),
            seen,
        )

    def log_likelihood(self, triple: np.ndarray, asked: Questions, scores: np.ndarray) -> np.ndarray:
        """(Q) the logarithm of each tail's softmax among the candidates; 0 where it is none of them."""
        tail = self.corpus.tail[triple]
        among, _ = self.of(int(asked.relation[0]))
        scores, column = self.hide_others(asked, tail, scores), among.place[tail]
        most = scores.max(1)
        total = most + np.log(np.exp(scores - most[:, None]).sum(1))
        return np.where(column >= 0, scores[np.arange(len(tail)), np.maximum(column, 0)] - total, 0.0)


def figures(ranks: np.ndarray) -> dict[str, float]:
    """Returns MRR and Hits@1, 3 and 10 of ranks; zeros where there are none."""
    if not len(ranks):
        return {"mrr": 0.0, **{f"hits{k}": 0.0 for k in HITS}}
    return {"mrr": float((1 / ranks).mean()), **{f"hits{k}": float((ranks <= k).mean()) for k in HITS}}


def headline(answers: Answers, structural: np.ndarray, relation: np.ndarray) -> dict[str, float]:
    """Returns `mrr_masked`, `hits1_masked`, `mrr_trained_masked`, ... over relations that are not structural.

    `structural` (relations) is True for those that a rule on names answers, `relation` (triples) the relation of each.
    Candidates are those by range, and with `trained` the tails that training has. `mrr` is the mean over conditions and
    both kinds of candidates: one number to select weights by, steadier than each of them. `resolved` is the share of
    right entities among those of the right name, with the full text.
    """
    answers = answers[~structural[relation[answers.triple]]]
    found: dict[str, float] = {}
    for number, condition in enumerate(CONDITIONS):
        own = answers[answers.condition == number]
        found |= {f"{key}_{condition}": value for key, value in figures(own.by_range).items()}
        found |= {f"{key}_trained_{condition}": value for key, value in figures(own.by_training).items()}
    mean = sum(found[f"mrr_{c}"] + found[f"mrr_trained_{c}"] for c in CONDITIONS) / (2 * len(CONDITIONS))
    return {"mrr": mean, **found, "resolved": resolved(answers)}


def resolved(answers: Answers) -> float:
    """Returns the share of entities that were told from others of their name, with the full text; 0: there are none."""
    known = ~np.isnan(answers.namesake) & (answers.condition == 0)
    return float(answers.namesake[known].mean()) if known.any() else 0.0


def interval(values: np.ndarray, files: np.ndarray, draws: int = 1000) -> tuple[float, float]:
    """(N) values and the file of each -> the 95 % interval of their mean, over draws of whole files.

    A file's facts are alike, so a draw of single facts would make the interval too small.
    """
    _, file = np.unique(files, return_inverse=True)
    total, number = np.bincount(file, values), np.bincount(file)
    chosen = np.random.default_rng(0).multinomial(len(total), np.full(len(total), 1 / len(total)), size=draws)
    low, high = np.percentile((chosen @ total) / (chosen @ number), [2.5, 97.5])
    return float(low), float(high)


def by_file(corpus: Corpus, answers: Answers) -> np.ndarray:
    """(N) the file of each answer's triple."""
    return corpus.window_file[corpus.window_of[answers.triple]]
