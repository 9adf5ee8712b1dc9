"""Predictions about a new tree: what its unresolved names mean, as a table and as a completed graph.

Each `task` is a Graphmer.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from lib.task.place import naming
from lib.text import aligned
from workloads.codegraph import ontology, records, trees
from workloads.codegraph.graph import build as build_graph
from workloads.codegraph.ontology import Ontology
from workloads.codegraph.records import Entity, Graph
from workloads.codegraph.trees import Sources
from workloads.graphmer.batches import EntityTable
from workloads.graphmer.corpus import Corpus, extended
from workloads.graphmer.counts.rows import Layout
from workloads.graphmer.data import Data
from workloads.graphmer.evaluation import Answering
from workloads.graphmer.predicting.references import SURE, UNRESOLVED, Calibration, weights_of
from workloads.graphmer.settings import Array, Settings

TABLE = "predictions.csv"
COLUMNS = (
    "head", "relation", "tail", "probability", "where", "asked", "counts_tail", "counts_probability", "file", "line",
)  # fmt: skip
_WHERE = {
    "this tree": "references to an entity of this tree", "outside": "references to something known outside",
    "not in this tree": "references to nothing that is known",
}  # fmt: skip
_EXAMPLES = 8
_LIKELY = 0.5
_CHECKED = 1000  # known references of the tree that are hidden, to say how well it is answered
Rows = dict[tuple[str, str, str], dict[str, Any]]  # of the table, by the key of what was asked


@dataclass(frozen=True)
class Joined:
    """The data of both, the triples of the tree in it, and (E) which entities the tree defines."""

    data: Data
    triples: Array
    in_tree: Array


def join(
    trained: Corpus, graph: Graph, sources: Sources, rules: Ontology, settings: Settings, weights: Mapping[str, Any]
) -> Joined:
    """Returns the data of a run and of a new tree together. `weights` are those of the counts."""
    corpus = extended(trained, graph, sources, settings.chain)
    data = Data((), (), settings, {})
    data.corpus, data.rules = corpus, rules
    data.table, data.layout = EntityTable(corpus, 0), Layout(corpus, settings.chain.roots)
    vectors = EntityTable(trained, settings.model.own_vectors).vector
    data.table.vector[: len(vectors)] = vectors
    kinds = Layout(trained, settings.chain.roots).kind_before
    data.layout.kind_before = np.pad(kinds, (0, len(corpus.word_list) - len(kinds)))
    data.use(weights)
    in_tree = corpus.entity_file >= len(trained.files)
    return Joined(data, np.arange(len(trained.relation), len(corpus.relation)), in_tree)


def predict(task: Any, models: Sequence[nn.Module], source: Any, out: Path | None) -> dict[str, Any]:
    """Returns a row of values for each answer, by head, relation and tail; see `Graphmer.predict`. Raises BadInput."""
    if out is not None:
        disk.check_writable(out)
    sources, kept = _sources(source), task.learned()
    if "corpus" not in kept:
        raise BadInput(
            "The counts that the model begins at are not there: a run keeps them in its folder data, which its "
            "archive has up to 268 MB. Give the folder of the run, with data in it."
        )
    with working("Reading the tree"):
        graph = build_graph(sources)
        graph.print_skipped()
        if not graph.triples:
            raise BadInput(f"No Python file of {printable(source)} can be read; the lines above say why.")
        with naming("Reading the data that the run kept, by this version,", "Train again."):
            joined = _joined(task, kept, graph, sources)
    rows, quality = Rows(), ""
    if all(weights_of(model).any() for model in models):
        calibration = Calibration(joined.data, leave_out=True)
        with torch.inference_mode():
            rows, quality = _answered(calibration, joined, models, graph), _quality(calibration, joined, models[0])
    else:
        print("No references are asked for: the run's validation had none, so that probabilities were not fitted.")
    print("\n".join(_summary(graph, [*rows.values()], quality)))
    if out is not None:
        _write(graph, joined, rows, out)
    return {" ".join(key): row for key, row in rows.items()}


def _sources(source: Any) -> Sources:
    if not isinstance(source, Path | str):
        raise BadInput(f"Give one folder or file of Python to predict, not a {type(source).__name__}.")
    path = Path(source)
    if path.is_file() and path.suffix != ".py":
        raise BadInput(f"{printable(path)} is no Python file. Give a file NAME.py, or the folder of a tree of them.")
    return Sources([trees.Tree(path.stem, path.parent, (path.name,)) if path.is_file() else trees.folder(path)])


def _joined(task: Any, kept: Mapping[str, Any], graph: Graph, sources: Sources) -> Joined:
    """Returns the tree beside what was trained on. What a run kept may be a stranger's. Raises ValueError, BadInput."""
    trained, rules = Corpus.load(kept["corpus"]), ontology.load(kept["ontology"])
    trained.check()
    if not len(trained.text):
        raise BadInput(
            "The model was trained on a graph without its source files, so it has read no text and cannot say anything "
            "about Python files. Train on a tree of them: data.dir."
        )
    joined = join(trained, graph, sources, rules, task.settings, kept["counts"])
    if not len(joined.triples):
        kinds = printable(", ".join(trained.relations), most=300)
        what = f"The model was trained on facts of other kinds than Python files have: {kinds}"
        raise BadInput(f"{what}. Train on a tree of them.")
    return joined


