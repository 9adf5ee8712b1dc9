"""legal: the role of each sentence of a judgment, by an encoder of text that is multiplied into what counting reaches.

Data: text files with a sentence and its role a line, or any table with its columns named (see `documents`). The
embedded default are generated judgments (see `generated`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.errors import BadInput, printable
from lib.task import Batch, Task
from workloads.legal import encoders, samples
from workloads.legal.model import Network
from workloads.legal.sentences import final_marks
from workloads.legal.settings import CATEGORIES, POSITIONS, Settings

# Whatever reads, counts, evaluates or predicts is imported where it is used: a plan needs none of it.
if TYPE_CHECKING:
    from workloads.legal.data import Data
    from workloads.legal.evaluation import Evaluator


class Legal(Task):
    """Finds the role of each sentence of a judgment."""

    Settings = Settings
    sentinels = ("*.txt",)
    selection = ("probability", "max")
    shown = ("macro_f1", "network_macro_f1")
    dials: ClassVar = {"workload.context.length": (64, 128, 256, 512)}
    _learned: dict[str, Any] | None = None

    @property
    def settings(self) -> Settings:
        return self.config.workload

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a loader worker needs: the evaluation stays in the training process."""
        return {name: value for name, value in vars(self).items() if name != "evaluator"}

    @cached_property
    def data(self) -> "Data":
        from lib.training.data import share
        from workloads.legal.data import Data

        return Data(self.source, self.settings, share(self.config.data.subset_ratio), self.config.seed)

    def describe_data(self) -> str:
        named = "" if self.learned()["encoder"]["weights"] else self.settings.encoder.weights
        text = f"{self.data.describe()}\n{self.data.about_lengths(self.padding())}"
        return text + f"\nThe encoder is trained from scratch, although {printable(named)} is named." * bool(named)

    def draw_data(self, folder: Path) -> list[Path]:
        """Draws how often each role comes, and how long the inputs are; returns the pictures."""
        from workloads.legal.evaluation import draw

        self.learned()
        return draw(self.data, folder)

    def padding(self) -> float:
        """Returns the share of padding in the first epoch's batches, which follows from the lengths of the inputs."""
        from lib.training.order import buckets, permutation

        train, training, seed = self.data.part("train"), self.config.training, self.config.seed
        batch, pool = training.effective_batch, self.config.data.buckets
        order = buckets(train.lengths, seed, 0, batch, pool) if pool else permutation(seed, 0, len(train))
        return samples.padding(train.lengths[order], training.slot)

    def batch_share(self) -> float:
        """Returns how large a training batch is on average, as a share of the largest that can be."""
        self.learned()
        return float(self.data.part("train").lengths.mean()) / (1 - self.padding()) / self.settings.context.length

    def fingerprint(self) -> str:
        return self.data.fingerprint()

    def datasets(self) -> dict[str, Any]:
        self.learned()
        return {name: self.data.part(name) for name in self.data.parts}

    def collate(self, samples_: list[Any], generator: torch.Generator) -> Batch:
        return samples.collated(samples_, self.learned()["tokenizer"]["pad"])

    def example_batch(self, size: int, device: torch.device) -> Batch:
        return samples.example(size, self.settings.context.length, POSITIONS, device)

    def learned(self) -> dict[str, Any]:
        """Returns the names of roles and categories, the chosen encoder, its tokenizer, final marks, and the counts."""
        if self._learned is None:
            data, chosen = self.data, encoders.choose(self.settings.encoder)
            sentences = [sentence for document in data.parts["train"] for sentence in document.sentences]
            self._learned = data.learned = {
                "classes": data.found_classes, "class_weights": data.class_weights.tolist(), "encoder": chosen,
                "categories": sorted({d.category for d in data.parts["train"] if d.category})[:CATEGORIES],
                "tokenizer": encoders.tokenizer(self.settings.encoder, chosen, sentences),
                "final_marks": final_marks(sentences), "counts": dict(data.counts),
            }  # fmt: skip
        return self._learned

    def take_learned(self, values: Mapping[str, Any]) -> None:
        """Takes what `learned` returned. Raises BadInput where that is of another kind."""
        wanted = {"classes": list, "categories": list, "class_weights": list, "encoder": dict, "tokenizer": dict}
        wanted |= {"counts": dict, "final_marks": str}
        if wrong := [name for name, kind in wanted.items() if not isinstance(values.get(name), kind)]:
            raise BadInput(f"What was learned from data lacks {', '.join(wrong)}, so the weights cannot be used.")
        names, outputs = values["classes"], self.settings.outputs
        are_names = 2 <= len(names) <= outputs and all(isinstance(name, str) for name in names)
        if not are_names or len(values["class_weights"]) != len(names):
            raise BadInput(f"What was learned from data names {len(names)} roles, and the network has {outputs}.")
        encoders.check(values["encoder"])
        if values != self._learned:
            for name in ("evaluator", "data"):
                vars(self).pop(name, None)
            self._learned = self.data.learned = values

    def model(self) -> nn.Module:
        settings = self.settings
        chosen = self._learned["encoder"] if self._learned else encoders.choose(settings.encoder)
        encoder = encoders.build(self, settings.encoder, chosen, settings.context.length)
        return Network(encoder, POSITIONS, settings.outputs, settings.head)

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Gives the head a rate of its own, and each layer of the encoder less the further it is from the head."""
        rates, below = self.settings.rates, encoders.depths(model.encoder)  # type: ignore[arg-type]
        trained = {name: below[name] for name, p in model.encoder.named_parameters() if p.requires_grad}  # type: ignore
        groups: list[dict[str, Any]] = [{"names": ["inner.*", "output.*", "norm.*"], "lr": rates.head}]
        for depth in sorted(set(trained.values())):
            names = [f"encoder.{name}" for name, own in trained.items() if own == depth]
            groups.append({"names": names, "lr": rates.layer_decay**depth})
        return groups

    def count(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(batch["weight"].sum())}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
        padding = 1 - batch["mask"].float().mean()
        return {"loss": self.summed(model(batch), batch)}, {"padding": padding}

    def summed(self, logits: Tensor, batch: Batch) -> Tensor:
        """(sentences, outputs) -> the weighted sum of their losses; outputs without a role are left out."""
        losses = F.cross_entropy(self.of_roles(logits), batch["labels"], reduction="none")
        if focal := self.settings.loss.focal:
            losses = losses * (1 - torch.exp(-losses)) ** focal
        return (losses * batch["weight"]).sum()

    def of_roles(self, logits: Tensor) -> Tensor:
        """(sentences, outputs) -> (sentences, roles); a plan, which knows no roles, has all of them."""
        return logits[:, : len(self._learned["classes"])].float() if self._learned else logits.float()

    @cached_property
    def evaluator(self) -> "Evaluator":
        from workloads.legal.evaluation import Evaluator

        self.learned()
        return Evaluator(self.data)

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns the figures of the network multiplied into the counts; on the validation set chooses their shares."""
        total = count = 0.0
        parts, numbers = [], []
        for batch in loader:
            logits = model(batch)
            total += float(self.summed(logits, batch))
            count += self.count(batch)["loss"]
            parts.append(F.log_softmax(self.of_roles(logits), -1).cpu())
            numbers.append(batch["number"].cpu())
        logs = samples.in_order(torch.cat(parts), torch.cat(numbers))
        return {"loss": total / count, **self.evaluator.judge(model, logs, loader.dataset.part)}  # type: ignore

    def baseline(self) -> dict[str, float]:
        """Returns what the strongest counting reaches on the test, without a network."""
        return self.evaluator.baseline()

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes evaluation.csv and the figures of the test into the run's folder; returns the tables as text."""
        return f"{self.evaluator.report(folder)}\n{self.data.about_lengths(self.padding())}"

    def predict(self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None) -> dict[str, Any]:
        """Returns sentences with roles and probabilities by judgment; writes JSON lines and pages into `out`."""
        from workloads.legal.prediction import predict

        if not isinstance(source, Path):
            raise BadInput("Give one text file, or a folder of text files, to predict.")
        self.learned()
        return predict(self, models, source, out)
