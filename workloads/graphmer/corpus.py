"""From a graph and its sources to arrays: windows of text around heads, their triples, and a split by file."""

import hashlib
import itertools
import re
import zipfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lib.errors import BadInput
from lib.machine import disk
from workloads.codegraph.facts import words_by_line
from workloads.codegraph.graph import builtin_methods
from workloads.codegraph.records import Entity, Graph, Triple
from workloads.codegraph.trees import Sources
from workloads.graphmer.settings import SPECIALS, UNKNOWN, Array, Chain, Split

SPLITS = ("train", "validation", "test")
OF_TREE = "<tree>/"  # before the files of a tree that was joined to training
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
# Pieces never cross the seams of snake_case and CamelCase
_SEAMS = r"_*(?:[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+)|_+|."
_OFFSETS = ("first_triple", "part_offsets", "piece_offsets")
Lines = dict[str, Array]  # file -> (lines + 1) where each line begins in the text
Window = tuple[int, int, list[Triple]]  # its first word, its end, and the triples of its lines


def _texts(array: Array) -> list[str]:
    text = array.tobytes().decode()
    return text.split("\n") if text else []


@dataclass
class Corpus:
    """The arrays that training and evaluation read. W windows, T triples, E entities, V words.

    A window is a stretch of a file's text inside the span of one head, with that head's triples of those lines.
    `text` holds all words of all files; `window_start` and `window_stop` (W) bound a window in it, and
    `first_triple` (W + 1) bounds its triples. `relation`, `tail` (T), `head`, `split`, `window_file` (W) are indices.
    `entity_type` and `entity_file` (E) say what an entity is and where it is defined, -1: in no file.
    `parts` are the words of an entity's id, the last first, ragged by `part_offsets` (E + 1); `piece_flat` are the
    byte-pair pieces of words, ragged by `piece_offsets` (V + 1). `words`, `entity_ids`, `relation_names`, `type_names`
    and `file_names` are texts, joined by line ends as UTF-8; by `tokenizer`, a text too, `_cut` cuts other words alike.
    """

    words: Array
    entity_ids: Array
    relation_names: Array
    type_names: Array
    file_names: Array
    text: Array
    window_start: Array
    window_stop: Array
    first_triple: Array
    head: Array
    split: Array
    window_file: Array
    relation: Array
    tail: Array
    entity_type: Array
    entity_file: Array
    parts: Array
    part_offsets: Array
    piece_flat: Array
    piece_offsets: Array
    tokenizer: Array

    @cached_property
    def word_list(self) -> list[str]:
        return _texts(self.words)

    @cached_property
    def entities(self) -> list[str]:
        return _texts(self.entity_ids)

    @cached_property
    def files(self) -> list[str]:
        return _texts(self.file_names)

    @cached_property
    def relations(self) -> list[str]:
        return _texts(self.relation_names)

    @cached_property
    def types(self) -> list[str]:
        return _texts(self.type_names)

    @classmethod
    def of_nothing(cls, relations: Sequence[str], types: Sequence[str]) -> "Corpus":
        """Returns a corpus without entities and files, to which a graph is added."""
        arrays = {field.name: np.zeros(0, np.int64) for field in fields(cls)}
        arrays |= dict.fromkeys(_OFFSETS, np.zeros(1, np.int64))
        arrays["split"] = np.zeros(0, np.int8)
        for name in ("window_file", "entity_type", "entity_file", "piece_flat"):
            arrays[name] = np.zeros(0, np.int32)
        for name in ("words", "entity_ids", "file_names", "tokenizer"):
            arrays[name] = joined_texts(())
        arrays["relation_names"] = joined_texts(relations)
        arrays["type_names"] = joined_texts(types)
        return cls(**arrays)

    def __len__(self) -> int:
        return len(self.head)

    def arrays(self) -> dict[str, Array]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __getstate__(self) -> dict[str, Array]:
        return self.arrays()

    @cached_property
    def sizes(self) -> Array:
        """(V) the number of pieces of each word."""
        return np.diff(self.piece_offsets)

    @cached_property
    def window_of(self) -> Array:
        """(T) the window of each triple."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_triple))

    @cached_property
    def name(self) -> Array:
        """(E) the last part of each entity's id, a word."""
        return self.parts[self.part_offsets[:-1]]

    @cached_property
    def owner(self) -> Array:
        """(E) the part before the last of each entity's id, a word: its class or module; -1 for ids of one part."""
        second = self.part_offsets[:-1] + 1
        word = self.parts[np.minimum(second, len(self.parts) - 1)]
        return np.where(np.diff(self.part_offsets) > 1, word, -1)

    @cached_property
    def package(self) -> Array:
        """(E) the first part of each entity's id, a word."""
        return self.parts[self.part_offsets[1:] - 1]

    @cached_property
    def parent(self) -> Array:
        """(E) the entity whose id is this one's without its last part; a negative number if there is no such entity."""
        index = _numbered(self.entities)
        others: dict[str, int] = {}
        numbers = []
        for name in self.entities:
            parent = name.rpartition(".")[0] or f"?{name}"
            other = others.setdefault(parent, -2 - len(others))
            numbers.append(index.get(parent, other))
        return np.array(numbers, np.int64)

    @cached_property
    def folder(self) -> Array:
        """(files) the folder of each file, a number."""
        folders: dict[str, int] = {}
        paths = [file.rpartition("/")[0] for file in self.files]
        return np.array([folders.setdefault(path, len(folders)) for path in paths])

    @cached_property
    def word_index(self) -> Callable[[str], int]:
        """Returns the index of a word, -9 if no text or name has it."""
        index = _numbered(self.word_list)
        return lambda word: index.get(word, -9)

    def triples_of(self, split: str) -> Array:
        return np.flatnonzero(self.split[self.window_of] == SPLITS.index(split))

    def summary(self) -> str:
        sizes = {name: len(self.triples_of(name)) for name in SPLITS}
        shares = ", ".join(f"{size:,} {name}" for name, size in sizes.items())
        return f"{len(self):,} windows of text with {len(self.relation):,} triples ({shares})"

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(path, cache=True) as aside, aside.open("wb") as file:
            np.savez(file, **self.arrays())

    @classmethod
    def load(cls, path: Path) -> "Corpus":
        """Reads a file that `save` wrote. Raises OSError or ValueError if it is damaged or not plain numbers."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                methods = {member.compress_type for member in archive.zip.infolist()}
                if methods - {zipfile.ZIP_STORED}:
                    raise ValueError("it is compressed, and no array of plain numbers")
                return cls(**{field.name: archive[field.name] for field in fields(cls)})
        except (KeyError, EOFError, MemoryError, AttributeError, zipfile.BadZipFile) as error:
            raise ValueError(str(error)) from None

    def check(self) -> None:
        """Raises ValueError if an index leads out of the arrays: an untrusted one could ask for much memory."""
        words = len(self.word_list)
        text = len(self.text) + 1
        entities = len(self.entities)
        files = len(self.files)
        limits = {"text": words, "parts": words, "window_start": text, "window_stop": text}
        limits |= {"first_triple": len(self.tail) + 1, "head": entities, "tail": entities}
        limits |= {"relation": len(self.relations), "split": 3, "window_file": files}
        limits |= {"entity_type": len(self.types), "entity_file": files}
        limits |= {"part_offsets": len(self.parts) + 1, "piece_offsets": len(self.piece_flat) + 1}
        for name, limit in limits.items():
            array = getattr(self, name)
            is_index = array.ndim == 1 and array.dtype.kind in "iu"
            if not is_index or (array < -1).any() or (array >= limit).any():
                raise ValueError(f"{name} leads out of the corpus")


def build(graph: Graph, sources: Sources | None, chain: Chain, split: Split) -> Corpus:
    """Builds the arrays of a graph, without text if `sources` is None. Raises BadInput for a split without facts."""
    entities = {name: graph.entities[name] for name in _mentioned(graph)}
    relations = sorted({t.relation for t in graph.triples})
    types = sorted({entity.type for entity in entities.values()})
    files = sorted({t.file for t in graph.triples})
    splits = split_files(files, split.validation, split.test)
    nothing = Corpus.of_nothing(relations, types)
    corpus = _behind(nothing, graph, entities, sources, chain, splits)
    for name in SPLITS:
        if not len(corpus.triples_of(name)):
            raise BadInput(
                f"No triple is left for the {name} split: the data comes from {len(files)} files. "
                "Give more, or raise workload.split.validation and .test."
            )
    return corpus


def extended(trained: Corpus, graph: Graph, sources: Sources, chain: Chain) -> Corpus:
    """Returns a corpus with the facts of a tree to predict behind those of training, all in the split "train".

    It knows the methods of Python's builtins. Facts of relations or entity types that training never saw are left out,
    for no model has an answer to them. Modules of training that the tree has too do not count.
    """
    known = builtin_methods()
    files = sorted({t.file for t in graph.triples})
    splits = dict.fromkeys(files, SPLITS.index("train"))
    entities = {}
    for name in sorted({*_mentioned(graph), *known}):
        entity = graph.entities.get(name) or known[name]
        if entity.type in trained.types:
            entities[name] = entity
    triples = [t for t in graph.triples if t.relation in trained.relations]
    triples = [t for t in triples if {t.head, t.tail} <= entities.keys()]
    in_files = [name for name, entity in entities.items() if entity.file]
    is_module = np.array(trained.types)[trained.entity_type] == "Module"
    is_again = np.isin(trained.entities, in_files)
    gone = np.setdiff1d(trained.entity_file[is_module & is_again], [-1])
    file = np.where(np.isin(trained.entity_file, gone), -1, trained.entity_file)
    is_gone = np.isin(trained.window_file, gone)
    split = np.where(is_gone, len(SPLITS), trained.split).astype(np.int8)
    before = replace(trained, entity_file=file.astype(np.int32), split=split)
    return _behind(before, replace(graph, triples=triples), entities, sources, chain, splits)


def _mentioned(graph: Graph) -> list[str]:
    names = {t.head for t in graph.triples}
    names |= {t.tail for t in graph.triples}
    return sorted(names)


def _behind(
    before: Corpus, graph: Graph, entities: Mapping[str, Entity], sources: Sources | None, chain: Chain,
    splits: Mapping[str, int],
) -> Corpus:  # fmt: skip
    """Returns a corpus with the arrays of a graph appended to another one, which has all relations and types."""
    words = _numbered(before.word_list)
    names = {name: _word_numbers(name, words) for name in entities}
    text = before.text
    lines = Lines()
    if sources:
        text, lines = _read_text(graph, sources, words, text)
    tokenizer = before.tokenizer.tobytes().decode()
    if not tokenizer:
        tokenizer = _pieces(text, lines, splits, names.values(), list(words), chain.vocabulary)
    new_words = [*words][len(before.word_list) :]
    flat, offsets = _cut(tokenizer, new_words)
    sizes = np.concatenate([before.sizes, np.diff(offsets)])
    windows = _windows(graph, text, lines, sizes, names, chain)
    index = _numbered(before.entities)
    new = [name for name in names if name not in index]
    index |= _numbered(new, len(index))
    paths = sorted({entity.file for entity in entities.values()} | splits.keys())
    files = _numbered(paths, len(before.files))
    prefix = OF_TREE if before.files else ""
    file_names = [*before.files, *(f"{prefix}{file}" for file in files)]
    added = _window_arrays(windows, before, index, files, splits)
    added["entity_type"] = [0] * len(new)
    added["entity_file"] = [-1] * len(new)
    added["parts"] = [word for name in new for word in names[name]]
    added["part_offsets"] = _offsets([len(names[name]) for name in new])
    added["piece_flat"] = flat
    added["piece_offsets"] = offsets
    arrays = {}
    for name, values in added.items():
        arrays[name] = _joined(getattr(before, name), values, name in _OFFSETS)
    types = _numbered(before.types)
    for entity in entities.values():
        place = index[entity.id]
        if entity.file or place >= len(before.entities):
            arrays["entity_type"][place] = types[entity.type]
            arrays["entity_file"][place] = files[entity.file] if entity.file else -1
    arrays["words"] = joined_texts(words)
    arrays["entity_ids"] = joined_texts(index)
    arrays["file_names"] = joined_texts(file_names)
    return replace(before, text=text, tokenizer=joined_texts([tokenizer]), **arrays)


def _word_numbers(name: str, words: dict[str, int]) -> list[int]:
    """Returns the words of an entity's id, the last one first, as indices into `words`, which grows."""
    # "json.decoder.scan" gives scan, decoder, json
    parts = _IDENTIFIER.findall(name)[::-1] or [name]
    return [words.setdefault(word, len(words)) for word in parts]


