"""Tail prediction by counts and by the encoder on them: filtered ranks, and the gate.

Bordes et al., Translating Embeddings for Modeling Multi-relational Data, NIPS 2013, section 4.2: other true tails of
the same head and relation do not count against the right one.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.task import Batch
from trainbook import Judged
from workloads.graphmer.counts import CandidateSet, Questions
from workloads.graphmer.counts.rows import Rows
from workloads.graphmer.counts.scoring import NOWHERE
from workloads.graphmer.data import Data
from workloads.graphmer.model import MOST_MEANT
from workloads.graphmer.settings import CONDITIONS, FEATURES, NEAR, Array

OPEN = (0.0, 0.25, 0.5, 0.75, 1.0)
# Pairs of trust and likeness; likeness was learned on top of all of trust
GATES = tuple((trust, likeness) for trust in OPEN for likeness in OPEN if likeness <= trust)
_AT_ONCE = 64  # questions that are scored together


class Answering:
    """A model on its data, which scores any questions: of known facts or not."""

    def __init__(self, data: Data, model: nn.Module):
        self.data = data
        self.model = model
        # (conditions, 2) how far trust and likeness are opened
        self.gate = model.get_buffer("gate")

    def _read(self, batch: Batch) -> Any:
        device = self.gate.device
        return self.model({name: value.to(device) for name, value in batch.items()})

    @cached_property
    def vectors(self) -> torch.Tensor:
        """(E, 2, d) the vectors and origins of all entities."""
        entities = np.arange(len(self.data.corpus.entity_type))
        batches = map(self.data.table.of, np.array_split(entities, 16))
        return torch.cat([self._read(batch).float() for batch in batches])

    def scores(self, asked: Questions, among: CandidateSet) -> Callable[[float, float], Array]:
        """Returns a function of two gates that returns (Q, C) scores; shut gates give the scores of the counts."""
        batch, rows = self.data.collator.of_questions(asked)
        added = self._read(batch)
        queries = added.pop("queries")[:, 0].float()
        # (Q, ...)
        arrays = {name: value[:, 0].float().cpu().numpy() for name, value in added.items()}
        entities = torch.from_numpy(among.entities).to(self.gate.device)
        vectors, origins = self.vectors[entities].unbind(1)  # (C, d)
        alike = (queries @ vectors.T).float().cpu().numpy()
        scores = Scores(self.data, asked, among, rows)
        return scores.encoded(arrays, origins.cpu().numpy(), alike)


class Scores:
    """Scores of questions of one relation and condition."""

    def __init__(self, data: Data, asked: Questions, among: CandidateSet, rows: Rows):
        self.scorer = data.scorer
        self.asked = asked
        self.among = among
        self.rows = rows
        self.kind = data.corpus.entity_type[among.entities]
        self.features = self.scorer.counts.found(asked, among)
        self.prior = self.scorer.prior(asked, among, self.features)
        self.places = self.scorer.places(asked, rows, np.arange(len(asked)))

    def counted(
        self, added: Array | float = 0.0, meant: Callable[..., Array] | None = None
    ) -> Array:
        """Returns (Q, C); an encoder adds `added` (Q, L) to each place, and `meant` to a place for a candidate."""
        raised = np.minimum(self.places + added, 15.0)
        places = np.where(self.places > NOWHERE / 2, raised, self.places)
        pointed = self.scorer.pointer(self.asked, self.among, self.rows, places, meant)
        return self.prior + pointed

    def encoded(
        self, added: Mapping[str, Array], origins: Array, alike: Array
    ) -> Callable[[float, float], Array]:
        """Returns a function of two gates that returns (Q, C), from an encoder's additions to questions (Q, ...).

        `origins` (C, d) are those of candidates, and `alike` (Q, C) are products of query and candidate.
        """
        places = added["places"]
        features, types = np.split(added["weights"], [len(FEATURES)], axis=1)
        weighted = self.scorer.weighted(self.features, self.among, features, types)
        elsewhere = self.scorer.counts.elsewhere(self.asked, self.among)

        def meant(question: Array, root: Array, column: Array) -> Array:
            meanings = added["meanings"][question, root]
            product = np.einsum("nd,nd->n", meanings, origins[column])
            weights = added["meant"][question, root]
            is_elsewhere = elsewhere[question, column]
            pair = np.arange(len(question))
            of_type = weights[pair, self.kind[column]]
            product = product * is_elsewhere + of_type
            of_near = weights[:, -len(NEAR) - 1 :]
            for at, name in enumerate(NEAR):
                is_near = self.features.dense[name][question, column]
                product += of_near[:, at] * is_near
            product = product + of_near[:, -1] * is_elsewhere
            return np.clip(product, -MOST_MEANT, MOST_MEANT)

        @cache
        def trusting(trust: float) -> Array:
            def trusted(*at: Array) -> Array:
                return trust * meant(*at)

            return self.counted(trust * places, trusted) + trust * weighted

        def gated(trust: float, likeness: float) -> Array:
            if not trust and not likeness:
                return self.counted()
            return trusting(trust) + likeness * alike

        return gated


class Evaluator:
    """Answers the questions of an evaluation by every method."""

    def __init__(self, data: Data):
        self.data = data
        self.corpus = data.corpus
        self.scorer = data.scorer
        self._candidates: dict[int, tuple[CandidateSet, Array]] = {}

    def candidates(self, relation: int) -> tuple[CandidateSet, Array]:
        """Returns the candidates of a relation by range (C), and whether each is a tail in training (C)."""
        if relation not in self._candidates:
            every = np.arange(len(self.corpus.entity_type))
            allowed = self.scorer.is_allowed(np.array([relation]), every)[0]
            among = CandidateSet(self.corpus, np.flatnonzero(allowed))
            trained = self.scorer.counts.of_tail[relation, among.entities] > 0
            self._candidates[relation] = among, trained
        return self._candidates[relation]

    def judged(self, tail: Array, asked: Questions, scores: Array) -> Array:
        """Judges the right tails of Q questions of one relation by (Q, C) scores -> (Q, 4).

        Their ranks among all candidates and among the tails that training has, ties at the mean and no candidate last;
        1 for the first of its name, a part where it shares that place, NaN if no other candidate has the name; and the
        logarithm of their softmax, 0 for no candidate. Other true tails of the head are left out.
        """
        among, trained = self.candidates(int(asked.relation[0]))
        column = np.maximum(among.place[tail], 0)
        is_there = among.place[tail] >= 0
        scores = scores.copy()
        scores[self.scorer.other_tails(asked, tail, among)] = -np.inf
        own = scores[np.arange(len(tail)), column]
        most = scores.max(1)
        total = np.exp(scores - most[:, None]).sum(1)
        likelihood = own - (most + np.log(total))
        rank = _ranks(scores, own, is_there)
        is_trained = is_there & trained[column]
        rank_trained = _ranks(scores[:, trained], own, is_trained)
        question, other = among.by_name.places(self.corpus.name[tail])
        score = scores[question, other]
        possible = np.isfinite(score) & is_there[question]
        first = _firsts(question[possible], score[possible], own)
        return np.stack([rank, rank_trained, first, np.where(is_there, likelihood, 0.0)], 1)

    def answer(self, model: nn.Module, loader: Iterable[Batch], chooses_gate: bool) -> Judged:
        """Returns the answers of the model to the questions of a loader, by its gate.

        The gate of each condition can be set first: to that of most likelihood here, so that an encoder that adds
        nothing is shut out. Likelihood tells gates apart with fewer facts than ranks do, which most gates share.
        """
        answering = Answering(self.data, model)
        gates: tuple[Any, ...] = GATES if chooses_gate else (None,)
        conditions = list[Array]()
        answers = list[Array]()  # one for each batch, (Q, gates, 4)
        for batch in loader:
            triples = batch["triple"].cpu().numpy()
            condition = batch["condition"].cpu().numpy()
            answer = np.zeros((len(triples), len(gates), 4))
            for asked, chosen, among in self._alike(triples, condition):
                tail = self.corpus.tail[triples[chosen]]
                gated = answering.scores(asked, among)
                set_gate = answering.gate[int(asked.condition[0])].tolist()
                for place, gate in enumerate(gates):
                    scores = gated(*(gate or set_gate))
                    answer[chosen, place] = self.judged(tail, asked, scores)
            conditions.append(condition)
            answers.append(answer)
        condition = np.concatenate(conditions)
        answered = np.concatenate(answers)
        best = np.zeros(len(CONDITIONS), int)
        if chooses_gate:
            for number in range(len(CONDITIONS)):
                total = answered[condition == number, :, 3].sum(0).round(3)
                best[number] = _best_gate(total)
                answering.gate[number] = answering.gate.new_tensor(GATES[best[number]])
        every = np.arange(len(condition))
        return Judged(condition, answered[every, best[condition], :3], sample=every)

    def _alike(
        self, triples: Array, conditions: Array
    ) -> Iterator[tuple[Questions, Array, CandidateSet]]:
        """Yields questions of one relation and condition each, their places among the triples, and the candidates."""
        relation = self.corpus.relation[triples]
        for number, kind in itertools.product(np.unique(conditions), np.unique(relation)):
            of_kind = np.flatnonzero((conditions == number) & (relation == kind))
            among, _ = self.candidates(int(kind))
            for first in range(0, len(of_kind), _AT_ONCE):
                chosen = of_kind[first : first + _AT_ONCE]
                asked = Questions.of_facts(self.corpus, triples[chosen], conditions[chosen])
                yield asked, chosen, among

    def counted(self, queries: Iterable[tuple[int, int]]) -> Judged:
        triples, conditions = np.array([*queries]).T
        ranks = np.zeros((len(triples), 3))
        for asked, chosen, among in self._alike(triples, conditions):
            _, rows = self.data.collator.of_questions(asked)
            scores = Scores(self.data, asked, among, rows).counted()
            tail = self.corpus.tail[triples[chosen]]
            ranks[chosen] = self.judged(tail, asked, scores)[:, :3]
        return Judged(conditions, ranks, sample=np.arange(len(triples)))


def _ranks(scores: Array, own: Array, is_there: Array) -> Array:
    """(Q, C) scores, (Q) scores of the right tails -> (Q) ranks, ties at the mean; behind all if not `is_there`."""
    better = (scores > own[:, None]).sum(1)
    equal = (scores == own[:, None]).sum(1)
    rank = better + (equal + 1) / 2
    return np.where(is_there, rank, scores.shape[1] + 1.0)


def _firsts(question: Array, score: Array, own: Array) -> Array:
    """(N) questions and scores of candidates of the right name, (Q) scores of right tails -> (Q) see `judged`."""
    count = len(own)
    better = np.bincount(question, score > own[question], count)
    equal = np.bincount(question, score == own[question], count)
    first = np.where(better > 0, 0.0, 1 / np.maximum(equal, 1))
    has_namesakes = np.bincount(question, minlength=count) > 1
    return np.where(has_namesakes, first, np.nan)


def _best_gate(likelihood: Array) -> int:
    """(GATES) -> the gate of most likelihood; of equal ones the one that opens least."""
    return min(range(len(GATES)), key=lambda place: (-likelihood[place], sum(GATES[place])))
