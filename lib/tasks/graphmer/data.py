"""The data of a run: the graph, the arrays made from it, and the samples that training and evaluation draw."""

import hashlib
import sysconfig
import zipfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.errors import BadInput, check_limit, printable
from lib.machine import platform
from lib.task import Batch
from lib.tasks.graphmer.chains import Collator, Queries, Samples
from lib.tasks.graphmer.code import ontology, records
from lib.tasks.graphmer.code.graph import build_cached, content_key
from lib.tasks.graphmer.code.records import Graph
from lib.tasks.graphmer.corpus import Corpus, build
from lib.tasks.graphmer.counts import Counts
from lib.tasks.graphmer.entities import EntityTable
from lib.tasks.graphmer.fitting import fit
from lib.tasks.graphmer.rows import Layout
from lib.tasks.graphmer.scoring import Sampler, Scorer, Weights
from lib.tasks.graphmer.settings import Settings
from lib.training import splits

# The code that makes the cached arrays
_MAKERS = [*(Path(__file__).with_name(name) for name in ("corpus.py", "tokens.py")), Path(splits.__file__)]


class Data:
    """One source of data: a graph in JSON lines, or a tree of Python files of which the graph is built.

    `source` is its folder or file; None stands for the standard library. `sentinels` are the patterns of file names
    by which a graph is recognised.
    """

    def __init__(self, source: Path | None, sentinels: tuple[str, ...], settings: Settings):
        self.source, self.settings = source, settings
        self.root = source or Path(sysconfig.get_paths()["stdlib"])
        self.is_graph = self.root.is_file() or any(next(self.root.glob(p), None) for p in sentinels)
        self._used: Mapping[str, Any] | None = None
        self.cache = platform.detect().scratch_dir / "graphmer"

    def __getstate__(self) -> dict[str, Any]:
        """Returns what collating needs. A loader worker gets no graph, which has millions of objects."""
        self.collator.scorer.counts.tables  # noqa: B018  computed here once
        return {name: value for name, value in vars(self).items() if name not in ("graph", "rules")}

    @cached_property
    def rules(self) -> ontology.Ontology:
        return ontology.find(self.root) if self.is_graph else ontology.load()

    @cached_property
    def graph(self) -> Graph:
        """The validated graph. Prints what was left out. Raises BadInput."""
        limit = self.settings.bad_input_limit
        if self.is_graph:
            graph = records.read(self.root, limit)
        else:
            graph = build_cached(self.root, self.cache)
            if self.source is not None:  # unreadable files of the standard library are only printed
                unreadable = [f"{self.root / file}: {reason}" for file, reason in graph.skipped]
                check_limit("Unreadable source files", unreadable, limit)
        report = ontology.validate(graph, self.rules, strict=not self.is_graph)
        report.raise_if_bad()
        for line in [*(f"Left out {where}: {reason}" for where, reason in graph.skipped), *report.warnings]:
            print(printable(line))
        return graph

    @cached_property
    def corpus(self) -> Corpus:
        """The arrays of data that the model has tables for. Raises BadInput."""
        corpus = self._read_or_built()
        for what, names in (("relations", corpus.relations), ("types", corpus.types)):
            if len(names) > (rows := getattr(self.settings.model, what)):
                raise BadInput(
                    f"The data has {len(names)} {what} and workload.model.{what} is {rows}. Set it to at least "
                    f"{len(names)}."
                )
        return corpus

    def _read_or_built(self) -> Corpus:
        """Returns the arrays, from the cache where the same data and settings made them before. Raises BadInput."""
        path = self.cache / f"corpus-{self._corpus_key()}.npz"
        try:
            if path.is_file():
                return Corpus.load(path)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            print(f"The cached corpus {path} is damaged ({error}); it is built again.")
        built = build(self.graph, None if self.is_graph else self.root, self.settings.chain, self.settings.split)
        try:
            built.save(path)
            return Corpus.load(path)  # mapped, as in every later run
        except OSError as error:
            print(
                f"The corpus is not kept for the next run, because {path} cannot be written "
                f"({error.strerror or error}). Each loader worker has a copy of its own in memory."
            )
            return built

    def _corpus_key(self) -> str:
        """Hashes the data, the code that makes the arrays, and the settings that they depend on."""
        if self.is_graph:
            folder = self.root if self.root.is_dir() else self.root.parent
            files = sorted(p for p in folder.iterdir() if p.suffix in {".jsonl", ".yaml"})
            content = "".join(hashlib.sha256(p.read_bytes()).hexdigest() for p in files)
        else:
            content = content_key(self.root)
        digest = hashlib.sha256(content.encode())
        for file in _MAKERS:
            digest.update(file.read_bytes())
        digest.update(repr((self.settings.chain, self.settings.split, self.settings.bad_input_limit)).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def structural(self) -> np.ndarray:
        """(relations) bool, True for those that a rule on names answers."""
        return np.array([name in self.rules.structural for name in self.corpus.relations])

    def describe(self) -> str:
        """Returns where the data comes from and how much of it there is."""
        where = f"Data: {self.root}"
        if self.source is None:
            why = "No data was given or found mounted"
            where = f"{why}. The embedded default is used: the standard library, {self.root}"
        return f"{where}.\n{self.corpus.summary()}."

    @cached_property
    def allowed(self) -> np.ndarray:
        """(relations, entity types) bool, True where the ontology lets a relation have such a tail."""
        ranges = [self.rules.relations[name].range for name in self.corpus.relations]
        return np.array([[kind in tails for kind in self.corpus.types] for tails in ranges])

    @cached_property
    def samples(self) -> Samples:
        return Samples(self.corpus, self.structural, self.settings.objective.name_only_ratio)

    def datasets(self) -> dict[str, Any]:
        sizes = self.settings.evaluation
        return {
            "train": self.samples,
            "validation": Queries(self.corpus, "validation", self.structural, sizes.validation_triples),
            "test": Queries(self.corpus, "test", self.structural, sizes.test_triples, sizes.structural_test_triples),
        }

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.corpus, Counts(self.corpus), self.allowed)

    def fitted(self) -> Weights:
        """Fits the weights of the counts on training files."""
        return fit(self.collator, self.settings.objective.fitting_steps)

    def use(self, weights: Mapping[str, Any]) -> None:
        """Takes the weights of the counts as JSON has them. Raises BadInput where they belong to other data."""
        if weights is self._used:
            return
        try:
            self.scorer.weights = Weights.from_json(weights, self.corpus)
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"The weights of the counts that the run began with cannot be used: {error}. Start a run under another "
                "run.name."
            ) from None
        self._used = weights

    @cached_property
    def table(self) -> EntityTable:
        return EntityTable(self.corpus, self.settings.model.own_vectors)

    @cached_property
    def collator(self) -> Collator:
        chain, objective = self.settings.chain, self.settings.objective
        return Collator(
            self.corpus,
            self.scorer,
            Sampler(self.scorer, np.flatnonzero(~self.structural), objective.candidates),
            self.table,
            self.samples,
            objective,
            Layout(self.corpus, chain.roots),
            chain.facts,
            chain.vocabulary,
        )

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns the tensors of samples (training) or of queries (evaluation); see `Collator` for their shapes."""
        if isinstance(samples[0], int):
            return self.collator.training(samples, generator)
        return self.collator.queries(samples)
