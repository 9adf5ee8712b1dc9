"""What the unresolved names of a new tree mean: competing answers, their features, and a table."""

from collections.abc import Iterator, Mapping, Sequence
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
from lib.training.order import mix, permutation
from trainbook.outputs.result import write_table
from workloads.codegraph import trees
from workloads.codegraph.graph import build as build_graph
from workloads.codegraph.records import Graph
from workloads.codegraph.trees import Sources
from workloads.graphmer.batches import EntityTable
from workloads.graphmer.choices import SURE, best, fit, judged, probabilities
from workloads.graphmer.corpus import Corpus, extended
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Questions
from workloads.graphmer.counts.ragged import Groups
from workloads.graphmer.counts.rows import Layout, Rows
from workloads.graphmer.data import Data
from workloads.graphmer.evaluation import Answering
from workloads.graphmer.settings import OF_REFERENCES, Array, Settings

UNRESOLVED = "Name"  # the type of what stands for a reference that is not resolved
_TOGETHER = (
    "calls",
    "instantiates",
)  # an unresolved call does not know whether it is that of a class
_AT_ONCE = 64  # questions that are read together
_FAR = 6  # levels of what stands in what that are looked through
_MOST = 4000  # questions: as many as say something, and no more time
TABLE = "predictions.csv"
COLUMNS = ("head", "relation", "tail", "probability", "asked", "file", "line")
_LIKELY = 0.5
_CHECKED = 1000  # known references of the tree that are hidden, to say how well it is answered
Table = dict[tuple[str, str, str], dict[str, Any]]  # its rows by the key of what was asked


class Standing:
    """Describes answers by the text of their references: bare, after `self.`, after an owner's name, or an object's.

    A reference is of an object if that belongs to no answer. Answers that a bare name cannot mean are out (a method, or
    what another function defines within itself), and those of the own class after `super().`, unless `self.` has them
    too.
    """

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        kind = np.array(corpus.types)[corpus.entity_type]
        self.is_method = kind == "Method"
        self.is_local = (corpus.parent >= 0) & np.isin(kind, ("Function", "Method"))[
            np.maximum(corpus.parent, 0)
        ]
        self.is_builtin = corpus.owner == corpus.word_index("builtins")
        # Outside of the tree: os.write, and no zipfile.ZipFile.read or builtins.list.append; a class as its case tells
        is_class = np.array([word[:1].isupper() for word in corpus.word_list])
        of_class = (corpus.package == corpus.word_index("builtins")) & (
            np.diff(corpus.part_offsets) > 2
        )
        of_class |= (corpus.owner >= 0) & is_class[corpus.owner]
        self.in_module = np.isin(kind, ("Function", "Class")) | (
            (kind == "API") & ~(self.is_builtin | of_class)
        )
        # The pairs of a file and an entity that it imports, ascending, as numbers
        triples = np.flatnonzero(np.array(corpus.relations)[corpus.relation] == "imports")
        file = corpus.window_file[corpus.window_of[triples]].astype(np.int64)
        self.imports = np.unique(file * len(corpus.entity_type) + corpus.tail[triples])

    def described(
        self, answers: pd.DataFrame, window: Array, name: Array, rows: Rows
    ) -> pd.DataFrame:
        """Returns the answers that are not out, with features, and for each of Q references that none is right.

        `question` is a number below Q; window, name and rows are those of the references.
        """
        corpus = self.corpus
        is_place = rows.word == name[:, None]
        question = answers["question"].to_numpy()
        entity = answers["entity"].to_numpy()
        dotted = is_place & (rows.owner >= 0)
        after_self = (is_place & (rows.is_self == 1)).any(1)
        is_dotted = dotted.any(1)
        is_bare = is_place.any(1) & ~dotted.any(1)
        owner = corpus.owner[entity]
        parent = corpus.parent[entity]
        is_method = self.is_method[entity]
        owner_before = (dotted[question] & (rows.owner[question] == owner[:, None])).any(1)
        head = corpus.head[window]
        file = corpus.window_file[window][question]
        of_object = (
            is_dotted & ~after_self & ~(np.bincount(question, owner_before, len(window)) > 0)
        )
        in_file = corpus.entity_file[entity] == file
        is_own = parent == corpus.parent[head][question]
        is_inner = np.zeros(len(entity), bool)
        imported = np.zeros(len(entity), bool)
        outer = head[question]
        at = entity
        code = file.astype(np.int64) * len(corpus.entity_type)
        for _ in range(_FAR):
            is_inner |= (outer == parent) & (
                parent >= 0
            )  # the head is what the entity stands in, or is within it
            imported |= (at >= 0) & np.isin(
                code + at, self.imports
            )  # the entity, or what it stands in
            outer, at = (np.where(e >= 0, corpus.parent[np.maximum(e, 0)], -1) for e in (outer, at))
        features = {
            "dotted function": is_dotted[question] & self.in_module[entity] & ~owner_before,
            "owner before": owner_before, "own class": after_self[question] & is_own, "imported": imported,
            "same file": in_file, "out of sight": is_bare[question] & ~(imported | in_file | self.is_builtin[entity]),
        }  # fmt: skip
        is_out = is_bare[question] & (
            (is_method & (parent != head[question])) | (self.is_local[entity] & ~is_inner)
        )
        is_super = dotted & (rows.is_super == 1)
        is_out |= (
            (is_super.any(1) & ~(dotted & ~is_super & (rows.is_self == 1)).any(1))[question]
            & is_method
            & is_own
        )
        none = pd.DataFrame(
            {"question": np.arange(len(window)), "entity": -1, "of_object": of_object, "none": 1.0}
        )
        none["none of an object's"] = of_object
        whole = pd.concat(
            [none, answers.assign(of_object=of_object[question], **features)[~is_out]]
        )
        return whole.astype(dict.fromkeys(OF_REFERENCES, float)).fillna(
            dict.fromkeys(OF_REFERENCES, 0.0)
        )


