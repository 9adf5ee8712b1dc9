"""Scores of questions and candidates: by single counts, by the counts combined, and with the encoder on them."""

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.task import Batch
from workloads.graphmer.counts import FULL_TEXT, MASKED, CandidateSet, Counts, Questions
from workloads.graphmer.counts.ragged import expand
from workloads.graphmer.counts.rows import Rows
from workloads.graphmer.counts.scoring import NOWHERE
from workloads.graphmer.data import Data
from workloads.graphmer.model import MOST_MEANT
from workloads.graphmer.settings import FEATURES, NEAR, Array

_SMOOTHING = 0.3  # chosen on the validation split among 0.03, 0.1, 0.3, 1


class Answering:
    """A model on its data, which scores any questions: of known facts or not.

    answering = Answering(task.data, model)
    counted, encoded = answering.scores(Questions(window, relation, condition, hidden), CandidateSet(corpus, entities))
    """

    def __init__(self, data: Data, model: nn.Module):
        self.data, self.model = data, model
        self.gate = model.get_buffer("gate")  # (conditions, 2) how far trust and likeness are opened
        self._latest: tuple[CandidateSet, torch.Tensor] | None = None  # that most questions in a row have

    @cached_property
    def vectors(self) -> torch.Tensor:
        """(E, 2, d) the vectors and origins of all entities."""
        parts = np.array_split(np.arange(len(self.data.corpus.entity_type)), 16)
        batches = ({n: v.to(self.gate.device) for n, v in self.data.table.of(part).items()} for part in parts)
        return torch.cat([self.model(batch).float() for batch in batches])

    def of(self, among: CandidateSet) -> torch.Tensor:
        """(C, 2, d) the vectors and origins of candidates."""
        if self._latest is None or self._latest[0] is not among:
            self._latest = among, self.vectors[torch.from_numpy(among.entities).to(self.gate.device)]
        return self._latest[1]

    def encoded(
        self, asked: Questions, among: CandidateSet, leave_out: bool = False
    ) -> tuple[Array, Callable[[float, float], Array]]:
        """Returns the counts' scores (Q, C), and a function of two gates that returns those with the encoder."""
        batch, rows = self.data.collator.of_questions(asked)
        added = self.read({name: value.to(self.gate.device) for name, value in batch.items()})
        scores = Scores(self.data, asked, among, rows, leave_out)
        return scores.counted(), scores.encoded(added, self.of(among))

    def read(self, batch: Batch) -> dict[str, Any]:
        """Returns what the encoder makes of Q questions: `queries` (Q, d) as a tensor, all else as arrays (Q, ...)."""
        added = {name: value[:, 0].float() for name, value in self.model(batch).items()}
        return {name: value if name == "queries" else value.cpu().numpy() for name, value in added.items()}

    @torch.no_grad()
    def scores(self, asked: Questions, among: CandidateSet) -> tuple[Array, Array]:
        """Returns the scores (Q, C) by the counts, and with the encoder; all questions are of one condition."""
        counted, encoded = self.encoded(asked, among)
        return counted, encoded(*self.gate[int(asked.condition[0])].tolist())


class Scores:
    """Scores of questions of one relation and condition: by the counts, and with the encoder by its gates."""

    def __init__(self, data: Data, asked: Questions, among: CandidateSet, rows: Rows, leave_out: bool = False):
        self.data, self.asked, self.among, self.rows = data, asked, among, rows
        self.features = data.scorer.counts.found(asked, among, leave_out)
        self.prior = data.scorer.prior(asked, among, self.features)
        self.places = data.scorer.places(asked, rows, np.arange(len(asked)))

    def counted(self, added: Array | float = 0.0, meant: Callable[..., Array] | None = None) -> Array:
        """Returns (Q, C); `added` (Q, L) is what an encoder adds to each place, and `meant` for which candidate."""
        places = np.where(self.places > NOWHERE / 2, np.minimum(self.places + added, 15.0), self.places)
        return self.prior + self.data.scorer.pointer(self.asked, self.among, self.rows, places, meant)

    def encoded(self, added: Mapping[str, Any], vectors: torch.Tensor) -> Callable[[float, float], Array]:
        """Returns a function of two gates that returns (Q, C); `vectors` (C, 2, d) are those of candidates."""
        origins, places = vectors[:, 1].cpu().numpy(), added["places"][:, : self.places.shape[1]]
        features, types = np.split(added["weights"], [len(FEATURES)], axis=1)
        weighted = self.data.scorer.weighted(self.features, self.among, features, types)
        alike = (added["queries"] @ vectors[:, 0].T).float().cpu().numpy()
        kind = self.data.corpus.entity_type[self.among.entities]
        elsewhere = self.data.scorer.counts.elsewhere(self.asked, self.among)

        def meant(question: Array, root: Array, column: Array) -> Array:
            product = np.einsum("nd,nd->n", added["meanings"][question, root], origins[column])
            weights, is_elsewhere = added["meant"][question, root], elsewhere[question, column]
            product = product * is_elsewhere + weights[np.arange(len(question)), kind[column]]
            of_near = weights[:, -len(NEAR) - 1 :]
            for at, name in enumerate(NEAR):
                product += of_near[:, at] * self.features.dense[name][question, column]
            return np.clip(product + of_near[:, -1] * is_elsewhere, -MOST_MEANT, MOST_MEANT)

        @cache
        def trusting(trust: float) -> Array:
            return self.counted(trust * places, lambda *at: trust * meant(*at)) + trust * weighted

        return lambda trust, likeness: trusting(trust) + likeness * alike if trust or likeness else self.counted()


