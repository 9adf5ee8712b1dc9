"""Which entity of a name a reference means: questions, the answers that compete, and the features of both."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads.graphmer.answering import Answering
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Questions
from workloads.graphmer.data import Data
from workloads.graphmer.predicting.choices import Choices
from workloads.graphmer.predicting.standing import Standing
from workloads.graphmer.ragged import Groups
from workloads.graphmer.settings import OF_REFERENCES

UNRESOLVED = "Name"  # the type of what stands for a reference that is not resolved
_TOGETHER = ("calls", "instantiates")  # an unresolved call does not know whether it is that of a class
_AT_ONCE = 128  # questions that are read together
_MOST_SCORES = 2**20  # of questions and candidates at once: thousands are called `__init__`


@dataclass(frozen=True)
class References:
    """Q references: the window, relation and name (a word) of each, and its tail, -1 if that is not known."""

    window: np.ndarray
    relation: np.ndarray
    name: np.ndarray
    tail: np.ndarray

    def __len__(self) -> int:
        return len(self.window)

    def __getitem__(self, chosen: np.ndarray) -> "References":
        return References(*(value[chosen] for value in vars(self).values()))


@dataclass(frozen=True)
class Batch:
    """Q references by their numbers, their choices, and the entity and relation of each answer (N).

    `of_object` (Q) says which are attributes of something that the text does not name.
    """

    chosen: np.ndarray
    choices: Choices
    entity: np.ndarray
    relation: np.ndarray
    of_object: np.ndarray


class Asking:
    """Makes choices of references by what the counts and a model say of the entities of their names.

    `leave_out` leaves each reference's own file out of the counts. A known tail that no other fact of the graph names,
    and no file defines, would not be known without its fact: it is no answer, so that none is right.
    """

    def __init__(self, data: Data, leave_out: bool = False):
        self.data, self.leave_out = data, leave_out
        self.corpus = corpus = data.corpus
        self.unresolved_kind = corpus.types.index(UNRESOLVED) if UNRESOLVED in corpus.types else -1
        self.possible = np.flatnonzero(corpus.entity_type != self.unresolved_kind)
        self.by_name = Groups(corpus.name[self.possible])
        mentions = np.bincount(corpus.tail, minlength=len(corpus.entity_type))
        self.is_told_once = (corpus.entity_file < 0) & (mentions < 2)
        self.together = [corpus.relations.index(name) for name in _TOGETHER if name in corpus.relations]
        self.standing = Standing(corpus)
        # The relations that an unresolved reference has, and those that it may turn out to be of
        relations = np.flatnonzero(data.allowed[:, self.unresolved_kind]) if self.unresolved_kind >= 0 else []
        self.relations = np.union1d(relations, self.together if np.isin(self.together, relations).any() else [])

    def known(self, triples: np.ndarray) -> References:
        """Returns those of the triples that are resolved references, to be hidden."""
        corpus, tail = self.corpus, self.corpus.tail[triples]
        chosen = np.isin(corpus.relation[triples], self.relations) & (corpus.entity_type[tail] != self.unresolved_kind)
        triples, tail = triples[chosen], tail[chosen]
        return References(corpus.window_of[triples], corpus.relation[triples], corpus.name[tail], tail)

    def unresolved(self, triples: np.ndarray) -> References:
        """Returns all of the triples, whose tails stand for what is not resolved."""
        name = self.corpus.name[self.corpus.tail[triples]]
        return References(
            self.corpus.window_of[triples], self.corpus.relation[triples], name, np.full(len(triples), -1)
        )

    def batches(self, references: References) -> list[np.ndarray]:
        """Returns which references are asked together: those of one relation and of names that are near."""
        order = np.lexsort((references.name, references.relation))
        sizes = self.by_name.sizes(references.name).tolist()
        batches: list[list[int]] = []
        width, last = 0, (-1, -1)
        for number in order.tolist():
            at = int(references.relation[number]), int(references.name[number])
            more = sizes[number] if at != last else 0
            full = batches and (len(batches[-1]) + 1) * (width + more) > _MOST_SCORES
            if not batches or full or len(batches[-1]) == _AT_ONCE or at[0] != last[0]:
                batches.append([])
                width, more = 0, sizes[number]
            batches[-1].append(number)
            width, last = width + more, at
        return [np.array(numbers) for numbers in batches]

    def ask(self, references: References, answering: Answering) -> Iterator[Batch]:
        """Yields the references in batches, with their choices."""
        nothing = np.zeros(0, np.int64)
        for chosen in self.batches(references):
            part = references[chosen]
            own = int(part.relation[0])
            relations = self.together if own in self.together else [own]
            number, place = self.by_name.places(part.name)
            parts = [self._scored(part, relation, number, self.possible[place], answering) for relation in relations]
            question, entity, relation, features = (np.concatenate(values) for values in zip(*parts, strict=True))
            order = np.lexsort((relation, entity, question))
            question, entity, relation, features = question[order], entity[order], relation[order], features[order]
            rows = self.data.layout.rows(part.window, np.ones(len(part), bool), nothing, nothing)
            stands = self.standing.of(part.window, part.name, question, entity, rows)
            features[:, 1] = features[:, 0] * stands.of_object[question]
            features = np.concatenate([features, stands.answer, np.zeros((len(entity), stands.none.shape[1]))], 1)
            seen = stands.visible
            question, entity, relation, features = question[seen], entity[seen], relation[seen], features[seen]
            none = np.concatenate([np.zeros((len(part), len(OF_REFERENCES) - stands.none.shape[1])), stands.none], 1)
            right = np.flatnonzero((entity == part.tail[question]) & (relation == part.relation[question]))
            gold = np.full(len(part), -1)
            gold[question[right]] = right
            yield Batch(chosen, Choices(question, features, none, gold), entity, relation, stands.of_object)

    def _scored(
        self, part: References, relation: int, question: np.ndarray, entity: np.ndarray, answering: Answering
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the answers that are possible as tails of a relation: question, entity, relation, five features."""
        asked = Questions(part.window, *(np.full(len(part), value) for value in (relation, FULL_TEXT, -1)))
        may = self.data.scorer.is_allowed(asked.relation[:1], entity)[0]
        may &= ~(self.is_told_once[entity] & (entity == part.tail[question]))
        row, other = self.data.scorer.true_tails(asked)  # facts of the graph beside the one that is hidden
        code, entities = row * len(self.corpus.entity_type) + other, len(self.corpus.entity_type)
        may &= ~np.isin(question * entities + entity, code[other != part.tail[row]])
        question, entity = question[may], entity[may]
        features = np.zeros((len(entity), OF_REFERENCES.index("a class") + 1))
        features[:, -1] = self.together[1:] == [relation]
        if len(entity):
            among = CandidateSet(self.corpus, np.unique(entity))
            at = question, among.place[entity]
            counted, encoded = answering.encoded(asked, among, self.leave_out)
            trusting = encoded(1.0, 0.0)
            values = {"counts": counted, "trust": trusting - counted, "likeness": encoded(1.0, 1.0) - trusting}
            for name, scores in values.items():
                features[:, OF_REFERENCES.index(name)] = scores[at]
        return question, entity, np.full(len(entity), relation), features
