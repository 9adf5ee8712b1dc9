"""graphmer: an encoder for a knowledge graph of code, trained on leafy chain graphs.

Data: a folder with triples and entities as JSON lines, or any tree of Python files, out of which the graph is built.
The embedded default is the standard library of the running Python.
"""

import csv
import hashlib
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.config.reader import option
from lib.errors import BadInput
from lib.machine import platform
from lib.task import Batch, Task
from lib.tasks.graphmer import corpus as corpora
from lib.tasks.graphmer import ranking, tokens
from lib.tasks.graphmer.baselines import Baselines
from lib.tasks.graphmer.chains import CONDITIONS, IGNORE, Collator, Objective, Queries, Windows
from lib.tasks.graphmer.code import ontology, records
from lib.tasks.graphmer.code.graph import build_cached, content_key
from lib.tasks.graphmer.code.records import Graph
from lib.tasks.graphmer.corpus import Corpus, build, summary
from lib.tasks.graphmer.model import Encoder, Shape
from lib.tasks.graphmer.ranking import Candidates, Ranked

__all__ = ["Graphmer"]


@dataclass(frozen=True)
class Chain:
    """The layout of a sample: positions = roots * (1 + leaves)."""

    roots: int = option(96, "Text tokens of a sample.", minimum=8)
    leaves: int = option(7, "Leaves of each root: pieces of a tail's name that are told apart.", minimum=2)
    facts: int = option(0, "Facts of a sample at most, each on a root of its own; 0: as many as roots.", minimum=0)
    vocabulary: int = option(8192, "Byte-pair pieces at most.", minimum=300)

    @property
    def most_facts(self) -> int:
        return min(self.facts or self.roots, self.roots)


@dataclass(frozen=True)
class Model:
    """Sizes of the encoder."""

    layers: int = option(12, "Transformer layers.", minimum=1)
    hidden: int = option(768, "Width, a multiple of the heads.", minimum=1)
    heads: int = option(12, "Attention heads.", minimum=1)
    feed_forward: int = option(3072, "Width inside a layer's feed-forward part.", minimum=1)
    dropout: float = option(0.1, "Share of activations that is dropped in training.", minimum=0, below=1)
    relations: int = option(16, "Rows of the relation tables; the data may have fewer.", minimum=1)
    relation_rank: int = option(64, "Rank of each relation's matrix in H-GAT.", minimum=1)
    decay: float = option(0.6, "Lambda of the attention's decay with distance; 1 switches it off.", above=0, maximum=1)


@dataclass(frozen=True)
class Split:
    """Which files are held out."""

    validation: float = option(0.05, "Share of the files.", above=0, below=0.5)
    test: float = option(0.1, "Share of the files.", above=0, below=0.5)


@dataclass(frozen=True)
class Evaluation:
    """How much is asked."""

    validation_triples: int = option(300, "Triples of a validation, each asked under three conditions.", minimum=1)
    test_triples: int = option(2000, "The same in the test.", minimum=1)
    structural_test_triples: int = option(400, "Structural ones in the test, for their own table.", minimum=0)


@dataclass(frozen=True)
class Settings:
    chain: Chain = Chain()
    model: Model = Model()
    objective: Objective = Objective()  # noqa: RUF009  frozen, though defined elsewhere
    split: Split = Split()
    evaluation: Evaluation = Evaluation()
    bad_input_limit: int = option(
        0, "Malformed lines or unreadable source files that are left out; one more refuses the data.", minimum=0
    )


