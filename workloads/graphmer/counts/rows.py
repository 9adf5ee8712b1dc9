"""Windows laid out as root tokens: the head's name, a separator, the text; hidden names are one token each."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from workloads.graphmer.corpus import SPLITS, Corpus, header_room
from workloads.graphmer.counts.ragged import expand, find
from workloads.graphmer.settings import NAME, PAD, SEP, Array

PREVIOUS = 16  # kinds of words before a name that a place tells apart; 0 is any other
_HEAD, _SEPARATOR, _TEXT = range(3)


@dataclass
class Rows:
    """B windows as roots, each array (B, L); -1 where there is nothing.

    `ids` are pieces, `within` the place of a piece in its word. `word` is the word that begins there in the text and is
    shown, `hidden` the one that is not; `owner` the word before a dot before it, `previous` the kind of the word before
    it, `is_self`, `is_super` and `is_call` whether `self.` or `super().` stands before it and a bracket behind.
    `name_length` (B) is the number of roots of the head's last name.
    """

    ids: Array
    within: Array
    word: Array
    hidden: Array
    owner: Array
    previous: Array
    is_self: Array
    is_super: Array
    is_call: Array
    name_length: Array

    def distance(self, row: Array, hidden: Array) -> Array:
        """(Q) rows and hidden words -> (Q, L) steps to each root from the word's places, or the head's name."""
        length = self.ids.shape[1]
        place = np.arange(length)[None]
        on = (self.hidden[row] == hidden[:, None]) & (hidden >= 0)[:, None]
        on = np.where(on.any(1)[:, None], on, place < self.name_length[row][:, None])
        before = np.maximum.accumulate(np.where(on, place, -length), 1)
        behind = np.minimum.accumulate(np.where(on, place, 2 * length)[:, ::-1], 1)[:, ::-1]
        return (1 + np.minimum(place - before, behind - place)).astype(np.int64)


class Layout:
    """Lays out windows in at most `roots` root tokens."""

    def __init__(self, corpus: Corpus, roots: int):
        self.corpus = corpus
        self.roots = roots

    @cached_property
    def kind_before(self) -> Array:
        """(words) the kind of each as a word before a name: the most frequent ones have one of their own."""
        corpus = self.corpus
        windows = np.flatnonzero(corpus.split == SPLITS.index("train"))
        _, place = expand(
            corpus.window_start[windows], corpus.window_stop[windows] - corpus.window_start[windows]
        )
        place = np.unique(place[place > 0])
        if len(place):
            before = corpus.text[place - 1][np.isin(corpus.text[place], corpus.name)]
        else:
            before = place
        count = np.bincount(before, minlength=len(corpus.word_list))
        kind = np.zeros(len(count), np.int64)
        frequent = np.argsort(-count, kind="stable")[: PREVIOUS - 1]
        kind[frequent] = 1 + np.arange(len(frequent))
        return kind

    def rows(
        self,
        window: Array,
        with_text: Array,
        hidden_row: Array,
        hidden_word: Array,
        drop: Array | None = None,
    ) -> Rows:
        """Lays out B windows; (H) rows and words are hidden; `drop` (B) parts of the head's name are left out."""
        row, word, zone, part = self._words(window, with_text, drop)
        words = len(self.corpus.word_list)
        is_hidden = find(np.unique(hidden_row * words + hidden_word), row * words + word) >= 0
        is_hidden &= zone != _SEPARATOR
        length = np.where(
            (zone == _SEPARATOR) | is_hidden, 1, self.corpus.sizes[np.maximum(word, 0)]
        )
        index, at = expand(
            np.zeros(len(word), np.int64), length
        )  # of each piece its word, and its place in it
        piece = self.corpus.piece_offsets[np.maximum(word[index], 0)] + at
        flat = self.corpus.piece_flat
        ids = flat[np.minimum(piece, len(flat) - 1)]
        ids = np.where(is_hidden[index], NAME, np.where(zone[index] == _SEPARATOR, SEP, ids))
        place, keep = self._places(row[index], zone[index], len(window))
        index = index[keep]
        at = at[keep]
        ids = ids[keep]
        place = place[keep]
        shape = len(window), int(place.max()) + 1

        def laid(values: Array, otherwise: int = -1) -> Array:
            array = np.full(shape, otherwise, np.int64)
            array[row[index], place] = values
            return array

        begins = (zone[index] == _TEXT) & (at == 0) & ~is_hidden[index]
        return Rows(
            ids=laid(ids, PAD), within=laid(at, 0), word=laid(np.where(begins, word[index], -1)),
            hidden=laid(np.where(is_hidden[index], word[index], -1)),
            name_length=np.bincount(row[index][(zone[index] == _HEAD) & (part[index] == 0)], minlength=len(window)),
            **{name: laid(value[index]) for name, value in self._marks(row, word, zone, is_hidden).items()},
        )  # fmt: skip

    def _words(
        self, window: Array, with_text: Array, drop: Array | None
    ) -> tuple[Array, Array, Array, Array]:
        """Returns row, word, zone, and place among the parts of the head's name, of all words."""
        corpus = self.corpus
        separators = np.arange(len(window))
        head = corpus.head[window]
        parts = np.diff(corpus.part_offsets)[head]
        head_row, head_at = expand(
            corpus.part_offsets[head], parts if drop is None else np.maximum(1, parts - drop)
        )
        length = np.where(with_text, corpus.window_stop[window] - corpus.window_start[window], 0)
        text_row, text_at = expand(corpus.window_start[window], length)
        row = np.concatenate([head_row, separators, text_row])
        word = np.concatenate(
            [corpus.parts[head_at], np.full(len(window), -1), corpus.text[text_at]]
        )
        zone = np.repeat([_HEAD, _SEPARATOR, _TEXT], [len(head_row), len(window), len(text_row)])
        part = np.concatenate([head_at - corpus.part_offsets[head][head_row], separators, text_row])
        order = np.lexsort((zone, row))  # stable
        return row[order], word[order], zone[order], part[order]

    def _places(self, row: Array, zone: Array, rows: int) -> tuple[Array, Array]:
        """(M) rows and zones of pieces -> (M) the place of each in its row, and whether it has one."""
        is_head = zone == _HEAD
        most = header_room(self.roots)
        place = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
        keep = ~is_head | (place < most)
        place = np.where(
            is_head,
            place,
            place - np.maximum(np.bincount(row[is_head], minlength=rows) - most, 0)[row],
        )
        return place, keep & (place < self.roots)

    def _marks(self, row: Array, word: Array, zone: Array, is_hidden: Array) -> dict[str, Array]:
        """Returns what stands before and behind each word of the texts."""
        shown = np.where((zone == _TEXT) & ~is_hidden, word, -1)

        def near(offset: int) -> Array:
            # What goes round the end comes from the head's name or from another row, and so is not shown.
            return np.where(np.roll(row, -offset) == row, np.roll(shown, -offset), -1)

        before = near(-1)
        index = self.corpus.word_index
        owner = np.where(before == index("."), near(-2), -1)
        # No text has closing brackets: super ( . m, and super ( Name self . m
        is_super = (owner == index("(")) & (near(-3) == index("super"))
        is_super |= (
            (owner >= 0)
            & (near(-3) != index("."))
            & (near(-4) == index("("))
            & (near(-5) == index("super"))
        )
        return {
            "owner": owner,
            "previous": np.where(before >= 0, self.kind_before[np.maximum(before, 0)], 0),
            "is_self": np.isin(owner, [index("self"), index("cls")]).astype(np.int64),
            "is_super": is_super.astype(np.int64),
            "is_call": (near(1) == index("(")).astype(np.int64),
        }
