"""From a graph and its sources to arrays: windows of text around heads, their triples, and a split by file."""

import hashlib
import itertools
import math
import struct
import zipfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from lib.errors import BadInput
from lib.machine import disk
from workloads.codegraph import readers
from workloads.codegraph.records import Graph, Triple
from workloads.codegraph.trees import Sources
from workloads.graphmer import tokens
from workloads.graphmer.settings import Chain, Split
from workloads.graphmer.tokens import Pieces

SPLITS = ("train", "validation", "test")
_ALIGNMENT = 64  # bytes; where an array begins in its file
Lines = dict[str, np.ndarray]  # file -> (lines + 1) where each line begins in the text


def _listed(name: str) -> "cached_property[list[str]]":
    """Returns a property: the list of what a field has joined by line ends."""
    return cached_property(lambda corpus: getattr(corpus, name).tobytes().decode().split("\n"))


@dataclass
class Corpus:
    """The arrays that training and evaluation read. W windows, T triples, E entities, V words.

    Out of a file they are mapped, so all processes that read it share one copy in memory.
    A window is a stretch of a file's text inside the span of one head, with that head's triples of those lines.
    `text` holds all words of all files; `window_start` and `window_stop` (W) bound a window in it, and
    `first_triple` (W + 1) bounds its triples. `relation`, `tail` (T), `head`, `split`, `window_file` (W) are indices.
    `entity_type` and `entity_file` (E) say what an entity is and where it is defined, -1: in no file.
    `parts` are the words of an entity's id, the last first, ragged by `part_offsets` (E + 1). `words`,
    `entity_ids`, `relation_names`, `type_names` and `file_names` are texts, joined by line ends as UTF-8; by
    `tokenizer`, a text too, `tokens.cut` cuts other words into the same pieces.
    """

    words: np.ndarray
    entity_ids: np.ndarray
    relation_names: np.ndarray
    type_names: np.ndarray
    file_names: np.ndarray
    text: np.ndarray
    window_start: np.ndarray
    window_stop: np.ndarray
    first_triple: np.ndarray
    head: np.ndarray
    split: np.ndarray
    window_file: np.ndarray
    relation: np.ndarray
    tail: np.ndarray
    entity_type: np.ndarray
    entity_file: np.ndarray
    parts: np.ndarray
    part_offsets: np.ndarray
    piece_flat: np.ndarray
    piece_offsets: np.ndarray
    tokenizer: np.ndarray

    def __len__(self) -> int:
        return len(self.head)

    def __getstate__(self) -> dict[str, np.ndarray]:
        """Returns the fields alone: whatever follows from them is computed where it is used."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    word_list, entities, files = _listed("words"), _listed("entity_ids"), _listed("file_names")
    relations, types = _listed("relation_names"), _listed("type_names")

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.piece_flat, self.piece_offsets)

    @cached_property
    def window_of(self) -> np.ndarray:
        """(T) the window of each triple."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_triple))

    @cached_property
    def name(self) -> np.ndarray:
        """(E) the last part of each entity's id, a word."""
        return self.parts[self.part_offsets[:-1]]

    @cached_property
    def owner(self) -> np.ndarray:
        """(E) the part before the last of each entity's id, a word: its class or module; -1 where there is none."""
        first = self.part_offsets[:-1]
        has = np.diff(self.part_offsets) > 1
        return np.where(has, self.parts[np.minimum(first + 1, len(self.parts) - 1)], -1)

    @cached_property
    def package(self) -> np.ndarray:
        """(E) the first part of each entity's id, a word."""
        return self.parts[self.part_offsets[1:] - 1]

    @cached_property
    def parent(self) -> np.ndarray:
        """(E) the entity whose id is that of this one without its last part; a negative number where it is none."""
        index = {name: i for i, name in enumerate(self.entities)}
        others: dict[str, int] = {}
        parents = (name.rpartition(".")[0] or f"?{name}" for name in self.entities)
        return np.array([index.get(p, others.setdefault(p, -2 - len(others))) for p in parents], np.int64)

    @cached_property
    def _word_index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.word_list)}

    def word_index(self, word: str) -> int:
        """Returns the index of a word, -9 where no text or name has it."""
        return self._word_index.get(word, -9)

    def windows_of(self, split: str) -> np.ndarray:
        """Returns the indices of the windows of a split, ascending."""
        return np.flatnonzero(self.split == SPLITS.index(split))

    def triples_of(self, split: str) -> np.ndarray:
        """Returns the indices of the triples of a split, ascending."""
        return np.flatnonzero(self.split[self.window_of] == SPLITS.index(split))

    def fingerprint(self) -> str:
        """Hashes the content of all arrays, by whose names nothing of where it comes from is said.

        The tokenizer follows from the words, and its text from the version of the library that writes it.
        """
        digest = hashlib.sha256()
        for field in (field for field in fields(self) if field.name != "tokenizer"):
            array = np.ascontiguousarray(getattr(self, field.name))
            digest.update(f"{field.name} {array.dtype} {array.shape}\n".encode())
            digest.update(array.data.cast("B") if array.size else b"")
        return digest.hexdigest()[:16]

    def summary(self) -> str:
        """Returns the numbers of windows and triples as one line."""
        per_split = Counter(self.split[self.window_of].tolist())
        shares = ", ".join(f"{per_split[i]:,} {name}" for i, name in enumerate(SPLITS))
        return f"{len(self):,} windows of text with {len(self.relation):,} triples ({shares})"

    def save(self, path: Path) -> None:
        """Writes an .npz without pickle and without compression, each array aligned so that it can be mapped."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(path, cache=True) as aside, zipfile.ZipFile(aside, "w") as archive:
            for field in fields(self):
                member = zipfile.ZipInfo(f"{field.name}.npy")
                begin = archive.fp.tell() + 34 + len(member.filename)  # type: ignore[union-attr]
                size = -begin % _ALIGNMENT
                member.extra = struct.pack("<HH", 0xD935, size) + bytes(size)  # the number that Android's zipalign uses
                with archive.open(member, "w") as file:
                    np.lib.format.write_array(file, np.ascontiguousarray(getattr(self, field.name)), allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> "Corpus":
        """Maps a file that `save` wrote, once its checksums are verified.

        Raises OSError, ValueError, KeyError or zipfile.BadZipFile where it is damaged.
        """
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} does not match its checksum")
            return cls(**{field.name: _mapped(archive, f"{field.name}.npy") for field in fields(cls)})


def joined_texts(texts: Iterable[str]) -> np.ndarray:
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def _mapped(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Returns an uncompressed array of an .npz, mapped. Raises ValueError for one that is not of plain numbers."""
    member = archive.getinfo(name)
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        header_of = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header_of(content)
        header = content.tell()
    size = header + math.prod(shape) * dtype.itemsize
    if dtype.hasobject or member.compress_type != zipfile.ZIP_STORED or member.file_size != size:
        raise ValueError(
            f"{name} is no array of plain numbers"
        )  # mapped objects would be addresses of anybody's choice
    if not math.prod(shape):
        return np.empty(shape, dtype)  # an empty stretch cannot be mapped
    file = archive.fp
    assert file and archive.filename
    file.seek(member.header_offset + 26)
    begin = member.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))) + header
    return np.asarray(np.memmap(archive.filename, dtype, "r", begin, shape))  # slices of a memmap itself are slow


