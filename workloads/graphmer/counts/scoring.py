"""Counts combined: a log-linear score of questions and candidates, whose weights are fitted on training files."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.training.order import mix, permutation
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Counts, Found, Questions
from workloads.graphmer.counts.ragged import Groups, find
from workloads.graphmer.counts.rows import PREVIOUS, Rows
from workloads.graphmer.model import IMPOSSIBLE, room
from workloads.graphmer.settings import CONDITIONS, FEATURES, NEAR, Array

NOWHERE = -30.0  # the score of a missing place: its exp is 0
_MOST = 15.0  # limit of a place's score
_SAMPLES = 48
_RATE = 0.05  # learning rate at the first step
# Weight of the squared differences of a relation from all relations: a rare relation stays near them
_SHRINKAGE = 1e-3
# Where the weights start; others at 0.3
_START = {
    "frequency": 1.0, "unseen": -1.0, "same file": 2.0, "same parent": 1.0, "head's name": 1.0, "same package": 0.0,
    "same folder": 0.0, "words shared with the head's name": 1.0, "owner before": 1.0, "self before": 1.0,
}  # fmt: skip
_START_PLACE = 4.0
_START_BRACKET = 0.5
_START_BOOST = 1.0


@dataclass(frozen=True)
class Weights:
    """The fitted weights.

    `features` (conditions, relations, features) and `types` (conditions, relations, entity types) add up. A name in the
    text adds log(1 + sum over its places of exp(score)), where a place's score is the sum of `place` (relations,
    1 + bracket + kinds of words before it). It counts exp(`boost`) times (relations, 2) where the candidate's owner, or
    `self.` of its class, stands before it.
    """

    features: Array
    types: Array
    place: Array
    boost: Array

    @staticmethod
    def shapes(corpus: Corpus) -> dict[str, tuple[int, ...]]:
        relations = len(corpus.relations)
        all_relations = (len(CONDITIONS), relations)
        shapes: dict[str, tuple[int, ...]] = {"features": (*all_relations, len(FEATURES))}
        shapes["types"] = (*all_relations, len(corpus.types))
        shapes["place"] = (relations, 2 + PREVIOUS)
        shapes["boost"] = (relations, 2)
        return shapes

    def as_json(self) -> dict[str, Any]:
        values = {}
        for name, value in vars(self).items():
            values[name] = np.round(value.astype(float), 4).tolist()
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any], corpus: Corpus) -> "Weights":
        """Takes the values of `as_json` for a corpus of as many relations and types. Raises ValueError for another."""
        arrays = {}
        for name, shape in cls.shapes(corpus).items():
            arrays[name] = np.array(values[name], np.float32)
            if arrays[name].shape != shape:
                raise ValueError("they belong to other relations, entity types or features")
        return cls(**arrays)


class Scorer:
    """Scores candidates of questions by counts. `allowed` (relations, entity types) are the types of tails."""

    weights: Weights

    def __init__(self, corpus: Corpus, counts: Counts, allowed: Array):
        self.corpus = corpus
        self.counts = counts
        self.allowed = allowed
        head = corpus.head[corpus.window_of]
        self._facts = Groups(head * len(corpus.relations) + corpus.relation)

    def is_allowed(self, relation: Array, entities: Array) -> Array:
        """(Q) relations, (C) entities -> (Q, C) whether the type is in the range, or training has the tail."""
        relation = relation[:, None]
        in_range = self.allowed[relation, self.corpus.entity_type[entities]]
        return in_range | (self.counts.of_tail[relation, entities] > 0)

    def true_tails(self, asked: Questions) -> tuple[Array, Array]:
        """Returns (N) questions and a tail that their head and relation have in any file."""
        head = self.corpus.head[asked.window]
        key = head * len(self.corpus.relations) + asked.relation
        row, fact = self._facts.places(key)
        return row, self.corpus.tail[fact]

    def other_tails(
        self, asked: Questions, tail: Array, among: CandidateSet
    ) -> tuple[Array, Array]:
        """(Q) questions and the tails that are asked for -> (N) questions and candidates that are true as well."""
        question, other = self.true_tails(asked)
        column = among.place[other]
        false = (column >= 0) & (other != tail[question])
        return question[false], column[false]

    def prior(self, asked: Questions, among: CandidateSet, features: Found) -> Array:
        """(Q, C) the sum of all features but the pointer's by the fitted weights; IMPOSSIBLE if it cannot be."""
        at = asked.condition, asked.relation
        of_features = self.weights.features[at]
        score = self.weighted(features, among, of_features, self.weights.types[at])
        score[~self.is_allowed(asked.relation, among.entities)] = IMPOSSIBLE
        return score

    def near(self, asked: Questions, among: CandidateSet) -> Array:
        """(Q, C, NEAR + 1) how near each candidate is to the head, and whether (other) files of training have it."""
        nothing = np.full(len(asked), -1)
        shown = Questions(asked.window, asked.relation, asked.condition, nothing)
        near = self.counts.near(shown, among)
        columns = [near[name] for name in NEAR]
        columns.append(self.counts.elsewhere(asked, among))
        return np.stack(columns, 2).astype(np.float32)

    def weighted(self, found: Found, among: CandidateSet, features: Array, types: Array) -> Array:
        """(Q, C) the sum of all features by weights of each question, (Q, FEATURES) and (Q, entity types)."""
        kind = self.corpus.entity_type[among.entities]
        score = types[:, kind].astype(np.float32)
        product = np.empty_like(score)
        for name, value in found.dense.items():
            weight = features[:, FEATURES.index(name)].astype(np.float32)
            score += np.multiply(value, weight[:, None], out=product)
        codes = []
        values = []
        for name, (row, column, value) in found.sparse.items():
            codes.append(row * len(among) + column)
            values.append(value * features[row, FEATURES.index(name)])
        total = np.bincount(np.concatenate(codes), np.concatenate(values), score.size)
        return score + total.astype(np.float32).reshape(score.shape)

    def places(self, asked: Questions, rows: Rows, row: Array) -> Array:
        """(Q) questions and their rows -> (Q, L) the score of each root as the place of a tail's name."""
        weight = self.weights.place[asked.relation]
        is_call = rows.is_call[row] == 1
        score = weight[:, :1] + weight[:, 1:2] * is_call
        kind = np.maximum(2 + rows.previous[row], 2)
        score = score + np.take_along_axis(weight, kind, 1)
        is_shown = asked.condition == FULL_TEXT
        is_place = (rows.word[row] >= 0) & is_shown[:, None]
        score = np.where(is_place, np.minimum(score, _MOST), np.float32(NOWHERE))
        return score.astype(np.float32)

    def boosts(self, asked: Questions) -> Array:
        """(Q, 2) how much more a place counts after `owner.`, and after `self.` of the candidate's class."""
        return np.expm1(np.minimum(self.weights.boost[asked.relation], _MOST))

    def siblings(self, asked: Questions, question: Array, entity: Array) -> Array:
        """(N) questions and entities -> (N) whether an entity is in the same class as the head."""
        parent = self.corpus.parent
        head = self.corpus.head[asked.window[question]]
        return parent[entity] == parent[head]

    def pointer(
        self,
        asked: Questions,
        among: CandidateSet,
        rows: Rows,
        places: Array,
        meant: Callable[..., Array] | None,
    ) -> Array:
        """(Q, C) log(1 + sum of exp of `places` (Q, L), and of `meant`, where the name stands)."""
        boost = self.boosts(asked)
        question, root = np.nonzero(places > NOWHERE / 2)
        pair, column = among.by_name.places(rows.word[question, root])
        question = question[pair]
        root = root[pair]
        entity = among.entities[column]
        is_owned = rows.owner[question, root] == self.corpus.owner[entity]
        after_self = rows.is_self[question, root] == 1
        of_class = after_self & self.siblings(asked, question, entity)
        factor = 1 + boost[question, 0] * is_owned
        factor += boost[question, 1] * of_class
        score = places[question, root]
        if meant is not None:
            score = score + meant(question, root, column)
        code = question * len(among) + column
        size = len(asked) * len(among)
        total = np.bincount(code, np.exp(score) * factor, size)
        pointed = np.log1p(np.maximum(total, 0)).astype(np.float32)
        return pointed.reshape(len(asked), -1)


