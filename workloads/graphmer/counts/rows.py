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
    """B windows as roots, each array (B, L); -1 for nothing.

    `ids` are pieces, `within` the place of a piece in its word. `word` is the word that begins there in the text and is
    shown, `hidden` a hidden one; `owner` the word before a dot before it, `previous` the kind of the word before it,
    `is_self`, `is_super` and `is_call` whether `self.` or `super().` stands before it and a bracket behind.
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
        is_asked = (hidden >= 0)[:, None]
        is_word = (self.hidden[row] == hidden[:, None]) & is_asked
        is_head = place < self.name_length[row][:, None]
        on = np.where(is_word.any(1)[:, None], is_word, is_head)
        before = np.maximum.accumulate(np.where(on, place, -length), 1)
        reversed_places = np.where(on, place, 2 * length)[:, ::-1]
        behind = np.minimum.accumulate(reversed_places, 1)[:, ::-1]
        nearest = np.minimum(place - before, behind - place)
        return (1 + nearest).astype(np.int64)


class Layout:
    """Lays out windows in at most `roots` root tokens."""

    def __init__(self, corpus: Corpus, roots: int):
        self.corpus = corpus
        self.roots = roots

    @cached_property
    def kind_before(self) -> Array:
        """(words) the kind of each as a word before a name: each of the most frequent words is a kind."""
        corpus = self.corpus
        windows = np.flatnonzero(corpus.split == SPLITS.index("train"))
        start = corpus.window_start[windows]
        _, place = expand(start, corpus.window_stop[windows] - start)
        place = np.unique(place[place > 0])
        before = place
        if len(place):
            is_name = np.isin(corpus.text[place], corpus.name)
            before = corpus.text[place - 1][is_name]
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
        hidden = np.unique(hidden_row * words + hidden_word)
        is_separator = zone == _SEPARATOR
        place = find(hidden, row * words + word)
        is_hidden = (place >= 0) & ~is_separator
        size = self.corpus.sizes[np.maximum(word, 0)]
        length = np.where(is_separator | is_hidden, 1, size)
        # for each piece its word, and its place in it
        index, at = expand(np.zeros(len(word), np.int64), length)
        place, keep = self._places(row[index], zone[index], len(window))
        index = index[keep]
        at = at[keep]
        place = place[keep]
        ids = self._pieces(word[index], at)
        ids = np.where(is_separator[index], SEP, ids)
        ids = np.where(is_hidden[index], NAME, ids)
        shape = len(window), int(place.max()) + 1

        def laid(values: Array, otherwise: int = -1) -> Array:
            array = np.full(shape, otherwise, np.int64)
            array[row[index], place] = values
            return array

        is_text = (zone[index] == _TEXT) & (at == 0)
        begins = is_text & ~is_hidden[index]
        is_name = (zone[index] == _HEAD) & (part[index] == 0)
        marks = self._marks(row, word, zone, is_hidden)
        return Rows(
            ids=laid(ids, PAD),
            within=laid(at, 0),
            word=laid(np.where(begins, word[index], -1)),
            hidden=laid(np.where(is_hidden[index], word[index], -1)),
            name_length=np.bincount(row[index][is_name], minlength=len(window)),
            **{name: laid(value[index]) for name, value in marks.items()},
        )

    def _pieces(self, word: Array, at: Array) -> Array:
        """(M) words, or -1, and places in them -> (M) pieces, any for places that are not in the word."""
        piece = self.corpus.piece_offsets[np.maximum(word, 0)] + at
        flat = self.corpus.piece_flat
        return flat[np.minimum(piece, len(flat) - 1)]

    def _words(
        self, window: Array, with_text: Array, drop: Array | None
    ) -> tuple[Array, Array, Array, Array]:
        """Returns row, word, zone, and place among the parts of the head's name, of all words."""
        corpus = self.corpus
        separators = np.arange(len(window))
        head = corpus.head[window]
        first_part = corpus.part_offsets[head]
        parts = np.diff(corpus.part_offsets)[head]
        if drop is not None:
            parts = np.maximum(1, parts - drop)
        head_row, head_at = expand(first_part, parts)
        start = corpus.window_start[window]
        length = np.where(with_text, corpus.window_stop[window] - start, 0)
        text_row, text_at = expand(start, length)
        row = np.concatenate([head_row, separators, text_row])
        no_word = np.full(len(window), -1)
        word = np.concatenate([corpus.parts[head_at], no_word, corpus.text[text_at]])
        sizes = [len(head_row), len(window), len(text_row)]
        zone = np.repeat([_HEAD, _SEPARATOR, _TEXT], sizes)
        part = np.concatenate([head_at - first_part[head_row], separators, text_row])
        order = np.lexsort((zone, row))  # stable
        return row[order], word[order], zone[order], part[order]

    def _places(self, row: Array, zone: Array, rows: int) -> tuple[Array, Array]:
        """(M) rows and zones of pieces -> (M) the place of each in its row, and whether it has one."""
        is_head = zone == _HEAD
        most = header_room(self.roots)
        first = np.searchsorted(row, np.arange(rows))
        place = np.arange(len(row)) - first[row]
        keep = ~is_head | (place < most)
        head_size = np.bincount(row[is_head], minlength=rows)
        cut = np.maximum(head_size - most, 0)
        place = np.where(is_head, place, place - cut[row])
        return place, keep & (place < self.roots)

    def _marks(self, row: Array, word: Array, zone: Array, is_hidden: Array) -> dict[str, Array]:
        """Returns the marks of each word of the texts, by the words before and behind it."""
        shown = np.where((zone == _TEXT) & ~is_hidden, word, -1)
        index = self.corpus.word_index

        def near(offset: int) -> Array:
            # What goes round the end comes from the head's name or from another row, and so is not shown.
            is_same_row = np.roll(row, -offset) == row
            return np.where(is_same_row, np.roll(shown, -offset), -1)

        before = near(-1)
        previous = self.kind_before[np.maximum(before, 0)]
        owner = np.where(before == index("."), near(-2), -1)
        is_self = np.isin(owner, [index("self"), index("cls")])
        # No text has closing brackets: super ( . m, and super ( Name self . m
        has_name = (owner >= 0) & (near(-3) != index("."))
        of_call = (near(-4) == index("(")) & (near(-5) == index("super"))
        of_two = has_name & of_call
        is_super = (owner == index("(")) & (near(-3) == index("super"))
        is_call = near(1) == index("(")
        marks = {"owner": owner, "previous": np.where(before >= 0, previous, 0)}
        marks["is_self"] = is_self.astype(np.int64)
        marks["is_super"] = (is_super | of_two).astype(np.int64)
        marks["is_call"] = is_call.astype(np.int64)
        return marks
