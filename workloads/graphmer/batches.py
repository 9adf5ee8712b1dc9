"""Leafy chain graphs as tensors: training samples with newly hidden names, and the questions of an evaluation."""

from collections.abc import Callable, Sequence
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
_FILES = 3  # with a tail, before it gets a vector: in fewer files it would be learned by heart


class Samples:
    """The training set: windows of text with their facts, and behind them heads without text with all of theirs.

    A head has its facts in one of the two alone: seen with the text, they would be known by heart without it. The
    triples of each item stand in `facts` between two of `begin`; `lengths` are the approximate root tokens of items.
    """

    def __init__(self, corpus: Corpus, structural: Array, name_only_ratio: float):
        triples = corpus.triples_of("train")
        triples = triples[~structural[corpus.relation[triples]]]
        window = corpus.window_of[triples]
        head = corpus.head[window]
        all_heads = np.unique(head)
        heads = _sample(all_heads, round(name_only_ratio * len(all_heads)))
        is_name_only = np.isin(head, heads)
        self.windows = np.unique(window[~is_name_only])
        window_item, window_place = Groups(window).places(self.windows)
        head_item, head_place = Groups(head).places(heads)
        self.facts = np.concatenate([triples[window_place], triples[head_place]])
        of_windows = np.bincount(window_item, minlength=len(self.windows))
        of_heads = np.bincount(head_item, minlength=len(heads))
        self.begin = _starts(np.concatenate([of_windows, of_heads])).astype(np.int64)
        first_window = corpus.window_of[self.facts[self.begin[:-1]]]
        self.groups = [corpus.files[file] for file in corpus.window_file[first_window]]
        pieces = _starts(corpus.sizes[corpus.text])
        first = pieces[corpus.window_start[self.windows]]
        size = pieces[corpus.window_stop[self.windows]] - first
        no_text = np.zeros(len(heads), np.int64)
        self.lengths = np.concatenate([size, no_text])

    def __len__(self) -> int:
        return len(self.begin) - 1

    def __getitem__(self, index: int) -> int:
        return index


def _starts(sizes: Array) -> Array:
    """(N) sizes of rows -> (N + 1) where each row begins in a flat array, and the end."""
    return np.concatenate([[0], np.cumsum(sizes)])


def queries(corpus: Corpus, split: str, structural: Array, most: int) -> list[tuple[int, int]]:
    """Returns up to `most` triples of a split (0: all), the same in every run, under every condition.

    They are (triple, condition), sorted by condition, relation and length of the text, for batches of similar ones.
    """
    triples = corpus.triples_of(split)
    triples = triples[~structural[corpus.relation[triples]]]
    triples = _sample(triples, most or len(triples))
    length = corpus.window_stop - corpus.window_start
    length = length[corpus.window_of[triples]]
    order = np.lexsort((length, corpus.relation[triples]))
    ordered = triples[order].tolist()
    return [(triple, condition) for condition in range(len(CONDITIONS)) for triple in ordered]


def _sample(values: Array, most: int) -> Array:
    """(N) values -> at most `most` of them in ascending order, drawn by a seed that depends on N alone."""
    count = len(values)
    order = permutation(mix(count), 0, count)
    return np.sort(values[order[:most]])