class Sampler:
    """Draws the candidates that compete in a training batch, each with a known chance to be there.

    They are possible tails of `relations`; there are `most` at most, unless a batch has too many facts.
    """

    def __init__(self, scorer: Scorer, relations: Array, most: int):
        corpus = scorer.corpus
        counts = scorer.counts
        self.corpus = corpus
        self.most = most
        every = np.arange(len(corpus.entity_type))
        self.entities = np.flatnonzero(scorer.is_allowed(relations, every).any(0))
        self.by_name = Groups(corpus.name[self.entities])
        train = counts.train[np.isin(corpus.relation[counts.train], relations)]
        file = counts.file[corpus.window_of[train]]
        pairs = np.unique(np.stack([file, corpus.tail[train]]), axis=1)
        self.by_file = Groups(pairs[0])
        self._of_file = np.searchsorted(self.entities, pairs[1])
        frequency = counts.of_tail[relations].sum(0)[self.entities]
        self.share = np.sqrt(frequency + 0.05)
        self.chance_of_gold = frequency / max(1.0, float(frequency.sum()))

    def draw(
        self, gold: Array, words: Array, files: Array, draws: Array
    ) -> tuple[CandidateSet, Array]:
        """Returns C candidates, `room` for Q at most, and log of the chance of each to be there (C).

        They are the (Q) golds; a quarter of entities whose name is among `words`, and three eighths of tails that
        `files` have, as far as there are any; and others by the square root of their frequency. `draws` (E) are
        uniform, one an entity.
        """
        most = room(self.most, len(gold))
        golds = np.unique(gold)
        every = np.arange(len(self.entities))
        named = self._among(self.by_name, every, np.unique(words), most // 4)
        files = np.unique(files)
        of_file = self._among(self.by_file, self._of_file, files, 3 * most // 8)
        neither = (1 - named) * (1 - of_file)
        taken = (1 - neither).sum()
        free = most - len(golds) - 3 * np.sqrt(most) - taken
        by_frequency = self._by_frequency(free)
        of_gold = 1 - (1 - self.chance_of_gold) ** len(gold)
        other = 1 - neither * (1 - of_gold)
        chance = 1 - (1 - other) * (1 - by_frequency)
        drawn = 1 - neither * (1 - by_frequency)
        is_gold = find(golds, self.entities) >= 0
        uniform = draws[: len(self.entities)]
        chosen = np.flatnonzero(is_gold | (uniform < drawn))
        if len(chosen) > most:  # beyond three standard deviations: the least likely to be drawn go
            rank = uniform / np.maximum(drawn, 1e-9)
            rank = np.where(is_gold, -1.0, rank)[chosen]
            order = np.argsort(rank, kind="stable")
            chosen = np.sort(chosen[order[:most]])
        among = CandidateSet(self.corpus, self.entities[chosen])
        return among, np.log(np.maximum(chance[chosen], 1e-9))

    def _by_frequency(self, free: float) -> Array:
        """(N) the chances in proportion to the shares, 1 at most, so that they add up to about `free`."""
        chance = self.share
        for _ in range(4):
            factor = max(0.0, free) / max(1e-9, chance.sum())
            chance = np.minimum(1.0, chance * factor)
        return chance

    def _among(self, groups: Groups, entity: Array, wanted: Array, most: int) -> Array:
        """(N) the chance of each entity to be drawn from the wanted groups, which give about as many each."""
        wanted = wanted[groups.sizes(wanted) > 0]
        if not len(wanted):
            return np.zeros(len(self.entities))
        group, place = groups.places(wanted)
        size = groups.sizes(wanted).astype(float)
        each = float(most) / len(size)
        total = min(float(most), size.sum())
        for _ in range(3):
            taken = np.minimum(size, each).sum()
            if taken >= total - 1e-6:
                break
            each *= total / taken
        chance = np.minimum(1.0, each / size)[group]
        without = np.log1p(-np.minimum(chance, 1 - 1e-12))
        total = np.bincount(entity[place], without, len(self.entities))
        return -np.expm1(total)


class _Combination(nn.Module):
    """Weights that all relations share, and the differences of each relation from them."""

    def __init__(self, corpus: Corpus):
        super().__init__()
        shapes = Weights.shapes(corpus)
        start = {name: torch.zeros(shapes[name]) for name in shapes}
        start["features"] += torch.tensor([_START.get(name, 0.3) for name in FEATURES])
        start["place"] += torch.tensor([_START_PLACE, _START_BRACKET, *([0.0] * PREVIOUS)])
        start["boost"] += _START_BOOST
        shared = {}
        apart = {}
        for name, value in start.items():
            over_relations = value.mean(value.dim() - 2, keepdim=True)
            shared[name] = nn.Parameter(over_relations)
            apart[name] = nn.Parameter(torch.zeros_like(value))
        self.shared = nn.ParameterDict(shared)
        self.apart = nn.ParameterDict(apart)

    def __getitem__(self, name: str) -> Tensor:
        return self.shared[name] + self.apart[name]

    def scores(self, drawn: Any, inputs: dict[str, Tensor]) -> Tensor:
        relation = torch.from_numpy(drawn.asked.relation)
        condition = torch.from_numpy(drawn.asked.condition)
        of_features = self["features"][condition, relation][..., None]
        additive = (inputs["features"] @ of_features).squeeze(-1)
        of_types = self["types"][condition, relation]
        additive = additive + of_types[:, inputs["kind"]]
        question = inputs["question"]
        place = self["place"][relation]
        boost = self["boost"][relation].expm1()
        score = place[question, 0] + place[question, 1] * inputs["is_call"]
        score = score + place[question, 2 + inputs["previous"]]
        factor = 1 + boost[question, 0] * inputs["owner"]
        factor = factor + boost[question, 1] * inputs["sibling"]
        code = question * additive.shape[1] + inputs["column"]
        weight = score.clamp(max=_MOST).exp() * factor
        total = torch.zeros(additive.numel()).index_add(0, code, weight)
        return additive + torch.log1p(total.clamp(min=0)).view_as(additive)


@torch.inference_mode(False)  # which an evaluation has switched on
@torch.enable_grad()
def fit(collator: Any, steps: int, seed: int = 0) -> Weights:
    """Returns the weights after `steps` of Adam on a softmax over sampled candidates: the same ones in every run."""
    model = _Combination(collator.corpus)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    order = permutation(mix(seed), 0, len(collator.samples))
    losses = []
    for step in range(steps):
        places = (step * _SAMPLES + np.arange(_SAMPLES)) % len(order)
        generator = torch.Generator().manual_seed(mix(seed, step))
        loss = _loss(model, collator, collator.draw(order[places].tolist(), generator))
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = _RATE * cosine
        losses.append(loss.item())
        optimizer.zero_grad()
        squares = [value.square().sum() for value in model.apart.values()]
        (loss + _SHRINKAGE * torch.stack(squares).sum()).backward()
        optimizer.step()
    print(
        "The weights of the counts are fitted to training files: "
        f"loss {losses[0]:.3f} first, {losses[-1]:.3f} last."
    )
    return Weights(**{name: model[name].detach().numpy() for name in model.shared})


def _loss(model: _Combination, collator: Any, drawn: Any) -> Tensor:
    """Returns the cross-entropy of the golds, corrected for the chances of the candidates to be drawn."""
    scores = model.scores(drawn, _inputs(collator, drawn))
    gold = torch.from_numpy(drawn.gold)
    is_gold = F.one_hot(gold, scores.shape[1]).bool()
    excluded = torch.zeros_like(is_gold)
    excluded[drawn.excluded] = True
    chance = torch.from_numpy(drawn.chance.astype(np.float32))
    corrected = scores - chance.masked_fill(is_gold, 0)
    return F.cross_entropy(corrected.masked_fill(excluded, IMPOSSIBLE), gold)


def _inputs(collator: Any, drawn: Any) -> dict[str, Tensor]:
    asked = drawn.asked
    among = drawn.among
    rows = drawn.rows
    corpus = collator.corpus
    scorer = collator.scorer
    is_shown = (asked.condition == FULL_TEXT)[:, None]
    question, root = np.nonzero((rows.word[drawn.row] >= 0) & is_shown)
    pair, column = among.by_name.places(rows.word[drawn.row[question], root])
    question = question[pair]
    entity = among.entities[column]
    at = drawn.row[question], root[pair]
    is_owned = rows.owner[at] == corpus.owner[entity]
    of_class = scorer.siblings(asked, question, entity) & (rows.is_self[at] == 1)
    is_call = rows.is_call[at] == 1
    arrays = {"features": scorer.counts.found(asked, among).stacked()}
    arrays["kind"] = corpus.entity_type[among.entities].astype(np.int64)
    arrays["question"] = question
    arrays["column"] = column
    arrays["is_call"] = is_call.astype(np.float32)
    arrays["previous"] = np.maximum(rows.previous[at], 0)
    arrays["owner"] = is_owned.astype(np.float32)
    arrays["sibling"] = of_class.astype(np.float32)
    return {name: torch.from_numpy(value) for name, value in arrays.items()}
