"""The data of a run: the graph, the arrays made from it, and what training and evaluation draw of them."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lib.errors import BadInput, check_limit, printable
from lib.machine import platform
from lib.task.place import naming
from trainbook import fingerprint
from workloads.codegraph import ontology, records, trees
from workloads.codegraph.graph import build as build_graph
from workloads.codegraph.records import Graph
from workloads.codegraph.trees import Sources
from workloads.graphmer import corpus as arrays
from workloads.graphmer.batches import Collator, EntityTable, Samples, queries
from workloads.graphmer.corpus import Corpus
from workloads.graphmer.counts import Counts
from workloads.graphmer.counts.rows import Layout
from workloads.graphmer.counts.scoring import Scorer, Weights
from workloads.graphmer.settings import Array, Settings


class Data:
    """The data of a run: a graph in JSON lines, or trees of Python files from which the graph is built.

    `given` are its folders or files; if empty, the standard library and `workload.packages`. `begun` is the `stored` of
    the run's begin.
    """

    def __init__(self, given: Sequence[Path], settings: Settings, begun: Mapping[str, Any]):
        self.given = tuple(given)
        self.settings = settings
        kinds = {path.suffix == ".jsonl" or any(path.glob("*entities.jsonl")) for path in given}
        if len(kinds) > 1:
            paths = ", ".join(map(str, given))
            raise BadInput(
                "data.dir lists graphs in JSON lines beside trees of Python files "
                f"({paths}). Give one kind."
            )
        self.is_graph = True in kinds
        self._used: Mapping[str, Any] | None = None
        # A sentence, if the data has changed since the run began
        self.changed = self._resume(begun) if "corpus" in begun else ""

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for collating. A loader worker gets no graph, which has millions of objects."""
        self.collator.scorer.counts.tables  # noqa: B018  computed here once
        unused = ("graph", "rules", "sources")
        return {name: value for name, value in vars(self).items() if name not in unused}

    @cached_property
    def sources(self) -> Sources:
        if self.given:
            return Sources([trees.folder(path) for path in self.given])
        library = replace(trees.folder(trees.STANDARD_LIBRARY), name="the standard library")
        return Sources([library, *trees.installed(self.settings.packages)])

    @cached_property
    def rules(self) -> ontology.Ontology:
        if not self.is_graph:
            return ontology.load()
        ontologies = [ontology.find(path) for path in self.given]
        first = ontologies[0]
        for other in ontologies:
            if (other.relations, other.entities) != (first.relations, first.entities):
                names = ", ".join(rules.source for rules in ontologies)
                raise BadInput(
                    f"The graphs of data.dir have different ontologies: {names}. "
                    "Give all of them the same one."
                )
        return first

    @cached_property
    def graph(self) -> Graph:
        """The validated graph. Prints omissions. Raises BadInput."""
        limit = self.settings.bad_input_limit
        if self.is_graph:
            graph = records.read(self.given, limit)
            for warning in ontology.check(graph, self.rules):
                print(warning)
        else:
            graph = build_graph(self.sources)
            unreadable = []
            for file, reason in graph.skipped:
                tree, _ = self.sources.located(file)
                if tree.is_own:
                    unreadable.append(f"{self.sources.path(file)}: {reason}")
            check_limit("Unreadable source files", unreadable, limit)
        graph.print_skipped()
        return graph

    @cached_property
    def content(self) -> str:
        """A hash of the current data. Raises BadInput."""
        if not self.is_graph:
            return self.sources.content
        folders = [path if path.is_dir() else path.parent for path in self.given]
        return " ".join(map(fingerprint, folders))

    @cached_property
    def corpus(self) -> Corpus:
        """The arrays, from the cache if the same data and settings made them before. Raises BadInput."""
        try:
            corpus = Corpus.load(self._cached)
        except (OSError, ValueError):
            corpus = self._built()
        for kind, names in (("relations", corpus.relations), ("types", corpus.types)):
            if len(names) > getattr(self.settings.model, kind):
                key = f"workload.model.{kind}"
                rows = getattr(self.settings.model, kind)
                raise BadInput(
                    f"The data has {len(names)} {kind} and {key} is {rows}. "
                    f"Set it to {len(names)} or more."
                )
        return corpus

    def _built(self) -> Corpus:
        """Returns the arrays built from the graph, and writes them into the cache."""
        sources = None if self.is_graph else self.sources
        corpus = arrays.build(self.graph, sources, self.settings.chain, self.settings.split)
        try:
            corpus.save(self._cached)
        except OSError as error:
            reason = error.strerror or error
            raise BadInput(
                f"The data cannot be kept in {self._cached.parent} ({reason}). "
                "Set TRAINBOOK_CACHE to a folder that can be written."
            ) from None
        return corpus

    @cached_property
    def _cached(self) -> Path:
        """The file of the arrays, named by a hash of the data, of the code that makes them, and of their settings."""
        settings = self.settings.chain, self.settings.split, self.settings.bad_input_limit
        digest = hashlib.sha256(repr((self.content, *settings)).encode())
        code = sorted(Path(trees.__file__).parent.glob("*.py"))
        for file in (*code, Path(arrays.__file__)):
            digest.update(file.read_bytes())
        name = f"corpus-{digest.hexdigest()[:16]}.npz"
        return platform.detect().scratch_dir / "graphmer" / name

    @property
    def _identity(self) -> dict[str, Any]:
        """The name of the data, the same in any folder, and the settings that the arrays depend on."""
        names = sorted(path.resolve().name for path in self.given)
        if not names:
            packages = sorted(trees.name_of(text) for text in self.settings.packages)
            names = ["the standard library", *packages]
        return {"names": names, "settings": repr((self.settings.chain, self.settings.split))}

    @cached_property
    def stored(self) -> dict[str, Any]:
        """The files of arrays and ontology, and their origin: a run resumes on them in any environment."""
        self.corpus  # noqa: B018  which writes the file
        about = {**self._identity, "content": self.content}
        return {"corpus": self._cached, "ontology": Path(self.rules.source), "about": about}

    def _resume(self, begun: Mapping[str, Any]) -> str:
        """Takes the `stored` of the run's begin; returns a sentence if the data has changed since."""
        identity = self._identity
        try:
            content = begun["about"]["content"]
            if begun["about"] != {**identity, "content": content}:
                return ""
            self.corpus = Corpus.load(begun["corpus"])
            self.rules = ontology.load(begun["ontology"])
            self.stored = {name: begun[name] for name in ("corpus", "ontology", "about")}
        except (OSError, ValueError, LookupError, TypeError) as error:
            reason = printable(error, most=200)
            return f"The data that the run kept cannot be read ({reason}): it is built again."
        with contextlib.suppress(BadInput):  # another image has other versions of the packages
            if self.content == content:
                return ""
        names = ", ".join(identity["names"])
        return (
            f"The data of this run, {names}, has changed since the run began. "
            "Resuming with the original corpus; to use the new data, choose another run.name."
        )

    def describe(self) -> str:
        origin = f"Data: {', '.join(map(str, self.given))}"
        if not self.given:
            origin = (
                "No data was given or found mounted. The embedded default is used: "
                f"the standard library, {trees.STANDARD_LIBRARY}"
            )
            if self.settings.packages:
                origin += f", and the packages {', '.join(self.settings.packages)}"
        return f"{origin}.\n{self.corpus.summary()}.\n{self.changed}".strip()

    @cached_property
    def structural(self) -> Array:
        """(relations) bool, True for those that a rule on names answers."""
        return np.isin(self.corpus.relations, [*self.rules.structural])

    @cached_property
    def allowed(self) -> Array:
        """(relations, entity types) bool, True if the ontology lets a relation have such a tail."""
        ranges = [self.rules.relations[name].range for name in self.corpus.relations]
        return np.array([np.isin(self.corpus.types, tails) for tails in ranges])

    @cached_property
    def samples(self) -> Samples:
        return Samples(self.corpus, self.structural, self.settings.objective.name_only_ratio)

    def datasets(self) -> dict[str, Any]:
        sizes = self.settings.evaluation
        limits = {"validation": sizes.validation_triples, "test": sizes.test_triples}
        datasets: dict[str, Any] = {"train": self.samples}
        for split, most in limits.items():
            datasets[split] = queries(self.corpus, split, self.structural, most)
        return datasets

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.corpus, Counts(self.corpus), self.allowed)

    def use(self, weights: Mapping[str, Any]) -> None:
        """Takes the weights of the counts as JSON has them. Raises BadInput if they belong to other data."""
        if weights is self._used:
            return
        action = "Using the weights of the counts that the run began with"
        with naming(action, "Start a run under another run.name."):
            self.scorer.weights = Weights.from_json(weights, self.corpus)
        self._used = weights

    @cached_property
    def table(self) -> EntityTable:
        return EntityTable(self.corpus, self.settings.model.own_vectors)

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.corpus, self.settings.chain.roots)

    @cached_property
    def collator(self) -> Collator:
        return Collator(self)
