"""Answers the open references of a new tree: by jedi if it is installed, otherwise by the model; prints a table."""

from collections.abc import Collection, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report.progress import counted, working
from lib.task.place import naming
from trainbook.outputs.result import write_table
from workloads.codegraph import follow, trees
from workloads.codegraph.follow import Meaning
from workloads.codegraph.graph import build as build_graph
from workloads.codegraph.records import Graph
from workloads.codegraph.trees import Sources
from workloads.graphmer import promises
from workloads.graphmer.choices import SURE, probabilities
from workloads.graphmer.corpus import OF_TREE, Corpus
from workloads.graphmer.evaluation import Answering
from workloads.graphmer.predicting import Calibration, join, weights_of
from workloads.graphmer.promises import Weights
from workloads.graphmer.settings import Array

TABLE = "predictions.csv"
COLUMNS = ("head", "relation", "tail", "probability", "asked", "file", "line", "by")
_LIKELY = 0.5
_OF_MODELS = ["trust", "likeness"]  # features that differ between models
Row = dict[str, Any]


class Open:
    """The open references of a tree, the text before them, and the candidates for their names."""

    def __init__(self, asking: Calibration, triples: Array, graph: Graph, sources: Sources):
        self.asking = asking
        self.sources = sources
        self.facts = len(graph.triples)
        self.triples = triples[asking.is_unresolved[triples]]
        places = {triple.key: triple for triple in graph.triples}
        self.references = [places[self._key(triple)] for triple in self.triples]
        self.spots = follow.spots_of(sources, self.references)

    def _key(self, triple: int) -> tuple[str, str, str]:
        corpus = self.asking.corpus
        head = corpus.entities[corpus.head[corpus.window_of[triple]]]
        relation = corpus.relations[corpus.relation[triple]]
        return head, relation, corpus.entities[corpus.tail[triple]]

    @cached_property
    def meanings(self) -> list[list[Meaning]]:
        """What each of them means by jedi; nothing where jedi is not installed or cannot follow it."""
        if not follow.is_installed():
            return [[] for _ in self.references]
        return follow.meanings_of(self.sources, self.references, self.spots)

    @cached_property
    def in_tree(self) -> Array:
        """(entities) bool, True for those that the tree defines."""
        corpus = self.asking.corpus
        is_of_tree = np.array([file.startswith(OF_TREE) for file in corpus.files])
        return (corpus.entity_file >= 0) & is_of_tree[corpus.entity_file]

    def choices(self, models: Sequence[nn.Module]) -> Iterator[pd.DataFrame]:
        """Yields answers in batches, with the features of `promises`; `right` is jedi's judgment.

        Several models answer by the means of their probabilities and features; they choose among the same entities.
        """
        before = np.array([spot.before for spot in self.spots], object)
        weights = [weights_of(model) for model in models]
        asked = [self.asking.ask(self.triples, Answering(self.asking.data, m)) for m in models]
        batches = len(self.asking.batches(self.triples))
        together = zip(*asked, strict=True)
        for every in counted(together, "batches of references answered", batches):
            is_out = self._is_out(every[0], before)
            parts = [part[~is_out] for part in every]
            shares = [probabilities(p, w) for p, w in zip(parts, weights, strict=True)]
            means = sum(part[_OF_MODELS] for part in parts) / len(parts)
            choices = parts[0].assign(probability=sum(shares) / len(shares), **means)
            of_row = before[choices["question"]]
            choices = promises.described(choices, self.asking.corpus, self.in_tree, of_row)
            yield choices.assign(right=self._judged(choices))

    def _is_out(self, choices: pd.DataFrame, before: Array) -> Array:
        """Returns (rows) whether an answer is a builtin where the name is an attribute: console.print is not print."""
        entity = choices["entity"].to_numpy()
        is_attribute = before[choices["question"]] != "bare"
        return is_attribute & (entity >= 0) & self.asking.standing.is_builtin[entity]

    def _judged(self, choices: pd.DataFrame) -> Array:
        """Returns (rows) whether an answer is right by jedi; none is, where all others are wrong."""
        pairs = zip(choices["question"], choices["entity"], strict=True)
        right = np.array([self._is_meant(question, entity) for question, entity in pairs])
        question = choices["question"].to_numpy()
        has_right = np.bincount(question, right)[question] > 0
        return right | ((choices["entity"].to_numpy() < 0) & ~has_right)

    def _is_meant(self, question: int, entity: int) -> bool:
        if entity < 0 or not self.meanings[question]:
            return False
        corpus = self.asking.corpus
        file = None
        if self.in_tree[entity]:
            file = self._path(corpus.files[corpus.entity_file[entity]].removeprefix(OF_TREE))
        name = corpus.entities[entity]
        return any(meaning.is_of(name, file) for meaning in self.meanings[question])

    @cached_property
    def _path(self) -> Any:
        return cache(lambda file: self.sources.path(file).resolve())

    def answered(self, models: Sequence[nn.Module], weights: Weights) -> pd.DataFrame:
        """Returns the models' top answer of each reference in order, and `meant`, the entity that jedi means, or -1."""
        parts = []
        for choices in self.choices(models):
            top = promises.tops(choices, weights.answer)
            first = choices[choices["right"]].groupby("question")["entity"].first()
            meant = first.loc[top["question"]].to_numpy()
            # the model's one among several of jedi's
            parts.append(top.assign(meant=np.where(top["right"], top["entity"], meant)))
        return pd.concat(parts).sort_values("question", ignore_index=True)