class EntityTable:
    """The compositions of all entities. At most `own_vectors` entities have a vector."""

    def __init__(self, corpus: Corpus, own_vectors: int):
        self.corpus = corpus
        words = (corpus.name, corpus.owner, corpus.package)
        limits = [most for _, most in PARTS]
        self.pieces = np.concatenate(list(map(self._cut, words, limits)), 1)
        train = corpus.triples_of("train")
        file = corpus.window_file[corpus.window_of[train]]
        pairs = np.stack([corpus.tail[train], file], 1)
        pairs = np.unique(pairs, axis=0)
        files = np.bincount(pairs[:, 0], minlength=len(corpus.entity_type))
        frequent = np.argsort(-files, kind="stable")[:own_vectors]
        frequent = frequent[files[frequent] >= _FILES]
        self.vector = np.zeros(len(files), np.int64)  # 0: none
        self.vector[frequent] = 1 + np.arange(len(frequent))

    def of(self, entities: Array) -> dict[str, Tensor]:
        """(C) entities -> pieces (C, 13), and kind, vector, name, name_owner (C)."""

        def rows(values: Array) -> Tensor:
            return torch.from_numpy(values[entities].astype(np.int64))

        corpus = self.corpus
        pieces = rows(self.pieces)
        kind = rows(corpus.entity_type)
        vector = rows(self.vector)
        name = rows(corpus.name)
        owner = rows(corpus.owner)
        return {"pieces": pieces, "kind": kind, "vector": vector, "name": name, "name_owner": owner}

    def _cut(self, words: Array, most: int) -> Array:
        """(E) words, or -1 -> (E, most) their pieces, cut and padded."""
        word = np.maximum(words, 0)
        begin = self.corpus.piece_offsets[word]
        size = np.minimum(self.corpus.sizes[word], most)
        row, at = expand(begin, np.where(words >= 0, size, 0))
        table = np.full((len(words), most), PAD, np.int64)
        place = at - begin[row]
        table[row, place] = self.corpus.piece_flat[at]
        return table


