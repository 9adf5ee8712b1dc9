"""A new tree beside what a model was trained on: one corpus, in which both count, and the tables that training had."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from workloads.codegraph.ontology import Ontology
from workloads.graphmer.corpus import SPLITS, Corpus, joined_texts
from workloads.graphmer.data import Data
from workloads.graphmer.entities import EntityTable
from workloads.graphmer.ragged import expand
from workloads.graphmer.rows import Layout
from workloads.graphmer.settings import Settings

_TRAIN, _REPLACED = SPLITS.index("train"), len(SPLITS)


@dataclass(frozen=True)
class Joined:
    """The data of both, the windows and triples of the tree in it, and (E) which entities the tree defines."""

    data: Data
    windows: np.ndarray
    triples: np.ndarray
    in_tree: np.ndarray

    def type_of(self, entity: str) -> str:
        """Returns the type of an entity, of the tree or of training."""
        corpus = self.data.corpus
        return corpus.types[corpus.entity_type[self.index[entity]]]

    def is_in_tree(self, entity: str) -> bool:
        return bool(self.in_tree[self.index[entity]])

    @cached_property
    def index(self) -> dict[str, int]:
        """The numbers of all entities by id."""
        return {entity: number for number, entity in enumerate(self.data.corpus.entities)}


def join(trained: Corpus, tree: Corpus, rules: Ontology, settings: Settings, weights: Mapping[str, Any]) -> Joined:
    """Returns the data of a run and of a new tree together. `weights` are those of the counts.

    What training knows of a module that the tree has too does not count: the tree's own is meant. Facts of relations
    or entity types that training never saw are left out, for no model has an answer to them.
    """
    corpus, in_tree = _Joining(trained, tree).corpus()
    data = Data((), (), settings)
    data.corpus, data.rules = corpus, rules
    data.table = EntityTable(corpus, 0)
    own = EntityTable(trained, settings.model.own_vectors).vector
    data.table.vector[: len(own)] = own
    kinds = Layout(trained, settings.chain.roots).kind_before
    data.layout = Layout(corpus, settings.chain.roots)
    data.layout.kind_before = np.pad(kinds, (0, len(corpus.word_list) - len(kinds)))
    data.use(weights)
    windows = np.arange(len(trained), len(corpus))
    return Joined(data, windows, np.arange(len(trained.relation), len(corpus.relation)), in_tree)


class _Joining:
    """The arrays of two corpora put together; of those of the tree, what the other one has too gets its number."""

    def __init__(self, trained: Corpus, tree: Corpus):
        self.trained, self.tree = trained, tree
        self.words, self.word = _merged(trained.word_list, tree.word_list)
        self.kind = _numbers(trained.types, tree.types)[tree.entity_type]
        self.relation = _numbers(trained.relations, tree.relations)
        is_known = self.kind >= 0
        self.entity = np.full(len(is_known), -1)
        names = [name for name, known in zip(tree.entities, is_known.tolist(), strict=True) if known]
        self.entities, self.entity[is_known] = _merged(trained.entities, names)
        of_head = is_known[tree.head]
        self.triple = of_head[tree.window_of] & is_known[tree.tail] & (self.relation[tree.relation] >= 0)
        self.number = np.bincount(tree.window_of[self.triple], minlength=len(tree))  # of triples in a window
        self.window = self.number > 0

    def corpus(self) -> tuple[Corpus, np.ndarray]:
        trained, tree = self.trained, self.tree
        values = {field.name: getattr(trained, field.name) for field in fields(Corpus)}
        entity_type, entity_file, is_replaced, in_tree = self._of_entities()
        split = np.where(is_replaced[trained.window_file], _REPLACED, trained.split)
        ends = trained.first_triple[-1] + np.cumsum(self.number[self.window])
        values |= {
            "words": joined_texts(self.words),
            "entity_ids": joined_texts(self.entities),
            "file_names": joined_texts([*trained.files, *_beside(trained.files, tree.files)]),
            "text": np.concatenate([trained.text, self.word[tree.text]]),
            "window_start": np.concatenate([trained.window_start, tree.window_start[self.window] + len(trained.text)]),
            "window_stop": np.concatenate([trained.window_stop, tree.window_stop[self.window] + len(trained.text)]),
            "first_triple": np.concatenate([trained.first_triple, ends]),
            "head": np.concatenate([trained.head, self.entity[tree.head[self.window]]]),
            "split": np.concatenate([split, np.full(int(self.window.sum()), _TRAIN)]).astype(np.int8),
            "window_file": np.concatenate([trained.window_file, tree.window_file[self.window] + len(trained.files)]),
            "relation": np.concatenate([trained.relation, self.relation[tree.relation[self.triple]]]),
            "tail": np.concatenate([trained.tail, self.entity[tree.tail[self.triple]]]),
            "entity_type": entity_type,
            "entity_file": entity_file,
            **self._parts(),
            **self._pieces(),
        }
        return Corpus(**values), in_tree

    def _of_entities(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns (E) types and files of entities, (files) which the tree has in their stead, (E) the tree's own."""
        trained, tree = self.trained, self.tree
        more = len(self.entities) - len(trained.entity_type)
        own = (tree.entity_file >= 0) & (self.entity >= 0)
        is_replaced = np.zeros(len(trained.files), bool)
        is_module = self._is_module(trained)
        before = self.entity[own]
        before = before[before < len(is_module)]
        is_replaced[trained.entity_file[before[is_module[before]]]] = True
        gone = (trained.entity_file >= 0) & is_replaced[trained.entity_file]
        entity_file = np.concatenate([np.where(gone, -1, trained.entity_file), np.full(more, -1)]).astype(np.int32)
        entity_file[self.entity[own]] = tree.entity_file[own] + len(trained.files)
        entity_type = np.concatenate([trained.entity_type, np.zeros(more, np.int32)])
        told = own | (self.entity >= len(trained.entity_type))
        entity_type[self.entity[told]] = self.kind[told]
        in_tree = np.zeros(len(self.entities), bool)
        in_tree[self.entity[own]] = True
        return entity_type, entity_file, is_replaced, in_tree

    @staticmethod
    def _is_module(corpus: Corpus) -> np.ndarray:
        kind = corpus.types.index("Module") if "Module" in corpus.types else -1
        return (corpus.entity_type == kind) & (corpus.entity_file >= 0)

    def _parts(self) -> dict[str, np.ndarray]:
        """Returns the words of all entities' ids."""
        trained, tree = self.trained, self.tree
        new = np.flatnonzero(self.entity >= len(trained.entity_type))
        length = np.diff(tree.part_offsets)[new]
        _, at = expand(tree.part_offsets[new], length)
        return {
            "parts": np.concatenate([trained.parts, self.word[tree.parts[at]]]),
            "part_offsets": np.concatenate([trained.part_offsets, trained.part_offsets[-1] + np.cumsum(length)]),
        }

    def _pieces(self) -> dict[str, np.ndarray]:
        """Returns the pieces of all words, which the tree's corpus was cut into by the same tokenizer."""
        trained, tree = self.trained, self.tree
        new = np.flatnonzero(self.word >= len(trained.word_list))
        length = tree.pieces.lengths(new)
        _, at = expand(tree.piece_offsets[new], length)
        ends = trained.piece_offsets[-1] + np.cumsum(length)
        return {
            "piece_flat": np.concatenate([trained.piece_flat, tree.piece_flat[at]]),
            "piece_offsets": np.concatenate([trained.piece_offsets, ends]),
        }


def _merged(first: Sequence[str], second: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Returns the first list with what only the second has behind it, in its order, and the place of each of those."""
    numbers = {name: number for number, name in enumerate(first)}
    places = np.array([numbers.setdefault(name, len(numbers)) for name in second], np.int64)
    return list(numbers), places


def _numbers(known: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Returns the place of each name among the known ones, -1 for others."""
    numbers = {name: number for number, name in enumerate(known)}
    return np.array([numbers.get(name, -1) for name in names], np.int64)


def _beside(taken: Sequence[str], files: Sequence[str]) -> list[str]:
    """Returns the names of files below a folder that no other file is in."""
    folder = "tree"
    while any(name.startswith(f"{folder}/") for name in taken):
        folder += "_"
    return [f"{folder}/{name}" for name in files]
