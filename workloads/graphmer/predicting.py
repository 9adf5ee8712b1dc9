"""A new tree beside training: which entities compete for its names, and the features of these answers."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.training.order import mix, permutation
from workloads.codegraph.records import Graph
from workloads.codegraph.trees import Sources
from workloads.graphmer.batches import EntityTable
from workloads.graphmer.choices import fit
from workloads.graphmer.corpus import Corpus, extended
from workloads.graphmer.counts import FULL_TEXT, CandidateSet, Questions
from workloads.graphmer.counts.ragged import Groups
from workloads.graphmer.counts.rows import Layout, Rows
from workloads.graphmer.data import Data
from workloads.graphmer.evaluation import Answering
from workloads.graphmer.settings import OF_REFERENCES, Array, Settings

UNRESOLVED = "Name"  # the type of an unresolved reference
# an unresolved call may call a class
_TOGETHER = ("calls", "instantiates")
_AT_ONCE = 64  # questions that are read together
_FAR = 6  # levels of nesting that are searched
_MOST = 4000  # questions: enough to fit, in bounded time


class Standing:
    """Describes answers by the text of their references: bare, after `self.`, after an owner's name, or an object's.

    A reference is of an object if that belongs to no answer. Answers that a bare name cannot mean are out (a method, or
    a local of another function), and those of the own class after `super().`, unless `self.` has them too.
    """

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        kind = np.array(corpus.types)[corpus.entity_type]
        in_function = np.isin(kind, ("Function", "Method"))[np.maximum(corpus.parent, 0)]
        builtins = corpus.word_index("builtins")
        self.is_method = kind == "Method"
        self.is_local = (corpus.parent >= 0) & in_function
        self.is_builtin = corpus.owner == builtins
        # Outside of the tree: os.write, and no zipfile.ZipFile.read or builtins.list.append; classes by their case
        is_class = np.array([word[:1].isupper() for word in corpus.word_list])
        is_deep = np.diff(corpus.part_offsets) > 2
        of_class = (corpus.package == builtins) & is_deep
        of_class |= (corpus.owner >= 0) & is_class[corpus.owner]
        is_function = (kind == "API") & ~(self.is_builtin | of_class)
        self.in_module = np.isin(kind, ("Function", "Class")) | is_function
        # The pairs of a file and an entity that it imports, ascending, as numbers
        triples = np.flatnonzero(np.array(corpus.relations)[corpus.relation] == "imports")
        file = corpus.window_file[corpus.window_of[triples]].astype(np.int64)
        code = file * len(corpus.entity_type) + corpus.tail[triples]
        self.imports = np.unique(code)

    def described(
        self, answers: pd.DataFrame, window: Array, name: Array, rows: Rows
    ) -> pd.DataFrame:
        """Returns the answers that are not out, with features, and one row for each of Q references: none is right.

        `question` is a number below Q; window, name and rows are those of the references.
        """
        corpus = self.corpus
        question = answers["question"].to_numpy()
        entity = answers["entity"].to_numpy()
        is_place = rows.word == name[:, None]
        dotted = is_place & (rows.owner >= 0)
        is_dotted = dotted.any(1)
        is_bare = (is_place.any(1) & ~is_dotted)[question]
        is_attribute = (is_dotted & ~(is_place & (rows.owner < 0)).any(1))[question]
        after_self = (is_place & (rows.is_self == 1)).any(1)
        is_owner = rows.owner[question] == corpus.owner[entity][:, None]
        owner_before = (dotted[question] & is_owner).any(1)
        has_owner = np.bincount(question, owner_before, len(window)) > 0
        of_object = is_dotted & ~after_self & ~has_owner
        head = corpus.head[window][question]
        file = corpus.window_file[window][question]
        is_own = corpus.parent[entity] == corpus.parent[head]
        in_file = corpus.entity_file[entity] == file
        is_inner, imported = self._surroundings(head, file, entity)
        is_known = imported | in_file | self.is_builtin[entity]
        is_function = self.in_module[entity] & ~owner_before
        features = {"dotted function": is_dotted[question] & is_function}
        features["owner before"] = owner_before
        features["own class"] = after_self[question] & is_own
        features["imported"] = imported
        features["same file"] = in_file
        features["out of sight"] = is_bare & ~is_known
        is_foreign = self.is_method[entity] & (corpus.parent[entity] != head)
        is_out = is_bare & (is_foreign | (self.is_local[entity] & ~is_inner))
        of_super = _only_after_super(dotted, rows)[question]
        is_out |= of_super & self.is_method[entity] & is_own
        # console.print is not print
        is_out |= is_attribute & self.is_builtin[entity] & ~owner_before
        described = answers.assign(of_object=of_object[question], **features)
        none = pd.DataFrame({"question": np.arange(len(window)), "entity": -1})
        none = none.assign(of_object=of_object, none=1.0)
        none["none of an object's"] = of_object
        choices = pd.concat([none, described[~is_out]])
        choices = choices.astype(dict.fromkeys(OF_REFERENCES, float))
        return choices.fillna(dict.fromkeys(OF_REFERENCES, 0.0))

    def _surroundings(self, head: Array, file: Array, entity: Array) -> tuple[Array, Array]:
        """(N) heads, files, entities -> (N) whether the head shares the entity's parent, and whether the file
        imports the entity or its parent."""
        parent = self.corpus.parent
        is_inner = np.zeros(len(entity), bool)
        imported = np.zeros(len(entity), bool)
        code = file.astype(np.int64) * len(self.corpus.entity_type)
        outer = head
        at = entity
        for _ in range(_FAR):
            is_inner |= (outer == parent[entity]) & (parent[entity] >= 0)
            imported |= (at >= 0) & np.isin(code + at, self.imports)
            outer = self._parent_of(outer)
            at = self._parent_of(at)
        return is_inner, imported

    def _parent_of(self, entity: Array) -> Array:
        """(N) entities, or -1 -> (N) their parents, a negative number for none."""
        parent = self.corpus.parent[np.maximum(entity, 0)]
        return np.where(entity >= 0, parent, -1)


def _only_after_super(dotted: Array, rows: Rows) -> Array:
    """(Q, L) places after a dot -> (Q) whether `super().` stands before one and `self.` before no other."""
    is_super = dotted & (rows.is_super == 1)
    is_self = dotted & ~is_super & (rows.is_self == 1)
    return is_super.any(1) & ~is_self.any(1)


def weights_of(model: nn.Module) -> Array:
    """Returns (F) the weights of probabilities that were fitted on validation."""
    return model.get_buffer("of_references").double().cpu().numpy()


class Calibration:
    """Makes choices of references from the counts' and a model's scores of entities with their names.

    A known tail that no other fact of the graph names, that no file defines and that is not Python's own would not be
    known without its fact: it is no answer, so that none is right.
    """

    def __init__(self, data: Data):
        corpus = data.corpus
        self.data = data
        self.corpus = corpus
        is_unresolved = np.array(corpus.types) == UNRESOLVED
        self.is_unresolved = is_unresolved[corpus.entity_type[corpus.tail]]  # (T)
        self.possible = np.flatnonzero(~is_unresolved[corpus.entity_type])
        self.by_name = Groups(corpus.name[self.possible])
        mentions = np.bincount(corpus.tail, minlength=len(corpus.entity_type))
        is_builtin = corpus.package == corpus.word_index("builtins")
        self.is_told_once = (corpus.entity_file < 0) & (mentions < 2) & ~is_builtin
        known = [name for name in _TOGETHER if name in corpus.relations]
        self.together = [corpus.relations.index(name) for name in known]
        self.standing = Standing(corpus)
        # The relations that an unresolved reference has, and those that it may turn out to be of
        self.relations = np.flatnonzero(data.allowed[:, is_unresolved].any(1))
        if np.isin(self.together, self.relations).any():
            self.relations = np.union1d(self.relations, self.together)

    def known(self, triples: Array) -> Array:
        """Returns the triples that are resolved references, to be hidden."""
        is_reference = np.isin(self.corpus.relation[triples], self.relations)
        return triples[is_reference & ~self.is_unresolved[triples]]

    def batches(self, triples: Array) -> list[Array]:
        """Groups the references that are asked together: one relation and near names."""
        relation = self.corpus.relation[triples]
        name = self.corpus.name[self.corpus.tail[triples]]
        order = np.lexsort((name, relation))
        ends = np.flatnonzero(np.diff(relation[order])) + 1
        batches = []
        for part in np.split(order, ends):
            firsts = range(0, len(part), _AT_ONCE)
            batches += [part[first : first + _AT_ONCE] for first in firsts]
        return batches

    def ask(self, triples: Array, answering: Answering) -> Iterator[pd.DataFrame]:
        """Yields the choices of references, in batches: of triples whose tails are hidden, if they are known.

        Beside the columns of `choices` they have entity (-1: none is right), relation, and of_object, whether it is an
        attribute of something that the text does not name. A question is a number of the triples.
        """
        for chosen in self.batches(triples):
            choices = self._choices(triples[chosen], answering)
            question = choices["question"].to_numpy()
            yield choices.assign(question=chosen[question])

    def _choices(self, triples: Array, answering: Answering) -> pd.DataFrame:
        """Returns the choices of references of one relation; a question is a place among the triples."""
        corpus = self.corpus
        window = corpus.window_of[triples]
        tail = corpus.tail[triples]
        name = corpus.name[tail]
        asked = int(corpus.relation[triples[0]])
        number, place = self.by_name.places(name)
        entity = self.possible[place]
        relations = self.together if asked in self.together else [asked]
        scored = [self._scored(triples, r, number, entity, answering) for r in relations]
        nothing = np.zeros(0, np.int64)
        with_text = np.ones(len(triples), bool)
        rows = self.data.layout.rows(window, with_text, nothing, nothing)
        choices = self.standing.described(pd.concat(scored), window, name, rows)
        choices["relation"] = choices["relation"].fillna(asked).astype(int)
        keys = ["question", "entity", "relation"]
        choices = choices.sort_values(keys, kind="stable", ignore_index=True)
        question = choices["question"].to_numpy()
        is_tail = choices["entity"] == tail[question]
        right = is_tail & (choices["relation"] == asked)
        has_right = right.groupby(question).transform("any")
        is_none = choices["entity"] == -1
        choices["right"] = right | (is_none & ~has_right)
        return choices

    def _scored(
        self, triples: Array, relation: int, question: Array, entity: Array, answering: Answering
    ) -> pd.DataFrame:
        """Returns the answers that are possible as tails of a relation, with the scores of counts and model."""
        tail = self.corpus.tail[triples]
        values = [np.full(len(triples), value) for value in (relation, FULL_TEXT, -1)]
        asked = Questions(self.corpus.window_of[triples], *values)
        may = self.data.scorer.is_allowed(asked.relation[:1], entity)[0]
        may &= ~(self.is_told_once[entity] & (entity == tail[question]))
        # facts of the graph beside the hidden one
        row, other = self.data.scorer.true_tails(asked)
        entities = len(self.corpus.entity_type)
        facts = (row * entities + other)[other != tail[row]]
        may &= ~np.isin(question * entities + entity, facts)
        question = question[may]
        entity = entity[may]
        among = CandidateSet(self.corpus, np.unique(entity))
        gated = answering.scores(asked, among)
        at = (question, among.place[entity])
        counts = gated(0.0, 0.0)[at]
        trusting = gated(1.0, 0.0)[at]
        whole = gated(1.0, 1.0)[at]
        answers = pd.DataFrame({"question": question, "entity": entity, "relation": relation})
        return answers.assign(counts=counts, trust=trusting - counts, likeness=whole - trusting)

    def fit(self, model: nn.Module) -> None:
        """Fits the weights of probabilities on validation, starting from the counts."""
        choices = self.hidden(self.corpus.triples_of("validation"), Answering(self.data, model))
        if choices is None:
            return
        start = np.array([float(name == "counts") for name in OF_REFERENCES])
        weights = torch.from_numpy(fit(choices, start))
        model.get_buffer("of_references").copy_(weights)

    def hidden(self, triples: Array, answering: Answering) -> pd.DataFrame | None:
        """Returns the choices of known references with the model's scores; None without such references."""
        known = self.known(triples)
        count = len(known)
        if not count:
            return None
        order = permutation(mix(count), 0, count)  # the same ones in every run
        known = known[np.sort(order[:_MOST])]
        with torch.no_grad():
            return pd.concat(self.ask(known, answering), ignore_index=True)


def join(
    trained: Corpus, graph: Graph, sources: Sources, settings: Settings, weights: Mapping[str, Any]
) -> tuple[Data, Array]:
    """Returns the data of a run and of a new tree together, and the triples of the tree in it.

    `weights` are those of the counts.
    """
    corpus = extended(trained, graph, sources, settings.chain)
    roots = settings.chain.roots
    data = Data((), settings, {})
    data.corpus = corpus
    data.table = EntityTable(corpus, 0)
    data.layout = Layout(corpus, roots)
    vectors = EntityTable(trained, settings.model.own_vectors).vector
    data.table.vector[: len(vectors)] = vectors
    kinds = Layout(trained, roots).kind_before
    new_words = len(corpus.word_list) - len(kinds)
    data.layout.kind_before = np.pad(kinds, (0, new_words))
    data.use(weights)
    return data, np.arange(len(trained.relation), len(corpus.relation))