def build(graph: Graph, sources: Sources | None, chain: Chain, split: Split, tokenizer: str = "") -> Corpus:
    """Builds the arrays of a graph. `sources` are its files; None leaves the windows without text.

    A `tokenizer` of another corpus cuts the words; without one it is learned. Then an empty split raises BadInput.
    """
    splits = split_files(sorted({t.file for t in graph.triples}), split.validation, split.test)
    words: dict[str, int] = {}  # word -> its index, in the order of first mention
    names = {
        entity: [words.setdefault(word, len(words)) for word in tokens.name_parts(entity)]
        for entity in sorted({e for t in graph.triples for e in (t.head, t.tail)})
    }
    text, lines = _read_text(graph, sources, words) if sources else (np.zeros(0, np.int64), Lines())
    learned = tokenizer or _learn_pieces(text, lines, splits, names.values(), list(words), chain.vocabulary)
    pieces = tokens.cut(learned, list(words))
    windows = _windows(graph, text, lines, pieces, names, chain)
    entities = [graph.entities[name] for name in names]
    relations, types = _numbered({t.relation for t in graph.triples}), _numbered({e.type for e in entities})
    files = _numbered({e.file for e in entities} | splits.keys())
    corpus = Corpus(
        words=joined_texts(words),
        entity_ids=joined_texts(names),
        relation_names=joined_texts(relations),
        type_names=joined_texts(types),
        file_names=joined_texts(files),
        text=text,
        entity_type=np.array([types[e.type] for e in entities], np.int32),
        entity_file=np.array([files[e.file] if e.file else -1 for e in entities], np.int32),
        parts=np.array([word for name in names.values() for word in name], np.int64),
        part_offsets=_offsets([len(name) for name in names.values()]),
        piece_flat=pieces.flat,
        piece_offsets=pieces.offsets,
        tokenizer=np.frombuffer(learned.encode(), np.uint8),
        **_of_windows(windows, _numbered(names), relations, splits, files),
    )
    if empty := [name for name in SPLITS if not tokenizer and not len(corpus.triples_of(name))]:
        raise BadInput(
            f"No triple is left for the {empty[0]} split: the data comes from {len(splits)} files. Give more, or raise "
            "workload.split.validation and .test."
        )
    return corpus


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(names))}


