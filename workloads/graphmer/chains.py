"""Leafy chain graphs as tensors: training samples with names hidden afresh, and the questions of an evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.task import Batch
from lib.training.order import mix, permutation
from workloads.graphmer import tokens
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import FULL_TEXT, MASKED, NAME_ONLY, CandidateSet, Questions
from workloads.graphmer.entities import EntityTable
from workloads.graphmer.model import IMPOSSIBLE
from workloads.graphmer.ragged import Groups, expand
from workloads.graphmer.rows import Layout, Rows
from workloads.graphmer.scoring import NOWHERE, Sampler, Scorer
from workloads.graphmer.settings import CONDITIONS, Objective
from workloads.graphmer.tokens import IGNORE

_HIDDEN = 0.4  # the chance of each fact's name to be hidden where some are; one always is


@dataclass(frozen=True)
class Query:
    """One question of the evaluation: which tail does this triple have, under this condition?"""

    triple: int
    condition: str


class Samples:
    """The training set: windows of text with their facts, and behind them heads without text with all of theirs.

    A head has its facts in one of the two alone: seen with the text, they would be known by heart without it.
    Items are (index, begin): places in `facts`, between which a sample's triples stand. `lengths` are about as many
    root tokens as the samples have.
    """

    def __init__(self, corpus: Corpus, structural: np.ndarray, name_only_ratio: float):
        triples = corpus.triples_of("train")
        triples = triples[~structural[corpus.relation[triples]]]
        head = corpus.head[corpus.window_of[triples]]
        heads = np.unique(head)
        heads = _sample(heads, round(name_only_ratio * len(heads)))
        self.windows = np.unique(corpus.window_of[triples][~np.isin(head, heads)])
        of_windows, places = Groups(corpus.window_of[triples]).places(self.windows)
        of_heads, others = Groups(head).places(heads)
        self.facts = np.concatenate([triples[places], triples[others]])
        sizes = np.concatenate(
            [np.bincount(of_windows, minlength=len(self.windows)), np.bincount(of_heads, minlength=len(heads))]
        )
        self.begin = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        text = (
            np.concatenate([[0], np.cumsum(corpus.pieces.lengths(corpus.text))])
            if len(corpus.text)
            else np.zeros(1, int)
        )
        size = text[corpus.window_stop[self.windows]] - text[corpus.window_start[self.windows]]
        self.lengths = np.concatenate([size, np.zeros(len(heads), np.int64)])

    def __len__(self) -> int:
        return len(self.begin) - 1

    def __getitem__(self, index: int) -> int:
        return index


class Queries:
    """An evaluation set: up to `most` triples of a split (0: all), the same in every run, under every condition.

    They come sorted by condition and relation, and by the length of their text, so that those of a batch are alike.
    """

    def __init__(self, corpus: Corpus, split: str, structural: np.ndarray, most: int, most_structural: int = 0):
        self.split = split
        triples = corpus.triples_of(split)
        is_structural = structural[corpus.relation[triples]]
        others = triples[~is_structural]
        self.triples = np.concatenate(
            [_sample(others, most or len(others)), _sample(triples[is_structural], most_structural)]
        )
        length = (corpus.window_stop - corpus.window_start)[corpus.window_of[self.triples]]
        ordered = self.triples[np.lexsort((length, corpus.relation[self.triples]))]
        self.queries = [Query(int(t), c) for c in CONDITIONS for t in ordered]

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, index: int) -> Query:
        return self.queries[index]


def _sample(values: np.ndarray, most: int) -> np.ndarray:
    """(N) values -> at most `most` of them in ascending order, drawn by a seed that depends on N alone."""
    return np.sort(values[permutation(mix(len(values)), 0, len(values))[:most]])


@dataclass(frozen=True)
class Drawn:
    """A training batch before it is made tensors of: Q questions in B rows, and the candidates that compete.

    `row` and `slot` (Q) say where a question stands, `gold` (Q) is its tail's place among the candidates, `chance` (C)
    the logarithm of each candidate's chance to be there, `excluded` the questions and candidates that are true as well.
    """

    asked: Questions
    tail: np.ndarray
    row: np.ndarray
    slot: np.ndarray
    rows: Rows
    among: CandidateSet
    gold: np.ndarray
    chance: np.ndarray
    excluded: tuple[np.ndarray, np.ndarray]


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

    def __init__(
        self, corpus: Corpus, scorer: Scorer, sampler: Sampler, table: EntityTable, samples: Samples,
        objective: Objective, layout: Layout, facts: int, vocabulary: int,
    ):  # fmt: skip
        self.corpus, self.scorer, self.sampler, self.table, self.samples = corpus, scorer, sampler, table, samples
        self.objective, self.layout, self.facts, self.vocabulary = objective, layout, facts, vocabulary

    def draw(self, items: Sequence[int], generator: torch.Generator) -> Drawn:
        """Draws facts, what is hidden, and the candidates of a training batch from `generator`."""
        corpus, index = self.corpus, np.asarray(items)
        row, triple, slot = self._facts_of(index, generator)
        first = np.searchsorted(row, np.arange(len(index)))
        with_text = index < len(self.samples.windows)
        asked = self._questions(row, triple, slot, with_text, generator)
        of_rows = asked.window[first]
        is_hidden = asked.hidden >= 0
        drop = self._dropped(of_rows, generator)
        rows = self.layout.rows(of_rows, with_text, row[is_hidden], asked.hidden[is_hidden], drop)
        tail = corpus.tail[triple]
        uniform = torch.rand(len(corpus.entity_type), generator=generator).numpy()
        among, chance = self.sampler.draw(tail, rows.word[rows.word >= 0], corpus.window_file[of_rows], uniform)
        question, other = self.scorer.true_tails(asked)
        column = among.place[other]
        false = (column >= 0) & (other != tail[question])
        excluded = question[false], column[false]
        return Drawn(asked, tail, row, slot, rows, among, among.place[tail].astype(np.int64), chance, excluded)

    def _facts_of(self, index: np.ndarray, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B) samples -> (Q) the row of each fact that is drawn, its triple, its place in the row."""
        begin, end = self.samples.begin[index], self.samples.begin[index + 1]
        row, at = expand(begin, end - begin)
        order = np.lexsort((torch.rand(len(row), generator=generator).numpy(), row))
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        few = slot < self.facts
        return row[few], self.samples.facts[at[order[few]]], slot[few]

    def _questions(
        self, row: np.ndarray, triple: np.ndarray, slot: np.ndarray, with_text: np.ndarray, generator: torch.Generator
    ) -> Questions:
        """Draws whose name is hidden: in a share of the texts some, and with each all facts of that name."""
        name = self.corpus.name[self.corpus.tail[triple]]
        hides = with_text & (torch.rand(len(with_text), generator=generator).numpy() < self.objective.masked_ratio)
        picked = hides[row] & ((torch.rand(len(row), generator=generator).numpy() < _HIDDEN) | (slot == 0))
        code = row * len(self.corpus.word_list) + name
        condition = np.where(np.isin(code, code[picked]), MASKED, FULL_TEXT)
        return Questions.of_facts(self.corpus, triple, np.where(with_text[row], condition, NAME_ONLY))

    def _dropped(self, window: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """(B) windows -> (B) how many parts of the head's path are left out, so that files are not known by theirs."""
        draws = torch.rand(2, len(window), generator=generator).numpy()
        parts = np.diff(self.corpus.part_offsets)[self.corpus.head[window]]
        return np.where(draws[0] < self.objective.path_dropout, (draws[1] * parts).astype(np.int64), 0)

    def training(self, items: Sequence[int], generator: torch.Generator) -> Batch:
        """Returns a training batch of B samples, with everything random drawn from `generator`."""
        drawn, size = self.draw(items, generator), len(items)
        arrays = {**self._of_rows(drawn.rows), **self._of_facts(drawn, size)}
        if self.objective.mlm_steps:
            arrays |= self._masked_spans(arrays["roots"], generator)
        chance = torch.from_numpy(drawn.chance.astype(np.float32))
        shared = {**self.table.of(drawn.among.entities), "chance": chance}
        of_all = {name: value[None].expand(size, *value.shape) for name, value in shared.items()}
        return {**{name: torch.from_numpy(value) for name, value in arrays.items()}, **of_all}

    def _of_facts(self, drawn: Drawn, size: int) -> dict[str, np.ndarray]:
        """Returns the arrays (B, G, ...) of a training batch."""
        asked, among, corpus = drawn.asked, drawn.among, self.corpus
        found = self.scorer.counts.found(asked, among, leave_out=True)
        prior = self.scorer.prior(asked, among, True, found)
        prior[drawn.excluded] = IMPOSSIBLE
        own = self.scorer.counts.own_count(asked, among) * np.float32(self.objective.own_file)
        sibling = corpus.parent[among.entities][None] == corpus.parent[corpus.head[asked.window]][:, None]
        boost = self.scorer.boosts(asked).astype(np.float32)
        shape = (size, int(drawn.slot.max()) + 1)
        heads = drawn.asked[np.searchsorted(drawn.row, np.arange(size))]

        def laid(values: np.ndarray, otherwise: float = 0) -> np.ndarray:
            array = np.full((*shape, *values.shape[1:]), otherwise, values.dtype)
            array[drawn.row, drawn.slot] = values
            return array

        return {
            "relation": laid(asked.relation),
            "condition": laid(asked.condition.astype(np.int64)),
            "gold": laid(drawn.gold, IGNORE),
            "distance": laid(drawn.rows.distance(drawn.row, asked.hidden), 1),
            "prior": laid(prior),
            "own": laid(own),
            "features": laid(found.stacked()),
            "places": laid(self.scorer.places(asked, drawn.rows, drawn.row), NOWHERE),
            "near": self.scorer.near(heads, among),
            "boost": laid(boost[:, 0]),
            "sibling": laid(sibling * boost[:, 1:]),
        }

    def queries(self, queries: Sequence[Query]) -> Batch:
        """Returns an evaluation batch of B queries: roots, within, relation, condition, distance, triple, as above."""
        triple = np.array([q.triple for q in queries])
        asked = Questions.of_facts(self.corpus, triple, np.array([CONDITIONS.index(q.condition) for q in queries]))
        arrays = {**self.of_questions(asked)[0], "triple": triple}
        return {name: torch.from_numpy(value) for name, value in arrays.items()}

    def of_questions(self, asked: Questions) -> tuple[dict[str, np.ndarray], Rows]:
        """Returns what the encoder reads of questions, each in a row of its own, and the rows."""
        own = np.arange(len(asked))
        is_hidden = asked.hidden >= 0
        with_text = asked.condition != NAME_ONLY
        rows = self.layout.rows(asked.window, with_text, own[is_hidden], asked.hidden[is_hidden])
        arrays = {
            **self._of_rows(rows),
            "relation": asked.relation[:, None],
            "condition": asked.condition.astype(np.int64)[:, None],
            "distance": rows.distance(own, asked.hidden)[:, None],
        }
        return arrays, rows

    @staticmethod
    def _of_rows(rows: Rows) -> dict[str, np.ndarray]:
        return {
            "roots": rows.ids,
            "within": np.minimum(rows.within, tokens.LONGEST_WORD - 1),
            "word": rows.word,
            "owner": rows.owner,
            "is_self": rows.is_self,
        }

    def _masked_spans(self, roots: np.ndarray, generator: torch.Generator) -> dict[str, np.ndarray]:
        """Masks spans of geometric length, p = 0.2 (SpanBERT, arXiv 1907.10529): 80 % MASK, 10 % random, 10 % as is."""
        masked, targets = roots.copy(), np.full_like(roots, IGNORE)
        for ids, target in zip(masked, targets, strict=True):
            length = int((ids != tokens.PAD).sum())
            budget = round(self.objective.mlm_ratio * length)
            while budget > 0:
                draws = torch.rand(3, generator=generator)
                longest = min(self.objective.mlm_longest_span, budget)
                span = min(longest, 1 + int(np.log(max(float(draws[0]), 1e-9)) / np.log(0.8)))
                start = int(float(draws[1]) * max(1, length - span + 1))
                chosen = np.arange(start, min(start + span, length))
                budget -= span
                chosen = chosen[(ids[chosen] >= len(tokens.SPECIALS)) & (target[chosen] == IGNORE)]
                target[chosen] = ids[chosen]
                if draws[2] < 0.8:
                    ids[chosen] = tokens.MASK
                elif draws[2] < 0.9:
                    random = torch.randint(len(tokens.SPECIALS), self.vocabulary, (len(chosen),), generator=generator)
                    ids[chosen] = random.numpy()
        return {"masked_roots": masked, "root_targets": targets}
