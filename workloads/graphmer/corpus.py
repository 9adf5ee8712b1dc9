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
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
# Pieces never cross the seams of snake_case and CamelCase
_SEAMS = r"_*(?:[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+)|_+|."
_OFFSETS = ("first_triple", "part_offsets", "piece_offsets")
Lines = dict[str, Array]  # file -> (lines + 1) where each line begins in the text


def _listed(name: str) -> "cached_property[list[str]]":
    def texts(corpus: "Corpus") -> list[str]:
        text = getattr(corpus, name).tobytes().decode()
        return text.split("\n") if text else []

    return cached_property(texts)


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

    word_list = _listed("words")
    entities = _listed("entity_ids")
    files = _listed("file_names")
    relations = _listed("relation_names")
    types = _listed("type_names")

    @classmethod
    def of_nothing(cls, relations: Sequence[str], types: Sequence[str]) -> "Corpus":
        small = "window_file", "entity_type", "entity_file", "piece_flat"
        kinds = {"split": np.int8, **dict.fromkeys(small, np.int32)}
        arrays = {
            f.name: np.zeros(int(f.name in _OFFSETS), kinds.get(f.name, np.int64))
            for f in fields(cls)
        }
        texts = {
            name: joined_texts(()) for name in ("words", "entity_ids", "file_names", "tokenizer")
        }
        names = {"relation_names": joined_texts(relations), "type_names": joined_texts(types)}
        return cls(**{**arrays, **texts, **names})

    def __len__(self) -> int:
        return len(self.head)

    def arrays(self) -> dict[str, Array]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    __getstate__ = arrays

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
        """(E) the part before the last of each entity's id, a word: its class or module; -1 where there is none."""
        first = self.part_offsets[:-1]
        return np.where(
            np.diff(self.part_offsets) > 1,
            self.parts[np.minimum(first + 1, len(self.parts) - 1)],
            -1,
        )

    @cached_property
    def package(self) -> Array:
        """(E) the first part of each entity's id, a word."""
        return self.parts[self.part_offsets[1:] - 1]

    @cached_property
    def parent(self) -> Array:
        """(E) the entity whose id is that of this one without its last part; a negative number where it is none."""
        index = {name: i for i, name in enumerate(self.entities)}
        others: dict[str, int] = {}
        parents = (name.rpartition(".")[0] or f"?{name}" for name in self.entities)
        return np.array(
            [index.get(p, others.setdefault(p, -2 - len(others))) for p in parents], np.int64
        )

    @cached_property
    def folder(self) -> Array:
        """(files) the folder of each file, a number."""
        folders: dict[str, int] = {}
        return np.array(
            [folders.setdefault(file.rpartition("/")[0], len(folders)) for file in self.files]
        )

    @cached_property
    def word_index(self) -> Callable[[str], int]:
        """Returns the index of a word, -9 where no text or name has it."""
        index = {word: i for i, word in enumerate(self.word_list)}
        return lambda word: index.get(word, -9)

    def triples_of(self, split: str) -> Array:
        return np.flatnonzero(self.split[self.window_of] == SPLITS.index(split))

    def summary(self) -> str:
        shares = ", ".join(f"{len(self.triples_of(name)):,} {name}" for name in SPLITS)
        return f"{len(self):,} windows of text with {len(self.relation):,} triples ({shares})"

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(path, cache=True) as aside, aside.open("wb") as file:
            np.savez(file, **self.arrays())

    @classmethod
    def load(cls, path: Path) -> "Corpus":
        """Reads a file that `save` wrote. Raises OSError or ValueError where it is damaged or not plain numbers."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                if any(
                    member.compress_type != zipfile.ZIP_STORED for member in archive.zip.infolist()
                ):
                    raise ValueError("it is compressed, and no array of plain numbers")
                return cls(**{field.name: archive[field.name] for field in fields(cls)})
        except (KeyError, EOFError, MemoryError, AttributeError, zipfile.BadZipFile) as error:
            raise ValueError(str(error)) from None

    def check(self) -> None:
        """Raises ValueError if an index leads out of the arrays: a stranger's could ask for any amount of memory."""
        text = len(self.text) + 1
        facts = len(self.tail) + 1
        entities = len(self.entities)
        below = {
            "text": len(self.word_list), "parts": len(self.word_list), "window_start": text, "window_stop": text,
            "first_triple": facts, "head": entities, "tail": entities, "relation": len(self.relations), "split": 3,
            "window_file": len(self.files), "entity_type": len(self.types), "entity_file": len(self.files),
            "part_offsets": len(self.parts) + 1, "piece_offsets": len(self.piece_flat) + 1,
        }  # fmt: skip
        for name, most in below.items():
            array = getattr(self, name)
            if (
                array.ndim != 1
                or array.dtype.kind not in "iu"
                or np.any((array < -1) | (array >= most))
            ):
                raise ValueError(f"{name} leads out of the corpus")