def _window_arrays(
    windows: Sequence[Window],
    corpus: Corpus,
    index: Mapping[str, int],
    files: Mapping[str, int],
    splits: Mapping[str, int],
) -> dict[str, Sequence[int] | Array]:
    """Returns the fields of windows and of their triples, by entities in `index` and files in `files`."""
    relations = _numbered(corpus.relations)
    triples = [t for _, _, of_window in windows for t in of_window]
    first = [of_window[0] for _, _, of_window in windows]
    arrays: dict[str, Sequence[int] | Array] = {}
    arrays["window_start"] = [start for start, _, _ in windows]
    arrays["window_stop"] = [stop for _, stop, _ in windows]
    arrays["first_triple"] = _offsets([len(of_window) for _, _, of_window in windows])
    arrays["head"] = [index[t.head] for t in first]
    arrays["split"] = [splits[t.file] for t in first]
    arrays["window_file"] = [files[t.file] for t in first]
    arrays["relation"] = [relations[t.relation] for t in triples]
    arrays["tail"] = [index[t.tail] for t in triples]
    return arrays


def _joined(first: Array, second: Sequence[int] | Array, are_offsets: bool) -> Array:
    second = np.asarray(second, first.dtype)
    if are_offsets:
        second = first[-1] + second[1:]
    return np.concatenate([first, second])


