"""Predictions about a new tree: what its unresolved names mean. Each `task` is a Graphmer."""

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report.progress import Remaining, choose_progress, working
from workloads.codegraph import ontology, trees
from workloads.codegraph.graph import build as build_graph
from workloads.codegraph.ontology import Ontology
from workloads.codegraph.records import Graph, Triple
from workloads.codegraph.trees import Sources
from workloads.graphmer.answering import Answering
from workloads.graphmer.corpus import Corpus, build
from workloads.graphmer.predicting import files
from workloads.graphmer.predicting.calibration import Calibration, judged, weights_of
from workloads.graphmer.predicting.checked import check
from workloads.graphmer.predicting.choices import Choices
from workloads.graphmer.predicting.files import Answer
from workloads.graphmer.predicting.joined import Joined, join
from workloads.graphmer.ragged import offsets

_CHECKED = 1000  # known references of the tree that are hidden, to say how well it is answered
_ANSWERS = 5  # of a reference that are written down
_LEAST = 0.01  # the probability of an answer that is
_SHOWN = 20  # files that are left out
Item = TypeVar("Item")


def predict(task: Any, models: Sequence[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
    """Returns a row of values for each answer, by head, relation and tail; see `Graphmer.predict`. Raises BadInput."""
    if out is not None:
        disk.check_writable(out)
    sources = _sources(source)
    trained, rules = _trained(task)
    with working("Reading the tree"):
        graph = _graph(sources, source)
        chain = task.settings.chain
        with _reading_kept():
            tree = build(graph, sources, chain, task.settings.split, tokenizer=trained.tokenizer.tobytes().decode())
            check(tree, chain.vocabulary)
        joined = join(trained, tree, rules, task.settings, task.learned()["counts"])
    if not len(joined.triples):
        kinds = ", ".join(trained.relations[:_SHOWN])
        raise BadInput(
            f"The model was trained on facts of other kinds than Python files have: {kinds}. Train on a tree of them."
        )
    found = _found(_Predicting(joined, models, graph), graph)
    print(found.text(out))
    if out is not None:
        files.write(found, out)
    return {" ".join(answer.asked.key): found.row(answer) for answer in found.answers}


def _found(predicting: "_Predicting", graph: Graph) -> files.Found:
    if not predicting.is_fitted:
        print("No references are asked for: the run's validation had none, so that probabilities were not fitted.")
        return files.Found(graph, predicting.joined, [], {})
    with torch.inference_mode():
        return files.Found(graph, predicting.joined, predicting.references(), predicting.check())


def _sources(source: Any) -> Sources:
    if not isinstance(source, Path | str):
        raise BadInput(f"Give one folder or file of Python to predict, not a {type(source).__name__}.")
    path = Path(source)
    if path.is_file():
        if path.suffix != ".py":
            raise BadInput(
                f"{printable(path)} is no Python file. Give a file NAME.py, or the folder of a tree of them."
            )
        return Sources([trees.Tree(path.stem, path.parent, (path.name,))])
    return Sources([trees.folder(path)])


def _trained(task: Any) -> tuple[Corpus, Ontology]:
    """Returns the corpus and the ontology that the run was trained on. Raises BadInput."""
    if "data" in vars(task):
        corpus, rules = task.data.corpus, task.data.rules
    else:
        with _reading_kept():
            corpus, rules = Corpus.load(task.learned()["corpus"]), ontology.load(task.learned()["ontology"])
            check(corpus, task.settings.chain.vocabulary)
    if not len(corpus.text):
        raise BadInput(
            "The model was trained on a graph without its source files, so it has read no text and cannot say anything "
            "about Python files. Train on a tree of them: data.dir."
        )
    return corpus, rules


@contextmanager
def _reading_kept() -> Iterator[None]:
    """Raises BadInput where what a run kept, which may be anybody's, is not as this version writes it."""
    try:
        yield
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        why = printable(error, most=200)
        raise BadInput(f"The data that the run kept cannot be read by this version ({why}). Train again.") from None


def _graph(sources: Sources, source: Any) -> Graph:
    """Returns the graph of a tree; prints which of its files are left out. Raises BadInput where none can be read."""
    graph = build_graph(sources)
    lines = [f"Left out {sources.path(file)}: {reason}" for file, reason in graph.skipped]
    more = [f"Left out {len(lines) - _SHOWN:,} more files."] if len(lines) > _SHOWN else []
    for line in [*lines[:_SHOWN], *more]:
        print(printable(line))
    if not graph.triples:
        raise BadInput(f"No Python file of {printable(source)} can be read; the lines above say why.")
    return graph


class _Predicting:
    """Asks several models about a tree: the mean of their probabilities counts."""

    def __init__(self, joined: Joined, models: Sequence[nn.Module], graph: Graph):
        self.joined, self.corpus, self.models = joined, joined.data.corpus, models
        self.calibration = Calibration(joined.data, leave_out=True)
        self.answering = [Answering(joined.data, model) for model in models]
        self.by_key = {triple.key: triple for triple in graph.triples}

    def check(self) -> dict[str, float]:
        """Returns how well known references of the tree are answered when they are hidden, by the first model.

        They are those of an object, as nearly all unresolved ones are; where there are none, all.
        """
        hidden = self.calibration.hidden(self.joined.windows, self.answering[0], _CHECKED)
        if hidden is None:
            return {}
        weights, choices = weights_of(self.models[0])[1], hidden.choices
        every = judged(choices, weights)
        shares = judged(choices[hidden.of_object], weights) if hidden.of_object.any() else every
        return {**shares, "number of all": every["number"], "right of all": every["right"]}

    @property
    def is_fitted(self) -> bool:
        """Whether the models' probabilities were fitted, for which validation must have had known references."""
        return all(weights_of(model).any() for model in self.models)

    def references(self) -> list[Answer]:
        """Returns an answer for each reference that is not resolved, in the order of the graph."""
        asking, corpus = self.calibration.asking, self.corpus
        triples = self.joined.triples
        triples = triples[corpus.entity_type[corpus.tail[triples]] == asking.unresolved_kind]
        asked = asking.unresolved(triples)
        found: dict[int, Answer] = {}
        batches = zip(*(asking.ask(asked, answering) for answering in self.answering), strict=True)
        for parts in _shown(batches, len(asking.batches(asked)), "batches of references answered"):
            answers = [(part.choices, part.entity, part.relation) for part in parts]
            votes = Votes.of(answers, [weights_of(model) for model in self.models])
            for row, number in enumerate(parts[0].chosen.tolist()):
                found[number] = self._answer(self._triple(int(triples[number])), votes, row)
        return [found[number] for number in sorted(found)]

    def _triple(self, number: int) -> Triple:
        corpus = self.corpus
        head = corpus.entities[corpus.head[corpus.window_of[number]]]
        return self.by_key[head, corpus.relations[corpus.relation[number]], corpus.entities[corpus.tail[number]]]

    def _answer(self, asked: Triple, votes: "Votes", row: int) -> Answer:
        corpus = self.corpus
        best = [place for place in votes.best(row, _ANSWERS).tolist() if votes.probability[place] >= _LEAST]
        tails = [
            (corpus.relations[votes.relation[p]], corpus.entities[votes.entity[p]], float(votes.probability[p]))
            for p in best
        ]
        own = votes.places(row)
        inside = float(votes.probability[own][self.joined.in_tree[votes.entity[own]]].sum())
        counted = own[np.argmax(votes.counted[own])] if len(own) else -1
        by_counts = (corpus.entities[votes.entity[counted]], float(votes.counted[counted])) if len(own) else ("", 0.0)
        return Answer(asked, tails, inside, float(votes.none[row]), by_counts)


@dataclass(frozen=True)
class Votes:
    """Answers (N) of Q questions by several models: mean probabilities, and those of the counts alone.

    `begin` (Q + 1) is where the answers of a question begin, `none` (Q) the probability that none is right.
    """

    begin: np.ndarray
    entity: np.ndarray
    relation: np.ndarray
    probability: np.ndarray
    counted: np.ndarray
    none: np.ndarray

    @classmethod
    def of(cls, answers: Sequence[tuple[Choices, np.ndarray, np.ndarray]], weights: Sequence[np.ndarray]) -> "Votes":
        """Joins what models answer: for each its choices, with the entity and relation of each, and its weights."""
        keys = [np.stack([choices.question, entity, relation], 1) for choices, entity, relation in answers]
        joined, index = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
        parts = np.split(index.reshape(-1), np.cumsum([len(key) for key in keys])[:-1])
        questions = len(answers[0][0])
        counted, probability = np.zeros(len(joined)), np.zeros(len(joined))
        none = np.zeros(questions)
        for (choices, _, _), (alone, chosen), part in zip(answers, weights, parts, strict=True):
            of_answer, of_none = choices.probabilities(chosen)
            probability[part] += of_answer / len(answers)
            none += of_none / len(answers)
            counted[part] += choices.probabilities(alone)[0] / len(answers)
        return cls(offsets(joined[:, 0], questions), joined[:, 1], joined[:, 2], probability, counted, none)

    def places(self, row: int) -> np.ndarray:
        return np.arange(self.begin[row], self.begin[row + 1])

    def best(self, row: int, most: int) -> np.ndarray:
        """Returns the places of the most probable answers of a question."""
        own = self.places(row)
        return own[np.argsort(-self.probability[own], kind="stable")[:most]]


def _shown(batches: Iterable[Item], total: int, name: str) -> Iterator[Item]:
    """Yields the batches, and shows how many of them are done and the time left."""
    progress, remaining = choose_progress(), Remaining()
    for number, batch in enumerate(batches, 1):
        yield batch
        progress.update(number, total, partial(remaining.text, name, number, total))
    if total:
        progress.close()