def weights_of(model: nn.Module) -> Array:
    """Returns (F) the weights of probabilities that were chosen on validation."""
    return model.get_buffer("of_references").double().cpu().numpy()


class Calibration:
    """Makes choices of references by what the counts and a model say of the entities of their names.

    A known tail that no other fact of the graph names, that no file defines and that is not Python's own would not be
    known without its fact: it is no answer, so that none is right.
    """

    def __init__(self, data: Data):
        self.data = data
        self.corpus = data.corpus
        corpus = data.corpus
        is_unresolved = np.array(corpus.types) == UNRESOLVED
        self.is_unresolved = is_unresolved[corpus.entity_type[corpus.tail]]  # (T)
        self.possible = np.flatnonzero(~is_unresolved[corpus.entity_type])
        self.by_name = Groups(corpus.name[self.possible])
        mentions = np.bincount(corpus.tail, minlength=len(corpus.entity_type))
        is_builtin = corpus.package == corpus.word_index("builtins")
        self.is_told_once = (corpus.entity_file < 0) & (mentions < 2) & ~is_builtin
        self.together = [
            corpus.relations.index(name) for name in _TOGETHER if name in corpus.relations
        ]
        self.standing = Standing(corpus)
        # The relations that an unresolved reference has, and those that it may turn out to be of
        relations = np.flatnonzero(data.allowed[:, is_unresolved].any(1))
        self.relations = np.union1d(
            relations, self.together if np.isin(self.together, relations).any() else []
        )

    def known(self, triples: Array) -> Array:
        """Returns those of the triples that are resolved references, to be hidden."""
        return triples[
            np.isin(self.corpus.relation[triples], self.relations) & ~self.is_unresolved[triples]
        ]

    def batches(self, triples: Array) -> list[Array]:
        """Returns which references are asked together: those of one relation and of names that are near."""
        relation = self.corpus.relation[triples]
        name = self.corpus.name[self.corpus.tail[triples]]
        order = np.lexsort((name, relation))
        alike = np.split(order, np.flatnonzero(np.diff(relation[order])) + 1)
        return [
            part[first : first + _AT_ONCE]
            for part in alike
            for first in range(0, len(part), _AT_ONCE)
        ]

    def ask(self, triples: Array, answering: Answering) -> Iterator[pd.DataFrame]:
        """Yields the choices of references, in batches: of triples whose tails are hidden, if they are known.

        Beside the columns of `choices` they have entity (-1: none is right), relation, and of_object, whether it is an
        attribute of something that the text does not name. A question is a number of the triples.
        """
        corpus = self.corpus
        nothing = np.zeros(0, np.int64)
        for chosen in self.batches(triples):
            part = triples[chosen]
            window = corpus.window_of[part]
            tail = corpus.tail[part]
            asked = int(corpus.relation[part[0]])
            number, place = self.by_name.places(corpus.name[tail])
            relations = self.together if asked in self.together else [asked]
            scored = [
                self._scored(part, relation, number, self.possible[place], answering)
                for relation in relations
            ]
            rows = self.data.layout.rows(window, np.ones(len(part), bool), nothing, nothing)
            choices = self.standing.described(pd.concat(scored), window, corpus.name[tail], rows)
            choices["relation"] = choices["relation"].fillna(asked).astype(int)
            choices = choices.sort_values(
                ["question", "entity", "relation"], kind="stable", ignore_index=True
            )
            question = choices["question"].to_numpy()
            is_none = choices["entity"] == -1
            right = (choices["entity"] == tail[question]) & (choices["relation"] == asked)
            choices["right"] = right | (is_none & ~right.groupby(question).transform("any"))
            yield choices.assign(question=chosen[question])

    def _scored(
        self, triples: Array, relation: int, question: Array, entity: Array, answering: Answering
    ) -> pd.DataFrame:
        """Returns the answers that are possible as tails of a relation, with the scores of counts and model."""
        window = self.corpus.window_of[triples]
        tail = self.corpus.tail[triples]
        asked = Questions(
            window, *(np.full(len(triples), value) for value in (relation, FULL_TEXT, -1))
        )
        may = self.data.scorer.is_allowed(asked.relation[:1], entity)[0]
        may &= ~(self.is_told_once[entity] & (entity == tail[question]))
        row, other = self.data.scorer.true_tails(
            asked
        )  # facts of the graph beside the one that is hidden
        entities = len(self.corpus.entity_type)
        may &= ~np.isin(question * entities + entity, (row * entities + other)[other != tail[row]])
        question = question[may]
        entity = entity[may]
        among = CandidateSet(self.corpus, np.unique(entity))
        encoded = answering.scores(asked, among)
        at = (question, among.place[entity])
        counts, trusting, whole = (
            encoded(*gates)[at] for gates in ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))
        )
        return pd.DataFrame({
            "question": question, "entity": entity, "relation": relation, "counts": counts,
            "trust": trusting - counts, "likeness": whole - trusting,
        })  # fmt: skip

    def fit(self, model: nn.Module) -> None:
        """Fits the weights of probabilities on validation, beginning at the counts alone."""
        choices = self.hidden(self.corpus.triples_of("validation"), Answering(self.data, model))
        if choices is not None:
            start = np.array([float(name == "counts") for name in OF_REFERENCES])
            model.get_buffer("of_references").copy_(torch.from_numpy(fit(choices, start)))

    def hidden(
        self, triples: Array, answering: Answering, most: int = _MOST
    ) -> pd.DataFrame | None:
        """Returns the choices of known references with what a model says; None if there are none."""
        known = self.known(triples)
        if not len(known):
            return None
        known = known[
            np.sort(permutation(mix(len(known)), 0, len(known))[:most])
        ]  # the same ones in every run
        with torch.no_grad():
            return pd.concat(self.ask(known, answering), ignore_index=True)