def _of_windows(
    windows: Sequence["_Window"],
    index: dict[str, int],
    relations: dict[str, int],
    splits: dict[str, int],
    files: dict[str, int],
) -> dict[str, np.ndarray]:
    """Returns the arrays of windows and their triples, by the numbers of entities, relations, splits and files."""
    triples, first = [t for window in windows for t in window.triples], [window.triples[0] for window in windows]
    return {
        "window_start": np.array([window.start for window in windows], np.int64),
        "window_stop": np.array([window.stop for window in windows], np.int64),
        "first_triple": _offsets([len(window.triples) for window in windows]),
        "head": np.array([index[t.head] for t in first], np.int64),
        "split": np.array([splits[t.file] for t in first], np.int8),
        "window_file": np.array([files[t.file] for t in first], np.int32),
        "relation": np.array([relations[t.relation] for t in triples], np.int64),
        "tail": np.array([index[t.tail] for t in triples], np.int64),
    }


def split_files(files: Sequence[str], validation: float, test: float) -> dict[str, int]:
    """Deals files, by their shares, to indices of SPLITS, by a hash of the path: each stays when others come or go."""
    bounds = (validation, validation + test)
    places = [int.from_bytes(hashlib.sha256(file.encode()).digest()[:8], "big") / 2**64 for file in files]
    return {file: (1 + sum(place >= bound for bound in bounds)) % 3 for file, place in zip(files, places, strict=True)}


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    """(N) lengths of the rows of a ragged array -> (N + 1) where each begins."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _read_text(graph: Graph, sources: Sources, words: dict[str, int]) -> tuple[np.ndarray, Lines]:
    """Returns all words of the files that entities lie in, as indices into `words`, which grows."""

    def contents(file: str) -> tuple[bytes]:
        try:
            return (sources.read(file),)
        except OSError as error:
            raise BadInput(f"{sources.path(file)} can no longer be read ({error.strerror}). Run again.") from None

    files = sorted({e.file for e in graph.entities.values() if e.file})
    parts, lines, length = [np.zeros(0, np.int64)], Lines(), 0
    for file, answer in zip(files, readers.run("words", files, contents), strict=True):
        if isinstance(answer, readers.Lost):
            raise BadInput(f"{file}: {answer.reason}, though it was read before. Run again, or leave the file out.")
        own, numbers, starts = answer
        index = np.array([words.setdefault(word, len(words)) for word in own], np.int64)
        parts.append(index[np.frombuffer(numbers, np.int32)] if own else index)
        lines[file] = np.frombuffer(starts, np.int32).astype(np.int64) + length
        length += len(numbers)
    return np.concatenate(parts), lines


def _learn_pieces(
    text: np.ndarray, lines: Lines, splits: dict[str, int], names: Iterable[list[int]], words: list[str], size: int
) -> str:
    """Learns pieces from the words of the training files and of all names."""
    counts = np.bincount(np.fromiter(itertools.chain.from_iterable(names), np.int64), minlength=len(words))
    for file, starts in lines.items():
        if splits.get(file, 0) == 0:
            counts += np.bincount(text[starts[0] : starts[-1]], minlength=len(words))
    return tokens.learn({words[i]: int(counts[i]) for i in np.flatnonzero(counts)}, size)


@dataclass
class _Window:
    start: int
    stop: int
    triples: list[Triple]


def header_room(roots: int) -> int:
    """Returns how many root tokens the head's name takes at most."""
    return max(2, roots // 8)


def _windows(
    graph: Graph, text: np.ndarray, lines: Lines, pieces: Pieces, names: dict[str, list[int]], chain: Chain
) -> list[_Window]:
    """Returns the windows of every head: whole lines that fit behind its name; a longer line is cut off."""
    by_head: dict[tuple[str, str], list[Triple]] = defaultdict(list)
    for triple in graph.triples:
        by_head[triple.head, triple.file].append(triple)
    cumulative = np.concatenate([[0], np.cumsum(pieces.lengths(text))]) if len(text) else np.zeros(1, np.int64)
    windows = []
    for (head, file), triples in sorted(by_head.items()):
        entity = graph.entities.get(head)
        if entity is None or entity.file != file or file not in lines:
            windows.append(_Window(0, 0, triples))
            continue
        header = min(int(pieces.lengths(np.array(names[head])).sum()), header_room(chain.roots)) + 1
        starts, line = lines[file], entity.first_line
        last = min(entity.last_line, len(starts) - 1)
        first_lines, bounds = [], []  # words
        while line <= last:
            begin = int(starts[line - 1])
            limit = int(cumulative.searchsorted(cumulative[begin] + chain.roots - header, "right")) - 1
            following = max(min(int(starts.searchsorted(limit, "right")), last + 1), line + 1)
            first_lines.append(line)
            bounds.append((begin, min(int(starts[following - 1]), limit)))
            line = following
        by_number: dict[int, _Window] = {}
        for triple in triples:
            number = max(0, bisect_right(first_lines, triple.line) - 1)
            by_number.setdefault(number, _Window(*bounds[number], [])).triples.append(triple)
        windows += [by_number[number] for number in sorted(by_number)]
    return windows