def build(graph: Graph, sources: Sources | None, chain: Chain, split: Split) -> Corpus:
    """Builds the arrays of a graph, without text where `sources` is None. Raises BadInput for a split without facts."""
    entities = {name: graph.entities[name] for name in _mentioned(graph)}
    relations = {t.relation for t in graph.triples}
    types = {entity.type for entity in entities.values()}
    splits = split_files(sorted({t.file for t in graph.triples}), split.validation, split.test)
    corpus = _behind(
        Corpus.of_nothing(sorted(relations), sorted(types)), graph, entities, sources, chain, splits
    )
    if empty := [name for name in SPLITS if not len(corpus.triples_of(name))]:
        what = (
            f"No triple is left for the {empty[0]} split: the data comes from {len(splits)} files"
        )
        raise BadInput(f"{what}. Give more, or raise workload.split.validation and .test.")
    return corpus


def extended(trained: Corpus, graph: Graph, sources: Sources, chain: Chain) -> Corpus:
    """Returns a corpus with the facts of a tree to predict behind those of training, all in the split "train".

    It knows the methods of Python's builtins. Facts of relations or entity types that training never saw are left out,
    for no model has an answer to them. What training knows of a module that the tree has too does not count.
    """
    known = builtin_methods()
    splits = dict.fromkeys(sorted({t.file for t in graph.triples}), SPLITS.index("train"))
    entities = {
        name: graph.entities.get(name) or known[name]
        for name in sorted({*_mentioned(graph), *known})
    }
    entities = {name: entity for name, entity in entities.items() if entity.type in trained.types}
    triples = [
        t
        for t in graph.triples
        if t.relation in trained.relations and {t.head, t.tail} <= entities.keys()
    ]
    is_module = np.array(trained.types)[trained.entity_type] == "Module"
    is_again = np.isin(trained.entities, [name for name, entity in entities.items() if entity.file])
    gone = np.setdiff1d(trained.entity_file[is_module & is_again], [-1])
    file = np.where(np.isin(trained.entity_file, gone), -1, trained.entity_file).astype(np.int32)
    split = np.where(np.isin(trained.window_file, gone), len(SPLITS), trained.split).astype(np.int8)
    before = replace(trained, entity_file=file, split=split)
    return _behind(before, replace(graph, triples=triples), entities, sources, chain, splits)


def _mentioned(graph: Graph) -> list[str]:
    return sorted({entity for t in graph.triples for entity in (t.head, t.tail)})


def _behind(
    before: Corpus, graph: Graph, entities: Mapping[str, Entity], sources: Sources | None, chain: Chain,
    splits: Mapping[str, int],
) -> Corpus:  # fmt: skip
    """Returns a corpus with the arrays of a graph behind those of another one, which has all relations and types."""
    relations, types, words = (
        _numbered(names) for names in (before.relations, before.types, before.word_list)
    )
    # The identifiers of each entity's id, the last one first: "json.decoder.scan" gives scan, decoder, json
    parts = {name: _IDENTIFIER.findall(name)[::-1] or [name] for name in entities}
    names = {
        name: [words.setdefault(word, len(words)) for word in parts[name]] for name in entities
    }
    text, lines = (
        _read_text(graph, sources, words, before.text) if sources else (before.text, Lines())
    )
    learned = before.tokenizer.tobytes().decode()
    learned = learned or _pieces(text, lines, splits, names.values(), list(words), chain.vocabulary)
    flat, offsets = _cut(learned, [*words][len(before.word_list) :])
    windows = _windows(
        graph, text, lines, np.concatenate([before.sizes, np.diff(offsets)]), names, chain
    )
    triples = [t for _, _, of in windows for t in of]
    first = [of[0] for _, _, of in windows]
    index = _numbered(before.entities)
    new = [name for name in names if name not in index]
    index |= {name: number for number, name in enumerate(new, len(index))}
    files = _numbered(
        sorted({entity.file for entity in entities.values()} | splits.keys()), len(before.files)
    )
    file_names = [*before.files, *(f"{'<tree>/' if before.files else ''}{file}" for file in files)]
    added = {
        "window_start": [start for start, _, _ in windows], "window_stop": [stop for _, stop, _ in windows],
        "first_triple": _offsets([len(of) for _, _, of in windows]), "head": [index[t.head] for t in first],
        "split": [splits[t.file] for t in first], "window_file": [files[t.file] for t in first],
        "relation": [relations[t.relation] for t in triples], "tail": [index[t.tail] for t in triples],
        "entity_type": [0] * len(new), "entity_file": [-1] * len(new),
        "parts": [word for name in new for word in names[name]],
        "part_offsets": _offsets([len(names[name]) for name in new]), "piece_flat": flat, "piece_offsets": offsets,
    }  # fmt: skip
    arrays = {
        name: _joined(getattr(before, name), values, name in _OFFSETS)
        for name, values in added.items()
    }
    described = [
        entity
        for entity in entities.values()
        if entity.file or index[entity.id] >= len(before.entities)
    ]
    place = [index[entity.id] for entity in described]
    arrays["entity_type"][place] = [types[entity.type] for entity in described]
    arrays["entity_file"][place] = [
        files[entity.file] if entity.file else -1 for entity in described
    ]
    texts = {
        "words": joined_texts(words),
        "entity_ids": joined_texts(index),
        "file_names": joined_texts(file_names),
    }
    return replace(before, text=text, tokenizer=joined_texts([learned]), **texts, **arrays)


