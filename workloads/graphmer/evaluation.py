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
# Of trust and of likeness, which was learned on top of all of trust
GATES = tuple(
    (trust, likeness) for trust, likeness in itertools.product(OPEN, OPEN) if likeness <= trust
)
_AT_ONCE = 64  # questions that are scored together


class Answering:
    """A model on its data, which scores any questions: of known facts or not."""

    def __init__(self, data: Data, model: nn.Module):
        self.data = data
        self.model = model
        self.gate = model.get_buffer(
            "gate"
        )  # (conditions, 2) how far trust and likeness are opened

    @cached_property
    def vectors(self) -> torch.Tensor:
        """(E, 2, d) the vectors and origins of all entities."""
        parts = np.array_split(np.arange(len(self.data.corpus.entity_type)), 16)
        batches = (
            {n: v.to(self.gate.device) for n, v in self.data.table.of(part).items()}
            for part in parts
        )
        return torch.cat([self.model(batch).float() for batch in batches])

    def scores(self, asked: Questions, among: CandidateSet) -> Callable[[float, float], Array]:
        """Returns a function of two gates that returns (Q, C) scores; of shut ones those of the counts alone."""
        batch, rows = self.data.collator.of_questions(asked)
        read = self.model({name: value.to(self.gate.device) for name, value in batch.items()})
        added = {name: value[:, 0].float() for name, value in read.items()}  # (Q, ...)
        arrays = {name: value.cpu().numpy() for name, value in added.items() if name != "queries"}
        vectors = self.vectors[torch.from_numpy(among.entities).to(self.gate.device)]  # (C, 2, d)
        alike = (added["queries"] @ vectors[:, 0].T).float().cpu().numpy()
        return Scores(self.data, asked, among, rows).encoded(
            arrays, vectors[:, 1].cpu().numpy(), alike
        )


class Scores:
    """Scores of questions of one relation and condition."""

    def __init__(self, data: Data, asked: Questions, among: CandidateSet, rows: Rows):
        self.data = data
        self.asked = asked
        self.among = among
        self.rows = rows
        self.features = data.scorer.counts.found(asked, among)
        self.prior = data.scorer.prior(asked, among, self.features)
        self.places = data.scorer.places(asked, rows, np.arange(len(asked)))

    def counted(
        self, added: Array | float = 0.0, meant: Callable[..., Array] | None = None
    ) -> Array:
        """Returns (Q, C); `added` (Q, L) is what an encoder adds to each place, and `meant` for which candidate."""
        places = np.where(
            self.places > NOWHERE / 2, np.minimum(self.places + added, 15.0), self.places
        )
        return self.prior + self.data.scorer.pointer(
            self.asked, self.among, self.rows, places, meant
        )

    def encoded(
        self, added: Mapping[str, Array], origins: Array, alike: Array
    ) -> Callable[[float, float], Array]:
        """Returns a function of two gates that returns (Q, C), by what an encoder adds to questions (Q, ...).

        `origins` (C, d) are those of candidates, and `alike` (Q, C) says how like each is to the query.
        """
        places = added["places"]
        features, types = np.split(added["weights"], [len(FEATURES)], axis=1)
        weighted = self.data.scorer.weighted(self.features, self.among, features, types)
        kind = self.data.corpus.entity_type[self.among.entities]
        elsewhere = self.data.scorer.counts.elsewhere(self.asked, self.among)

        def meant(question: Array, root: Array, column: Array) -> Array:
            product = np.einsum("nd,nd->n", added["meanings"][question, root], origins[column])
            weights = added["meant"][question, root]
            is_elsewhere = elsewhere[question, column]
            product = product * is_elsewhere + weights[np.arange(len(question)), kind[column]]
            of_near = weights[:, -len(NEAR) - 1 :]
            for at, name in enumerate(NEAR):
                product += of_near[:, at] * self.features.dense[name][question, column]
            return np.clip(product + of_near[:, -1] * is_elsewhere, -MOST_MEANT, MOST_MEANT)

        @cache
        def trusting(trust: float) -> Array:
            return self.counted(trust * places, lambda *at: trust * meant(*at)) + trust * weighted

        return lambda trust, likeness: (
            trusting(trust) + likeness * alike if trust or likeness else self.counted()
        )


