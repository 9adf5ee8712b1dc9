"""Predictions about a new tree: what its unresolved names mean, as tables and as a completed graph.

Each `task` is a Graphmer.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report.progress import counted, working
from lib.report.result import write_table
from lib.text import aligned
from workloads.codegraph import ontology, records, trees
from workloads.codegraph.graph import build as build_graph
from workloads.codegraph.ontology import Ontology
from workloads.codegraph.records import Entity, Graph, Triple
from workloads.codegraph.trees import Sources
from workloads.graphmer.corpus import Corpus, build
from workloads.graphmer.counts.answering import Answering
from workloads.graphmer.predicting.calibration import Calibration, weights_of
from workloads.graphmer.predicting.joined import Joined, join
from workloads.graphmer.predicting.references import SURE, UNRESOLVED, Choices
from workloads.graphmer.settings import Array

COLUMNS = (
    "head", "relation", "tail", "probability", "where", "asked", "counts_tail", "counts_probability", "file", "line",
)  # fmt: skip
TABLE = "predictions.csv"
_WHERE = {
    "this tree": "references to an entity of this tree", "outside": "references to something known outside",
    "not in this tree": "references to nothing that is known",
}  # fmt: skip
_EXAMPLES = 8
_LIKELY = 0.5
_CHECKED = 1000  # known references of the tree that are hidden, to say how well it is answered


@dataclass(frozen=True)
class Answer:
    """A reference and what is answered: relation, entity and probability; no entity where none is more probable.

    `counted` is the first answer of the counts alone, with its probability.
    """

    asked: Triple
    best: tuple[str, str, float]
    counted: tuple[str, float]

    @property
    def is_likely(self) -> bool:
        """Whether an entity is likelier than all others."""
        return bool(self.best[1]) and self.best[2] >= _LIKELY


@dataclass(frozen=True)
class Predictions:
    """The answers about a graph, and what of its known facts was answered rightly when it was hidden."""

    graph: Graph
    joined: Joined
    answers: Sequence[Answer]
    checked: Mapping[str, float]

    def where(self, tail: str) -> str:
        """Returns whether an answer is an entity of this tree, one outside of it that training knows, or neither."""
        if not tail:
            return "not in this tree"
        return "this tree" if self.joined.in_tree[self.joined.index[tail]] else "outside"

    def row(self, answer: Answer) -> dict[str, Any]:
        """Returns an answer as a row of the table: the most probable one, or none."""
        asked, (counted, chance), (relation, tail, probability) = answer.asked, answer.counted, answer.best
        place = (self.where(tail), asked.tail, counted, round(chance, 4), asked.file, asked.line)
        return dict(zip(COLUMNS, (asked.head, relation, tail, round(probability, 4), *place), strict=True))

    def text(self, out: Path | None) -> str:
        """Returns a summary: what was asked, how much was answered, how good that is on this tree, and examples."""
        graph, number = self.graph, len({triple.file for triple in self.graph.triples})
        unresolved = sum(graph.entities[triple.tail].type == UNRESOLVED for triple in graph.triples)
        about = "Every name that it calls, inherits from or is decorated with could be followed: nothing to resolve."
        if unresolved:
            about = f"{unresolved:,} of them are references that could not be followed; asked is which entity of the "
            about += "name is meant."
        lines = [f"The tree has {len(graph.triples):,} facts of {number:,} file{'s' if number > 1 else ''}. {about}"]
        table = [["", "all", f"p >= {SURE:g}", f"p >= {_LIKELY:g}"]]
        for where, name in _WHERE.items():
            chances = [answer.best[2] for answer in self.answers if self.where(answer.best[1]) == where]
            table.append([name, *(f"{sum(chance >= least for chance in chances):,}" for least in (0, SURE, _LIKELY))])
        lines += [aligned(table, left=(0,)), *([self._quality()] if self.checked else []), *self._examples()]
        if out is not None:
            lines.append(
                f"{out / TABLE} has all answers. The completed graph is {records.TRIPLES} and {records.ENTITIES}; what "
                "was predicted has its probability there."
            )
        return "\n".join(lines)

    def _examples(self) -> list[str]:
        likely = [answer for answer in self.answers if answer.is_likely]
        likely.sort(key=lambda answer: (-answer.best[2], answer.asked.key))
        evenly = {n * (len(likely) - 1) // (_EXAMPLES - 1): None for n in range(_EXAMPLES) if likely}
        rows = [self.row(likely[number]) for number in evenly]
        table = [["file:line", "relation", "asked", "answer", "probability"]]
        for r in rows:
            place = f"{r['file']}:{r['line']}"
            table.append([place, r["relation"], r["asked"], r["tail"], f"{r['probability']:.3f}"])
        text = "Some answers, from the surest to the least sure one above one half:"
        return [text, aligned(table, left=(0, 1, 2, 3))] if rows else []

    def _quality(self) -> str:
        checked = self.checked
        sure = f", and {checked['right of the sure']:.1%} of those given {SURE:g} or more" if checked["sure"] else ""
        every, alike = checked["number of all"], ""
        if checked["number"] < every:
            alike = f" like x.get(), as most unresolved ones are; of all {every:,} it is {checked['right of all']:.1%}"
        return (
            f"Expect {checked['right']:.1%} of the unresolved references to be answered rightly{sure}: so many are of "
            f"{checked['number']:,} known references of this tree{alike}. Each was hidden in its turn."
        )


def _write(predictions: Predictions, out: Path) -> None:
    """Writes the completed graph and the table into a folder."""
    graph, corpus, index = predictions.graph, predictions.joined.data.corpus, predictions.joined.index
    triples, chances = {triple.key: triple for triple in graph.triples}, {}
    for answer in predictions.answers:
        if answer.is_likely:
            relation, tail, chance = answer.best
            triple = replace(answer.asked, relation=relation, tail=tail)
            triples[triple.key], chances[triple.key] = triple, chance
    new = [tail for _, _, tail in triples if tail not in graph.entities]
    more = {tail: Entity(tail, corpus.types[corpus.entity_type[index[tail]]]) for tail in new}
    ordered = [triples[key] for key in sorted(triples)]
    records.write(replace(graph, triples=ordered, entities={**graph.entities, **more}), out, chances)
    rows = (predictions.row(answer).values() for answer in predictions.answers)
    write_table(out / TABLE, [COLUMNS, *map(list, rows)])


def predict(task: Any, models: Sequence[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
    """Returns a row of values for each answer, by head, relation and tail; see `Graphmer.predict`. Raises BadInput."""
    if out is not None:
        disk.check_writable(out)
    sources = _sources(source)
    trained, rules = _trained(task)
    with working("Reading the tree"):
        graph = build_graph(sources)
        graph.print_skipped()
        if not graph.triples:
            raise BadInput(f"No Python file of {printable(source)} can be read; the lines above say why.")
        with _kept_data():
            text = trained.tokenizer.tobytes().decode()
            tree = build(graph, sources, task.settings.chain, task.settings.split, tokenizer=text)
            joined = join(trained, tree, rules, task.settings, task.learned()["counts"])
    if not len(joined.triples):
        kinds = printable(", ".join(trained.relations), most=300)
        what = f"The model was trained on facts of other kinds than Python files have: {kinds}"
        raise BadInput(f"{what}. Train on a tree of them.")
    predictions = Predictions(graph, joined, [], {})
    if all(weights_of(model).any() for model in models):
        calibration = Calibration(joined.data, leave_out=True)
        with torch.inference_mode():
            answers = _answers(calibration, joined, models, graph)
            predictions = Predictions(graph, joined, answers, _checked(calibration, joined, models[0]))
    else:
        print("No references are asked for: the run's validation had none, so that probabilities were not fitted.")
    print(predictions.text(out))
    if out is not None:
        _write(predictions, out)
    return {" ".join(answer.asked.key): predictions.row(answer) for answer in predictions.answers}


def _sources(source: Any) -> Sources:
    if not isinstance(source, Path | str):
        raise BadInput(f"Give one folder or file of Python to predict, not a {type(source).__name__}.")
    path = Path(source)
    if path.is_file() and path.suffix != ".py":
        raise BadInput(f"{printable(path)} is no Python file. Give a file NAME.py, or the folder of a tree of them.")
    return Sources([trees.Tree(path.stem, path.parent, (path.name,)) if path.is_file() else trees.folder(path)])


def _trained(task: Any) -> tuple[Corpus, Ontology]:
    """Returns the corpus and the ontology of training. Raises BadInput."""
    if "data" in vars(task):
        corpus, rules = task.data.corpus, task.data.rules
    else:
        with _kept_data():
            corpus, rules = Corpus.load(task.learned()["corpus"]), ontology.load(task.learned()["ontology"])
            _check(corpus)
    if not len(corpus.text):
        raise BadInput(
            "The model was trained on a graph without its source files, so it has read no text and cannot say anything "
            "about Python files. Train on a tree of them: data.dir."
        )
    return corpus, rules


def _check(corpus: Corpus) -> None:
    """Raises ValueError if an index leads out of the corpus: that of a stranger could ask for any amount of memory."""
    words, entities, names = len(corpus.word_list), len(corpus.entities), len(corpus.files)
    text, facts, pieces = len(corpus.text) + 1, len(corpus.tail) + 1, len(corpus.piece_flat) + 1
    below = {
        "text": words, "parts": words, "window_start": text, "window_stop": text, "first_triple": facts,
        "head": entities, "tail": entities, "relation": len(corpus.relations), "window_file": names, "split": 3,
        "entity_type": len(corpus.types), "entity_file": names, "part_offsets": len(corpus.parts) + 1,
        "piece_offsets": pieces,
    }  # fmt: skip
    for name, most in below.items():
        array = getattr(corpus, name)
        is_flat = array.ndim == 1 and array.dtype.kind in "iu"
        if not is_flat or (len(array) and (array.min() < -1 or array.max() >= most)):
            raise ValueError(f"{name} leads out of the corpus")


@contextmanager
def _kept_data() -> Iterator[None]:
    """Raises BadInput if what a run kept, perhaps a stranger's, is not as this version writes it."""
    try:
        yield
    except (OSError, ValueError, KeyError, IndexError) as error:
        why = printable(error, most=200)
        raise BadInput(f"The data that the run kept cannot be read by this version ({why}). Train again.") from None


