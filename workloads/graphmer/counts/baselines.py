"""Methods without fitted weights, which the tables show beside the counts combined."""

from functools import cached_property

import numpy as np

from workloads.graphmer.counts import FULL_TEXT, MASKED, CandidateSet, Counts, Questions
from workloads.graphmer.counts.ragged import expand

_SMOOTHING = 0.3  # chosen on the validation split among 0.03, 0.1, 0.3, 1


class Baselines:
    """Scores candidates (Q, C) by single counts over the training triples; all questions are of one kind."""

    def __init__(self, counts: Counts):
        self.corpus, self.counts = counts.corpus, counts

    def frequency(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        return self.counts.count(asked, among, leave_out=False).astype(float)

    def cue(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        """Text match with the full text, naive Bayes over context words where names are hidden, else head names."""
        condition = int(asked.condition[0])
        if condition == MASKED:
            return self._contexts(asked, among)
        if condition == FULL_TEXT:
            return self.frequency(asked, among) + 1e9 * self._in_text(asked, self.corpus.name[among.entities])
        question, key, _ = self.counts.keys("head's name", asked)
        pair, tail, number = self.counts.tables["head's name"].get(key)
        return self.frequency(asked, among) + 1e6 * among.summed(question[pair], tail, number, asked)

    def rule(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        """Prefers the head's class, its file, and owners that stand in the text, then frequent tails."""
        corpus, head = self.corpus, self.corpus.head[asked.window]
        near = (corpus.parent[among.entities][None] == corpus.parent[head][:, None]).astype(float)
        near += corpus.entity_file[among.entities][None] == corpus.window_file[asked.window][:, None]
        near += self._in_text(asked, corpus.owner[among.entities])
        return self.frequency(asked, among) + 1e4 * near

    def _in_text(self, asked: Questions, words: np.ndarray) -> np.ndarray:
        """(C) a word of each candidate -> (Q, C) whether it stands in the question's text."""
        corpus = self.corpus
        first = corpus.window_start[asked.window]
        row, at = expand(first, corpus.window_stop[asked.window] - first)
        stands = np.zeros((len(asked), len(corpus.word_list) + 1), bool)  # the last column is for no word, -1
        stands[row, corpus.text[at]] = True
        return stands[:, words]

    def _contexts(self, asked: Questions, among: CandidateSet) -> np.ndarray:
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
    def _contexts_of_tail(self) -> np.ndarray:
        """(relations, entities) the number of context words of each tail in training."""
        table, total = self.counts.tables["context"], np.zeros_like(self.counts.of_tail)
        row, at = expand(table.begin[:-1], np.diff(table.begin))
        np.add.at(total, (table.keys[row] // self.counts.contexts_a_relation, table.tail[at]), table.count[at])
        return total
