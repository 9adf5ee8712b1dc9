"""Predictions about a new tree: what its unresolved names mean, as a table. Each `task` is a Graphmer."""

from collections.abc import Iterator, Mapping, Sequence
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
from workloads.codegraph import trees
from workloads.codegraph.graph import build as build_graph
from workloads.codegraph.records import Graph
from workloads.codegraph.trees import Sources
from workloads.graphmer.batches import EntityTable
from workloads.graphmer.corpus import Corpus, extended
from workloads.graphmer.counts.rows import Layout
from workloads.graphmer.data import Data
from workloads.graphmer.evaluation import Answering
from workloads.graphmer.predicting.references import SURE, Calibration, weights_of
from workloads.graphmer.settings import Array, Settings

TABLE = "predictions.csv"
COLUMNS = ("head", "relation", "tail", "probability", "asked", "file", "line")
_EXAMPLES = 8
_LIKELY = 0.5
_CHECKED = 1000  # known references of the tree that are hidden, to say how well it is answered
Rows = dict[tuple[str, str, str], dict[str, Any]]  # of the table, by the key of what was asked


def join(
    trained: Corpus, graph: Graph, sources: Sources, settings: Settings, weights: Mapping[str, Any]
) -> tuple[Data, Array]:
    """Returns the data of a run and of a new tree together, and the triples of the tree in it.

    `weights` are those of the counts.
    """
    corpus = extended(trained, graph, sources, settings.chain)
    data = Data((), settings, {})
    data.corpus, data.table, data.layout = corpus, EntityTable(corpus, 0), Layout(corpus, settings.chain.roots)
    vectors = EntityTable(trained, settings.model.own_vectors).vector
    data.table.vector[: len(vectors)] = vectors
    kinds = Layout(trained, settings.chain.roots).kind_before
    data.layout.kind_before = np.pad(kinds, (0, len(corpus.word_list) - len(kinds)))
    data.use(weights)
    return data, np.arange(len(trained.relation), len(corpus.relation))


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
            trained = Corpus.load(kept["corpus"])
            trained.check()  # a stranger's
            data, triples = join(trained, graph, sources, task.settings, kept["counts"])
    rows, quality = Rows(), ""
    if all(weights_of(model).any() for model in models):
        calibration = Calibration(data, leave_out=True)
        with torch.inference_mode():
            rows, quality = _answered(calibration, triples, models, graph), _quality(calibration, triples, models[0])
    else:
        print("No references are asked for: the run's validation had none, so that probabilities were not fitted.")
    print("\n".join(_summary(graph, [*rows.values()], quality)))
    if out is not None:
        write_table(out / TABLE, [COLUMNS, *([*row.values()] for row in rows.values())])
    return {" ".join(key): row for key, row in rows.items()}


def _sources(source: Any) -> Sources:
    if not isinstance(source, Path | str):
        raise BadInput(f"Give one folder or file of Python to predict, not a {type(source).__name__}.")
    path = Path(source)
    is_one = path.is_file() and path.suffix == ".py"
    return Sources([trees.Tree(path.stem, path.parent, (path.name,)) if is_one else trees.folder(path)])


def _answered(asking: Calibration, triples: Array, models: Sequence[nn.Module], graph: Graph) -> Rows:
    """Returns the row of each of the triples whose reference is not resolved, in the order of the graph.

    Several models answer by the mean of their probabilities; they choose among the same entities.
    """
    corpus, rows = asking.corpus, Rows()
    triples = triples[asking.is_unresolved(triples)]
    heads, relations, tails = corpus.head[corpus.window_of[triples]], corpus.relation[triples], corpus.tail[triples]
    places = {triple.key: triple for triple in graph.triples}
    batches = zip(*(asking.ask(triples, Answering(asking.data, model)) for model in models), strict=True)
    for parts in counted(batches, "batches of references answered", len(asking.batches(triples))):
        shares = [part.probabilities(weights_of(model)) for part, model in zip(parts, models, strict=True)]
        first, mean = parts[0], np.mean(shares, 0)
        for number, place in zip(first.reference, first.best(mean), strict=True):
            key = (
                corpus.entities[heads[number]], corpus.relations[relations[number]], corpus.entities[tails[number]]
            )  # fmt: skip
            tail = corpus.entities[first.entity[place]] if first.entity[place] >= 0 else ""
            answer = key[0], corpus.relations[first.relation[place]], tail, round(float(mean[place]), 4), key[2]
            rows[key] = dict(zip(COLUMNS, (*answer, places[key].file, places[key].line), strict=True))
    return {key: rows[key] for key in sorted(rows)}


def _quality(calibration: Calibration, triples: Array, model: nn.Module) -> str:
    """Returns how well hidden known references are answered: those of an object, if there are any."""
    choices, _ = calibration.hidden(triples, Answering(calibration.data, model), _CHECKED)
    if choices is None:
        return ""
    alike, weights, of_object = choices[choices.of_object], weights_of(model), ""
    right, right_of_sure = (alike if len(alike) else choices).judged(weights)
    sure = f", and {right_of_sure:.1%} of those given {SURE:g} or more" if right_of_sure == right_of_sure else ""
    if 0 < len(alike) < len(choices):
        of_object = " like x.get(), as most unresolved ones are"
        of_object += f"; of all {len(choices):,} it is {choices.judged(weights)[0]:.1%}"
    known = f"{len(alike) or len(choices):,} known references of this tree{of_object}. Each was hidden in its turn."
    return f"Expect {right:.1%} of the unresolved references to be answered rightly{sure}: so many are of {known}"


def _summary(graph: Graph, rows: Sequence[Mapping[str, Any]], quality: str) -> Iterator[str]:
    """Yields what was asked, how much was answered, how good that is on this tree, and examples."""
    number, unresolved = len({triple.file for triple in graph.triples}), len(rows)
    likely = [row for row in rows if row["tail"] and row["probability"] >= _LIKELY]
    sure = sum(row["probability"] >= SURE for row in likely)
    yield (
        f"The tree has {len(graph.triples):,} facts of {number:,} file{'s' if number > 1 else ''}. {unresolved:,} of "
        "them are references that could not be followed; asked is which entity of the name is meant. "
        f"{len(likely):,} are answered with a probability of {_LIKELY:g} or more, {sure:,} of them {SURE:g} or more."
    )
    if quality:
        yield quality
    if likely:
        likely.sort(key=lambda row: -row["probability"])
        yield "Some answers, from the surest to the least sure one above one half:"
        table = [["file:line", *(columns := ("relation", "asked", "tail", "probability"))]]
        for place in dict.fromkeys(np.linspace(0, len(likely) - 1, _EXAMPLES).astype(int).tolist()):
            row = likely[place]
            table.append([f"{row['file']}:{row['line']}", *(f"{row[column]}" for column in columns)])
        yield aligned(table, left=(0, 1, 2, 3))