def joined_texts(texts: Iterable[str]) -> Array:
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def _numbered(names: Iterable[str], first: int = 0) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, first)}


def split_files(files: Sequence[str], validation: float, test: float) -> dict[str, int]:
    """Assigns files to indices of SPLITS by a hash of the path, so that each stays when others come or go."""
    splits = {}
    for file in files:
        digest = hashlib.sha256(file.encode()).digest()
        place = int.from_bytes(digest[:8], "big") / 2**64
        passed = (place >= validation) + (place >= validation + test)
        splits[file] = (1 + passed) % 3
    return splits


def _offsets(lengths: Sequence[int]) -> Array:
    """(N) lengths of the rows of a ragged array -> (N + 1) where each begins."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _read_text(
    graph: Graph, sources: Sources, words: dict[str, int], before: Array
) -> tuple[Array, Lines]:
    """Returns all words of the entities' files behind those `before`, as indices into `words`, which grows."""
    texts = [before]
    lines = Lines()
    length = len(before)
    files = {entity.file for entity in graph.entities.values() if entity.file}
    for file in sorted(files):
        try:
            different, numbers, starts = words_by_line(sources.read(file))
        except OSError as error:
            raise BadInput(
                f"{sources.path(file)} can no longer be read ({error.strerror}). Run again."
            ) from None
        indices = [words.setdefault(word, len(words)) for word in different]
        index = np.array(indices, np.int64)
        if different:
            index = index[np.frombuffer(numbers, np.int32)]
        texts.append(index)
        first_words = np.frombuffer(starts, np.int32).astype(np.int64)
        lines[file] = first_words + length
        length += len(numbers)
    return np.concatenate(texts), lines


