"""A new tree beside what a model was trained on: one corpus, in which both count, and the tables that training had."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from workloads.codegraph.ontology import Ontology
from workloads.graphmer.batches import EntityTable
from workloads.graphmer.corpus import SPLITS, Corpus, joined_texts
from workloads.graphmer.counts.ragged import expand
from workloads.graphmer.counts.rows import Layout
from workloads.graphmer.data import Data
from workloads.graphmer.settings import Array, Settings


@dataclass(frozen=True)
class Joined:
    """The data of both, the triples of the tree in it, and (E) which entities the tree defines."""

    data: Data
    triples: Array
    in_tree: Array


def join(trained: Corpus, tree: Corpus, rules: Ontology, settings: Settings, weights: Mapping[str, Any]) -> Joined:
    """Returns the data of a run and of a new tree together. `weights` are those of the counts. What training knows of a
    module that the tree has too does not count: the tree's own is meant. Facts of relations or entity types that
    training never saw are left out, for no model has an answer to them."""
    corpus, in_tree = _corpus(trained, tree)
    data = Data((), (), settings, {})
    data.corpus, data.rules = corpus, rules
    data.table, data.layout = EntityTable(corpus, 0), Layout(corpus, settings.chain.roots)
    vectors = EntityTable(trained, settings.model.own_vectors).vector
    data.table.vector[: len(vectors)] = vectors
    kinds = Layout(trained, settings.chain.roots).kind_before
    data.layout.kind_before = np.pad(kinds, (0, len(corpus.word_list) - len(kinds)))
    data.use(weights)
    return Joined(data, np.arange(len(trained.relation), len(corpus.relation)), in_tree)


def _corpus(trained: Corpus, tree: Corpus) -> tuple[Corpus, Array]:
    """Joins the arrays, where both share entities and words; returns (E) which entities the tree defines."""
    words, word = _merged(trained.word_list, tree.word_list)
    kind = pd.Index(trained.types).get_indexer(tree.types)[tree.entity_type]  # -1 for others
    relation = pd.Index(trained.relations).get_indexer(tree.relations)
    is_known = kind >= 0
    entity = np.full(len(is_known), -1)
    entities, entity[is_known] = _merged(trained.entities, [tree.entities[i] for i in np.flatnonzero(is_known)])
    triple = is_known[tree.head][tree.window_of] & is_known[tree.tail] & (relation[tree.relation] >= 0)
    number = np.bincount(tree.window_of[triple], minlength=len(tree))  # of triples in a window
    window = number > 0
    entity_type, entity_file, is_replaced, in_tree = _of_entities(trained, tree, entity, kind, len(entities))
    new = np.flatnonzero(entity >= len(trained.entities))
    parts, part_offsets = _rows(trained.part_offsets, tree.part_offsets, new)
    new = np.flatnonzero(word >= len(trained.word_list))
    pieces, piece_offsets = _rows(trained.piece_offsets, tree.piece_offsets, new)
    added = {"text": word[tree.text], "first_triple": trained.first_triple[-1] + np.cumsum(number[window]),
             "window_start": tree.window_start[window] + len(trained.text),
             "window_stop": tree.window_stop[window] + len(trained.text), "head": entity[tree.head[window]],
             "window_file": tree.window_file[window] + len(trained.files), "relation": relation[tree.relation[triple]],
             "tail": entity[tree.tail[triple]], "parts": word[tree.parts[parts]], "part_offsets": part_offsets,
             "piece_flat": tree.piece_flat[pieces], "piece_offsets": piece_offsets}  # fmt: skip
    values = {name: np.concatenate([getattr(trained, name), value]) for name, value in added.items()}
    folder = "tree"
    while any(file.startswith(f"{folder}/") for file in trained.files):
        folder += "_"
    # Files that the tree has in their stead are in none of the splits
    split = np.where(is_replaced[trained.window_file], len(SPLITS), trained.split)
    values |= {"words": joined_texts(words), "entity_ids": joined_texts(entities),
               "file_names": joined_texts([*trained.files, *(f"{folder}/{file}" for file in tree.files)]),
               "split": np.concatenate([split, np.full(int(window.sum()), SPLITS.index("train"))]).astype(np.int8),
               "entity_type": entity_type, "entity_file": entity_file}  # fmt: skip
    return replace(trained, **values), in_tree


def _of_entities(trained: Corpus, tree: Corpus, entity: Array, kind: Array,
                 number: int) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Returns (E) types and files of entities, (files) which the tree has in their stead, (E) the tree's own."""
    before = len(trained.entity_type)
    own = (tree.entity_file >= 0) & (entity >= 0)
    module = trained.types.index("Module") if "Module" in trained.types else -1
    is_module = (trained.entity_type == module) & (trained.entity_file >= 0)
    again = entity[own & (entity < before)]
    is_replaced = np.zeros(len(trained.files), bool)
    is_replaced[trained.entity_file[again[is_module[again]]]] = True
    gone = (trained.entity_file >= 0) & is_replaced[trained.entity_file]
    files = np.concatenate([np.where(gone, -1, trained.entity_file), np.full(number - before, -1)]).astype(np.int32)
    files[entity[own]] = tree.entity_file[own] + len(trained.files)
    types = np.concatenate([trained.entity_type, np.zeros(number - before, np.int32)])
    is_told = own | (entity >= before)
    types[entity[is_told]] = kind[is_told]
    return types, files, is_replaced, np.isin(np.arange(number), entity[own])


def _rows(before: Array, offsets: Array, rows: Array) -> tuple[Array, Array]:
    """Returns the places of some rows of a ragged array, and their ends behind another one with offsets `before`."""
    length = np.diff(offsets)[rows]
    return expand(offsets[rows], length)[1], before[-1] + np.cumsum(length)


def _merged(first: Sequence[str], second: Sequence[str]) -> tuple[list[str], Array]:
    """Returns the first list with what only the second has behind it, in its order, and the place of each of those."""
    numbers = {name: number for number, name in enumerate(first)}
    places = np.array([numbers.setdefault(name, len(numbers)) for name in second], np.int64)
    return list(numbers), places