class Graphmer(Task):
    """See the module's docstring."""

    Settings = Settings
    sentinels = ("entities.jsonl", "*.entities.jsonl")
    selection = ("mrr", "max")
    shown = tuple(f"mrr_{condition}" for condition in CONDITIONS)
    dials: ClassVar = {"workload.chain.roots": (32, 64, 96, 128, 192), "workload.chain.leaves": (3, 5, 7, 9)}

    @property
    def settings(self) -> Settings:
        return self.config.workload

    # --- data -----------------------------------------------------------------------------------------------------

    @cached_property
    def _root(self) -> Path:
        return self.source if self.source else Path(sysconfig.get_paths()["stdlib"])

    @cached_property
    def _given(self) -> bool:
        """Whether the data is a graph made elsewhere, rather than a tree of sources."""
        return self._root.is_file() or any(next(self._root.glob(p), None) for p in self.sentinels)

    @cached_property
    def _ontology(self) -> ontology.Ontology:
        return ontology.find(self._root) if self._given else ontology.load()

    @cached_property
    def graph(self) -> Graph:
        """The validated graph. Raises BadInput."""
        if self._given:
            graph = records.read(self._root, self.settings.bad_input_limit)
        else:
            graph = build_cached(self._root, self._cache)
            self._refuse_unreadable(graph.skipped)
        report = ontology.validate(graph, self._ontology, strict=not self._given)
        report.raise_if_bad()
        for line in [*(f"Left out {where}: {reason}" for where, reason in graph.skipped), *report.warnings]:
            print(line)
        return graph

    def _refuse_unreadable(self, skipped: list[tuple[str, str]]) -> None:
        """Files of a person's own tree are not left out in silence; those of the embedded default are only named."""
        limit = self.settings.bad_input_limit
        if self.source is not None and len(skipped) > limit:
            listed = "\n".join(f"  {self._root / file}: {reason}" for file, reason in skipped[:10])
            raise BadInput(
                f"{len(skipped)} source files cannot be read, and workload.bad_input_limit allows {limit}:\n{listed}\n"
                f"Mend or remove them, or leave them out by workload.bad_input_limit: {len(skipped)}."
            )

    @cached_property
    def _structural(self) -> np.ndarray:
        """(relations) True for those that a prefix rule answers."""
        return np.array([name in self._ontology.structural for name in self.corpus.relations])

    @property
    def _cache(self) -> Path:
        return platform.detect().scratch_dir / "graphmer"

    @cached_property
    def corpus(self) -> Corpus:
        """The arrays, out of the cache where the same data and settings made them before."""
        path = self._cache / f"corpus-{self._corpus_key()}.npz"
        if path.is_file():
            try:
                return Corpus.load(path)
            except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
                print(f"The cached corpus {path} is damaged ({error}); it is built again.")
        chain, split = self.settings.chain, self.settings.split
        root = None if self._given else self._root
        shares = (split.validation, split.test)
        built = build(self.graph, root, chain.roots, chain.leaves, chain.vocabulary, shares, chain.most_facts)
        if len(built.relations) > self.settings.model.relations:
            raise BadInput(
                f"The data has {len(built.relations)} relations and workload.model.relations is "
                f"{self.settings.model.relations}. Set it to at least {len(built.relations)}."
            )
        built.save(path)
        return built

    def _corpus_key(self) -> str:
        chain, split = self.settings.chain, self.settings.split
        digest = hashlib.sha256(self._content_key().encode())
        for module in (corpora, tokens):
            digest.update(Path(module.__file__).read_bytes())
        digest.update(repr((chain, split, self.settings.bad_input_limit)).encode())
        return digest.hexdigest()[:16]

    def _content_key(self) -> str:
        if not self._given:
            return content_key(self._root)
        folder = self._root if self._root.is_dir() else self._root.parent
        files = sorted(p for p in folder.iterdir() if p.suffix in {".jsonl", ".yaml"})
        return hashlib.sha256("".join(hashlib.sha256(p.read_bytes()).hexdigest() for p in files).encode()).hexdigest()

    def describe_data(self) -> str:
        where = f"Data: {self._root}"
        if self.source is None:
            why = "No data was given or found mounted"
            where = f"{why}. The embedded default is used: the standard library, {self._root}"
        return f"{where}.\n{summary(self.corpus)}."

    def fingerprint(self) -> str:
        return self.corpus.fingerprint()

    def datasets(self) -> dict[str, Any]:
        sizes = self.settings.evaluation
        return {
            "train": Windows(self.corpus, self._structural, self.settings.objective.structural_ratio),
            "validation": Queries(self.corpus, "validation", self._structural, sizes.validation_triples),
            "test": Queries(self.corpus, "test", self._structural, sizes.test_triples, sizes.structural_test_triples),
        }

    @cached_property
    def _collator(self) -> Collator:
        chain = self.settings.chain
        return Collator(self.corpus, self.settings.objective, chain.roots, chain.vocabulary)

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        if isinstance(samples[0], int):
            return self._collator.training(samples, generator)
        return self._collator.queries(samples)

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """As many facts as a sample may have, and twice as many targets as the objective asks for on average."""
        chain, objective = self.settings.chain, self.settings.objective
        R, G, K, V = chain.roots, chain.most_facts, chain.leaves, chain.vocabulary

        def pieces(*shape: int) -> Tensor:
            return torch.randint(len(tokens.SPECIALS), V, (size, *shape), device=device)

        def targets(share: float, *shape: int) -> Tensor:
            asked = torch.rand(size, *shape, device=device) < min(1.0, 2 * share)
            return torch.where(asked, pieces(*shape), IGNORE)

        return {
            "roots": pieces(R),
            "within": torch.randint(K, (size, R), device=device),
            "root_targets": targets(objective.mlm_ratio, R),
            "leaves": pieces(G, K),
            "leaf_targets": targets(objective.leaf_ratio + objective.name_mask_ratio, G, K),
            "relation": torch.randint(self.settings.model.relations, (size, G), device=device),
            "span": torch.ones(size, G, R, dtype=torch.bool, device=device),
        }

    # --- training -------------------------------------------------------------------------------------------------

    def model(self) -> nn.Module:
        chain, model = self.settings.chain, self.settings.model
        return Encoder(
            Shape(
                chain.roots,
                chain.leaves,
                chain.vocabulary,
                model.layers,
                model.hidden,
                model.heads,
                model.feed_forward,
                model.relations,
                model.relation_rank,
                model.dropout,
                model.decay,
            )
        )

    def count(self, batch: Batch) -> dict[str, int]:
        return {
            "mlm": int((batch["root_targets"] != IGNORE).sum()),
            "mnm": int((batch["leaf_targets"] != IGNORE).sum()),
        }

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Span MLM on the roots and masked-node modelling on the leaves; logits only where something is asked."""
        hidden = model(batch)
        R = batch["roots"].shape[1]
        return {
            "mlm": self.settings.objective.mlm_weight * _summed_loss(model, hidden[:, :R], batch["root_targets"]),
            "mnm": _summed_loss(model, hidden[:, R:], batch["leaf_targets"].flatten(1)),
        }, {}

    # --- evaluation -----------------------------------------------------------------------------------------------

    @cached_property
    def _candidates(self) -> Candidates:
        return Candidates(self.corpus)

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        ranked, loss = self._rank(model, loader)
        if loader.dataset.split == "test":  # type: ignore[attr-defined]
            self._test_ranks = ranked
        return {"loss": loss, **ranking.headline(ranked, self.corpus, self._structural)}

    def _rank(self, model: nn.Module, loader: Iterable[Batch]) -> tuple[list[Ranked], float]:
        """Ranks by the summed log-probability of the leaf's pieces; and the mean negative one of the right tails."""
        ranked, total, pieces = [], 0.0, 0
        wide = loader.dataset.split == "test"  # type: ignore[attr-defined]
        for batch in loader:
            hidden = model(batch)[:, batch["roots"].shape[1] :]  # (B, K, d)
            log_probabilities = model.logits(hidden).float().log_softmax(-1).cpu().numpy()
            for row, triple in enumerate(batch["triple"].tolist()):
                condition = CONDITIONS[int(batch["condition"][row])]
                scores = _leaf_scores(log_probabilities[row], self.corpus.leaves)
                candidates = self._candidates.of_relation[self.corpus.relation[triple]]
                everything = self._candidates.everything
                among_all = self._candidates.rank(triple, scores, everything) if wide else None
                rank = self._candidates.rank(triple, scores[candidates], candidates)
                ranked.append(Ranked(triple, condition, rank, among_all))
                total -= float(scores[self.corpus.tail[triple]])
                pieces += int((self.corpus.leaves[self.corpus.tail[triple]] != tokens.PAD).sum())
        return ranked, total / max(1, pieces)

    @cached_property
    def _baselines(self) -> Baselines:
        return Baselines(self.corpus, self._candidates)

    def baseline(self) -> dict[str, float]:
        ranked = self._baselines.rank(self.datasets()["test"], trivial=True)
        return ranking.headline(ranked, self.corpus, self._structural)

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv with every table of the protocol; returns the headline as text."""
        queries = self.datasets()["test"]
        methods = {
            "frequency": self._baselines.rank(queries, trivial=False),
            "trivial": self._baselines.rank(queries, trivial=True),
            "encoder": self._test_ranks,
        }
        rows = ranking.table(methods, self._candidates, self._structural)
        with (folder / "evaluation.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return _headline_text(rows)


def _summed_loss(model: nn.Module, states: Tensor, targets: Tensor) -> Tensor:
    chosen = targets != IGNORE
    return F.cross_entropy(model.logits(states[chosen]).float(), targets[chosen], reduction="sum")


def _leaf_scores(log_probabilities: np.ndarray, leaves: np.ndarray) -> np.ndarray:
    """(K, V) log-probabilities and (E, K) pieces of the candidates -> (E) sums over each one's pieces."""
    total = np.zeros(len(leaves), np.float32)
    for k in range(leaves.shape[1]):
        by_piece = log_probabilities[k].copy()
        by_piece[tokens.PAD] = 0.0
        total += by_piece[leaves[:, k]]
    return total


_TRIVIAL_NAMES = {"full_text": "text match", "masked": "context words", "name_only": "head name"}


def _headline_text(rows: list[dict[str, Any]]) -> str:
    chosen = {
        (row["condition"], row["method"]): row
        for row in rows
        if (row["relations"], row["tails"], row["candidates"]) == ("non-structural", "all", "of the relation")
    }
    count = chosen["masked", "encoder"]["triples"]
    lines = [
        f"Filtered tail prediction on {count:,} triples of held-out files, non-structural relations, MRR (Hits@10):",
        f"{'condition':>24}  {'frequency':>15}  {'strongest trivial':>17}  {'encoder':>15}",
    ]
    for condition in CONDITIONS:
        cells = [
            f"{chosen[condition, m]['mrr']:.3f} ({chosen[condition, m]['hits10']:.3f})"
            for m in ("frequency", "trivial", "encoder")
        ]
        label = f"{condition} ({_TRIVIAL_NAMES[condition]})"
        lines.append(f"{label:>24}  {cells[0]:>15}  {cells[1]:>17}  {cells[2]:>15}")
    lines.append("Full text is copying: the tail's name stands in the text. evaluation.csv has every table.")
    return "\n".join(lines)
