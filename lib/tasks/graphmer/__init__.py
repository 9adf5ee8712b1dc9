"""graphmer: an encoder for a knowledge graph of code, trained on leafy chain graphs.

Data: a folder with triples and entities as JSON lines, or any tree of Python files, from which the graph is built.
The embedded default is the standard library of the running Python.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.task import Batch, Task
from lib.tasks.graphmer import tokens
from lib.tasks.graphmer.model import Encoder, Shape
from lib.tasks.graphmer.settings import CONDITIONS, Settings
from lib.tasks.graphmer.tokens import IGNORE

if TYPE_CHECKING:  # imported where they are used: a plan of the memory needs neither data nor evaluation
    from lib.tasks.graphmer.data import Data
    from lib.tasks.graphmer.evaluation import Evaluator
    from lib.tasks.graphmer.ranking import Ranked


class Graphmer(Task):
    """Predicts the tail of a triple from the text around its head."""

    Settings = Settings
    sentinels = ("entities.jsonl", "*.entities.jsonl")
    selection = ("mrr", "max")
    shown = tuple(f"mrr_{condition}" for condition in CONDITIONS)
    dials: ClassVar = {"workload.chain.roots": (32, 64, 96, 128, 192), "workload.chain.leaves": (3, 5, 7, 9)}
    several = True
    _test_ranks: "list[Ranked] | None" = None  # of the newest evaluation on the test set, for `report`

    @property
    def settings(self) -> Settings:
        return self.config.workload

    # --- data -----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a loader worker needs: the evaluation and its results stay in the training process."""
        return {name: value for name, value in vars(self).items() if name not in ("evaluator", "_test_ranks")}

    @cached_property
    def data(self) -> "Data":
        from lib.tasks.graphmer.data import Data

        return Data(self.sources, self.sentinels, self.settings)

    def describe_data(self) -> str:
        return self.data.describe()

    def fingerprint(self) -> str:
        return self.data.corpus.fingerprint()

    def keep(self, folder: Path) -> None:
        self.data.keep(folder)

    def take_kept(self, folder: Path) -> str:
        return self.data.take(folder)

    def datasets(self) -> dict[str, Any]:
        return self.data.datasets()

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        return self.data.collate(samples, generator)

    def example_batch(self, size: int, device: torch.device) -> Batch:
        """Returns as many facts as a sample may have, and twice as many targets as the objective sets on average.

        The shapes are those of `chains.Collator`.
        """
        chain, objective = self.settings.chain, self.settings.objective
        R, G, K, V = chain.roots, chain.most_facts, chain.leaves, chain.vocabulary

        def pieces(*shape: int) -> Tensor:
            return torch.randint(len(tokens.SPECIALS), V, (size, *shape), device=device)

        def targets(share: float, *shape: int) -> Tensor:
            is_target = torch.rand(size, *shape, device=device) < min(1.0, 2 * share)
            return torch.where(is_target, pieces(*shape), IGNORE)

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
        """Returns the sums of span MLM on the roots and of masked-node modelling on the leaves."""
        hidden = model(batch)
        R = batch["roots"].shape[1]
        return {
            "mlm": _summed_loss(model, hidden[:, :R], batch["root_targets"]),
            "mnm": _summed_loss(model, hidden[:, R:], batch["leaf_targets"].flatten(1)),
        }, {}

    def term_weights(self, step: int) -> dict[str, float]:
        return {"mlm": self.settings.objective.mlm_weight}

    # --- evaluation -----------------------------------------------------------------------------------------------

    @cached_property
    def evaluator(self) -> "Evaluator":
        from lib.tasks.graphmer.evaluation import Evaluator

        return Evaluator(self.data.corpus, self.data.structural)

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        is_test = loader.dataset.split == "test"  # type: ignore[attr-defined]
        ranked, loss = self.evaluator.rank(model, loader, among_all=is_test)
        if is_test:
            self._test_ranks = ranked
        return {"loss": loss, **self.evaluator.headline(ranked)}

    def baseline(self) -> dict[str, float]:
        return self.evaluator.headline(self.evaluator.baselines.rank(self.datasets()["test"], trivial=True))

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv with every table of the protocol; returns the headline as text.

        Raises RuntimeError before the first evaluation on the test set.
        """
        if self._test_ranks is None:
            raise RuntimeError("There are no ranks to report. Call `evaluate` on the test set before `report`.")
        return self.evaluator.report(self._test_ranks, self.datasets()["test"], folder)


def _summed_loss(model: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """hidden (B, P, d), targets (B, P) -> () cross-entropy summed; logits are computed only where there is a target."""
    chosen = targets != IGNORE
    return F.cross_entropy(model.logits(hidden[chosen]).float(), targets[chosen], reduction="sum")