def join(
    trained: Corpus, graph: Graph, sources: Sources, settings: Settings, weights: Mapping[str, Any]
) -> tuple[Data, Array]:
    """Returns the data of a run and of a new tree together, and the triples of the tree in it.

    `weights` are those of the counts.
    """
    corpus = extended(trained, graph, sources, settings.chain)
    data = Data((), settings, {})
    data.corpus, data.table, data.layout = (
        corpus,
        EntityTable(corpus, 0),
        Layout(corpus, settings.chain.roots),
    )
    vectors = EntityTable(trained, settings.model.own_vectors).vector
    data.table.vector[: len(vectors)] = vectors
    kinds = Layout(trained, settings.chain.roots).kind_before
    data.layout.kind_before = np.pad(kinds, (0, len(corpus.word_list) - len(kinds)))
    data.use(weights)
    return data, np.arange(len(trained.relation), len(corpus.relation))


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
    path = Path(source)
    kept = task.learned()
    is_one = path.is_file() and path.suffix == ".py"
    sources = Sources(
        [trees.Tree(path.stem, path.parent, (path.name,)) if is_one else trees.folder(path)]
    )
    if "corpus" not in kept:
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
            trained = Corpus.load(kept["corpus"])
            trained.check()  # a stranger's
            if not len(trained.text):
                raise BadInput(
                    "The model has read no text, but a graph alone. Train on a tree of Python files."
                )
            data, triples = join(trained, graph, sources, task.settings, kept["counts"])
    if not all(weights_of(model).any() for model in models):
        print(
            "No references are asked for: the run's validation had none, so that probabilities were not fitted."
        )
        return {}
    calibration = Calibration(data)
    with torch.inference_mode():
        rows = _answered(calibration, triples, models, graph)
        quality = _quality(calibration, triples, models[0])
    likely = [
        row["probability"] for row in rows.values() if row["tail"] and row["probability"] >= _LIKELY
    ]
    print(
        f"The tree has {len(graph.triples):,} facts. {len(rows):,} of them are references that could not be followed; "
        f"asked is which entity of the name is meant. {len(likely):,} are answered with a probability of {_LIKELY:g} "
        f"or more, {sum(chance >= SURE for chance in likely):,} of them {SURE:g} or more.\n{quality}".rstrip()
    )
    if out is not None:
        write_table(out / TABLE, [COLUMNS, *([*row.values()] for row in rows.values())])
    return {" ".join(key): row for key, row in rows.items()}