@dataclass(frozen=True)
class Drawn:
    """A training batch before it becomes tensors: Q questions in B rows, and the candidates that compete.

    `row` and `slot` (Q) are the places of questions, `gold` (Q) is the tail's place among the candidates, `chance` (C)
    the logarithm of each candidate's chance to be drawn, `excluded` the pairs of a question and a candidate that is
    true as well.
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
        relations = np.flatnonzero(~data.structural)
        self.sampler = Sampler(self.scorer, relations, self.objective.candidates)

    def draw(self, items: Sequence[int], generator: torch.Generator) -> Drawn:
        """Draws facts, hidden names, and the candidates of a training batch from `generator`."""
        corpus = self.corpus
        index = np.asarray(items)

        def uniform(*shape: int) -> Array:
            return torch.rand(shape, generator=generator).numpy()

        row, slot, triple = self._facts(index, uniform)
        # In a share of the texts some names are hidden, and with each all facts of that name
        with_text = index < len(self.samples.windows)
        tail = corpus.tail[triple]
        hides = with_text & (uniform(len(index)) < self.objective.masked_ratio)
        is_drawn = (uniform(len(row)) < _HIDDEN) | (slot == 0)
        is_hidden_fact = hides[row] & is_drawn
        code = row * len(corpus.word_list) + corpus.name[tail]
        is_masked = np.isin(code, code[is_hidden_fact])
        condition = np.where(is_masked, MASKED, FULL_TEXT)
        condition = np.where(with_text[row], condition, NAME_ONLY)
        asked = Questions.of_facts(corpus, triple, condition)
        windows = asked.window[np.searchsorted(row, np.arange(len(index)))]
        drop = self._dropped_parts(windows, uniform)
        is_hidden = asked.hidden >= 0
        hidden = asked.hidden[is_hidden]
        rows = self.layout.rows(windows, with_text, row[is_hidden], hidden, drop)
        shown = rows.word[rows.word >= 0]
        files = corpus.window_file[windows]
        draws = uniform(len(corpus.entity_type))
        among, chance = self.sampler.draw(tail, shown, files, draws)
        gold = among.place[tail].astype(np.int64)
        excluded = self.scorer.other_tails(asked, tail, among)
        return Drawn(asked, tail, row, slot, rows, among, gold, chance, excluded)

    def _facts(self, index: Array, uniform: Callable[..., Array]) -> tuple[Array, Array, Array]:
        """(B) samples -> rows, slots and triples (Q) of a few facts of each sample."""
        begin = self.samples.begin[index]
        end = self.samples.begin[index + 1]
        row, at = expand(begin, end - begin)
        order = np.lexsort((uniform(len(row)), row))
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        few = slot < self.chain.facts
        triple = self.samples.facts[at[order[few]]]
        return row[few], slot[few], triple

    def _dropped_parts(self, windows: Array, uniform: Callable[..., Array]) -> Array:
        """Returns (B) the parts of the heads' paths to leave out, so that files are not known by theirs."""
        draws = uniform(2, len(windows))
        head = self.corpus.head[windows]
        parts = np.diff(self.corpus.part_offsets)[head]
        count = (draws[1] * parts).astype(np.int64)
        return np.where(draws[0] < self.objective.path_dropout, count, 0)

    def training(self, items: Sequence[int], generator: torch.Generator) -> Batch:
        """Returns a training batch of B samples, with everything random drawn from `generator`."""
        drawn = self.draw(items, generator)
        size = len(items)
        rows = drawn.rows
        row = drawn.row
        shape = (size, int(drawn.slot.max()) + 1)

        def laid(values: Array, otherwise: float = 0) -> Array:
            whole = (*shape, *values.shape[1:])
            array = np.full(whole, otherwise, values.dtype)
            array[row, drawn.slot] = values
            return array

        arrays = _of_rows(rows)
        arrays["relation"] = laid(drawn.asked.relation)
        arrays["condition"] = laid(drawn.asked.condition.astype(np.int64))
        arrays["gold"] = laid(drawn.gold, IGNORE)
        arrays["distance"] = laid(rows.distance(row, drawn.asked.hidden), 1)
        for name, values in self._counted(drawn).items():
            arrays[name] = laid(values)
        arrays["places"] = laid(self.scorer.places(drawn.asked, rows, row), NOWHERE)
        first = np.searchsorted(row, np.arange(size))
        arrays["near"] = self.scorer.near(drawn.asked[first], drawn.among)
        if self.objective.mlm_steps:
            arrays |= self._masked_spans(arrays["roots"], generator)
        batch = {name: torch.from_numpy(values) for name, values in arrays.items()}
        shared = self.table.of(drawn.among.entities)
        shared["chance"] = torch.from_numpy(drawn.chance.astype(np.float32))
        for name, value in shared.items():
            batch[name] = value[None].expand(size, *value.shape)
        return batch

    def _counted(self, drawn: Drawn) -> dict[str, Array]:
        """Returns the tensors (Q, ...) that the counts have of questions and candidates."""
        asked = drawn.asked
        among = drawn.among
        counts = self.scorer.counts
        features = counts.found(asked, among)
        prior = self.scorer.prior(asked, among, features)
        prior[drawn.excluded] = IMPOSSIBLE
        question = np.arange(len(asked))[:, None]
        sibling = self.scorer.siblings(asked, question, among.entities[None])
        boost = self.scorer.boosts(asked).astype(np.float32)
        arrays = {"prior": prior, "features": features.stacked()}
        arrays["own"] = counts.own_count(asked, among)
        arrays["boost"] = boost[:, 0]
        arrays["sibling"] = sibling * boost[:, 1:]
        return arrays

    def of_questions(self, asked: Questions) -> tuple[Batch, Rows]:
        """Returns the encoder's inputs for questions, one a row, and the rows."""
        row = np.arange(len(asked))
        has_text = asked.condition != NAME_ONLY
        is_hidden = asked.hidden >= 0
        hidden = asked.hidden[is_hidden]
        rows = self.layout.rows(asked.window, has_text, row[is_hidden], hidden)
        arrays = _of_rows(rows)
        arrays["relation"] = asked.relation[:, None]
        arrays["condition"] = asked.condition.astype(np.int64)[:, None]
        arrays["distance"] = rows.distance(row, asked.hidden)[:, None]
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
                draw, place, _ = draws.tolist()
                geometric = int(np.log(max(draw, 1e-9)) / np.log(0.8))
                span = min(_LONGEST_SPAN, budget, 1 + geometric)
                start = int(place * max(1, length - span + 1))
                places = np.arange(start, min(start + span, length))
                budget -= span
                is_free = (ids[places] >= first) & (target[places] == IGNORE)
                places = places[is_free]
                target[places] = ids[places]
                if draws[2] < 0.8:
                    ids[places] = MASK
                elif draws[2] < 0.9:
                    shape = (len(places),)
                    pieces = torch.randint(first, self.chain.vocabulary, shape, generator=generator)
                    ids[places] = pieces.numpy()
        return {"masked_roots": masked, "root_targets": targets}


def _of_rows(rows: Rows) -> dict[str, Array]:
    arrays = {"roots": rows.ids, "within": np.minimum(rows.within, LONGEST_WORD - 1)}
    for name in ("word", "owner", "is_self"):
        arrays[name] = getattr(rows, name)
    return arrays
