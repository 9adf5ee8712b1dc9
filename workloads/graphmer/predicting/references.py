"""Which entity of a name a reference means: questions, the answers that compete, and the features of both."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from workloads.graphmer.answering import Answering, Read, Scores
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Questions
from workloads.graphmer.data import Data
from workloads.graphmer.predicting.choices import Choices
from workloads.graphmer.predicting.standing import Standing
from workloads.graphmer.ragged import Groups
from workloads.graphmer.rows import Rows
from workloads.graphmer.settings import OF_REFERENCES

UNRESOLVED = "Name"  # the type of what stands for a reference that is not resolved
_TOGETHER = ("calls", "instantiates")  # an unresolved call does not know whether it is that of a class
_AT_ONCE = 128  # questions that are read together
_MOST_SCORES = 2**20  # of questions and candidates at once: thousands are called `__init__`
# Features: of an answer its score by the counts, what the encoder adds, how its name stands in the text; and of none
_OF_SCORES = OF_REFERENCES[:5]


@dataclass(frozen=True)
class References:
    """Q references: the window, relation and name (a word) of each, and where it is known its tail, else -1."""

    window: np.ndarray
    relation: np.ndarray
    name: np.ndarray
    tail: np.ndarray

    def __len__(self) -> int:
        return len(self.window)

    def __getitem__(self, chosen: np.ndarray) -> "References":
        return References(*(value[chosen] for value in vars(self).values()))


@dataclass(frozen=True)
class Asked:
    """A batch of references (Q), which ones they are, their choices, and the entity and relation of each answer (N).

    `of_object` (Q) says which are attributes of something that the text does not name.
    """

    chosen: np.ndarray
    choices: Choices
    entity: np.ndarray
    relation: np.ndarray
    of_object: np.ndarray


class Asking:
    """Makes choices of references by what the counts, and a model, say of the entities of their names.

    `leave_out` leaves each reference's own file out of the counts. A known tail that no other fact of the graph names,
    and no file defines, would not be known without its fact: it is no answer, so that none is right.
    """

    def __init__(self, data: Data, leave_out: bool = False):
        self.data, self.corpus, self.leave_out = data, data.corpus, leave_out
        corpus = data.corpus
        self.unresolved_kind = corpus.types.index(UNRESOLVED) if UNRESOLVED in corpus.types else -1
        self.possible = np.flatnonzero(corpus.entity_type != self.unresolved_kind)
        self.by_name = Groups(corpus.name[self.possible])
        mentions = np.bincount(corpus.tail, minlength=len(corpus.entity_type))
        self.is_told_once = (corpus.entity_file < 0) & (mentions < 2)
        self.together = [corpus.relations.index(name) for name in _TOGETHER if name in corpus.relations]
        self.standing = Standing(corpus)

    # --- questions ----------------------------------------------------------------------------------------------------

    @property
    def relations(self) -> np.ndarray:
        """The relations that an unresolved reference has, and those that it may turn out to be of."""
        if self.unresolved_kind < 0:
            return np.zeros(0, np.int64)
        found = np.flatnonzero(self.data.allowed[:, self.unresolved_kind])
        return np.union1d(found, self.together) if np.isin(self.together, found).any() else found

    def known(self, triples: np.ndarray) -> References:
        """Returns those of the triples that are resolved references, to be hidden."""
        corpus, tail = self.corpus, self.corpus.tail[triples]
        chosen = np.isin(corpus.relation[triples], self.relations) & (corpus.entity_type[tail] != self.unresolved_kind)
        triples, tail = triples[chosen], tail[chosen]
        return References(corpus.window_of[triples], corpus.relation[triples], corpus.name[tail], tail)

    def unresolved(self, triples: np.ndarray) -> References:
        """Returns all of the triples, whose tails stand for what is not resolved."""
        corpus = self.corpus
        name = corpus.name[corpus.tail[triples]]
        return References(corpus.window_of[triples], corpus.relation[triples], name, np.full(len(triples), -1))

    def batches(self, references: References) -> list[np.ndarray]:
        """Returns which references are asked together: those of one relation and of names that are near."""
        order = np.lexsort((references.name, references.relation))
        sizes = self.by_name.sizes(references.name).tolist()
        found: list[list[int]] = []
        width, last = 0, (-1, -1)
        for number in order.tolist():
            at = int(references.relation[number]), int(references.name[number])
            more = sizes[number] if at != last else 0
            full = found and (len(found[-1]) + 1) * (width + more) > _MOST_SCORES
            if not found or full or len(found[-1]) == _AT_ONCE or at[0] != last[0]:
                found.append([])
                width, more = 0, sizes[number]
            found[-1].append(number)
            width, last = width + more, at
        return [np.array(numbers) for numbers in found]

    def ask(self, references: References, answering: Answering | None = None) -> Iterator[Asked]:
        """Yields batches. Without `answering` no encoder is asked, and what it would add is 0."""
        for chosen in self.batches(references):
            yield self._batch(chosen, references[chosen], answering)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _batch(self, chosen: np.ndarray, part: References, answering: Answering | None) -> Asked:
        own = int(part.relation[0])
        relations = self.together if own in self.together else [own]
        number, place = self.by_name.places(part.name)
        parts = [self._scored(part, relation, number, self.possible[place], answering) for relation in relations]
        question, entity, relation, features = (np.concatenate(values) for values in zip(*parts, strict=True))
        order = np.lexsort((relation, entity, question))
        question, entity, relation, features = question[order], entity[order], relation[order], features[order]
        stands = self.standing.of(part.window, part.name, question, entity, self._rows(part))
        features[:, 1] = features[:, 0] * stands.of_object[question]
        features = np.concatenate([features, stands.answer, np.zeros((len(entity), stands.none.shape[1]))], 1)
        seen = stands.visible
        question, entity, relation, features = question[seen], entity[seen], relation[seen], features[seen]
        none = np.concatenate([np.zeros((len(part), len(OF_REFERENCES) - stands.none.shape[1])), stands.none], 1)
        right = np.flatnonzero((entity == part.tail[question]) & (relation == part.relation[question]))
        gold = np.full(len(part), -1)
        gold[question[right]] = right
        return Asked(chosen, Choices(question, features, none, gold), entity, relation, stands.of_object)

    def _rows(self, part: References) -> Rows:
        nothing = np.zeros(0, np.int64)
        return self.data.collator.layout.rows(part.window, np.ones(len(part), bool), nothing, nothing)

    def _scored(
        self, part: References, relation: int, question: np.ndarray, entity: np.ndarray, answering: Answering | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the answers that are possible as tails of a relation: question, entity, relation, features."""
        full = (np.full(len(part), value) for value in (relation, FULL_TEXT, -1))
        asked = Questions(part.window, *full)
        may = self.data.scorer.is_allowed(asked.relation[:1], entity)[0]
        may &= ~(self.is_told_once[entity] & (entity == part.tail[question]))
        may &= ~self._is_known(asked, part.tail, question, entity)
        question, entity = question[may], entity[may]
        features = np.zeros((len(entity), len(_OF_SCORES)))
        features[:, _OF_SCORES.index("a class")] = self.together[1:] == [relation]
        if len(entity):
            among = CandidateSet(self.corpus, np.unique(entity))
            at = question, among.place[entity]
            for name, values in self._scores(asked, among, answering):
                features[:, _OF_SCORES.index(name)] = values[at]
        return question, entity, np.full(len(entity), relation), features

    def _is_known(self, asked: Questions, tail: np.ndarray, question: np.ndarray, entity: np.ndarray) -> np.ndarray:
        """(N) whether an answer is a fact that the graph has beside the one that is hidden."""
        row, other = self.data.scorer.true_tails(asked)
        code = row * len(self.corpus.entity_type) + other
        return np.isin(question * len(self.corpus.entity_type) + entity, code[other != tail[row]])

    def _scores(
        self, asked: Questions, among: CandidateSet, answering: Answering | None
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (Q, C) the counts' scores, and what the encoder adds to them by trust and by likeness."""
        arrays, rows = self.data.collator.of_questions(asked)
        scores = Scores(self.data, asked, among, rows, self.leave_out)
        yield "counts", (counted := scores.counted())
        if answering:
            read = Read(answering.model, {n: torch.from_numpy(v).to(answering.device) for n, v in arrays.items()})
            encoded = scores.encoded(read, answering.of(among))
            yield "trust", (trusting := encoded(1.0, 0.0)) - counted
            yield "likeness", encoded(1.0, 1.0) - trusting
