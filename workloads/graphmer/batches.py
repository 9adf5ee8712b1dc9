"""Leafy chain graphs as tensors: training samples with names hidden afresh, and the questions of an evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lib.task import Batch
from lib.training.order import mix, permutation
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import FULL_TEXT, MASKED, NAME_ONLY, CandidateSet, Questions
from workloads.graphmer.counts.ragged import Groups, expand
from workloads.graphmer.counts.rows import Rows
from workloads.graphmer.counts.scoring import NOWHERE, Sampler
from workloads.graphmer.model import IMPOSSIBLE, PARTS
from workloads.graphmer.settings import CONDITIONS, IGNORE, LONGEST_WORD, MASK, PAD, SPECIALS, Array

_LONGEST_SPAN = 7  # tokens that are masked together
_HIDDEN = 0.4  # the chance of each fact's name to be hidden where some are; one always is
_FILES = 3  # that have a tail, before it has a vector of its own: below that it would be learned by heart


class Samples:
    """The training set: windows of text with their facts, and behind them heads without text with all of theirs.

    A head has its facts in one of the two alone: seen with the text, they would be known by heart without it. The
    triples of each item stand in `facts` between two of `begin`; `lengths` are about as many root tokens as it has.
    """

    def __init__(self, corpus: Corpus, structural: Array, name_only_ratio: float):
        triples = corpus.triples_of("train")
        triples = triples[~structural[corpus.relation[triples]]]
        head = corpus.head[corpus.window_of[triples]]
        heads = np.unique(head)
        heads = _sample(heads, round(name_only_ratio * len(heads)))
        self.windows = np.unique(corpus.window_of[triples][~np.isin(head, heads)])
        of_windows, places = Groups(corpus.window_of[triples]).places(self.windows)
        of_heads, others = Groups(head).places(heads)
        self.facts = np.concatenate([triples[places], triples[others]])
        sizes = [
            np.bincount(of_windows, minlength=len(self.windows)),
            np.bincount(of_heads, minlength=len(heads)),
        ]
        self.begin = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
        self.groups = [
            corpus.files[file]
            for file in corpus.window_file[corpus.window_of[self.facts[self.begin[:-1]]]]
        ]
        text = np.concatenate([[0], np.cumsum(corpus.sizes[corpus.text])])
        size = text[corpus.window_stop[self.windows]] - text[corpus.window_start[self.windows]]
        self.lengths = np.concatenate([size, np.zeros(len(heads), np.int64)])

    def __len__(self) -> int:
        return len(self.begin) - 1

    def __getitem__(self, index: int) -> int:
        return index


def queries(corpus: Corpus, split: str, structural: Array, most: int) -> list[tuple[int, int]]:
    """Returns up to `most` triples of a split (0: all), the same in every run, under every condition.

    They are (triple, condition), sorted by condition, relation and length of the text: those of a batch are alike.
    """
    triples = corpus.triples_of(split)
    triples = triples[~structural[corpus.relation[triples]]]
    triples = _sample(triples, most or len(triples))
    length = (corpus.window_stop - corpus.window_start)[corpus.window_of[triples]]
    ordered = triples[np.lexsort((length, corpus.relation[triples]))]
    return [(int(triple), condition) for condition in range(len(CONDITIONS)) for triple in ordered]


def _sample(values: Array, most: int) -> Array:
    """(N) values -> at most `most` of them in ascending order, drawn by a seed that depends on N alone."""
    return np.sort(values[permutation(mix(len(values)), 0, len(values))[:most]])


class EntityTable:
    """The compositions of all entities. `own_vectors` entities at most have a vector of their own."""

    def __init__(self, corpus: Corpus, own_vectors: int):
        self.corpus = corpus
        words = (corpus.name, corpus.owner, corpus.package)
        self.pieces = np.concatenate(
            [self._cut(w, most) for w, (_, most) in zip(words, PARTS, strict=True)], 1
        )
        train = corpus.triples_of("train")
        pairs = np.unique(
            np.stack([corpus.tail[train], corpus.window_file[corpus.window_of[train]]], 1), axis=0
        )
        files = np.bincount(pairs[:, 0], minlength=len(corpus.entity_type))
        frequent = np.argsort(-files, kind="stable")[:own_vectors]
        frequent = frequent[files[frequent] >= _FILES]
        self.vector = np.zeros(len(files), np.int64)  # 0: none
        self.vector[frequent] = 1 + np.arange(len(frequent))

    def of(self, entities: Array) -> dict[str, Tensor]:
        """(C) entities -> pieces (C, 13), and kind, vector, name, name_owner (C)."""
        corpus = self.corpus
        arrays = {
            "pieces": self.pieces, "kind": corpus.entity_type, "vector": self.vector, "name": corpus.name,
            "name_owner": corpus.owner,
        }  # fmt: skip
        return {
            name: torch.from_numpy(values[entities].astype(np.int64))
            for name, values in arrays.items()
        }

    def _cut(self, words: Array, most: int) -> Array:
        """(E) words, or -1 -> (E, most) their pieces, cut and padded."""
        begin = self.corpus.piece_offsets[np.maximum(words, 0)]
        length = np.where(words >= 0, np.minimum(self.corpus.sizes[np.maximum(words, 0)], most), 0)
        row, at = expand(begin, length)
        table = np.full((len(words), most), PAD, np.int64)
        table[row, at - begin[row]] = self.corpus.piece_flat[at]
        return table


@dataclass(frozen=True)
class Drawn:
    """A training batch before it is made tensors of: Q questions in B rows, and the candidates that compete.

    `row` and `slot` (Q) say where a question stands, `gold` (Q) is its tail's place among the candidates, `chance` (C)
    the logarithm of each candidate's chance to be there, `excluded` the questions and candidates that are true as well.
    """

    asked: Questions
    tail: Array
    row: Array
    slot: Array
    rows: Rows
    among: CandidateSet
    gold: Array
    chance: Array
    excluded: tuple[Array, Array]


class Collator:
    """Makes batches of tensors from samples and queries.

    A training batch has B rows of L roots and G facts, and C candidates that all rows share:
    roots, within (B, L): pieces and the place of each in its word, `LONGEST_WORD` - 1 at most.
    relation, condition, gold (B, G): gold is the tail's place among the candidates, IGNORE where there is no fact.
    distance (B, G, L): steps from a fact's leaf to each root, 1 where it hangs on one.
    prior (B, G, C): the counts' score without the pointer's part, and features (B, G, C, FEATURES), of which it is the
    sum. own (B, G, C): how many facts of the own file have that tail, this one too.
    places (B, G, L): the counts' score of each root as a place of the tail's name.
    near (B, C, NEAR + 1): what each candidate is to the head, and whether other files of training have it.
    boost (B, G), sibling (B, G, C): what `owner.` and `self.` before a place add, see `Scorer`.
    word, owner, is_self (B, L); name, name_owner, kind, vector, chance (B, C); pieces (B, C, N): of the candidates.
    """

    def __init__(self, data: Any):
        self.corpus = data.corpus
        self.scorer = data.scorer
        self.layout = data.layout
        self.table = data.table
        self.samples = data.samples
        self.objective = data.settings.objective
        self.chain = data.settings.chain
        self.sampler = Sampler(
            self.scorer, np.flatnonzero(~data.structural), self.objective.candidates
        )

    def draw(self, items: Sequence[int], generator: torch.Generator) -> Drawn:
        """Draws facts, what is hidden, and the candidates of a training batch from `generator`."""
        corpus = self.corpus
        samples = self.samples
        index = np.asarray(items)

        def uniform(*shape: int) -> Array:
            return torch.rand(shape, generator=generator).numpy()

        # A few facts of each sample
        begin, end = samples.begin[index], samples.begin[index + 1]
        row, at = expand(begin, end - begin)
        order = np.lexsort((uniform(len(row)), row))
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        few = slot < self.chain.facts
        row = row[few]
        triple = samples.facts[at[order[few]]]
        slot = slot[few]
        # In a share of the texts some names are hidden, and with each all facts of that name
        with_text = index < len(samples.windows)
        tail = corpus.tail[triple]
        hides = with_text & (uniform(len(index)) < self.objective.masked_ratio)
        picked = hides[row] & ((uniform(len(row)) < _HIDDEN) | (slot == 0))
        code = row * len(corpus.word_list) + corpus.name[tail]
        condition = np.where(np.isin(code, code[picked]), MASKED, FULL_TEXT)
        asked = Questions.of_facts(corpus, triple, np.where(with_text[row], condition, NAME_ONLY))
        # Parts of the heads' paths are left out, so that files are not known by theirs
        windows = asked.window[np.searchsorted(row, np.arange(len(index)))]
        draws = uniform(2, len(index))
        parts = np.diff(corpus.part_offsets)[corpus.head[windows]]
        drop = np.where(
            draws[0] < self.objective.path_dropout, (draws[1] * parts).astype(np.int64), 0
        )
        is_hidden = asked.hidden >= 0
        rows = self.layout.rows(windows, with_text, row[is_hidden], asked.hidden[is_hidden], drop)
        shown = rows.word[rows.word >= 0]
        files = corpus.window_file[windows]
        among, chance = self.sampler.draw(tail, shown, files, uniform(len(corpus.entity_type)))
        excluded = self.scorer.other_tails(asked, tail, among)
        return Drawn(
            asked,
            tail,
            row,
            slot,
            rows,
            among,
            among.place[tail].astype(np.int64),
            chance,
            excluded,
        )

    def training(self, items: Sequence[int], generator: torch.Generator) -> Batch:
        """Returns a training batch of B samples, with everything random drawn from `generator`."""
        drawn = self.draw(items, generator)
        size = len(items)
        counts = self.scorer.counts
        asked = drawn.asked
        among = drawn.among
        rows = drawn.rows
        row = drawn.row
        features = counts.found(asked, among)
        prior = self.scorer.prior(asked, among, features)
        prior[drawn.excluded] = IMPOSSIBLE
        sibling = self.scorer.siblings(asked, np.arange(len(asked))[:, None], among.entities[None])
        boost = self.scorer.boosts(asked).astype(np.float32)
        shape = (size, int(drawn.slot.max()) + 1)

        def laid(values: Array, otherwise: float = 0) -> Array:
            array = np.full((*shape, *values.shape[1:]), otherwise, values.dtype)
            array[row, drawn.slot] = values
            return array

        arrays = {
            **_of_rows(rows), "relation": laid(asked.relation), "condition": laid(asked.condition.astype(np.int64)),
            "gold": laid(drawn.gold, IGNORE), "distance": laid(rows.distance(row, asked.hidden), 1),
            "prior": laid(prior), "features": laid(features.stacked()),
            "own": laid(counts.own_count(asked, among)),
            "places": laid(self.scorer.places(asked, rows, row), NOWHERE),
            "near": self.scorer.near(asked[np.searchsorted(row, np.arange(size))], among),
            "boost": laid(boost[:, 0]), "sibling": laid(sibling * boost[:, 1:]),
        }  # fmt: skip
        if self.objective.mlm_steps:
            arrays |= self._masked_spans(arrays["roots"], generator)
        shared = {
            **self.table.of(among.entities),
            "chance": torch.from_numpy(drawn.chance.astype(np.float32)),
        }
        of_all = {name: value[None].expand(size, *value.shape) for name, value in shared.items()}
        return {**{name: torch.from_numpy(value) for name, value in arrays.items()}, **of_all}

    def of_questions(self, asked: Questions) -> tuple[Batch, Rows]:
        """Returns what the encoder reads of questions, each in a row of its own, and the rows."""
        row = np.arange(len(asked))
        is_hidden = asked.hidden >= 0
        rows = self.layout.rows(
            asked.window, asked.condition != NAME_ONLY, row[is_hidden], asked.hidden[is_hidden]
        )
        arrays = {
            **_of_rows(rows), "relation": asked.relation[:, None],
            "condition": asked.condition.astype(np.int64)[:, None],
            "distance": rows.distance(row, asked.hidden)[:, None],
        }  # fmt: skip
        return {name: torch.from_numpy(value) for name, value in arrays.items()}, rows

    def _masked_spans(self, roots: Array, generator: torch.Generator) -> dict[str, Array]:
        """Masks spans of geometric length, p = 0.2 (SpanBERT, arXiv 1907.10529): 80 % MASK, 10 % random, 10 % as is."""
        masked = roots.copy()
        targets = np.full_like(roots, IGNORE)
        first = len(SPECIALS)
        for ids, target in zip(masked, targets, strict=True):
            length = int((ids != PAD).sum())
            budget = round(self.objective.mlm_ratio * length)
            while budget > 0:
                draws = torch.rand(3, generator=generator)
                span = min(
                    _LONGEST_SPAN, budget, 1 + int(np.log(max(float(draws[0]), 1e-9)) / np.log(0.8))
                )
                start = int(float(draws[1]) * max(1, length - span + 1))
                places = np.arange(start, min(start + span, length))
                budget -= span
                places = places[(ids[places] >= first) & (target[places] == IGNORE)]
                target[places] = ids[places]
                if draws[2] < 0.8:
                    ids[places] = MASK
                elif draws[2] < 0.9:
                    pieces = torch.randint(
                        first, self.chain.vocabulary, (len(places),), generator=generator
                    )
                    ids[places] = pieces.numpy()
        return {"masked_roots": masked, "root_targets": targets}


def _of_rows(rows: Rows) -> dict[str, Array]:
    within = np.minimum(rows.within, LONGEST_WORD - 1)
    return {
        "roots": rows.ids,
        "within": within,
        "word": rows.word,
        "owner": rows.owner,
        "is_self": rows.is_self,
    }