def _answered(
    asking: Calibration, triples: Array, models: Sequence[nn.Module], graph: Graph
) -> Table:
    """Returns the row of each of the triples whose reference is not resolved, in the order of the graph.

    Several models answer by the mean of their probabilities; they choose among the same entities.
    """
    corpus = asking.corpus
    rows = Table()
    triples = triples[asking.is_unresolved[triples]]
    places = {triple.key: triple for triple in graph.triples}
    batches = zip(
        *(asking.ask(triples, Answering(asking.data, model)) for model in models), strict=True
    )
    for parts in counted(batches, "batches of references answered", len(asking.batches(triples))):
        shares = [
            probabilities(part, weights_of(model))
            for part, model in zip(parts, models, strict=True)
        ]
        choices = parts[0].assign(probability=sum(shares) / len(shares))
        for answer in choices.loc[best(choices, choices["probability"])].itertuples():
            triple = triples[answer.question]
            head = corpus.head[corpus.window_of[triple]]
            unresolved = corpus.tail[triple]
            key = (
                corpus.entities[head],
                corpus.relations[corpus.relation[triple]],
                corpus.entities[unresolved],
            )
            tail = corpus.entities[answer.entity] if answer.entity >= 0 else ""
            values = (
                key[0],
                corpus.relations[answer.relation],
                tail,
                round(answer.probability, 4),
                key[2],
            )
            rows[key] = dict(
                zip(COLUMNS, (*values, places[key].file, places[key].line), strict=True)
            )
    return {key: rows[key] for key in sorted(rows)}


def _quality(calibration: Calibration, triples: Array, model: nn.Module) -> str:
    """Returns how well hidden known references are answered: those of an object, if there are any."""
    choices = calibration.hidden(triples, Answering(calibration.data, model), _CHECKED)
    of_object = ""
    if choices is None:
        return ""
    weights = weights_of(model)
    alike = choices[choices["of_object"]] if choices["of_object"].any() else choices
    right, right_of_sure = judged(alike, weights)
    if right_of_sure == right_of_sure:
        sure = f", and {right_of_sure:.1%} of those given {SURE:g} or more"
    else:
        sure = ""
    if len(alike) < len(choices):
        of_object = " like x.get(), as most unresolved ones are"
        of_object += f"; of all {choices['right'].sum():,} it is {judged(choices, weights)[0]:.1%}"
    known = f"{alike['right'].sum():,} known references of this tree{of_object}. Each was hidden in its turn."
    return f"Expect {right:.1%} of the unresolved references to be answered rightly{sure}: so many are of {known}"