class Evaluator:
    """Answers the questions of an evaluation by every method."""

    def __init__(self, data: Data):
        self.data = data
        self.corpus = data.corpus
        self.scorer = data.scorer
        self.candidates = cache(self._candidates)

    def _candidates(self, relation: int) -> tuple[CandidateSet, Array]:
        """Returns the candidates of a relation by range (C), and which of them training has as its tails (C)."""
        allowed = self.scorer.is_allowed(
            np.array([relation]), np.arange(len(self.corpus.entity_type))
        )[0]
        among = CandidateSet(self.corpus, np.flatnonzero(allowed))
        return among, self.scorer.counts.of_tail[relation, among.entities] > 0

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
        likelihood = own - (most + np.log(np.exp(scores - most[:, None]).sum(1)))

        def rank(of: Array, is_there: Array) -> Array:
            ranks = (of > own[:, None]).sum(1) + ((of == own[:, None]).sum(1) + 1) / 2
            return np.where(is_there, ranks, of.shape[1] + 1.0)

        question, other = among.by_name.places(self.corpus.name[tail])
        score = scores[question, other]
        possible = np.isfinite(score) & is_there[question]
        question = question[possible]
        score = score[possible]
        better = np.bincount(question, score > own[question], len(tail))
        first = np.where(
            better > 0,
            0.0,
            1 / np.maximum(np.bincount(question, score == own[question], len(tail)), 1),
        )
        namesake = np.where(np.bincount(question, minlength=len(tail)) > 1, first, np.nan)
        ranks = rank(scores, is_there), rank(scores[:, trained], is_there & trained[column])
        return np.stack([*ranks, namesake, np.where(is_there, likelihood, 0.0)], 1)

    def answer(self, model: nn.Module, loader: Iterable[Batch], chooses_gate: bool) -> Judged:
        """Returns the answers of the model to the questions of a loader, by its gate.

        The gate of each condition can be set first: to that of most likelihood here, so that an encoder that adds
        nothing is shut out. Likelihood tells gates apart with fewer facts than ranks do, which most gates share.
        """
        answering = Answering(self.data, model)
        gates: tuple[Any, ...] = GATES if chooses_gate else (None,)
        conditions = list[Array]()
        answers = list[Array]()  # of batches; (Q, gates, 4)
        for batch in loader:
            triples, condition = (batch[name].cpu().numpy() for name in ("triple", "condition"))
            conditions.append(condition)
            answers.append(np.zeros((len(triples), len(gates), 4)))
            for asked, chosen, among in self._alike(triples, condition):
                tail = self.corpus.tail[triples[chosen]]
                encoded = answering.scores(asked, among)
                for place, gate in enumerate(gates):
                    scores = encoded(*(gate or answering.gate[int(asked.condition[0])].tolist()))
                    answers[-1][chosen, place] = self.judged(tail, asked, scores)
        condition = np.concatenate(conditions)
        answered = np.concatenate(answers)
        best = np.zeros(len(CONDITIONS), int)
        for number in range(len(CONDITIONS)) if chooses_gate else ():
            total = answered[condition == number, :, 3].sum(0).round(3)
            best[number] = min(
                range(len(GATES)), key=lambda place: (-total[place], sum(GATES[place]))
            )
            answering.gate[number] = answering.gate.new_tensor(GATES[best[number]])
        every = np.arange(len(condition))
        return Judged(condition, answered[every, best[condition], :3], sample=every)

    def _alike(
        self, triples: Array, conditions: Array
    ) -> Iterator[tuple[Questions, Array, CandidateSet]]:
        """Yields questions of one relation and condition each, their places among the triples, and who competes."""
        relation = self.corpus.relation[triples]
        for number, kind in itertools.product(np.unique(conditions), np.unique(relation)):
            of_kind = np.flatnonzero((conditions == number) & (relation == kind))
            for first in range(0, len(of_kind), _AT_ONCE):
                chosen = of_kind[first : first + _AT_ONCE]
                asked = Questions.of_facts(self.corpus, triples[chosen], conditions[chosen])
                yield asked, chosen, self.candidates(int(kind))[0]

    def counted(self, queries: Iterable[tuple[int, int]]) -> Judged:
        triples, conditions = np.array([*queries]).T
        ranks = np.zeros((len(triples), 3))
        for asked, chosen, among in self._alike(triples, conditions):
            scores = Scores(
                self.data, asked, among, self.data.collator.of_questions(asked)[1]
            ).counted()
            ranks[chosen] = self.judged(self.corpus.tail[triples[chosen]], asked, scores)[:, :3]
        return Judged(conditions, ranks, sample=np.arange(len(triples)))
