"""vqa: answers to questions about pictures, written by a decoder that attends to all patches and all words.

Data: JSON lines of question, answer and image, or any table with its columns named (see `records`). The embedded
default are drawn shapes with questions in Vietnamese (see `generated`).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from lib.errors import BadInput
from lib.task import Batch, Task
from lib.task.blocks import find_blocks
from workloads.vqa import objectives, stages
from workloads.vqa.settings import Settings
from workloads.vqa.stages import PARTS
from workloads.vqa.tokens import EXTRA, KINDS, TAGS, Tokens

# Whatever reads, draws, evaluates or predicts is imported where it is used: a plan needs none of it.
if TYPE_CHECKING:
    from workloads.vqa.data import Data
    from workloads.vqa.rules import Rules
    from workloads.vqa.samples import Album
    from workloads.vqa.showing import Tested

_MULTIPLE = 8  # of tokens, which tensor cores like


class Vqa(Task):
    """Answers questions about pictures."""

    Settings = Settings
    sentinels = ("*.jsonl",)
    selection = ("exact", "max")  # which means the same in every stage
    shown = ("exact", "token_f1", "valid")
    dials: ClassVar = {"workload.decoder.length": (40, 96, 128, 160)}
    tested: "Tested"  # of the last test
    _learned: dict[str, Any] | None = None

    @property
    def settings(self) -> Settings:
        return self.config.workload

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a loader worker needs: it gets its samples from the data set."""
        return {name: value for name, value in vars(self).items() if name not in ("data", "rules", "tested")}

    @cached_property
    def data(self) -> "Data":
        from workloads.vqa.data import Data

        return Data(self.source, self.settings)

    @cached_property
    def album(self) -> "Album":
        from workloads.vqa.samples import Album

        return Album(self.settings.pictures)

    def describe_data(self) -> str:
        self.datasets()
        text, chosen = self.data.describe(self.learned()), self.learned()["encoders"].items()
        without = [name for name, part in chosen if getattr(self.settings, name).weights and not part["weights"]]
        note = f"\nTrained from scratch, although published weights are named: {', '.join(without)}."
        return text + note * bool(without)

    def fingerprint(self) -> str:
        return self.data.fingerprint()

    def datasets(self) -> dict[str, Any]:
        return self.data.datasets(self.reader, self.writer)

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        from workloads.vqa.samples import collated

        return collated(samples, self.album, (self.reader.pad, self.writer.pad), generator)

    def example_batch(self, size: int, device: torch.device) -> Batch:
        from workloads.vqa.samples import example

        return example(size, self.settings, device)

    def learned(self) -> dict[str, Any]:
        """Returns the parts that were chosen, the types of questions, and the tokenizers."""
        if self._learned is None:
            from workloads.vqa import encoders

            chosen = encoders.choose(self.settings)
            kinds = self.data.kinds
            tokenizers = encoders.tokenizers(self.settings, chosen, self.data.texts)
            self._learned = {"encoders": chosen, "kinds": kinds, "tokenizers": tokenizers}
        return self._learned

    def take_learned(self, values: Mapping[str, Any]) -> None:
        """Takes what `learned` returned. Raises BadInput where that is of another kind."""
        from workloads.vqa import encoders

        kinds, tokenizers = values.get("kinds"), values.get("tokenizers")
        are_kinds = isinstance(kinds, list) and len(kinds) <= KINDS and all(isinstance(one, str) for one in kinds)
        if not are_kinds or not isinstance(tokenizers, dict) or not isinstance(tokenizers.get("decoder"), dict):
            raise BadInput("What was learned from data lacks types of questions or a tokenizer: start another run.")
        encoders.check(values.get("encoders"))
        if values != self._learned:
            for name in ("reader", "writer"):
                vars(self).pop(name, None)
            if "data" in vars(self):
                self.data.samples.clear()
            self._learned = dict(values)

    @cached_property
    def writer(self) -> Tokens:
        """The tokenizer of answers."""
        return Tokens(self.learned()["tokenizers"]["decoder"], self.learned()["kinds"])

    @cached_property
    def reader(self) -> Tokens:
        """The tokenizer of questions."""
        learned = self.learned()["tokenizers"]
        return Tokens(learned["text"]) if "text" in learned else self.writer

    def model(self) -> nn.Module:
        from workloads.vqa import encoders

        chosen = self._learned["encoders"] if self._learned else encoders.choose(self.settings)
        words = self.settings.decoder.vocabulary + EXTRA
        if self._learned:  # never more
            words = self.writer.first + len(TAGS) + len(self.writer.kinds)
        network = encoders.build(self, self.settings, chosen, -(-words // _MULTIPLE) * _MULTIPLE)
        for part in PARTS:
            if stages.trained(self.settings.stages, part) is None:
                getattr(network, part).requires_grad_(False)
        return network

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Returns the decoder's layers first, then those of the fusion and of the encoders."""
        t5, encoders = model.t5, (model.image, model.text)
        return [*t5.decoder.block, *t5.encoder.block, *(block for one in encoders for block in find_blocks(one))]

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Gives each encoder its rate, and the steps in which it is trained."""
        groups: list[dict[str, Any]] = []
        for part in PARTS:
            trained, rate = stages.trained(self.settings.stages, part), getattr(self.settings, part).lr
            if trained is not None and (trained != (0, None) or rate != 1):
                groups.append({"names": f"{part}.*", "lr": rate, "from_step": trained[0], "until_step": trained[1]})
        return groups

    def stage_name(self, step: int) -> str:
        return stages.name_at(self.settings.stages, step)

    def term_weights(self, step: int) -> dict[str, float]:
        return stages.weights_at(self.settings.stages, step)

    def count(self, batch: Batch) -> dict[str, float]:
        return objectives.counted(batch)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return objectives.summed(objectives.losses(model(batch), batch["target"]), batch["part"]), {}

    @cached_property
    def rules(self) -> "Rules":
        """Rules that see no picture, learned of the training records."""
        from workloads.vqa.rules import Rules

        return Rules(self.data.parts["train"])

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> dict[str, float]:
        """Returns the figures of answers that are written freely, and the mean loss of a token of the right ones."""
        from workloads.vqa import evaluation
        from workloads.vqa.showing import Tested

        found = Tested(self, loader.dataset)  # type: ignore[attr-defined]
        for batch in loader:
            found.add(model, batch)
        if found.samples.part == "test":
            self.tested = found
        return {"loss": found.loss, **evaluation.metrics(*found.judged, self.rules)}

    def baseline(self) -> dict[str, float]:
        """Returns what the strongest rule reaches on the test that sees the question alone."""
        from workloads.vqa import evaluation

        return evaluation.baseline(self.data.parts["test"], self.rules)

    def report(self, metrics: Mapping[str, float], folder: Path) -> str:
        """Writes tables, and a picture of samples with where the model looks, into the run's folder."""
        from workloads.vqa import evaluation, showing

        showing.draw(self.tested.shown, folder / "plots" / "samples.png")
        return evaluation.report(*self.tested.judged, self.rules, folder)

    def predict(self, models: list[nn.Module], source: Path | Mapping[str, Path], out: Path | None) -> dict[str, Any]:
        """Returns the answers to questions about one's own pictures, and writes answers.jsonl into `out`."""
        from workloads.vqa.prediction import predict

        if not isinstance(source, Path):
            raise BadInput("Give one folder with pictures and questions, or one file of questions, to predict.")
        return predict(self, models, source, out)
