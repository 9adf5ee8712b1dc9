"""Which results of functions a graph lacks: they are written down only where they are certain."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from lib.training.order import mix, permutation
from workloads.graphmer.answering import Answering, Read, Scores
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Questions
from workloads.graphmer.data import Data
from workloads.graphmer.predicting.choices import Choices
from workloads.graphmer.predicting.references import Asking
from workloads.graphmer.ragged import Groups, expand, find
from workloads.graphmer.settings import OF_GAPS

# Relations whose facts may be missing, and the words that tell of one. A parser misses next to no raises and catches:
# of 14 that were predicted for four packages and read, none was right.
_EVIDENCE = {"returns": ("return", "yield")}
_AT_ONCE = 128  # questions that are read together
_FREQUENT = 64  # tails of a relation that compete, whether their names are in the text or not
_DEEPEST = 6  # levels of definitions within each other
_KEPT = 12  # answers of a question by each score
_OF_ANSWER = 3  # features; the others are of none


@dataclass(frozen=True)
class Gap:
    """Q questions whether a head lacks a tail: windows, relations, and the tail of a fact that is hidden, or -1."""

    window: np.ndarray
    relation: np.ndarray
    tail: np.ndarray

    def __len__(self) -> int:
        return len(self.window)

    def __getitem__(self, chosen: np.ndarray) -> "Gap":
        return Gap(*(value[chosen] for value in vars(self).values()))


@dataclass(frozen=True)
class Filled:
    """A batch of questions: which they are (Q), their choices, and the entity of each answer (N)."""

    chosen: np.ndarray
    choices: Choices
    entity: np.ndarray


class Filling:
    """Asks for facts that are missing. `leave_out` leaves each question's own file out of the counts."""

    def __init__(self, data: Data, asking: Asking, leave_out: bool = False):
        self.data, self.corpus, self.asking, self.leave_out = data, data.corpus, asking, leave_out
        self.by_name = Groups(data.corpus.name)
        self.told_below = self._told_below()

    def _told_below(self) -> np.ndarray:
        """Returns (ancestor, relation, tail) of all facts, as ascending numbers.

        What a method raises stands in its class's text as well, and is no fact of that.
        """
        corpus, found = self.corpus, []
        at = corpus.head[corpus.window_of]
        for _ in range(_DEEPEST):
            at = np.where(at >= 0, corpus.parent[np.maximum(at, 0)], -1)
            found.append(self._code(at, corpus.relation, corpus.tail)[at >= 0])
        return np.unique(np.concatenate(found))

    def _code(self, head: np.ndarray, relation: np.ndarray, tail: np.ndarray) -> np.ndarray:
        return (head * len(self.corpus.relations) + relation) * len(self.corpus.entity_type) + tail

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def relations(self) -> list[int]:
        return [self.corpus.relations.index(name) for name in _EVIDENCE if name in self.corpus.relations]

    def questions(self, windows: np.ndarray) -> Gap:
        """Returns the questions for windows of text: of each relation that such a head has and the text speaks of."""
        corpus = self.corpus
        parts = []
        for relation in self.relations:
            name = corpus.relations[relation]
            domain = np.array([kind in self.data.rules.relations[name].domain for kind in corpus.types])
            own = windows[domain[corpus.entity_type[corpus.head[windows]]]]
            own = own[self._speaks(own, name)]
            parts.append(Gap(own, np.full(len(own), relation), np.full(len(own), -1)))
        if not parts:
            return Gap(*(np.zeros(0, np.int64) for _ in range(3)))
        return Gap(*(np.concatenate(values) for values in zip(*(vars(p).values() for p in parts), strict=True)))

    def hiding(self, asked: Gap) -> Gap:
        """Hides one known fact of about half of the questions that have any, the same ones in every run."""
        corpus = self.corpus
        relations = len(corpus.relations)
        facts = Groups(corpus.window_of * relations + corpus.relation)
        row, fact = facts.places(asked.window * relations + asked.relation)
        draws = permutation(mix(len(row)), 0, len(row)) if len(row) else row
        tail = asked.tail.copy()
        order = np.argsort(draws, kind="stable")
        tail[row[order]] = corpus.tail[fact[order]]  # the last one stays
        is_hidden = permutation(mix(len(tail), 1), 0, len(tail)) % 2 == 0 if len(tail) else tail > 0
        return Gap(asked.window, asked.relation, np.where(is_hidden, tail, -1))

    def open(self, asked: Gap) -> Gap:
        """Leaves out questions of heads that have a known fact beside a hidden one: a second result is rare."""
        row, tail = self.data.scorer.true_tails(_full_text(asked))
        return asked[np.bincount(row[tail != asked.tail[row]], minlength=len(asked)) == 0]

    # --- answers ------------------------------------------------------------------------------------------------------

    def batches(self, asked: Gap) -> list[np.ndarray]:
        """Returns which questions are asked together: some of one relation."""
        order = np.argsort(asked.relation, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(asked.relation[order])) + 1)
        return [part[first : first + _AT_ONCE] for part in parts for first in range(0, len(part), _AT_ONCE)]

    def ask(self, asked: Gap, answering: Answering | None = None) -> Iterator[Filled]:
        """Yields batches. Without `answering` no encoder is asked, and what it would add is 0."""
        for chosen in self.batches(asked):
            yield self._batch(chosen, asked[chosen], answering)

    def _batch(self, chosen: np.ndarray, part: Gap, answering: Answering | None) -> Filled:
        asked = _full_text(part)
        among, competes = self._competing(asked, part.tail)
        scores = self._scores(asked, among, answering)
        question, column = _best([scores[0], sum(scores)], competes)
        features = np.zeros((len(question), len(OF_GAPS)))
        features[:, :_OF_ANSWER] = np.stack([value[question, column] for value in scores], 1)
        entity = among.entities[column]
        none = np.zeros((len(part), len(OF_GAPS)))
        none[:, -1] = 1
        right = np.flatnonzero(entity == part.tail[question])
        gold = np.full(len(part), -1)
        gold[question[right]] = right
        return Filled(chosen, Choices(question, features, none, gold), entity)

    def _competing(self, asked: Questions, hidden: np.ndarray) -> tuple[CandidateSet, np.ndarray]:
        """Returns entities that may be tails, and (Q, C) of which questions: named in the text or frequent, and new."""
        corpus, scorer = self.corpus, self.data.scorer
        relation = int(asked.relation[0])
        frequency = scorer.counts.of_tail[relation]
        frequent = np.argsort(-frequency, kind="stable")[:_FREQUENT]
        frequent = frequent[frequency[frequent] > 0]
        first, length = (
            corpus.window_start[asked.window],
            corpus.window_stop[asked.window] - corpus.window_start[asked.window],
        )
        row, at = expand(first, length)
        pairs = np.unique(np.stack([row, corpus.text[at]], 1), axis=0)
        pair, entity = self.by_name.places(pairs[:, 1])
        may = scorer.is_allowed(asked.relation[:1], entity)[0]
        row, entity = pairs[pair[may], 0], entity[may]
        among = CandidateSet(corpus, np.union1d(entity, frequent))
        competes = np.zeros((len(asked), len(among)), bool)
        competes[row, among.place[entity]] = True
        competes[:, among.place[frequent]] = True
        row, tail = scorer.true_tails(asked)
        is_out = (among.place[tail] >= 0) & ((tail != hidden[row]) | self.asking.is_told_once[tail])
        competes[row[is_out], among.place[tail[is_out]]] = False
        row, column = np.nonzero(competes)
        codes = self._code(corpus.head[asked.window[row]], asked.relation[row], among.entities[column])
        competes[row, column] = find(self.told_below, codes) < 0
        return among, competes

    def _speaks(self, window: np.ndarray, relation: str) -> np.ndarray:
        """(W) windows -> (W) whether a word in their text speaks of a fact of the relation."""
        corpus = self.corpus
        row, at = expand(corpus.window_start[window], corpus.window_stop[window] - corpus.window_start[window])
        wanted = [corpus.word_index(word) for word in _EVIDENCE[relation]]
        return np.bincount(row[np.isin(corpus.text[at], wanted)], minlength=len(window)) > 0

    def _scores(self, asked: Questions, among: CandidateSet, answering: Answering | None) -> list[np.ndarray]:
        """Returns (Q, C) the counts' scores, and what the encoder adds to them by trust and by likeness."""
        arrays, rows = self.data.collator.of_questions(asked)
        scores = Scores(self.data, asked, among, rows, self.leave_out)
        counted = scores.counted()
        if not answering:
            return [counted, np.zeros_like(counted), np.zeros_like(counted)]
        read = Read(answering.model, {n: torch.from_numpy(v).to(answering.device) for n, v in arrays.items()})
        encoded = scores.encoded(read, answering.of(among))
        trusting = encoded(1.0, 0.0)
        return [counted, trusting - counted, encoded(1.0, 1.0) - trusting]


def _full_text(asked: Gap) -> Questions:
    return Questions(asked.window, asked.relation, *(np.full(len(asked), value) for value in (FULL_TEXT, -1)))


def _best(scores: list[np.ndarray], competes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Q, C) scores -> (N) questions and candidates, ascending: those that are the best by one of the scores."""
    chosen = np.zeros_like(competes)
    for values in scores:
        most = min(_KEPT, values.shape[1])
        place = np.argpartition(-np.where(competes, values, -np.inf), most - 1, axis=1)[:, :most]
        np.put_along_axis(chosen, place, True, axis=1)
    return np.nonzero(chosen & competes)