def _pieces(
    text: Array,
    lines: Lines,
    splits: Mapping[str, int],
    names: Iterable[list[int]],
    words: list[str],
    size: int,
) -> str:
    """Learns at most `size` byte-pair pieces from the names and the words of training files; returns the tokenizer.

    Sennrich et al., Neural Machine Translation of Rare Words with Subword Units, ACL 2016; the `tokenizers` library.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    of_names = np.fromiter(itertools.chain.from_iterable(names), np.int64)
    counts = np.bincount(of_names, minlength=len(words))
    for file, starts in lines.items():
        if splits.get(file, 0) == 0:
            of_file = text[starts[0] : starts[-1]]
            counts += np.bincount(of_file, minlength=len(words))
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_SEAMS), "isolated")
    # The trainer counts words, so each word is repeated as often as it was seen; beyond 64 times merges do not change.
    times = np.minimum(counts, 64).tolist()
    counted = sorted((word, number) for word, number in zip(words, times, strict=True) if number)
    repeated = (word for word, number in counted for _ in range(number))
    options = {"special_tokens": SPECIALS, "limit_alphabet": 200, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=size, **options)
    tokenizer.train_from_iterator(repeated, trainer)
    return tokenizer.to_str()


def _cut(text: str, words: Sequence[str]) -> tuple[Array, Array]:
    """Returns the pieces of words, flat (int32), and (words + 1) where each word's begin. Raises ValueError."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"the pieces of words cannot be read ({error})") from None
    encodings = tokenizer.encode_batch(list(words), add_special_tokens=False)
    pieces = [encoding.ids for encoding in encodings]
    offsets = _offsets([len(ids) for ids in pieces])
    flat = itertools.chain.from_iterable(pieces)
    return np.fromiter(flat, np.int32), offsets


