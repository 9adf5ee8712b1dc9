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
    """What a run trains on: a graph in JSON lines, or trees of Python files of which the graph is built.

    `given` are its folders or files; none stands for the standard library and `workload.packages`. `begun` has what
    `stored` was when the run began.
    """

    def __init__(self, given: Sequence[Path], settings: Settings, begun: Mapping[str, Any]):
        self.given = tuple(given)
        self.settings = settings
        kinds = {path.suffix == ".jsonl" or any(path.glob("*entities.jsonl")) for path in given}
        if len(kinds) > 1:
            where = ", ".join(map(str, given))
            raise BadInput(
                f"data.dir lists graphs in JSON lines beside trees of Python files ({where}). Give one kind."
            )
        self.is_graph = True in kinds
        self._used: Mapping[str, Any] | None = None
        # A sentence, if the data is another than when the run began
        self.changed = self._resume(begun) if "corpus" in begun else ""

    def __getstate__(self) -> dict[str, Any]:
        """Returns what collating needs. A loader worker gets no graph, which has millions of objects."""
        self.collator.scorer.counts.tables  # noqa: B018  computed here once
        return {
            name: v for name, v in vars(self).items() if name not in ("graph", "rules", "sources")
        }

    @cached_property
    def sources(self) -> Sources:
        if self.given:
            return Sources([trees.folder(path) for path in self.given])
        library = replace(trees.folder(trees.STANDARD_LIBRARY), name="the standard library")
        return Sources([library, *trees.installed(self.settings.packages)])

    @cached_property
    def rules(self) -> ontology.Ontology:
        if self.is_graph:
            found = [ontology.find(path) for path in self.given]
        else:
            found = [ontology.load()]
        if any(
            (rules.relations, rules.entities) != (found[0].relations, found[0].entities)
            for rules in found
        ):
            names = ", ".join(rules.source for rules in found)
            raise BadInput(
                f"The graphs of data.dir have different ontologies: {names}. Give all of them the same one."
            )
        return found[0]

    @cached_property
    def graph(self) -> Graph:
        """The validated graph. Prints what was left out. Raises BadInput."""
        limit = self.settings.bad_input_limit
        if self.is_graph:
            graph = records.read(self.given, limit)
            for warning in ontology.check(graph, self.rules):
                print(warning)
        else:
            graph = build_graph(self.sources)
            own = [
                (file, reason)
                for file, reason in graph.skipped
                if self.sources.located(file)[0].is_own
            ]
            check_limit(
                "Unreadable source files",
                [f"{self.sources.path(f)}: {reason}" for f, reason in own],
                limit,
            )
        graph.print_skipped()
        return graph

    @cached_property
    def content(self) -> str:
        """A hash of the data as it lies there now. Raises BadInput."""
        if not self.is_graph:
            return self.sources.content
        return " ".join(fingerprint(path if path.is_dir() else path.parent) for path in self.given)

    @cached_property
    def corpus(self) -> Corpus:
        """The arrays, from the cache if the same data and settings made them before. Raises BadInput."""
        try:
            corpus = Corpus.load(self._cached)
        except (OSError, ValueError):
            sources = None if self.is_graph else self.sources
            corpus = arrays.build(self.graph, sources, self.settings.chain, self.settings.split)
            try:
                corpus.save(self._cached)
            except OSError as error:
                what = (
                    f"The data cannot be kept in {self._cached.parent} ({error.strerror or error})"
                )
                raise BadInput(
                    f"{what}. Set TRAINBOOK_CACHE to a folder that can be written."
                ) from None
        for what, names in (("relations", corpus.relations), ("types", corpus.types)):
            if len(names) > (rows := getattr(self.settings.model, what)):
                key = f"workload.model.{what}"
                raise BadInput(
                    f"The data has {len(names)} {what} and {key} is {rows}. Set it to {len(names)} or more."
                )
        return corpus

    @cached_property
    def _cached(self) -> Path:
        """The file of the arrays, named by a hash of the data, of the code that makes them, and of their settings."""
        settings = self.settings.chain, self.settings.split, self.settings.bad_input_limit
        digest = hashlib.sha256(repr((self.content, *settings)).encode())
        for file in (*sorted(Path(trees.__file__).parent.glob("*.py")), Path(arrays.__file__)):
            digest.update(file.read_bytes())
        return platform.detect().scratch_dir / "graphmer" / f"corpus-{digest.hexdigest()[:16]}.npz"

    @property
    def _identity(self) -> dict[str, Any]:
        """What the data is called, the same wherever it lies, and the settings that the arrays depend on."""
        packages = [
            "the standard library",
            *sorted(trees.name_of(text) for text in self.settings.packages),
        ]
        names = sorted(path.resolve().name for path in self.given) or packages
        return {"names": names, "settings": repr((self.settings.chain, self.settings.split))}

    @cached_property
    def stored(self) -> dict[str, Any]:
        """The files of arrays and ontology, and of what they were made: a run resumes on them whatever is installed."""
        self.corpus  # noqa: B018  which writes the file
        about = {**self._identity, "content": self.content}
        return {"corpus": self._cached, "ontology": Path(self.rules.source), "about": about}

    def _resume(self, begun: Mapping[str, Any]) -> str:
        """Takes what `stored` was when the run began; returns a sentence if the data has changed since."""
        identity = self._identity
        try:
            if begun["about"] != {**identity, "content": begun["about"]["content"]}:
                return ""
            self.corpus, self.rules = Corpus.load(begun["corpus"]), ontology.load(begun["ontology"])
            self.stored = {name: begun[name] for name in ("corpus", "ontology", "about")}
        except (OSError, ValueError, LookupError, TypeError) as error:
            return f"The data that the run kept cannot be read ({printable(error, most=200)}): it is built again."
        with contextlib.suppress(
            BadInput
        ):  # of another image, which has other versions of the packages
            if self.content == begun["about"]["content"]:
                return ""
        what = (
            f"The data of this run, {', '.join(identity['names'])}, has changed since the run began"
        )
        return f"{what}. Resuming with the original corpus; to use the new data, choose another run.name."

    def describe(self) -> str:
        where = f"Data: {', '.join(map(str, self.given))}"
        packages = ", ".join(self.settings.packages)
        if not self.given:
            where = "No data was given or found mounted. The embedded default is used: the standard library, "
            where += f"{trees.STANDARD_LIBRARY}" + (
                f", and the packages {packages}" if packages else ""
            )
        return f"{where}.\n{self.corpus.summary()}.\n{self.changed}".strip()

    @cached_property
    def structural(self) -> Array:
        """(relations) bool, True for those that a rule on names answers."""
        return np.isin(self.corpus.relations, [*self.rules.structural])

    @cached_property
    def allowed(self) -> Array:
        """(relations, entity types) bool, True where the ontology lets a relation have such a tail."""
        ranges = [self.rules.relations[name].range for name in self.corpus.relations]
        return np.array([np.isin(self.corpus.types, tails) for tails in ranges])

    @cached_property
    def samples(self) -> Samples:
        return Samples(self.corpus, self.structural, self.settings.objective.name_only_ratio)

    def datasets(self) -> dict[str, Any]:
        sizes = self.settings.evaluation
        most = {"validation": sizes.validation_triples, "test": sizes.test_triples}
        held = {
            part: queries(self.corpus, part, self.structural, number)
            for part, number in most.items()
        }
        return {"train": self.samples, **held}

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.corpus, Counts(self.corpus), self.allowed)

    def use(self, weights: Mapping[str, Any]) -> None:
        """Takes the weights of the counts as JSON has them. Raises BadInput where they belong to other data."""
        if weights is self._used:
            return
        with naming(
            "Using the weights of the counts that the run began with",
            "Start a run under another run.name.",
        ):
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
