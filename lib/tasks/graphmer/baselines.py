"""The baselines of tail prediction: the frequency of tails, and for each condition the strongest trivial method."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from lib.tasks.graphmer.chains import Query
from lib.tasks.graphmer.corpus import Corpus
from lib.tasks.graphmer.ranking import Candidates, Ranked

REACH = 3  # context words on each side of a masked name
SMOOTHING = 0.3  # chosen on the validation split among 0.03, 0.1, 0.3, 1


class Baselines:
    """Scores candidates without a model, from counts over the training triples."""

    def __init__(self, corpus: Corpus, candidates: Candidates):
        self.corpus, self.candidates = corpus, candidates
        train = corpus.triples_of("train")
        self.frequency = np.zeros((len(corpus.relations), len(corpus.entities)), np.int32)
        np.add.at(self.frequency, (corpus.relation[train], corpus.tail[train]), 1)
        self._by_head = self._count_head_names(train)
        self._by_context, self._context_total = self._count_contexts(train)

    def rank(self, queries: Iterable[Query], trivial: bool) -> list[Ranked]:
        """Ranks the tails of queries by frequency, or by the trivial method of each one's condition."""
        ranked = []
        for query in queries:
            candidates = self.candidates.of_relation[self.corpus.relation[query.triple]]
            scores = self.scores(query, candidates) if trivial else self._prior(query.triple, candidates)
            ranked.append(Ranked(query.triple, query.condition, self.candidates.rank(query.triple, scores, candidates)))
        return ranked

    def scores(self, query: Query, candidates: np.ndarray) -> np.ndarray:
        """(N) candidates -> (N) scores by the trivial method of the query's condition."""
        method = {"full_text": self._text_match, "masked": self._context, "name_only": self._head_name}
        return method[query.condition](query.triple, candidates)

    def _prior(self, triple: int, candidates: np.ndarray) -> np.ndarray:
        return self.frequency[self.corpus.relation[triple], candidates].astype(float)

    def _text_match(self, triple: int, candidates: np.ndarray) -> np.ndarray:
        """Prefers tails whose name stands in the text, then the frequent ones."""
        corpus = self.corpus
        text = np.unique(corpus.window_text(int(corpus.window_of[triple])))
        return self._prior(triple, candidates) + 1e9 * np.isin(corpus.name[candidates], text)

    def _head_name(self, triple: int, candidates: np.ndarray) -> np.ndarray:
        """Prefers tails that heads of the same name have, then the frequent ones."""
        corpus = self.corpus
        scores = self._prior(triple, candidates)
        head = corpus.head_parts(int(corpus.window_of[triple]))[0]
        for tail, count in self._by_head.get((int(corpus.relation[triple]), int(head)), {}).items():
            place = np.searchsorted(candidates, tail)
            scores[place] += 1e6 * count
        return scores

    def _context(self, triple: int, candidates: np.ndarray) -> np.ndarray:
        """Naive Bayes over the words around the masked name: log P(t) + sum of log P(word at offset | t)."""
        corpus = self.corpus
        relation = int(corpus.relation[triple])
        prior = self._prior(triple, candidates)
        scores = np.log(prior)
        total = self._context_total[relation, candidates]
        for feature in self._features(triple):
            tails = self._by_context.get((relation, *feature), {})
            share = sum(tails.values()) / max(1, self._context_total[relation].sum())
            counts = np.zeros(len(candidates))
            places = np.searchsorted(candidates, np.fromiter(tails, np.int64, len(tails)))
            counts[places] = np.fromiter(tails.values(), float, len(tails))
            scores += np.log((counts + SMOOTHING * (share + 1e-6)) / (total + SMOOTHING))
        return scores

    def _features(self, triple: int) -> list[tuple[int, int]]:
        """Returns (offset, word) around every place of the tail's name in the text, but words that the mask hides."""
        corpus = self.corpus
        text = corpus.window_text(int(corpus.window_of[triple]))
        name = corpus.name[corpus.tail[triple]]
        features = []
        for place in np.flatnonzero(text == name):
            for offset in range(-REACH, REACH + 1):
                other = place + offset
                if offset and 0 <= other < len(text) and text[other] != name:
                    features.append((offset, int(text[other])))
        return features

    def _count_head_names(self, train: np.ndarray) -> dict[tuple[int, int], dict[int, int]]:
        corpus = self.corpus
        counts: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for triple in train:
            head = corpus.head_parts(int(corpus.window_of[triple]))[0]
            counts[int(corpus.relation[triple]), int(head)][int(corpus.tail[triple])] += 1
        return counts

    def _count_contexts(self, train: np.ndarray) -> tuple[dict[tuple[int, int, int], dict[int, int]], np.ndarray]:
        corpus = self.corpus
        counts: dict[tuple[int, int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        total = np.zeros(self.frequency.shape, np.int32)
        for triple in train:
            relation, tail = int(corpus.relation[triple]), int(corpus.tail[triple])
            for feature in self._features(triple):
                counts[(relation, *feature)][tail] += 1
                total[relation, tail] += 1
        return counts, total