def header_room(roots: int) -> int:
    """Returns how many root tokens the head's name takes at most."""
    return max(2, roots // 8)


def _windows(
    graph: Graph, text: Array, lines: Lines, sizes: Array, names: dict[str, list[int]], chain: Chain
) -> list[Window]:
    """Returns start, stop and triples of each head's windows: whole lines that fit behind its name."""
    by_head: dict[tuple[str, str], list[Triple]] = defaultdict(list)
    for triple in graph.triples:
        by_head[triple.head, triple.file].append(triple)
    cumulative = np.concatenate([[0], np.cumsum(sizes[text])])
    windows: list[Window] = []
    for (head, file), triples in sorted(by_head.items()):
        entity = graph.entities[head]
        if entity.file != file or file not in lines:
            windows.append((0, 0, triples))
            continue
        name_size = int(sizes[np.array(names[head])].sum())
        header = min(name_size, header_room(chain.roots)) + 1
        room = chain.roots - header
        first_lines, bounds = _stretches(entity, lines[file], cumulative, room)
        by_number: dict[int, list[Triple]] = defaultdict(list)
        for triple in triples:
            number = bisect_right(first_lines, triple.line) - 1
            by_number[max(0, number)].append(triple)
        windows += [(*bounds[number], by_number[number]) for number in sorted(by_number)]
    return windows


def _stretches(
    entity: Entity, starts: Array, cumulative: Array, roots: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns the first line and the bounds, in words, of each stretch of an entity's text that fits `roots`."""
    line = entity.first_line
    last = min(entity.last_line, len(starts) - 1)
    first_lines = []
    bounds = []
    while line <= last:
        begin = int(starts[line - 1])
        limit = int(cumulative.searchsorted(cumulative[begin] + roots, "right")) - 1
        after_limit = int(starts.searchsorted(limit, "right"))
        following = max(min(after_limit, last + 1), line + 1)
        end = min(int(starts[following - 1]), limit)
        first_lines.append(line)
        bounds.append((begin, end))
        line = following
    return first_lines, bounds