class Baselines:
    """Scores candidates (Q, C) by single counts over the training triples; all questions are of one kind."""

    def __init__(self, counts: Counts):
        self.corpus, self.counts = counts.corpus, counts

    def frequency(self, asked: Questions, among: CandidateSet) -> Array:
        return self.counts.count(asked, among, leave_out=False).astype(float)

    def cue(self, asked: Questions, among: CandidateSet) -> Array:
        """Text match with the full text, naive Bayes over context words where names are hidden, else head names."""
        condition = int(asked.condition[0])
        if condition == MASKED:
            return self._contexts(asked, among)
        if condition == FULL_TEXT:
            return self.frequency(asked, among) + 1e9 * self._in_text(asked, self.corpus.name[among.entities])
        question, key, _ = self.counts.keys("head's name", asked)
        pair, tail, number = self.counts.tables["head's name"].get(key)
        return self.frequency(asked, among) + 1e6 * among.summed(question[pair], tail, number, asked)

    def rule(self, asked: Questions, among: CandidateSet) -> Array:
        """Prefers the head's class, its file, and owners that stand in the text, then frequent tails."""
        corpus, head = self.corpus, self.corpus.head[asked.window]
        near = (corpus.parent[among.entities][None] == corpus.parent[head][:, None]).astype(float)
        near += corpus.entity_file[among.entities][None] == corpus.window_file[asked.window][:, None]
        near += self._in_text(asked, corpus.owner[among.entities])
        return self.frequency(asked, among) + 1e4 * near

    def _in_text(self, asked: Questions, words: Array) -> Array:
        """(C) a word of each candidate -> (Q, C) whether it stands in the question's text."""
        corpus = self.corpus
        first = corpus.window_start[asked.window]
        row, at = expand(first, corpus.window_stop[asked.window] - first)
        stands = np.zeros((len(asked), len(corpus.word_list) + 1), bool)  # the last column is for no word, -1
        stands[row, corpus.text[at]] = True
        return stands[:, words]

    def _contexts(self, asked: Questions, among: CandidateSet) -> Array:
        """Naive Bayes over the words around a hidden name: log P(t) + sum of log P(word | t), up to a constant."""
        question, key, _ = self.counts.keys("context", asked)
        pair, tail, number = self.counts.tables["context"].get(key)
        total = self._contexts_of_tail[asked.relation[0]]  # (E)
        unseen = _SMOOTHING * (np.bincount(pair, number, len(key)) / max(1, total.sum()) + 1e-6)
        scores = np.log(self.frequency(asked, among) + 1e-3)
        words = np.bincount(question, minlength=len(asked))[:, None]
        scores -= words * np.log(total[among.entities] + _SMOOTHING)[None]
        return scores + among.summed(question[pair], tail, np.log1p(number / unseen[pair]), asked)

    @cached_property
    def _contexts_of_tail(self) -> Array:
        """(relations, entities) the number of context words of each tail in training."""
        table, total = self.counts.tables["context"], np.zeros_like(self.counts.of_tail)
        row, at = expand(table.begin[:-1], np.diff(table.begin))
        np.add.at(total, (table.keys[row] // self.counts.contexts_a_relation, table.tail[at]), table.count[at])
        return total
