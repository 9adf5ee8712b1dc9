"""Leafy chain graphs as tensors: training samples with masks drawn afresh, and evaluation queries."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.task import Batch
from lib.tasks.graphmer import tokens
from lib.tasks.graphmer.corpus import Corpus, header_pieces
from lib.tasks.graphmer.settings import CONDITIONS, Objective
from lib.tasks.graphmer.tokens import IGNORE
from lib.training.order import mix, permutation


@dataclass(frozen=True)
class Query:
    """One question of the evaluation: which tail does this triple have, under this condition?"""

    triple: int
    condition: str


class Windows:
    """The training set: indices of windows, with a fixed share of those that hold structural facts alone.

    `structural` (relations) is True for relations that a rule on names answers.
    """

    def __init__(self, corpus: Corpus, structural: np.ndarray, structural_ratio: float):
        windows = corpus.windows_of("train")
        not_structural = np.unique(corpus.window_of[~structural[corpus.relation]])
        others = np.setdiff1d(windows, not_structural)
        others = _sample(others, round(structural_ratio * len(others)))
        self.indices = np.sort(np.concatenate([np.intersect1d(windows, not_structural), others]))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> int:
        return int(self.indices[index])


class Queries:
    """An evaluation set: up to `most` triples of a split, the same ones in every run, under every condition."""

    def __init__(self, corpus: Corpus, split: str, structural: np.ndarray, most: int, most_structural: int = 0):
        self.split = split
        triples = corpus.triples_of(split)
        is_structural = structural[corpus.relation[triples]]
        self.triples = np.concatenate(
            [_sample(triples[~is_structural], most), _sample(triples[is_structural], most_structural)]
        )
        self.queries = [Query(int(t), c) for c in CONDITIONS for t in self.triples]

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, index: int) -> Query:
        return self.queries[index]


def _sample(values: np.ndarray, most: int) -> np.ndarray:
    """(N) values -> at most `most` of them in ascending order, drawn by a seed that depends on N alone."""
    return np.sort(values[permutation(mix(len(values)), 0, len(values))[:most]])


class Collator:
    """Makes batches of tensors from windows and queries.

    A batch has roots, within, root_targets (B, R), leaves, leaf_targets (B, G, K), relation (B, G), span (B, G, R):
    R roots, K leaves each, on the first G roots that any sample of the batch uses. `within` is the place of a piece in
    its word, K - 1 at most. `span` marks the tokens that a leaf hangs on: its head's name, or where the tail's name is
    masked in the text, those places.
    """

    def __init__(self, corpus: Corpus, objective: Objective, roots: int, vocabulary: int):
        self.corpus, self.objective, self.roots, self.vocabulary = corpus, objective, roots, vocabulary
        self.leaf_count = corpus.leaves.shape[1]

    def training(self, windows: Sequence[int], generator: torch.Generator) -> Batch:
        """Returns a training batch of B windows, with masks drawn from `generator`."""
        return self._stack([self._training_chain(window, generator) for window in windows])

    def queries(self, queries: Sequence[Query]) -> Batch:
        """Returns an evaluation batch of B queries, and besides `triple` (B) and `condition` (B), an index."""
        batch = self._stack([self._query_chain(query) for query in queries])
        batch["triple"] = torch.tensor([q.triple for q in queries])
        batch["condition"] = torch.tensor([CONDITIONS.index(q.condition) for q in queries])
        return batch

    def _training_chain(self, window: int, generator: torch.Generator) -> "_Chain":
        corpus, objective = self.corpus, self.objective
        triples = np.arange(corpus.first_triple[window], corpus.first_triple[window + 1])
        draws = torch.rand(1 + 3 * len(triples), generator=generator).numpy()
        by_triple = draws[1:].reshape(3, -1)
        triples = triples[np.argsort(by_triple[0], kind="stable")]  # no leaf has a place of its own
        names = corpus.name[corpus.tail[triples]]
        hidden_names = np.unique(names[by_triple[1] < objective.name_mask_ratio])
        name_hidden = np.isin(names, hidden_names)
        masked = name_hidden | (by_triple[2] < objective.leaf_ratio)
        chain = self._chain(window, hidden_names, with_text=draws[0] >= objective.name_only_ratio)
        chain.hang(corpus, triples, masked, np.where(name_hidden, names, -1))
        self._mask_spans(chain, generator)
        return chain

    def _query_chain(self, query: Query) -> "_Chain":
        corpus = self.corpus
        name = corpus.name[corpus.tail[query.triple]]
        hidden = np.array([name] if query.condition == "masked" else [], np.int64)
        window = int(corpus.window_of[query.triple])
        chain = self._chain(window, hidden, with_text=query.condition != "name_only")
        hidden_word = np.array([name if query.condition == "masked" else -1])
        chain.hang(corpus, np.array([query.triple]), np.array([True]), hidden_word)
        return chain

    def _chain(self, window: int, hidden_names: np.ndarray, with_text: bool) -> "_Chain":
        """Lays out the roots: the head's name, last part first, a separator, the text; a hidden name is one token."""
        corpus = self.corpus
        head = corpus.head_parts(window)
        head_ids, head_words, head_within = self._pieces(head, hidden_names)
        keep = header_pieces([len(head_ids)], self.roots) - 1
        text = corpus.window_text(window) if with_text else corpus.text[:0]
        text_ids, text_words, text_within = self._pieces(text, hidden_names)
        ids = np.concatenate([head_ids[:keep], [tokens.SEP], text_ids])[: self.roots]
        words = np.concatenate([head_words[:keep], [-1], text_words])[: self.roots]
        within = np.concatenate([head_within[:keep], [0], text_within])[: self.roots]
        name_length = int((np.cumsum(head_words[:keep] != head[0]) == 0).sum())
        return _Chain(ids, words, within, max(1, name_length), self.roots, self.leaf_count)

    def _pieces(self, words: np.ndarray, hidden_names: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(N) words -> (M) pieces, the word of each and its place in it; a hidden word is the one token NAME."""
        ids, owner, within = self.corpus.pieces.expand(words)
        of_word = words[owner]
        hidden = np.isin(of_word, hidden_names)
        keep = ~hidden | (within == 0)
        ids = np.where(hidden, tokens.NAME, ids)
        return ids[keep], of_word[keep], within[keep]

    def _mask_spans(self, chain: "_Chain", generator: torch.Generator) -> None:
        """Masks spans of geometric length, p = 0.2 (SpanBERT, arXiv 1907.10529): 80 % MASK, 10 % random, 10 % as is."""
        length = len(chain.ids)
        budget = round(self.objective.mlm_ratio * length)
        while budget > 0:
            draws = torch.rand(3, generator=generator)
            longest = min(self.objective.mlm_longest_span, budget)
            span = min(longest, 1 + int(np.log(max(float(draws[0]), 1e-9)) / np.log(0.8)))
            start = int(float(draws[1]) * max(1, length - span + 1))
            chosen = np.arange(start, min(start + span, length))
            budget -= span
            chosen = chosen[(chain.ids[chosen] >= len(tokens.SPECIALS)) & (chain.root_targets[chosen] == IGNORE)]
            chain.root_targets[chosen] = chain.ids[chosen]
            if draws[2] < 0.8:
                chain.ids[chosen] = tokens.MASK
            elif draws[2] < 0.9:
                random = torch.randint(len(tokens.SPECIALS), self.vocabulary, (len(chosen),), generator=generator)
                chain.ids[chosen] = random.numpy()

    def _stack(self, chains: Sequence["_Chain"]) -> Batch:
        """Pads samples to one shape."""
        groups = max(len(chain.relation) for chain in chains)
        shape = (len(chains), groups, self.leaf_count)
        roots = np.full((len(chains), self.roots), tokens.PAD, np.int64)
        root_targets = np.full_like(roots, IGNORE)
        within = np.zeros_like(roots)
        leaves = np.full(shape, tokens.PAD, np.int64)
        leaf_targets = np.full(shape, IGNORE, np.int64)
        relation = np.zeros(shape[:2], np.int64)
        span = np.zeros((len(chains), groups, self.roots), bool)
        span[:, :, 0] = True  # an empty group hangs on the first root too: a softmax over nothing has no value
        for row, chain in enumerate(chains):
            n, g = len(chain.ids), len(chain.relation)
            roots[row, :n], root_targets[row, :n] = chain.ids, chain.root_targets
            within[row, :n] = np.minimum(chain.within, self.leaf_count - 1)
            leaves[row, :g], leaf_targets[row, :g] = chain.leaves, chain.leaf_targets
            relation[row, :g], span[row, :g] = chain.relation, chain.span
        arrays = {"roots": roots, "within": within, "root_targets": root_targets}
        arrays |= {"leaves": leaves, "leaf_targets": leaf_targets, "relation": relation, "span": span}
        return {name: torch.from_numpy(value) for name, value in arrays.items()}


class _Chain:
    """One sample before padding: root ids with word and place of each, (n), and the leaves that hang on them."""

    def __init__(
        self, ids: np.ndarray, words: np.ndarray, within: np.ndarray, name_length: int, roots: int, leaves: int
    ):
        self.ids, self.words, self.within = ids.astype(np.int64), words, within
        self.name_length, self.roots, self.leaf_count = name_length, roots, leaves
        self.root_targets = np.full(len(ids), IGNORE, np.int64)

    def hang(self, corpus: Corpus, triples: np.ndarray, masked: np.ndarray, hidden_word: np.ndarray) -> None:
        """Hangs T triples on the first roots. `hidden_word` (T) is the word whose places a leaf attends to, or -1."""
        self.relation = corpus.relation[triples]
        true = corpus.leaves[corpus.tail[triples]].astype(np.int64)
        self.leaves = np.where(masked[:, None], tokens.MASK, true)
        self.leaf_targets = np.where(masked[:, None] & (true != tokens.PAD), true, IGNORE)
        self.span = np.zeros((len(triples), self.roots), bool)
        for row, word in enumerate(hidden_word):
            places = np.flatnonzero((self.ids == tokens.NAME) & (self.words == word)) if word >= 0 else ()
            self.span[row, places if len(places) else slice(0, self.name_length)] = True