def _joined(first: Array, second: Sequence[int] | Array, are_offsets: bool) -> Array:
    second = np.asarray(second, first.dtype)
    return np.concatenate([first, first[-1] + second[1:] if are_offsets else second])


def joined_texts(texts: Iterable[str]) -> Array:
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def _numbered(names: Iterable[str], first: int = 0) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, first)}


def split_files(files: Sequence[str], validation: float, test: float) -> dict[str, int]:
    """Deals files, by their shares, to indices of SPLITS, by a hash of the path: each stays when others come or go."""
    bounds = (validation, validation + test)
    places = [
        int.from_bytes(hashlib.sha256(file.encode()).digest()[:8], "big") / 2**64 for file in files
    ]
    return {
        file: (1 + sum(place >= bound for bound in bounds)) % 3
        for file, place in zip(files, places, strict=True)
    }


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
    for file in sorted({e.file for e in graph.entities.values() if e.file}):
        try:
            different, numbers, starts = words_by_line(sources.read(file))
        except OSError as error:
            raise BadInput(
                f"{sources.path(file)} can no longer be read ({error.strerror}). Run again."
            ) from None
        index = np.array([words.setdefault(word, len(words)) for word in different], np.int64)
        texts.append(index[np.frombuffer(numbers, np.int32)] if different else index)
        lines[file] = np.frombuffer(starts, np.int32).astype(np.int64) + length
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
    """Learns at most `size` byte-pair pieces from the names and the words of training files; returns what `_cut` takes.

    Sennrich et al., Neural Machine Translation of Rare Words with Subword Units, ACL 2016; the `tokenizers` library.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    counts = np.bincount(
        np.fromiter(itertools.chain.from_iterable(names), np.int64), minlength=len(words)
    )
    for file, starts in lines.items():
        if splits.get(file, 0) == 0:
            counts += np.bincount(text[starts[0] : starts[-1]], minlength=len(words))
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_SEAMS), "isolated")
    options = {"special_tokens": SPECIALS, "limit_alphabet": 200, "show_progress": False}
    # The trainer counts for itself, so each word comes as often as it was seen; beyond 64 times merges do not change.
    counted = sorted(
        (words[index], min(int(counts[index]), 64)) for index in np.flatnonzero(counts)
    )
    repeated = (word for word, number in counted for _ in range(number))
    tokenizer.train_from_iterator(repeated, trainers.BpeTrainer(vocab_size=size, **options))
    return tokenizer.to_str()


def _cut(text: str, words: Sequence[str]) -> tuple[Array, Array]:
    """Returns the pieces of words, flat (int32), and (words + 1) where each word's begin. Raises ValueError."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"the pieces of words cannot be read ({error})") from None
    encoded = [
        encoding.ids for encoding in tokenizer.encode_batch(list(words), add_special_tokens=False)
    ]
    offsets = _offsets([len(ids) for ids in encoded])
    return np.fromiter(
        itertools.chain.from_iterable(encoded), dtype=np.int32, count=int(offsets[-1])
    ), offsets


def header_room(roots: int) -> int:
    """Returns how many root tokens the head's name takes at most."""
    return max(2, roots // 8)


def _windows(
    graph: Graph, text: Array, lines: Lines, sizes: Array, names: dict[str, list[int]], chain: Chain
) -> list[tuple[int, int, list[Triple]]]:
    """Returns start, stop and triples of each head's windows: whole lines that fit behind its name."""
    by_head: dict[tuple[str, str], list[Triple]] = defaultdict(list)
    for triple in graph.triples:
        by_head[triple.head, triple.file].append(triple)
    cumulative = np.concatenate([[0], np.cumsum(sizes[text])])
    windows = []
    for (head, file), triples in sorted(by_head.items()):
        entity = graph.entities[head]
        if entity.file != file or file not in lines:
            windows.append((0, 0, triples))
            continue
        header = min(int(sizes[np.array(names[head])].sum()), header_room(chain.roots)) + 1
        starts = lines[file]
        line = entity.first_line
        last = min(entity.last_line, len(starts) - 1)
        first_lines = []
        bounds = []  # words
        while line <= last:
            begin = int(starts[line - 1])
            limit = (
                int(cumulative.searchsorted(cumulative[begin] + chain.roots - header, "right")) - 1
            )
            following = max(min(int(starts.searchsorted(limit, "right")), last + 1), line + 1)
            first_lines.append(line)
            bounds.append((begin, min(int(starts[following - 1]), limit)))
            line = following
        by_number: dict[int, list[Triple]] = defaultdict(list)
        for triple in triples:
            by_number[max(0, bisect_right(first_lines, triple.line) - 1)].append(triple)
        windows += [(*bounds[number], by_number[number]) for number in sorted(by_number)]
    return windows