def _answered(asking: Calibration, joined: Joined, models: Sequence[nn.Module], graph: Graph) -> Rows:
    """Returns the row of each reference that is not resolved, in the order of the graph.

    Several models answer by the mean of their probabilities; they choose among the same entities.
    """
    corpus = joined.data.corpus
    triples = joined.triples[asking.is_unresolved(joined.triples)]
    heads, weights, rows = corpus.head[corpus.window_of[triples]], [weights_of(model) for model in models], Rows()
    facts = zip(heads, corpus.relation[triples], corpus.tail[triples], strict=True)
    keys = [(corpus.entities[head], corpus.relations[number], corpus.entities[tail]) for head, number, tail in facts]
    places = {triple.key: triple for triple in graph.triples}
    batches = zip(*(asking.ask(triples, Answering(joined.data, model)) for model in models), strict=True)
    for parts in counted(batches, "batches of references answered", len(asking.batches(triples))):
        first, best = parts[0], []
        for row in range(2):  # of the weights of the counts alone, and of those that were chosen
            shares = [part.probabilities(of[row]) for part, of in zip(parts, weights, strict=True)]
            place = first.best(mean := np.mean(shares, 0))
            best.append(zip(place, mean[place].tolist(), strict=True))
        for number, (by_counts, chance), (place, share) in zip(first.reference, *best, strict=True):
            key, entity = keys[number], first.entity[place]
            tail, other = (corpus.entities[e] if e >= 0 else "" for e in (entity, first.entity[by_counts]))
            where = "not in this tree" if not tail else "this tree" if joined.in_tree[entity] else "outside"
            answer = corpus.relations[first.relation[place]], tail, round(share, 4), where, key[2], other
            at = places[key].file, places[key].line
            rows[key] = dict(zip(COLUMNS, (key[0], *answer, round(chance, 4), *at), strict=True))
    return {key: rows[key] for key in sorted(rows)}


def _quality(calibration: Calibration, joined: Joined, model: nn.Module) -> str:
    """Returns how well hidden known references are answered: those of an object, if there are any."""
    choices, _ = calibration.hidden(joined.triples, Answering(joined.data, model), _CHECKED)
    if choices is None:
        return ""
    every = choices.judged(weights_of(model)[1])
    alike = choices[choices.of_object]
    checked = alike.judged(weights_of(model)[1]) if len(alike) else every
    sure = f", and {checked['right of the sure']:.1%} of those given {SURE:g} or more" if checked["sure"] else ""
    of_object = ""
    if checked["number"] < every["number"]:
        of_object = " like x.get(), as most unresolved ones are"
        of_object += f"; of all {every['number']:,} it is {every['right']:.1%}"
    known = f"{checked['number']:,} known references of this tree{of_object}. Each was hidden in its turn."
    right = f"Expect {checked['right']:.1%} of the unresolved references to be answered rightly{sure}"
    return f"{right}: so many are of {known}"


def _summary(graph: Graph, rows: Sequence[Mapping[str, Any]], quality: str) -> Iterator[str]:
    """Yields what was asked, how much was answered, how good that is on this tree, and examples."""
    number = len({triple.file for triple in graph.triples})
    unresolved = sum(graph.entities[triple.tail].type == UNRESOLVED for triple in graph.triples)
    about = "Every name that it calls, inherits from or is decorated with could be followed: nothing to resolve."
    if unresolved:
        about = f"{unresolved:,} of them are references that could not be followed; asked is which entity of the "
        about += "name is meant."
    yield f"The tree has {len(graph.triples):,} facts of {number:,} file{'s' if number > 1 else ''}. {about}"
    table = [["", "all", f"p >= {SURE:g}", f"p >= {_LIKELY:g}"]]
    for where, name in _WHERE.items():
        chances = [row["probability"] for row in rows if row["where"] == where]
        table.append([name, *(f"{sum(chance >= least for chance in chances):,}" for least in (0, SURE, _LIKELY))])
    yield aligned(table, left=(0,))
    if quality:
        yield quality
    likely = sorted((row for row in rows if _is_likely(row)), key=lambda row: -row["probability"])
    if likely:
        yield "Some answers, from the surest to the least sure one above one half:"
        table = [["file:line", *(columns := ("relation", "asked", "tail", "probability"))]]
        for number in dict.fromkeys(np.linspace(0, len(likely) - 1, _EXAMPLES).astype(int).tolist()):
            row = likely[number]
            table.append([f"{row['file']}:{row['line']}", *(f"{row[column]}" for column in columns)])
        yield aligned(table, left=(0, 1, 2, 3))


def _is_likely(row: Mapping[str, Any]) -> bool:
    return bool(row["tail"]) and row["probability"] >= _LIKELY


def _write(graph: Graph, joined: Joined, rows: Rows, out: Path) -> None:
    """Writes the table, and the completed graph, where what was predicted has its probability."""
    write_table(out / TABLE, [COLUMNS, *([*row.values()] for row in rows.values())])
    corpus, triples = joined.data.corpus, {triple.key: triple for triple in graph.triples}
    kinds, entities, chances = dict(zip(corpus.entities, corpus.entity_type, strict=True)), dict(graph.entities), {}
    for key, row in rows.items():
        if _is_likely(row):
            triple = replace(triples[key], relation=row["relation"], tail=row["tail"])
            triples[triple.key], chances[triple.key] = triple, row["probability"]
            entities.setdefault(triple.tail, Entity(triple.tail, corpus.types[kinds[triple.tail]]))
    records.write(replace(graph, triples=[triples[key] for key in sorted(triples)], entities=entities), out, chances)
    print(
        f"{out / TABLE} has all answers. The completed graph is {records.TRIPLES} and {records.ENTITIES}; what was "
        "predicted has its probability there."
    )
