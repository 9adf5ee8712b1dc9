"""The data of a run: the graph, the arrays made from it, and the samples that training and evaluation draw."""

import hashlib
import sysconfig
import zipfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.errors import BadInput, check_limit
from lib.machine import platform
from lib.task import Batch
from lib.tasks.graphmer.chains import Collator, Queries, Windows
from lib.tasks.graphmer.code import ontology, records
from lib.tasks.graphmer.code.graph import build_cached, content_key
from lib.tasks.graphmer.code.records import Graph
from lib.tasks.graphmer.corpus import Corpus, build
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
        self.cache = platform.detect().scratch_dir / "graphmer"

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
            print(line)
        return graph

    @cached_property
    def corpus(self) -> Corpus:
        """The arrays, from the cache where the same data and settings made them before. Raises BadInput."""
        path = self.cache / f"corpus-{self._corpus_key()}.npz"
        try:
            if path.is_file():
                return Corpus.load(path)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            print(f"The cached corpus {path} is damaged ({error}); it is built again.")
        built = build(self.graph, None if self.is_graph else self.root, self.settings.chain, self.settings.split)
        if len(built.relations) > self.settings.model.relations:
            raise BadInput(
                f"The data has {len(built.relations)} relations and workload.model.relations is "
                f"{self.settings.model.relations}. Set it to at least {len(built.relations)}."
            )
        try:
            built.save(path)
        except OSError as error:
            why = error.strerror or error
            print(f"The corpus is not kept for the next run, because {path} cannot be written ({why}).")
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

    def datasets(self) -> dict[str, Any]:
        sizes = self.settings.evaluation
        return {
            "train": Windows(self.corpus, self.structural, self.settings.objective.structural_ratio),
            "validation": Queries(self.corpus, "validation", self.structural, sizes.validation_triples),
            "test": Queries(self.corpus, "test", self.structural, sizes.test_triples, sizes.structural_test_triples),
        }

    @cached_property
    def collator(self) -> Collator:
        chain = self.settings.chain
        return Collator(self.corpus, self.settings.objective, chain.roots, chain.vocabulary)

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        """Returns the tensors of windows (training) or of queries (evaluation); see `Collator` for their shapes."""
        if isinstance(samples[0], int):
            return self.collator.training(samples, generator)
        return self.collator.queries(samples)
