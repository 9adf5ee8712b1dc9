"""`Supervised`: a task for which a user writes only the model and how its data is read and batched."""

import contextlib
import inspect
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lib.config import with_changes
from lib.errors import BadInput, printable
from lib.task import Batch
from lib.task.contract import to_write
from lib.task.loading import locate_data
from lib.task.place import naming
from trainbook import published
from trainbook.published import Encoder
from trainbook.supervised import (
    chunks,
    evaluation,
    folds,
    gate,
    kinds,
    look,
    pictured,
    replaced,
    samples,
    scoring,
    simple,
)
from trainbook.supervised.batches import without_texts
from trainbook.supervised.methods import OF_NETWORK, Comparing
from trainbook.supervised.notes import collecting
from trainbook.supervised.samples import IGNORED, Item, Part, target_of, with_target

_MOST_NAMES = 100_000


# Methods of earlier versions that became functions, or methods of kinds: see `Supervised._retired`
RETIRED = frozenset(
    (
        "check_groups", "class_counts", "compare", "compared", "guessed", "judged", "known",
        "known_names", "measured", "named", "numbered", "passed", "placed", "prepared", "scored",
        "strongest", "tallied",
    )
)  # fmt: skip


class Supervised(Comparing):
    """A task whose samples have targets: write `model`, `read`, `batch` and `example`, and perhaps `outputs`.

    `kind` says what the batch's "labels" are: "classes" (a number or a name a sample), "numbers" (one or several a
    sample), "tokens" (a class for each position), "next_tokens" (the same, and the output at a position is for the
    label of the next one), "labels" (any number of classes a sample: names, or marks of 0 or 1), "text" (tokens of
    the text that `write` should write), or a class that derives from one of `trainbook.supervised.kinds`. -100 is no
    target; among numbers and marks NaN. `metrics` are names in scikit-learn or functions of (true, guess); of texts
    "exact", "token_f1", "rouge_l" or functions of one (right, written). The first decides which weights are best,
    unless `selection` names another. With `balanced` all classes weigh alike in the loss. Names of classes come from a
    setting `classes`, or from the training data.
    """

    kind: ClassVar[str | type[kinds.Kind]] = "classes"
    balanced: ClassVar[bool] = False
    # the input itself, whatever is in it
    sentinels: ClassVar[tuple[str, ...]] = ("*", "*/*", "*/*/*", "*/*/*/*")
    fold_key: ClassVar[str] = folds.KEY
    selection: ClassVar[tuple[str, str]] = ("accuracy", "max")
    shown: ClassVar[tuple[str, ...]] = ("accuracy",)
    # The batch's key of pictures (samples, 3, H, W) from 0 to 1, if the setting `encoder` may name a published encoder
    pictures: ClassVar[str] = ""
    _beams_at_once: int = 0  # of the texts of all samples; 0: any number

    def __init_subclass__(cls, **more: Any):
        """Sets `selection` and `shown` from `metrics`, unless the class sets them. Raises BadInput."""
        super().__init_subclass__(**more)
        fields = vars(cls)
        if "model" in fields:
            cls.model = gate.with_buffers(simple.with_buffers(cls.model))  # type: ignore[assignment, method-assign]
        if not kinds.is_kind(cls.kind):
            raise BadInput(
                f"{cls.__name__}.kind is {cls.kind!r}. It is one of: {', '.join(kinds.BY_NAME)}; "
                "or a class that derives from trainbook.supervised.kinds.Kind."
            )
        kind = kinds.of(cls.kind)
        if cls.balanced and not kind.has_classes:
            raise BadInput(
                f"{cls.__name__}.balanced is for classes and tokens, and its kind is {kind.name!r}."
            )
        metrics = fields.get("metrics")
        if cls.metrics is Supervised.metrics:
            cls.metrics = kind.metrics
        elif isinstance(metrics, str) or callable(metrics):
            cls.metrics = (metrics,)
        if {"metrics", "kind"} & fields.keys():
            cls._select()
        cls.metrics = tuple(map(kind.metric, cls.metrics))

    @classmethod
    def _select(cls) -> None:
        """Sets `selection` and `shown` by the metrics. Raises BadInput if it is unknown whether more is better."""
        fields = vars(cls)
        names = tuple(map(scoring.name_of, cls.metrics)) or ("loss",)
        better = scoring.better(cls.metrics[0]) if cls.metrics else "min"
        cls.selection = fields.get("selection", (names[0], better))
        cls.shown = fields.get("shown", names)
        if not cls.selection[1]:
            raise BadInput(
                f"Whether more or less of the metric {names[0]!r} is better cannot be seen from "
                f'its name. Write selection = ("{names[0]}", "min") or "max" in {cls.__name__}.'
            )

    def __init__(self, config: Any, source: Path | Sequence[Path] | None = None):
        super().__init__(config, source)
        self._learned: dict[str, Any] | None = None
        self._seen: dict[str, np.ndarray] = {}  # the targets of parts, once they were looked at
        self._begin = time.monotonic()
        self._at_hand: Mapping[str, Any] | None = (
            None  # facts on the encoder of pictures, once it was looked for
        )
        self._frozen: Any = None  # this encoder, once it is needed
        self._starts = config.training.start_from_baseline
        if self._starts:
            self._check_start()
            self._follow_network()

    def _check_start(self) -> None:
        """Raises BadInput if answers cannot start from the simple method."""
        if self._can_start:
            return
        why = f"whose kind is {self._kind.name!r}"
        if self._has_own_answer:
            why = "which has its own `combined` or `collate`"
        raise BadInput(
            f"training.start_from_baseline is not for {type(self).__name__}, {why}. "
            "Leave the key out."
        )

    @property
    def _can_start(self) -> bool:  # type: ignore[override]
        return not self._has_own_answer and not self._kind.is_generated

    @property
    def _has_own_answer(self) -> bool:
        return type(self).collate is not Supervised.collate or self._has_own_scores

    def _follow_network(self) -> None:
        """Lets the network's own metric select, as without the simple method: a shut gate's answer stays the same."""
        metric, direction = self.selection
        if metric in map(scoring.name_of, self.metrics):
            name = f"{OF_NETWORK}{metric}"
            self.selection = (name, direction)  # type: ignore[misc]
            self.shown = (*self.shown, name)  # type: ignore[misc]

    def read(self, source: Path) -> Mapping[str, Any] | Iterable[Any]:
        """Returns lists of tuples, their targets last, "train", "validation" and "test", or one list for `split`.

        If the data does not come from `data.dir`, give `source` a default.
        """
        raise to_write(
            self, "read(source)", "the samples as a list of tuples whose last element is the target"
        )

    def batch(self, samples: list[Any], training: bool) -> Batch:
        """Returns tensors, samples first, the targets as "labels". It may draw from torch, NumPy and `random`.

        A text, or a list of words, for each sample may be among them: `features` gets it, and the model does not.
        """
        raise to_write(
            self, "batch(samples, training)", 'tensors, samples first, with the targets as "labels"'
        )

    def example(self) -> Any:
        """Returns one raw sample of the largest size that can occur. It reads no data."""
        raise to_write(
            self,
            "example()",
            "one raw sample of the largest size that can occur, made without data",
        )

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Any]:
        """Returns (samples, classes), (samples, tokens, classes), or numbers in the shape of the labels.

        The classes of tokens may also come second, as PyTorch has those of pixels: (samples, classes, height, width).
        By default the model is called with the batch but its labels, by name where `forward` has one of these names,
        else in order. With kind "next_tokens" or "text" it may be a pair: hidden states (samples, tokens, D), and the
        head that makes logits of them, a module or a weight (classes, D). The loss is then computed in chunks, and
        again in the backward pass: of a large vocabulary whole logits would take most of the memory.
        """
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        parameters = inspect.signature(model.forward).parameters
        is_named = any(name in inputs or p.kind is p.VAR_KEYWORD for name, p in parameters.items())
        answer = model(**inputs) if is_named else model(*inputs.values())
        answer = getattr(answer, "logits", answer)
        if not isinstance(answer, Tensor):
            raise BadInput(
                f"The model returned a {type(answer).__name__} without `logits`. Write outputs()."
            )
        return answer

    def features(self, batch: Batch) -> Tensor | Sequence[str] | Sequence[Sequence[str]]:
        """Returns what simple methods see of a batch, of which nothing may follow from the targets: texts, or

        (samples, numbers), (samples, tokens) of whole numbers or (samples, channels, height, width); of "tokens" also a
        list of words for each sample, a word for each position.
        """
        return next(value for name, value in batch.items() if name != "labels")

    def encoded(self, batch: Batch) -> Tensor | None:
        """Returns what a frozen published encoder makes of a batch, by its `features` alone; None without an encoder.

        (samples, D) of texts and pictures, (samples, positions, D) with kind "tokens". A batch comes once in a
        process. By default it is made of `pictures`, if the class names them.
        """
        if not self.pictures or self._kind.has_positions:
            return None
        return pictured.pooled(self, pictured.of_batch(self, batch))

    def encoder(self) -> Encoder | None:
        """Returns a fresh published encoder of `pictures` for `model`, by the setting `encoder`; None without one.

        The run keeps its hash, and resumes with the same one. Raises BadInput if it is gone.
        """
        return pictured.of_model(self)

    def side(self, otherwise: int) -> int:
        """Returns the height and width of pictures: the setting `size`, the encoder's, or else `otherwise`."""
        return getattr(self.settings, "size", 0) or pictured.size(self) or otherwise

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Returns groups of parameters, as `Task` does; by default the encoder of `encoder()` with a small rate."""
        return pictured.groups(model)

    def with_decoder(self, encoder: Encoder, outputs: int) -> nn.Module:
        """Returns a U-Net over the feature maps of an encoder of pictures, with outputs for each pixel."""
        return published.UNet(encoder, outputs)

    def with_head(self, encoder: Encoder, outputs: int) -> nn.Module:
        """Returns a network of an encoder of pictures and a linear layer.

        The first two thirds of the encoder stay as published. It begins with the answer of the frozen encoder's linear
        model, if the run starts from its simple method.
        """
        return pictured.with_head(self, encoder, outputs)

    def learn(self, samples: Any) -> Mapping[str, Any]:
        """Returns values learned from the training samples, as JSON types, kept with the weights: see `learned()`."""
        return {}

    def write(self, model: nn.Module, batch: Batch, beams: int) -> Sequence[str]:
        """Returns the text for each sample of a batch, with kind "text"; `generate` searches with `beams`."""
        raise to_write(self, "write(model, batch, beams)", "the text for each sample of the batch")

    def candidates(
        self, model: nn.Module, batch: Batch, beams: int
    ) -> Sequence[Mapping[str, float]]:
        """Returns for each sample different texts, each with its probability; by default what `write` returns."""
        return [{written: 1.0} for written in self.write(model, batch, beams)]

    @property
    def _has_candidates(self) -> bool:
        return type(self).candidates is not Supervised.candidates

    def beams(self, part: str) -> int:
        """Returns the number of beams for the texts of a part; new samples use the number of "test"."""
        return 1

    @property
    def settings(self) -> Any:
        return self.config.workload  # with epochs as steps, once these are known

    @cached_property
    def parts(self) -> dict[str, Part]:  # type: ignore[override]  # which mypy takes for read-only
        return self._parts_and_notes[0]

    @property
    def _notes(self) -> list[str]:
        """The readers' notes on used and ignored data."""
        return self._parts_and_notes[1]

    @cached_property
    def _parts_and_notes(self) -> tuple[dict[str, Part], list[str]]:
        if not self._has_data():
            raise BadInput(
                "data.dir is empty, and there is no mounted input. Give the folder of the data."
            )
        folding = folds.of(self)
        parts, notes = samples.read_parts(self, folding)
        if folding is not None:
            notes.append(folding.about)
        with collecting() as more:
            look.check_samples(self, parts)
        return parts, [*notes, *more]

    def _has_data(self) -> bool:
        """Returns whether the task has a source, or `read` works without one."""
        if self.source is not None:
            return True
        parameters = inspect.signature(self.read).parameters.values()
        return all(parameter.default is not parameter.empty for parameter in parameters)

    def datasets(self) -> dict[str, Any]:
        scoring.check(self.metrics, self._kind)
        parts = dict(self.parts)
        self._check_groups()
        if self._kind.has_names and self.names:
            samples.check_names(parts, self.names)
        return parts

    def describe_data(self) -> str:
        about = super().describe_data()
        if self.names:
            about += f" Classes: {printable(', '.join(self.names), most=400)}."
        first = [pictured.about(self)] if self.pictures else []
        return "\n".join([*first, about, *self._notes, *self._retired()])

    def _retired(self) -> list[str]:
        """Lists the methods that an earlier version called, and that now only the task's own code calls."""
        names = sorted(name for name in RETIRED if callable(getattr(type(self), name, None)))
        return [
            f"{type(self).__name__}.{name}: an earlier version of Trainbook called this method. Now "
            "only your own code does; CHANGELOG.md has what to do instead."
            for name in names
        ]

    @cached_property
    def _digest(self) -> str:
        of_samples = samples.digest(self.parts)
        return f"{self._files_hash} {of_samples}" if self.source else of_samples

    def fingerprint(self) -> str:
        """Returns a hash of the files and of the split; without files, of the split."""
        return self._digest

    @cached_property
    def replaceable(self) -> dict[str, Any]:
        """Hashes that recognise samples with replaced files; {} if that is impossible."""
        if type(self).fingerprint is not Supervised.fingerprint or not self.sources:
            return {}
        digests = {}
        for source, (_, of_files) in zip(self.sources, self._hashes, strict=True):
            digests[source] = of_files
        return replaced.hashes(self.parts, digests)

    def baselines(self) -> Mapping[str, Any]:
        """Returns the simple methods' answers by name; `{**super().baselines(), ...}` adds to it."""
        return evaluation.simple_rows(self)

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        if not all(isinstance(sample, Item) for sample in samples):
            raise BadInput(
                f"{type(self).__name__}.datasets() is its own. "
                "Then write collate(samples, generator) too."
            )
        training = samples[0].training
        batch = self.labelled([item.sample for item in samples], training)
        return without_texts(batch if training else simple.batch(self, batch))

    def labelled(self, samples: list[Any], training: bool = False) -> Batch:
        """Returns `batch` of these samples. Raises BadInput if its labels do not fit `kind`."""
        batch = self.batch(samples, training)
        name = f"{type(self).__name__}.batch"
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor):
            raise BadInput(f'{name} returned no tensor "labels". Put the targets there.')
        return {**batch, "labels": self._kind.checked(labels, name)}

    def example_batch(self, size: int, device: torch.device) -> Batch:
        example = self._numbered(self.example())
        batch = without_texts(self.labelled([example] * size))
        return {name: value.to(device) for name, value in batch.items()}

    def _numbered(self, example: Any) -> Any:
        """Returns an example whose names of classes, which may come from data, are numbers or marks."""
        if not self._kind.names_in(target_of(example)):
            return example
        return with_target(example, self._kind.placeholder(self))

    @property
    def names(self) -> list[str]:
        """The names of the classes in their order, as given or of the training data. Raises BadInput if these lack."""
        names = self._known_names()
        if names or self._learned is not None or self._has_data():
            return names
        if self._kind.names_in(target_of(self.example())):
            raise BadInput(
                f"The names of the classes of {type(self).__name__} come from training data, and "
                "there is none here. For a plan give the classes in a setting `classes`, in the "
                "order of the outputs."
            )
        return names

    def _known_names(self) -> list[str]:
        """Returns the given or learned names of the classes; empty without them."""
        names = self._given_names()
        if names or not (self._kind.has_classes or self._kind.has_names):
            return names
        return list(self.learned().get("classes", []))

    def _given_names(self) -> list[str]:
        """Returns the names listed by the class or a setting `classes`; empty if they come from data."""
        names = getattr(self, "classes", None) or getattr(self.settings, "classes", None)
        if isinstance(names, tuple | list):
            return [*map(str, names)]
        return []

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def learned(self) -> dict[str, Any]:
        if self._learned is None:
            with torch.device("cpu"):  # of a plan, too, which makes the model on `meta`
                self._learned = self._learn() if self._has_data() else self._learned_in_plan()
                if self._learned is None:  # a plan without data: shapes count, and not values
                    return dict(self.learn([self.example()] * 2))
        return self._learned

    def _learn(self) -> dict[str, Any]:
        """Returns the learned values, in a checkpoint's form. Raises BadInput."""
        train = self.parts["train"].samples
        values: dict[str, Any] = {}
        names = [] if self._given_names() else self._kind.class_names(self._named_samples(train))
        if names:
            values["classes"] = names
        values |= samples.of_files(train, self.source)
        values |= self.learn(train)
        if self.pictures:
            values |= pictured.learned(self)
        what = f"JSON of what {type(self).__name__}.learn returns"
        with naming(what, "Return numbers, text, or lists."):
            # in the order of a checkpoint: columns of a batch may follow it
            learned = json.loads(json.dumps(values, allow_nan=False, sort_keys=True))
        self._learned = learned  # which batches need
        self._kind.learn(self, learned)
        if self.pictures:
            pictured.check_scale(self)
        if self._starts:
            fitted = simple.fit(self)
            if not fitted:
                raise BadInput(
                    "No simple method takes what features(batch) gives. Return texts or numbers."
                )
            learned[simple.KEY] = simple.as_json(fitted)
        return learned

    def _named_samples(self, train: Any) -> Any:
        """Returns the samples that names of classes come from: of folds all, or two folds may have other names."""
        if not self.config.folds.number or self.fold_key != folds.KEY:
            return train
        return [*train, *self.parts["validation"].samples, *self.parts["test"].samples]

    def _learned_in_plan(self) -> dict[str, Any] | None:
        """Returns what data teaches that a plan is not handed, if it is there."""
        data = None
        with contextlib.suppress(BadInput):
            data = locate_data(next(iter(self.config.data.dirs), ""), self.sentinels)
        if not data:
            return None
        plain = with_changes(self.config, {"training.start_from_baseline": False})
        return type(self)(plain, data).learned()

    def take_learned(self, values: Mapping[str, Any]) -> None:
        for name in {"classes", "suffixes", "folder"} & values.keys():
            texts = [values[name]] if name == "folder" else values[name]
            is_list = isinstance(texts, list) and len(texts) <= _MOST_NAMES
            if not is_list or not all(isinstance(text, str) for text in texts):
                shown = printable(repr(texts), most=60)
                raise BadInput(f"{name} of what was learned from data are no names: {shown}.")
        self._learned = dict(values)
        self._seen.clear()
        for name in ("_numbers", "_simples"):
            vars(self).pop(name, None)

    @cached_property
    def _probe(self) -> np.ndarray | None:
        """The encoder's vector of the example, by which encoders are told apart; None without an encoder."""
        if type(self).encoded is Supervised.encoded and not self.pictures:
            return None
        return simple.probe(self)

    @property
    def _simple(self) -> Any:
        """The strongest simple method, by folds of the training samples; None in a plan, or without one."""
        return next(iter(self._simples), None)

    @cached_property
    def _simples(self) -> list[Any]:
        """The simple methods, the strongest first: learned by a run that starts from them, otherwise fitted now."""
        if self._starts:
            values = self.learned().get(simple.KEY)
            if self._learned is None:
                return []
            return simple.restored(self, values)
        if self._kind.has_simple:
            return simple.fit(self, simple.seconds_after(self))
        return []

    def count(self, batch: Batch) -> Mapping[str, float]:
        labels = self._kind.placed(batch["labels"])
        if self._width and self._kind.has_classes:
            self._check_classes(labels)
        return {"loss": int(self._kind.known(labels).sum())}

    def loss(
        self, model: nn.Module, batch: Batch
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        outputs = evaluation.outputs_of(self, model, batch)
        return {"loss": self.summed_loss(outputs, batch["labels"])}, {}

    def summed_loss(self, outputs: Tensor | tuple[Tensor, Any], labels: Tensor) -> Tensor:
        """Returns () the sum over the targets: of cross-entropy for classes and marks, of squares for numbers.

        Squares are in units of the training targets' variance: fp16 holds neither prices nor their gradients.
        """
        outputs, labels = self.matched(outputs, labels)
        return self._kind.loss(self, outputs, labels)

    def matched(self, outputs: Any, labels: Tensor) -> tuple[Any, Tensor]:
        """Returns outputs in fp32, or an unchanged pair, and labels in shapes that fit. Raises BadInput."""
        kind = self._kind
        labels = kind.placed(labels)
        head = None
        if isinstance(outputs, tuple) and kind.is_generated:
            outputs, head = outputs
        outputs = kind.arranged(outputs, labels)
        if head is None:
            width = outputs.shape[-1] if outputs.dim() else 0
        else:
            width = self._width or chunks.width(outputs, head)
        advice = kind.misfit(outputs, labels, width)
        if advice:
            raise BadInput(
                f"{type(self).__name__}.outputs has the shape {tuple(outputs.shape)}, and the "
                f"labels {tuple(labels.shape)}. {advice}"
            )
        if kind.has_classes and self._width != width and not outputs.is_meta:
            self._width = width
            self._check_classes(labels)
        if head is not None:
            return (outputs, head), labels
        return outputs.float(), labels

    def _check_classes(self, labels: Tensor) -> None:
        """Raises BadInput if a label has no output: on a GPU it would end the process."""
        known = labels[self._kind.known(labels)]
        least = int(known.min()) if len(known) else 0
        most = int(known.max()) if len(known) else 0
        most = max(most, len(self._known_names()) - 1)
        if least < 0 or most >= self._width:
            raise BadInput(
                f"The labels go from {least} to {most}, and the model has outputs for "
                f"{self._width} classes, which are labelled 0 to {self._width - 1}. "
                f"{IGNORED} is for no target."
            )

    def targets(self, part: str) -> np.ndarray:
        """Returns the known targets of a part as its batches have them: (targets,), or (samples, numbers)."""
        if part not in self._seen:
            self._seen[part] = self._kind.targets(self, part)
        return self._seen[part]

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the samples: a loader worker is sent those that it needs."""
        samples = {"parts", "_parts_and_notes", "_guesses", "_hashes", "replaceable"}
        state = {name: value for name, value in vars(self).items() if name not in samples}
        empty: dict[str, Any] = {
            "_seen": {},
            "_tested": {},
            "_beside": {},
            "_promised": None,
            "_frozen": None,
        }
        return {**state, **empty}