def predict(
    task: Any, models: Sequence[nn.Module], source: Any, out: Path | None
) -> dict[str, Any]:
    """Returns a row of values for each answer, by head, relation and tail; see `Graphmer.predict`. Raises BadInput."""
    if out is not None:
        disk.check_writable(out)
    if not isinstance(source, Path | str):
        raise BadInput(
            f"Give one folder or file of Python to predict, not a {type(source).__name__}."
        )
    opened = open_references(task, Path(source))
    if not all(weights_of(model).any() for model in models):
        print(
            "No references are asked for: the run's validation had none, so that probabilities were not fitted."
        )
        return {}
    if not len(opened.triples):
        print("All references of the tree could be followed: none is asked for.")
        return {}
    weights = Weights.read()
    with torch.inference_mode():
        top = opened.answered(models, weights)
    is_judged = np.array([bool(meanings) for meanings in opened.meanings])
    right = top["right"].to_numpy()[is_judged]
    odds = promises.log_odds(top, weights)
    odds += promises.shift(odds[is_judged], right)
    top["chance"] = promises.chance_of(odds)
    found = {opened.references[answer.question].key: answer for answer in top.itertuples()}
    rows = {key: _row(opened, found[key]) for key in sorted(found)}
    print(_summary(opened, rows.values(), right))
    if out is not None:
        table = [list(row.values()) for row in rows.values()]
        write_table(out / TABLE, [COLUMNS, *table])
    return {" ".join(key): row for key, row in rows.items()}


def open_references(task: Any, source: Path) -> Open:
    """Reads a tree, or a file, beside the training of a run. Raises BadInput."""
    stored = task.learned()
    sources = Sources([_tree(source)])
    if "corpus" not in stored:
        raise BadInput(
            "The counts that the model begins at are not there: a run keeps them in its folder data, which its "
            "archive has up to 268 MB. Give the folder of the run, with data in it."
        )
    with working("Reading the tree"):
        graph = build_graph(sources)
        graph.print_skipped()
        if not graph.triples:
            raise BadInput(
                f"No Python file of {printable(source)} can be read; the lines above say why."
            )
        with naming("Reading the data that the run kept, by this version,", "Train again."):
            trained = _trained(stored["corpus"])
            data, triples = join(trained, graph, sources, task.settings, stored["counts"])
    return Open(Calibration(data), triples, graph, sources)


def _tree(path: Path) -> trees.Tree:
    if path.is_file() and path.suffix == ".py":
        return trees.Tree(path.stem, path.parent, (path.name,))
    return trees.folder(path)


def _trained(path: Path) -> Corpus:
    """Loads the corpus of a run, which is untrusted. Raises BadInput or ValueError."""
    corpus = Corpus.load(path)
    corpus.check()
    if not len(corpus.text):
        raise BadInput(
            "The model has read no text, but a graph alone. Train on a tree of Python files."
        )
    return corpus


def _row(opened: Open, answer: Any) -> Row:
    """Returns the row of a top answer, or of jedi's answer, which has no probability."""
    corpus = opened.asking.corpus
    reference = opened.references[answer.question]
    meanings = opened.meanings[answer.question]
    tail = corpus.entities[answer.entity] if answer.entity >= 0 else ""
    relation = corpus.relations[answer.relation]
    chance: float | None = round(answer.chance, 4)
    if meanings:
        tail = corpus.entities[answer.meant] if answer.meant >= 0 else meanings[0].name
        is_made = reference.relation == "calls" and meanings[0].kind == "class"
        relation = "instantiates" if is_made else reference.relation
        chance = None
    by = "jedi" if meanings else "model"
    asked = (reference.tail, reference.file, reference.line)
    values = (reference.head, relation, tail, chance, *asked, by)
    return dict(zip(COLUMNS, values, strict=True))


def _summary(opened: Open, rows: Collection[Row], right: Array) -> str:
    """Says who answered and what to expect; `right` are the model's answers to what jedi follows."""
    text = (
        f"The tree has {opened.facts:,} facts. {len(rows):,} of them are references that could not be followed; "
        "asked is which entity of the name is meant. "
    )
    if follow.is_installed():
        text += f"jedi, asked first, follows {len(right):,} by what is installed here. "
    else:
        text += "Where jedi is installed, it is asked first. "
    own = [row for row in rows if row["by"] == "model"]
    if not own:
        return text
    sure = [row["probability"] for row in own if row["probability"] >= SURE]
    likely = sum(row["probability"] >= _LIKELY for row in own if row["tail"])
    of_sure = f", and {np.mean(sure):.1%} of the {len(sure):,} at {SURE:g} or more" if sure else ""
    judged = ""
    if len(right):
        judged = f". Of those that jedi follows the model answers {right.mean():.1%} rightly, which moves the others"
    mean = np.mean([row["probability"] for row in own])
    return (
        f"{text}The model answers {len(own):,}, {likely:,} of them by an entity with a probability of {_LIKELY:g} or "
        f"more.\nExpect {mean:.1%} of the model's {len(own):,} answers to be right{of_sure}: the mean of their own "
        f"probabilities, which are fitted on references of other trees{judged}."
    )
