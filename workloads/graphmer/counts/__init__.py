"""Features of a fact by counting similar training facts outside its own file.

Every number comes from training files alone. A training fact is asked as if its file were not there, so that the
weights are fitted on what a new file looks like: a tail that only this file has counts as unseen.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts.ragged import Groups, Table, expand
from workloads.graphmer.settings import CONDITIONS, FEATURES, Array

FULL_TEXT, MASKED, NAME_ONLY = range(len(CONDITIONS))
REACH = 3  # words on each side of a hidden name
_LONGEST = 5000  # tails of a key; a word with more of them says little
_SUB_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
# How many facts the tail's own frequency weighs as in each lift, chosen on validation of the standard library
_WEIGHT_OF_FREQUENCY = {
    "head's name": 5.0, "words of the head's name": 10.0, "parent's name": 10.0, "package": 20.0, "folder": 20.0,
    "context": 10.0,
}  # fmt: skip
Sparse = tuple[Array, Array, Array]  # (N) questions, candidates and values


@dataclass(frozen=True)
class Questions:
    """Facts whose tail is asked for: Q windows (each of one head), relations, conditions and hidden words, or -1."""

    window: Array
    relation: Array
    condition: Array
    hidden: Array

    def __len__(self) -> int:
        return len(self.window)

    def __getitem__(self, chosen: Array) -> "Questions":
        values = [value[chosen] for value in vars(self).values()]
        return Questions(*values)

    @classmethod
    def of_facts(cls, corpus: Corpus, triple: Array, condition: Array) -> "Questions":
        """Returns the questions for the tails of known triples; in `masked` the name of the tail is hidden."""
        name = corpus.name[corpus.tail[triple]]
        hidden = np.where(condition == MASKED, name, -1)
        return cls(corpus.window_of[triple], corpus.relation[triple], condition, hidden)


class CandidateSet:
    """Entities that compete, ascending: `entities` (C), and `place` (E) of each entity among them, or -1."""

    def __init__(self, corpus: Corpus, entities: Array):
        self.corpus = corpus
        self.entities = entities
        self.place = np.full(len(corpus.entity_type), -1, np.int32)
        self.place[entities] = np.arange(len(entities))

    def __len__(self) -> int:
        return len(self.entities)

    @cached_property
    def by_name(self) -> Groups:
        return Groups(self.corpus.name[self.entities])

    @cached_property
    def by_owner(self) -> Groups:
        return Groups(self.corpus.owner[self.entities])

    def inside(self, entity: Array, *values: Array) -> tuple[Array, ...]:
        """(N) entities -> (M) the places of those that compete, and their (N) values."""
        place = self.place[entity]
        competes = place >= 0
        return place[competes], *(value[competes] for value in values)


@dataclass(frozen=True)
class Found:
    """Features of questions and candidates by name: dense features (Q, C), and sparse ones."""

    dense: Mapping[str, Array]
    sparse: Mapping[str, Sparse]

    def stacked(self) -> Array:
        """Returns (Q, C, FEATURES)."""
        shape = next(iter(self.dense.values())).shape
        size = shape[0] * shape[1]
        stacked = np.zeros((*shape, len(FEATURES)), np.float32)
        for name, value in self.dense.items():
            stacked[:, :, FEATURES.index(name)] = value
        for name, (row, column, value) in self.sparse.items():
            summed = np.bincount(row * shape[1] + column, value, size)
            stacked[:, :, FEATURES.index(name)] = summed.reshape(shape)
        return stacked


class Counts:
    """The tables of counts, and the features of questions and candidates that they give."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        self.train = corpus.triples_of("train")
        tail = corpus.tail[self.train]
        relation = corpus.relation[self.train]
        entities = len(corpus.entities)
        self.file = corpus.window_file.astype(np.int64)
        self.of_tail = np.zeros((len(corpus.relations), entities), np.float32)
        np.add.at(self.of_tail, (relation, tail), 1)
        self.total = self.of_tail.sum(1)
        file = self.file[corpus.window_of[self.train]]
        self.own = Table(relation * len(corpus.files) + file, tail, entities)
        self.of_file = Table(file, tail, entities)

    @cached_property
    def tables(self) -> dict[str, tuple[Table, Table]]:
        """The tails of each lift's keys, and of these keys in each file, so that the number without one is exact."""
        return {lift: self._tables_of(lift) for lift in _WEIGHT_OF_FREQUENCY}

    def _tables_of(self, lift: str) -> tuple[Table, Table]:
        corpus = self.corpus
        condition = np.full(len(self.train), MASKED if lift == "context" else NAME_ONLY)
        asked = Questions.of_facts(corpus, self.train, condition)
        fact, key, _ = self.keys(lift, asked)
        triple = self.train[fact]
        tail = corpus.tail[triple]
        file = self.file[corpus.window_of[triple]]
        in_file = key * len(corpus.files) + file
        entities = len(corpus.entities)
        return Table(key, tail, entities), Table(in_file, tail, entities)

    def keys(self, lift: str, asked: Questions) -> tuple[Array, Array, Array]:
        """Returns (P) questions with a key of the lift, the keys, and the weights with which several add up."""
        if lift == "context":
            return self._contexts(asked)
        if lift == "words of the head's name":
            return self._words_of_heads(asked)
        corpus = self.corpus
        if lift == "folder":
            value = corpus.folder[self.file[asked.window]]
            size = len(corpus.files)
        else:
            names = {"head's name": corpus.name, "parent's name": corpus.owner}
            names["package"] = corpus.package
            value = names[lift][corpus.head[asked.window]]
            size = len(corpus.word_list)
            # a hidden name is hidden in the head's id too
            value = np.where(value == asked.hidden, -1, value)
        row = np.flatnonzero(value >= 0)
        key = asked.relation[row] * size + value[row]
        return row, key, np.ones(len(row), np.float32)

    def _words_of_heads(self, asked: Questions) -> tuple[Array, Array, Array]:
        row, sub_token = self.head_words(asked)
        key = asked.relation[row] * (self._sub_tokens[2] + 1) + sub_token
        number = np.bincount(row, minlength=len(asked))
        return row, key, 1 / number[row].astype(np.float32)

    def _contexts(self, asked: Questions) -> tuple[Array, Array, Array]:
        """The words within REACH of the places of a hidden name, each once for its offset."""
        question, place, first, last = self.hidden_places(asked)
        words = len(self.corpus.word_list)
        keys = (2 * REACH + 1) * words  # a word at each offset, for one relation
        every = len(self.corpus.relations) * keys
        parts = []
        for offset in (*range(-REACH, 0), *range(1, REACH + 1)):
            there = place + offset
            inside = (there >= first) & (there < last)
            row = question[inside]
            word = self.corpus.text[there[inside]]
            is_shown = word != asked.hidden[row]
            row = row[is_shown]
            key = asked.relation[row] * keys + (offset + REACH) * words
            parts.append(row * every + key + word[is_shown])
        row, key = np.divmod(np.unique(np.concatenate(parts)), every)
        return row, key, np.ones(len(row), np.float32)

    def hidden_places(self, asked: Questions) -> tuple[Array, Array, Array, Array]:
        """Returns (N) questions whose text contains the hidden word, its places, and the bounds of the text."""
        masked = np.flatnonzero(asked.hidden >= 0)
        window = asked.window[masked]
        first = self.corpus.window_start[window]
        last = self.corpus.window_stop[window]
        row, place = expand(first, last - first)
        hit = self.corpus.text[place] == asked.hidden[masked[row]]
        row = row[hit]
        return masked[row], place[hit], first[row], last[row]

    @cached_property
    def _sub_tokens(self) -> tuple[Array, Array, int]:
        """(words + 1) where the sub-tokens of each name begin, these (N), and how many different ones there are."""
        numbers: dict[str, int] = {}
        begin = [0]
        flat = []
        words = self.corpus.word_list
        is_name = np.isin(np.arange(len(words)), self.corpus.name)
        for word, wanted in zip(words, is_name.tolist(), strict=True):
            if wanted:
                parts = {part.lower() for part in _SUB_TOKEN.findall(word)}
                flat += [numbers.setdefault(part, len(numbers)) for part in sorted(parts)]
            begin.append(len(flat))
        return np.array(begin, np.int64), np.array(flat, np.int64), len(numbers)

    def _of_words(self, word: Array) -> tuple[Array, Array]:
        """(N) words -> (M) the index of each, and a sub-token of it."""
        begin, flat, _ = self._sub_tokens
        first = begin[word]
        row, at = expand(first, begin[word + 1] - first)
        return row, flat[at]

    def head_words(self, asked: Questions) -> tuple[Array, Array]:
        """Returns (P) questions and a sub-token of their head's name, unless this is hidden."""
        name = self.corpus.name[self.corpus.head[asked.window]]
        shown = np.flatnonzero(name != asked.hidden)
        row, sub_token = self._of_words(name[shown])
        return shown[row], sub_token

    @cached_property
    def _by_sub_token(self) -> tuple[Groups, Array, Array]:
        """The places of each sub-token in the names of entities: the entity, and the share of its name."""
        names = self.corpus.name
        entity, sub_token = self._of_words(names)
        frequency = np.bincount(sub_token, minlength=self._sub_tokens[2])
        share = len(names) / np.maximum(frequency, 1)
        information = np.log(share)[sub_token]
        whole = np.bincount(entity, information, len(names))
        share = information / np.maximum(whole[entity], 1e-6)
        return Groups(sub_token), entity, share.astype(np.float32)

    def found(self, asked: Questions, among: CandidateSet) -> Found:
        """Returns all features, without the facts of each question's own file."""
        names = self.corpus.name
        own = self.own_count(asked, among)
        count = self.of_tail[np.ix_(asked.relation, among.entities)] - own
        name = names[self.corpus.head[asked.window]]
        name = np.where(asked.condition == MASKED, -2, name)
        dense = {"frequency": np.log(count + np.float32(0.2)), "unseen": count <= 0}
        dense |= self.near(asked, among)
        dense["same name"] = names[among.entities][None] == name[:, None]
        sparse = {lift: self._lift(lift, asked, among, own) for lift in _WEIGHT_OF_FREQUENCY}
        sparse["words shared with the head's name"] = self._shared_words(asked, among)
        sparse |= self._before(asked, among)
        return Found(dense, sparse)

    def near(self, asked: Questions, among: CandidateSet) -> dict[str, Array]:
        """Returns the relations of candidates to the head, each (Q, C)."""
        corpus = self.corpus
        entities = among.entities
        head = corpus.head[asked.window]
        file = self.file[asked.window]
        of_file = corpus.entity_file[entities]
        parent = corpus.parent[entities][None]
        package = corpus.package[head]
        package = np.where(package == asked.hidden, -2, package)[:, None]
        in_package = corpus.package[entities][None] == package
        folder = np.where(of_file >= 0, corpus.folder[of_file], -1)
        near = {"same file": of_file[None] == file[:, None]}
        near["same parent"] = parent == corpus.parent[head][:, None]
        near["child of the head"] = parent == head[:, None]
        near["same package"] = in_package & (of_file >= 0)
        near["same folder"] = folder[None] == corpus.folder[file][:, None]
        return near

    def elsewhere(self, asked: Questions, among: CandidateSet) -> Array:
        """(Q, C) whether training has the tail outside of the question's own file, with any relation."""
        of_file = self.of_file[self.file[asked.window]]
        own = of_file[:, among.entities].toarray()
        total = self.of_tail[:, among.entities].sum(0)
        return total[None] - own > 0

    def own_count(self, asked: Questions, among: CandidateSet) -> Array:
        """(Q, C) how many facts of the question's own file have the relation and the tail, 0 outside of training."""
        return self.own[self._own_key(asked)][:, among.entities].toarray()

    def _own_key(self, asked: Questions) -> Array:
        return asked.relation * len(self.corpus.files) + self.file[asked.window]

    def _lift(self, lift: str, asked: Questions, among: CandidateSet, own: Array) -> Sparse:
        """log(1 + n N / (a (c + 0.2))): n facts of N have key and tail, c the tail; a Bayesian back-off where w = 1."""
        question, key, weight = self.keys(lift, asked)
        table, of_files = self.tables[lift]
        few = table[key].getnnz(1) <= _LONGEST
        question = question[few]
        key = key[few]
        weight = weight[few]
        file = self.file[asked.window[question]]
        in_file = key * len(self.corpus.files) + file
        others = table[key] - of_files[in_file]
        others = others[:, among.entities].tocoo()
        row = question[others.row]
        column = others.col
        relation = asked.relation[row]
        frequency = self.of_tail[relation, among.entities[column]]
        frequency = frequency - own[row, column]
        of_file = self.own[self._own_key(asked)].sum(1).A1
        total = self.total[relation] - of_file[row]
        expected = np.float32(_WEIGHT_OF_FREQUENCY[lift]) * (frequency + np.float32(0.2))
        value = np.log1p(others.data * total / expected)
        return row, column, value * weight[others.row]

    def _shared_words(self, asked: Questions, among: CandidateSet) -> Sparse:
        """The share of a candidate's name, by information, that the words of the head's name make up."""
        by_sub_token, entity, share = self._by_sub_token
        question, sub_token = self.head_words(asked)
        pair, at = by_sub_token.places(sub_token, _LONGEST)
        column, pair, at = among.inside(entity[at], pair, at)
        return question[pair], column, share[at]

    def _before(self, asked: Questions, among: CandidateSet) -> dict[str, Sparse]:
        """Whether the text before a hidden name is the candidate's `owner.`, or `self.` in its class."""
        corpus = self.corpus
        question, place, first, _ = self.hidden_places(asked)
        far = place - 2 >= first
        question = question[far]
        place = place[far]
        dotted = corpus.text[place - 1] == corpus.word_index(".")
        before = corpus.text[place[dotted] - 2]
        pairs = np.unique(np.stack([question[dotted], before], 1), axis=0)
        question, word = pairs.T
        pair, column = among.by_owner.places(word)
        owner = question[pair], column, np.ones(len(pair), np.float32)
        is_self = np.isin(word, [corpus.word_index("self"), corpus.word_index("cls")])
        after_self = np.unique(question[is_self])
        of_class = corpus.parent[corpus.head[asked.window[after_self]]]
        is_sibling = corpus.parent[among.entities][None] == of_class[:, None]
        row, column = np.nonzero(is_sibling)
        sibling = after_self[row], column, np.ones(len(row), np.float32)
        return {"owner before": owner, "self before": sibling}