def _checked(calibration: Calibration, joined: Joined, model: nn.Module) -> dict[str, float]:
    """Returns how well hidden known references are answered: those of an object, if there are any."""
    choices, _ = calibration.hidden(joined.triples, Answering(joined.data, model), _CHECKED)
    if choices is None:
        return {}
    weights = weights_of(model)[1]
    every, alike = choices.judged(weights), choices[choices.of_object]
    shares = alike.judged(weights) if len(alike) else every
    return {**shares, "number of all": every["number"], "right of all": every["right"]}


def _answers(calibration: Calibration, joined: Joined, models: Sequence[nn.Module], graph: Graph) -> list[Answer]:
    """Returns an answer for each reference that is not resolved, in the order of the graph."""
    asking, corpus = calibration.asking, joined.data.corpus
    by_key = {triple.key: triple for triple in graph.triples}
    triples = joined.triples[asking.is_unresolved(joined.triples)]
    heads, relations, tails = corpus.head[corpus.window_of[triples]], corpus.relation[triples], corpus.tail[triples]
    asked = [
        by_key[corpus.entities[head], corpus.relations[relation], corpus.entities[tail]]
        for head, relation, tail in zip(heads, relations, tails, strict=True)
    ]
    answers: dict[int, Answer] = {}
    batches = zip(*(asking.ask(triples, Answering(joined.data, model)) for model in models), strict=True)
    weights = [weights_of(model) for model in models]
    for parts in counted(batches, "batches of references answered", len(asking.batches(triples))):
        numbers = parts[0].reference.tolist()
        voted = _voted(corpus, parts, weights, [asked[number] for number in numbers])
        answers |= dict(zip(numbers, voted, strict=True))
    return [answers[number] for number in sorted(answers)]


def _voted(
    corpus: Corpus, parts: Sequence[Choices], weights: Sequence[Array], asked: Sequence[Triple]
) -> Iterator[Answer]:
    """Yields the answer to each question, by the means of the models' probabilities; they choose among the same."""
    first, begin = parts[0], parts[0].begin

    def mean(row: int) -> Iterator[Array]:  # of the weights of the counts alone, or of those that were chosen
        each = (part.probabilities(of[row]) for part, of in zip(parts, weights, strict=True))
        return (np.mean(values, 0) for values in zip(*each, strict=True))

    (alone, _), (chosen, none) = mean(0), mean(1)
    for row, triple in enumerate(asked):
        best, counted, own = (triple.relation, "", float(none[row])), ("", 0.0), slice(begin[row], begin[row + 1])
        if begin[row] < begin[row + 1]:
            place, by_counts = (begin[row] + int(np.argmax(of[own])) for of in (chosen, alone))
            counted = corpus.entities[first.entity[by_counts]], float(alone[by_counts])
            if chosen[place] > none[row]:
                relation, tail = corpus.relations[first.relation[place]], corpus.entities[first.entity[place]]
                best = relation, tail, float(chosen[place])
        yield Answer(triple, best, counted)
