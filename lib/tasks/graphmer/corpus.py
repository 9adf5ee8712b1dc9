"""From a graph and its sources to arrays: windows of text around heads, their triples, and a split by file."""

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from lib.errors import BadInput
from lib.tasks.graphmer import tokens
from lib.tasks.graphmer.code.records import Graph, Triple
from lib.tasks.graphmer.tokens import Pieces

SPLITS = ("train", "validation", "test")


@dataclass
class Corpus:
    """Arrays that training and evaluation read. W windows, T triples, E entities, V words.

    A window is a stretch of a file's text inside the span of one head, with that head's triples of those lines.
    `text` holds all words of all files; `window_start`/`window_stop` (W) cut a window out of it, and
    `first_triple` (W + 1) says which triples are its. `relation`, `tail` (T) and `head`, `split` (W) are indices.
    `parts` are the words of an entity's id from last to first, ragged by `part_offsets` (E + 1); `leaves` (E, K) are
    the pieces of them with END, cut at K and padded.
    """

    word_list: list[str]
    entities: list[str]
    relations: list[str]
    text: np.ndarray
    window_start: np.ndarray
    window_stop: np.ndarray
    first_triple: np.ndarray
    head: np.ndarray
    split: np.ndarray
    relation: np.ndarray
    tail: np.ndarray
    parts: np.ndarray
    part_offsets: np.ndarray
    leaves: np.ndarray
    piece_flat: np.ndarray
    piece_offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.head)

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.piece_flat, self.piece_offsets)

    @cached_property
    def window_of(self) -> np.ndarray:
        """(T) the window of each triple."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_triple))

    @cached_property
    def name(self) -> np.ndarray:
        """(E) the word that an entity is called by: the last part of its id."""
        return self.parts[self.part_offsets[:-1]]

    def windows_of(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.split == SPLITS.index(split))

    def triples_of(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.split[self.window_of] == SPLITS.index(split))

    def head_parts(self, window: int) -> np.ndarray:
        entity = self.head[window]
        return self.parts[self.part_offsets[entity] : self.part_offsets[entity + 1]]

    def window_text(self, window: int) -> np.ndarray:
        return self.text[self.window_start[window] : self.window_stop[window]]

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for array in (self.text, self.head, self.split, self.relation, self.tail, self.leaves, self.first_triple):
            digest.update(np.ascontiguousarray(array).data)
        digest.update("\n".join([*self.entities, *self.relations]).encode())
        return digest.hexdigest()[:16]

    def save(self, path: Path) -> None:
        """Writes an .npz without pickle, whole or not at all."""
        lists = {"word_list": self.word_list, "entities": self.entities, "relations": self.relations}
        joined = {name: np.frombuffer("\n".join(value).encode(), np.uint8) for name, value in lists.items()}
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        stored = {name: arrays[name] for name in self.__dataclass_fields__ if name not in lists}
        aside = path.with_name(path.name + ".tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            np.savez(file, **joined, **stored)
        aside.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Corpus":
        with np.load(path, allow_pickle=False) as stored:
            fields = {name: stored[name] for name in cls.__dataclass_fields__}
        for name in ("word_list", "entities", "relations"):
            fields[name] = fields[name].tobytes().decode().split("\n")
        return cls(**fields)


def build(
    graph: Graph, root: Path | None, roots: int, leaves: int, vocabulary: int, shares: tuple[float, float], facts: int
) -> Corpus:
    """Builds the arrays. `root` is where the sources of the graph lie (None: names only, no text).

    A window has at most `facts` triples: one with more becomes several with the same text.

    `shares` are the parts of the files that go to validation and test. Raises BadInput where a split stays empty.
    """
    splits = split_files(sorted({t.file for t in graph.triples}), *shares)
    vocabulary_of_words: dict[str, int] = {}
    entities = sorted({e for t in graph.triples for e in (t.head, t.tail)})
    index = {e: i for i, e in enumerate(entities)}
    relations = sorted({t.relation for t in graph.triples})
    parts = [[_intern(w, vocabulary_of_words) for w in tokens.name_parts(e)] for e in entities]
    text, lines = _read_text(graph, root, vocabulary_of_words)
    pieces = _learn(text, lines, splits, parts, list(vocabulary_of_words), vocabulary)
    rows = _windows(graph, text, lines, pieces, index, parts, roots)
    rows = [part for row in rows for part in _at_most(row, facts)]
    relation_index = {r: i for i, r in enumerate(relations)}
    triples = [t for row in rows for t in row.triples]
    corpus = Corpus(
        word_list=list(vocabulary_of_words),
        entities=entities,
        relations=relations,
        text=text,
        window_start=np.array([r.start for r in rows], np.int64),
        window_stop=np.array([r.stop for r in rows], np.int64),
        first_triple=np.concatenate([[0], np.cumsum([len(r.triples) for r in rows])]).astype(np.int64),
        head=np.array([index[r.triples[0].head] for r in rows], np.int64),
        split=np.array([splits[r.triples[0].file] for r in rows], np.int8),
        relation=np.array([relation_index[t.relation] for t in triples], np.int64),
        tail=np.array([index[t.tail] for t in triples], np.int64),
        parts=np.array([w for p in parts for w in p], np.int64),
        part_offsets=np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64),
        leaves=_leaves(parts, pieces, leaves),
        piece_flat=pieces.flat,
        piece_offsets=pieces.offsets,
    )
    for split in SPLITS:
        if not len(corpus.triples_of(split)):
            raise BadInput(
                f"No triple is left for the {split} split: the data comes from {len(splits)} files, and whole files go "
                "to one split. Give data from more files, or raise workload.split.validation and .test."
            )
    return corpus


def split_files(files: Sequence[str], validation: float, test: float) -> dict[str, int]:
    """The split of each file, by a hash of its path: it stays when other files come or go."""
    return {file: _split_of(file, validation, test) for file in files}


def _split_of(file: str, validation: float, test: float) -> int:
    position = int.from_bytes(hashlib.sha256(file.encode()).digest()[:8], "big") / 2**64
    return 1 if position < validation else 2 if position < validation + test else 0


def _intern(word: str, table: dict[str, int]) -> int:
    return table.setdefault(word, len(table))


Lines = dict[str, np.ndarray]  # file -> (lines + 1) where each line begins in the text


def _read_text(graph: Graph, root: Path | None, table: dict[str, int]) -> tuple[np.ndarray, Lines]:
    """All words of the files that spans point into, and where each line of each file begins."""
    files = sorted({e.file for e in graph.entities.values() if e.file}) if root else []
    everything: list[int] = []
    lines: Lines = {}
    for file in files:
        starts = []
        for line in (root / file).read_text("utf-8", errors="replace").split("\n"):  # type: ignore[operator]
            starts.append(len(everything))
            everything.extend(_intern(word, table) for word in tokens.words(line))
        lines[file] = np.array([*starts, len(everything)], np.int64)
    return np.array(everything, np.int64), lines


def _learn(
    text: np.ndarray, lines: Lines, splits: dict[str, int], parts: list[list[int]], word_list: list[str], size: int
) -> Pieces:
    """Pieces learnt from the words of the training files and the parts of the names."""
    counts = np.bincount(np.fromiter(itertools.chain.from_iterable(parts), np.int64), minlength=len(word_list))
    for file, starts in lines.items():
        if splits.get(file, 0) == 0:
            counts += np.bincount(text[starts[0] : starts[-1]], minlength=len(word_list))
    return tokens.learn({word_list[i]: int(counts[i]) for i in np.flatnonzero(counts)}, size, word_list)


def _leaves(parts: list[list[int]], pieces: Pieces, count: int) -> np.ndarray:
    table = np.full((len(parts), count), tokens.PAD, np.int32)
    for row, words in enumerate(parts):
        found, _, _ = pieces.expand(np.array(words[:count]))
        filled = [*found[:count], tokens.END][:count]
        table[row, : len(filled)] = filled
    return table


@dataclass
class _Window:
    start: int
    stop: int
    triples: list[Triple]


def header_pieces(lengths: Sequence[int], roots: int) -> int:
    """How many root tokens the head's name takes at the front: at most an eighth of them, and a separator."""
    return min(sum(lengths), max(2, roots // 8)) + 1


def _windows(
    graph: Graph,
    text: np.ndarray,
    lines: Lines,
    pieces: Pieces,
    index: dict[str, int],
    parts: list[list[int]],
    roots: int,
) -> list[_Window]:
    by_head: dict[tuple[str, str], list[Triple]] = defaultdict(list)
    for triple in graph.triples:
        by_head[triple.head, triple.file].append(triple)
    cumulative = np.concatenate([[0], np.cumsum(pieces.lengths(text))]) if len(text) else np.zeros(1, np.int64)
    rows = []
    for (head, file), triples in sorted(by_head.items()):
        entity = graph.entities.get(head)
        if entity is None or entity.file != file or file not in lines:
            rows.append(_Window(0, 0, triples))
            continue
        budget = roots - header_pieces(pieces.lengths(np.array(parts[index[head]])), roots)
        rows.extend(_cut(triples, lines[file], entity.first_line, entity.last_line, cumulative, budget))
    return rows


def _cut(
    triples: list[Triple], starts: np.ndarray, first: int, last: int, cumulative: np.ndarray, budget: int
) -> list[_Window]:
    """Cuts the lines of a head's span into windows of whole lines within `budget` pieces; a longer line is cut off."""
    by_window: dict[int, _Window] = {}
    last_line = min(last, len(starts) - 1)
    line = first
    bounds = []  # (first line, word start, word stop)
    while line <= last_line:
        begin = starts[line - 1]
        limit = int(np.searchsorted(cumulative, cumulative[begin] + budget, "right")) - 1
        following = min(int(np.searchsorted(starts, limit, "right")), last_line + 1)
        following = max(following, line + 1)
        bounds.append((line, int(begin), min(int(starts[following - 1]), limit)))
        line = following
    first_lines = [b[0] for b in bounds]
    for triple in triples:
        number = max(0, int(np.searchsorted(first_lines, triple.line, "right")) - 1)
        _, start, stop = bounds[number]
        by_window.setdefault(number, _Window(start, stop, [])).triples.append(triple)
    return [by_window[n] for n in sorted(by_window)]


def _at_most(window: _Window, count: int) -> list[_Window]:
    """Splits the triples of a window over several, where there are more than a sample may have."""
    return [
        _Window(window.start, window.stop, window.triples[i : i + count]) for i in range(0, len(window.triples), count)
    ]


def summary(corpus: Corpus) -> str:
    """One line for people: how much of everything there is."""
    per_split = Counter(corpus.split[corpus.window_of].tolist())
    shares = ", ".join(f"{per_split[i]:,} {name}" for i, name in enumerate(SPLITS))
    return f"{len(corpus):,} windows of text with {len(corpus.relation):,} triples ({shares})"
