"""Counts combined: a log-linear score of questions and candidates, whose weights are fitted on training files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Counts, Found, Questions
from workloads.graphmer.model import IMPOSSIBLE, room
from workloads.graphmer.ragged import Groups, find
from workloads.graphmer.rows import PREVIOUS, Rows
from workloads.graphmer.settings import CONDITIONS, FEATURES, NEAR

NOWHERE = -30.0  # the score of a place that is none: exp of it is nothing
_MOST = 15.0  # of a place's score


@dataclass(frozen=True)
class Weights:
    """The fitted weights.

    `features` (conditions, relations, features) and `types` (conditions, relations, entity types) add up. A name in the
    text adds log(1 + sum over its places of exp(score)), where a place's score is the sum of `place` (relations,
    1 + bracket + kinds of words before it). It counts exp(`boost`) times (relations, 2) where the candidate's owner, or
    `self.` of its class, stands before it.
    """

    features: np.ndarray
    types: np.ndarray
    place: np.ndarray
    boost: np.ndarray

    @staticmethod
    def shapes(relations: int, types: int) -> dict[str, tuple[int, ...]]:
        conditions = len(CONDITIONS)
        return {
            "features": (conditions, relations, len(FEATURES)),
            "types": (conditions, relations, types),
            "place": (relations, 2 + PREVIOUS),
            "boost": (relations, 2),
        }

    def as_json(self, corpus: Corpus) -> dict[str, Any]:
        """Returns the weights as lists, with the names of what their rows stand for."""
        arrays = {name: np.round(value.astype(float), 4).tolist() for name, value in vars(self).items()}
        return {"names": _names(corpus), **arrays}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], corpus: Corpus) -> "Weights":
        """Takes what `as_json` gave for a corpus of the same relations and types. Raises ValueError for another."""
        if values.get("names") != _names(corpus):
            raise ValueError("they belong to other relations, entity types or features")
        shapes = cls.shapes(len(corpus.relations), len(corpus.types))
        arrays = {name: np.array(values[name], np.float32) for name in shapes}
        if any(arrays[name].shape != shape for name, shape in shapes.items()):
            raise ValueError("their shapes are not those of the corpus")
        return cls(**arrays)


def _names(corpus: Corpus) -> dict[str, list[str]]:
    """Returns what the rows of the weights stand for."""
    return {"relations": corpus.relations, "types": corpus.types, "features": list(FEATURES)}


class Scorer:
    """Scores candidates of questions by counts. `allowed` (relations, entity types) says what tails a relation has."""

    def __init__(self, corpus: Corpus, counts: Counts, allowed: np.ndarray, weights: Weights | None = None):
        self.corpus, self.counts, self.allowed, self.weights = corpus, counts, allowed, weights
        heads = corpus.head[corpus.window_of]
        self._facts = Groups(heads * len(corpus.relations) + corpus.relation)

    # --- who competes -------------------------------------------------------------------------------------------------

    def is_allowed(self, relation: np.ndarray, entities: np.ndarray) -> np.ndarray:
        """(Q) relations, (C) entities -> (Q, C) whether the type is in the range, or training has the tail."""
        in_range = self.allowed[relation[:, None], self.corpus.entity_type[entities]]
        return in_range | (self.counts.of_tail[relation[:, None], entities] > 0)

    def true_tails(self, asked: Questions) -> tuple[np.ndarray, np.ndarray]:
        """Returns (N) questions and a tail that their head and relation have in any file of any split."""
        key = self.corpus.head[asked.window] * len(self.corpus.relations) + asked.relation
        row, fact = self._facts.places(key)
        return row, self.corpus.tail[fact]

    def other_tails(self, asked: Questions, tail: np.ndarray, among: CandidateSet) -> tuple[np.ndarray, np.ndarray]:
        """(Q) questions and the tails that are asked for -> (N) questions and candidates that are true as well."""
        question, other = self.true_tails(asked)
        column = among.place[other]
        false = (column >= 0) & (other != tail[question])
        return question[false], column[false]

    # --- scores -------------------------------------------------------------------------------------------------------

    def prior(self, asked: Questions, among: CandidateSet, leave_out: bool, found: Found | None = None) -> np.ndarray:
        """(Q, C) the sum of all features but the pointer's by the fitted weights; IMPOSSIBLE where it cannot be.

        `found` are the features, where they are known.
        """
        assert self.weights
        at, found = (asked.condition, asked.relation), found or self.counts.found(asked, among, leave_out)
        score = self.weighted(found, among, self.weights.features[at], self.weights.types[at])
        score[~self.is_allowed(asked.relation, among.entities)] = IMPOSSIBLE
        return score

    def near(self, asked: Questions, among: CandidateSet) -> np.ndarray:
        """(Q, C, NEAR + 1) what each candidate is to the head, and whether (other) files of training have it."""
        shown = Questions(asked.window, asked.relation, asked.condition, np.full(len(asked), -1))
        near = dict(self.counts.near(shown, among))
        return np.stack([*(near[name] for name in NEAR), self.counts.elsewhere(asked, among)], 2).astype(np.float32)

    def weighted(self, found: Found, among: CandidateSet, features: np.ndarray, types: np.ndarray) -> np.ndarray:
        """(Q, C) the sum of all features by weights of each question, (Q, FEATURES) and (Q, entity types)."""
        score = types[:, self.corpus.entity_type[among.entities]].astype(np.float32)
        product = np.empty_like(score)
        for name, value in found.dense.items():
            score += np.multiply(value, features[:, FEATURES.index(name)].astype(np.float32)[:, None], out=product)
        codes, values = [], []
        for name, (row, column, value) in found.sparse.items():
            codes.append(row * len(among) + column)
            values.append(value * features[row, FEATURES.index(name)])
        total = np.bincount(np.concatenate(codes), np.concatenate(values), score.size)
        return score + total.astype(np.float32).reshape(score.shape)

    def places(self, asked: Questions, rows: Rows, row: np.ndarray) -> np.ndarray:
        """(Q) questions and their rows -> (Q, L) the score of each root as the place of a tail's name."""
        assert self.weights
        weight = self.weights.place[asked.relation]
        kind = 2 + rows.previous[row]
        score = weight[:, :1] + weight[:, 1:2] * (rows.is_call[row] == 1)
        score = score + np.take_along_axis(weight, np.where(kind < 2, 2, kind), 1)
        is_place = (rows.word[row] >= 0) & (asked.condition == FULL_TEXT)[:, None]
        return np.where(is_place, np.minimum(score, _MOST), np.float32(NOWHERE)).astype(np.float32)

    def boosts(self, asked: Questions) -> np.ndarray:
        """(Q, 2) how much more a place counts after `owner.`, and after `self.` of the candidate's class."""
        assert self.weights
        return np.expm1(np.minimum(self.weights.boost[asked.relation], _MOST))

    def pointer(
        self, asked: Questions, among: CandidateSet, rows: Rows, row: np.ndarray, places: np.ndarray,
        meant: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """(Q, C) log(1 + sum of exp(score) over the places of a candidate's name); `places` (Q, L) has the scores.

        `meant` returns what is added to those of (N) questions, roots and candidates.
        """
        corpus, boost = self.corpus, self.boosts(asked)
        question, root = np.nonzero(places > NOWHERE / 2)
        at = row[question]
        pair, column = among.by_name.places(rows.word[at, root])
        question, at, root = question[pair], at[pair], root[pair]
        entity = among.entities[column]
        factor = 1 + boost[question, 0] * (rows.owner[at, root] == corpus.owner[entity])
        is_sibling = corpus.parent[entity] == corpus.parent[corpus.head[asked.window[question]]]
        factor += boost[question, 1] * ((rows.is_self[at, root] == 1) & is_sibling)
        score = places[question, root]
        if meant is not None:
            score = score + meant(question, root, column)
        total = np.bincount(question * len(among) + column, np.exp(score) * factor, len(asked) * len(among))
        return np.log1p(np.maximum(total, 0)).astype(np.float32).reshape(len(asked), -1)


class Sampler:
    """Draws the candidates that compete in a training batch, each with a known chance to be there.

    They are possible tails of `relations`; there are `most` at most, unless a batch has too many facts.
    """

    def __init__(self, scorer: Scorer, relations: np.ndarray, most: int):
        corpus, counts = scorer.corpus, scorer.counts
        self.corpus, self.most = corpus, most
        can_be_tail = scorer.is_allowed(relations, np.arange(len(corpus.entity_type))).any(0)
        self.entities = np.flatnonzero(can_be_tail)
        self.by_name = Groups(corpus.name[self.entities])
        train = counts.train[np.isin(corpus.relation[counts.train], relations)]
        pairs = np.unique(np.stack([counts.file[corpus.window_of[train]], corpus.tail[train]]), axis=1)
        self.by_file, self._of_file = Groups(pairs[0]), np.searchsorted(self.entities, pairs[1])
        frequency = counts.of_tail[relations].sum(0)[self.entities]
        self.share = np.sqrt(frequency + 0.05)
        self.chance_of_gold = frequency / max(1.0, float(frequency.sum()))

    def draw(
        self, gold: np.ndarray, words: np.ndarray, files: np.ndarray, draws: np.ndarray
    ) -> tuple[CandidateSet, np.ndarray]:
        """Returns C candidates, `room` for Q at most, and log of the chance of each to be there (C).

        They are the (Q) golds; a quarter of entities whose name is among `words`, and three eighths of tails that
        `files` have, as far as there are any; and others by the square root of their frequency. `draws` (E) are
        uniform, one an entity.
        """
        most = room(self.most, len(gold))
        named = self._among(self.by_name, np.arange(len(self.entities)), np.unique(words), most // 4)
        of_file = self._among(self.by_file, self._of_file, np.unique(files), 3 * most // 8)
        golds = 1 - (1 - self.chance_of_gold) ** len(gold)
        other = 1 - (1 - named) * (1 - of_file) * (1 - golds)
        free = most - len(np.unique(gold)) - 3 * np.sqrt(most) - (1 - (1 - named) * (1 - of_file)).sum()
        by_frequency = _chances(self.share, max(0.0, free))
        chance = 1 - (1 - other) * (1 - by_frequency)
        is_gold = find(np.unique(gold), self.entities) >= 0
        drawn = 1 - (1 - named) * (1 - of_file) * (1 - by_frequency)
        uniform = draws[: len(self.entities)]
        chosen = np.flatnonzero(is_gold | (uniform < drawn))
        if len(chosen) > most:  # beyond three standard deviations: the least likely to be drawn go
            order = np.argsort(np.where(is_gold, -1.0, uniform / np.maximum(drawn, 1e-9))[chosen], kind="stable")
            chosen = np.sort(chosen[order[:most]])
        return CandidateSet(self.corpus, self.entities[chosen]), np.log(np.maximum(chance[chosen], 1e-9))

    def _among(self, groups: Groups, entity: np.ndarray, wanted: np.ndarray, most: int) -> np.ndarray:
        """(N) the chance of each entity to be drawn from the wanted groups, of which each gives about as many.

        `entity` is that of each place in the groups.
        """
        wanted = wanted[groups.sizes(wanted) > 0]
        if not len(wanted):
            return np.zeros(len(self.entities))
        group, place = groups.places(wanted)
        each = _chances_of_groups(groups.sizes(wanted).astype(float), float(most))
        without = np.log1p(-np.minimum(each[group], 1 - 1e-12))
        return -np.expm1(np.bincount(entity[place], without, len(self.entities)))


def _chances(share: np.ndarray, number: float) -> np.ndarray:
    """(N) shares -> (N) chances in proportion to them, 1 at most, that add up to about `number`."""
    chance = np.minimum(1.0, share * (number / max(1e-9, share.sum())))
    for _ in range(3):
        chance = np.minimum(1.0, chance * (number / max(1e-9, chance.sum())))
    return chance


def _chances_of_groups(size: np.ndarray, number: float) -> np.ndarray:
    """(G) sizes of groups -> (G) the chance of each member, so that groups give the same number, `number` together."""
    each = number / len(size)
    for _ in range(3):
        given = np.minimum(size, each)
        if given.sum() >= min(number, size.sum()) - 1e-6:
            break
        each *= min(number, size.sum()) / given.sum()
    return np.minimum(1.0, each / size)
