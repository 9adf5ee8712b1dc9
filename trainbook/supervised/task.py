"""`Supervised`: a task of which one writes the model, how its data is read and batched, and no more."""

import contextlib
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.config import with_changes
from lib.errors import BadInput, printable
from lib.task import Batch
from lib.task.contract import to_write
from lib.task.loading import locate_data
from lib.task.place import naming
from trainbook.supervised import (
    chunks,
    evaluation,
    look,
    replaced,
    samples,
    scoring,
    simple,
    stored,
    text,
)
from trainbook.supervised.methods import Comparing
from trainbook.supervised.notes import collecting
from trainbook.supervised.samples import (
    FLOATS,
    IGNORED,
    Item,
    Part,
    names_in,
    target_of,
    with_target,
)

Kind = Literal["classes", "numbers", "tokens", "next_tokens", "labels", "text"]
_METRICS = {"numbers": ("rmse", "r2"), "text": ("exact", "token_f1")}  # of a class that names none
_MOST_NAMES = 100_000


class Supervised(Comparing):
    """A task whose samples have targets: write `model`, `read`, `batch` and `example`, and perhaps `outputs`.

    `kind` says what the batch's "labels" are: "classes" (a number or a name a sample), "numbers" (one or several a
    sample), "tokens" (a class for each position), "next_tokens" (the same, and the output at a position is for the
    label of the next one), "labels" (any number of classes a sample: names, or marks of 0 or 1), or "text" (tokens of
    the text that `write` should write). -100 is no target; among numbers and marks NaN. `metrics` are names in
    scikit-learn or functions of (true, guess); of texts "exact", "token_f1", "rouge_l" or functions of one (right,
    written). The first decides which weights are best, unless `selection` names another. With `balanced` all classes
    weigh alike in the loss. Names of classes come from a setting `classes`, or from the training data.
    """

    kind: ClassVar[Kind] = "classes"
    balanced: ClassVar[bool] = False
    tta: bool = False  # whether an answer to an image (4 dimensions) is the mean over it and its mirror image
    sentinels: ClassVar[tuple[str, ...]] = (
        "*",
        "*/*",
        "*/*/*",
        "*/*/*/*",
    )  # the input itself, whatever is in it
    selection: ClassVar[tuple[str, str]] = ("accuracy", "max")
    shown: ClassVar[tuple[str, ...]] = ("accuracy",)
    beams_at_once: int = 0  # of the texts of all samples; 0: any number

    def __init_subclass__(cls, **more: Any):
        """Sets `selection` and `shown` from `metrics`, unless the class sets them. Raises BadInput."""
        super().__init_subclass__(**more)
        fields = vars(cls)
        if "model" in fields:
            cls.model = simple.with_buffers(cls.model)  # type: ignore[assignment, method-assign]
        if cls.kind not in get_args(Kind):
            raise BadInput(
                f"{cls.__name__}.kind is {cls.kind!r}. It is one of: {', '.join(get_args(Kind))}."
            )
        if cls.balanced and cls.kind in FLOATS:
            raise BadInput(
                f"{cls.__name__}.balanced is for classes and tokens, and its kind is {cls.kind!r}."
            )
        if cls.metrics is Supervised.metrics:
            cls.metrics = _METRICS.get(cls.kind, cls.metrics)
        elif isinstance(metric := fields.get("metrics"), str) or callable(metric):
            cls.metrics = (metric,)
        if {"metrics", "kind"} & fields.keys():
            names = tuple(map(scoring.name_of, cls.metrics)) or ("loss",)
            better = scoring.better(cls.metrics[0]) if cls.metrics else "min"
            cls.selection, cls.shown = (
                fields.get("selection", (names[0], better)),
                fields.get("shown", names),
            )
            if not cls.selection[1]:
                what = f"Whether more or less of the metric {names[0]!r} is better cannot be seen from its name"
                raise BadInput(
                    f'{what}. Write selection = ("{names[0]}", "min") or "max" in {cls.__name__}.'
                )
        if cls.kind == "text":
            cls.metrics = tuple(text.Mean(metric) for metric in cls.metrics)

    def __init__(self, config: Any, source: Path | Sequence[Path] | None = None):
        super().__init__(config, source)
        self._learned: dict[str, Any] | None = None
        self._seen: dict[str, np.ndarray] = {}  # the targets of parts, once they were looked at
        self.starts, cls = config.training.start_from_baseline, type(self)
        is_own = (cls.combined, cls.collate) != (Supervised.combined, Supervised.collate)
        if self.starts and (is_own or self.kind in ("next_tokens", "text")):
            why = (
                "which has its own `combined` or `collate`"
                if is_own
                else f"whose kind is {self.kind!r}"
            )
            raise BadInput(
                f"training.start_from_baseline is not for {cls.__name__}, {why}. Leave the key out."
            )

    def read(self, source: Path) -> Mapping[str, Any] | Iterable[Any]:
        """Returns lists of tuples, their targets last, "train", "validation" and "test", or one list for `split`.

        Where the data does not come from `data.dir`, give `source` a default.
        """
        raise to_write(
            self, "read(source)", "the samples as a list of tuples whose last element is the target"
        )

    def batch(self, samples: list[Any], training: bool) -> Batch:
        """Returns tensors, samples first, the targets as "labels". It may draw from torch, NumPy and `random`."""
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

    def features(self, batch: Batch) -> Tensor | Sequence[str]:
        """Returns what the simple method sees of a batch, of which nothing may follow from the targets: texts, or

        (samples, numbers), (samples, tokens) of whole numbers or (samples, channels, height, width).
        """
        return next(value for name, value in batch.items() if name != "labels")

    def learn(self, samples: Any) -> Mapping[str, Any]:
        """Returns what the training samples teach, values that JSON has, kept with the weights: see `learned()`."""
        return {}

    def write(self, model: nn.Module, batch: Batch, beams: int) -> Sequence[str]:
        """Returns the text for each sample of a batch, with kind "text"; `generate` searches with `beams`."""
        raise to_write(self, "write(model, batch, beams)", "the text for each sample of the batch")

    def candidates(
        self, model: nn.Module, batch: Batch, beams: int
    ) -> Sequence[Mapping[str, float]]:
        """Returns for each sample different texts, each with its probability; by default what `write` returns."""
        return [{written: 1.0} for written in self.write(model, batch, beams)]

    def beams(self, part: str) -> int:
        """Returns how many beams write the texts of a part; those of new samples as many as for "test"."""
        return 1

    @property
    def settings(self) -> Any:
        return self.config.workload  # with epochs as steps, once these are known

    @cached_property
    def parts(self) -> dict[str, Part]:  # type: ignore[override]  # which mypy takes for read-only
        return self._parts_and_notes[0]

    @property
    def notes(self) -> list[str]:
        """The sentences of readers on what they took of the data and what they left out, as `note` was given them."""
        return self._parts_and_notes[1]

    @cached_property
    def _parts_and_notes(self) -> tuple[dict[str, Part], list[str]]:
        if not self._has_data():
            raise BadInput(
                "data.dir is empty, and there is no mounted input. Give the folder of the data."
            )
        parts, notes = samples.read_parts(self)
        with collecting() as more:
            look.check_samples(self, parts)
        return parts, [*notes, *more]

    def _has_data(self) -> bool:
        """Whether there is a source, or `read` needs none."""
        parameters = inspect.signature(self.read).parameters.values()
        return self.source is not None or all(
            parameter.default is not parameter.empty for parameter in parameters
        )

    def datasets(self) -> dict[str, Any]:
        scoring.check(self.metrics, self.kind)
        parts = dict(self.parts)
        self.check_groups()
        if self.kind in ("classes", "labels") and self.names:
            samples.check_names(parts, self.names)
        return parts

    def describe_data(self) -> str:
        names = printable(", ".join(self.names), most=400)
        about = super().describe_data() + (f" Classes: {names}." if names else "")
        return "\n".join([about, *self.notes])

    @cached_property
    def _digest(self) -> str:
        return " ".join([*([self._files_hash] if self.source else []), samples.digest(self.parts)])

    def fingerprint(self) -> str:
        """Returns a hash of the files, and one of which samples are in which part; of data without files the latter."""
        return self._digest

    @cached_property
    def replaceable(self) -> dict[str, Any]:
        """Hashes by which a run recognises samples of which files alone were replaced; {} where none can be."""
        if type(self).fingerprint is not Supervised.fingerprint or not self.sources:
            return {}
        digests = {
            source: digests for source, (_, digests) in zip(self.sources, self._hashes, strict=True)
        }
        return replaced.hashes(self.parts, digests)

    prepared = samples.prepared
    baselines = evaluation.simple_rows

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        if not all(isinstance(sample, Item) for sample in samples):
            raise BadInput(
                f"{type(self).__name__}.datasets() is its own. Then write collate(samples, generator) too."
            )
        batch = self.labelled([item.sample for item in samples], samples[0].training)
        if samples[0].training:
            return batch
        return simple.batch(self, batch)

    def labelled(self, samples: list[Any], training: bool = False) -> Batch:
        """Returns `batch` of these samples. Raises BadInput where its labels are not those of `kind`."""
        batch = self.batch(samples, training)
        name = f"{type(self).__name__}.batch"
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor):
            raise BadInput(f'{name} returned no tensor "labels". Put the targets there.')
        if self.kind == "labels" and bool(
            ((labels != 0) & (labels != 1) & ~labels.isnan()).any()
        ):  # on the CPU
            raise BadInput(
                f"{name}: With kind = 'labels' a label is 1 for a class that the sample has, else 0 or NaN."
            )
        if labels.is_floating_point() and self.kind not in FLOATS:
            what = f"{name} returned labels of {labels.dtype}. Classes are whole numbers"
            raise BadInput(
                f"{what}; or set kind = 'numbers', or 'labels' for any number of classes a sample."
            )
        whole = labels if labels.is_floating_point() else labels.float()
        return {**batch, "labels": whole if self.kind in FLOATS else labels.long()}

    def example_batch(self, size: int, device: torch.device) -> Batch:
        example = self.numbered(self.example())
        return {name: value.to(device) for name, value in self.labelled([example] * size).items()}

    def numbered(self, example: Any) -> Any:
        """Returns an example whose names of classes, which may come from data, are numbers or marks."""
        if not names_in(self.kind, target_of(example)):
            return example
        return with_target(example, 0 if self.kind == "classes" else [0.0] * len(self.names))

    @property
    def names(self) -> list[str]:
        """The names of the classes in their order, as given or of the training data. Raises BadInput if these lack."""
        names = self.known_names()
        is_unknown = not names and self._learned is None and not self._has_data()
        if is_unknown and names_in(self.kind, target_of(self.example())):
            what = f"The names of the classes of {type(self).__name__} come from training data, and there is none here"
            raise BadInput(
                f"{what}. For a plan give the classes in a setting `classes`, in the order of the outputs."
            )
        return names

    def known_names(self) -> list[str]:
        return self._given_names() or (
            [] if self.kind == "numbers" else list(self.learned().get("classes", []))
        )

    def _given_names(self) -> list[str]:
        """Returns the names of the classes that the class or a setting `classes` lists; none where data tells them."""
        names = getattr(self, "classes", None) or getattr(self.settings, "classes", None)
        if isinstance(names, tuple | list):
            return [*map(str, names)]
        return []

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def learned(self) -> dict[str, Any]:
        if self._learned is not None:
            return self._learned
        with torch.device("cpu"):  # of a plan, too, which makes the model on `meta`
            if self._has_data():
                train = self.parts["train"].samples
                names = [] if self._given_names() else samples.class_names(self.kind, train)
                values = {"classes": names} if names else {}
                values |= {**samples.of_files(train, self.source), **self.learn(train)}
                with naming(
                    f"JSON of what {type(self).__name__}.learn returns",
                    "Return numbers, text, or lists.",
                ):
                    self._learned = json.loads(
                        json.dumps(values, allow_nan=False)
                    )  # as a checkpoint has it
                if self.kind == "numbers":
                    self._learned["variance of targets"] = evaluation.variance(self)
                if self.starts:  # whose batches need what is learned so far
                    if (fitted := simple.fit(self)) is None:
                        raise BadInput(
                            "No simple method takes what features(batch) gives. Return texts or numbers."
                        )
                    self._learned[simple.KEY] = fitted.as_json()
            else:  # in a plan, which is not handed the data
                data = None
                with contextlib.suppress(BadInput):
                    data = locate_data(next(iter(self.config.data.dirs), ""), self.sentinels)
                plain = with_changes(self.config, {"training.start_from_baseline": False})
                self._learned = type(self)(plain, data).learned() if data else None
            # in a plan where there is no data shapes count, and not values
            if self._learned is None:
                return dict(self.learn([self.example()] * 2))
            return self._learned

    def take_learned(self, values: Mapping[str, Any]) -> None:
        for name in {"classes", "suffixes", "folder"} & values.keys():
            texts = [values[name]] if name == "folder" else values[name]
            if (
                not isinstance(texts, list)
                or len(texts) > _MOST_NAMES
                or not all(isinstance(t, str) for t in texts)
            ):
                raise BadInput(
                    f"{name} of what was learned from data are no names: {printable(repr(texts), most=60)}."
                )
        self._learned = dict(values)
        self._seen.clear()
        for name in ("_numbers", "simple"):
            vars(self).pop(name, None)

    @cached_property
    def simple(self) -> Any:
        """The simple method: what the run learned where it starts from it, else fitted now; None in a plan."""
        if self.starts:
            values = self.learned().get(simple.KEY)
            if self._learned is None:
                return None
            return stored.simple_of(self, values)
        if self.kind == "text":
            return None
        return simple.fit(self)

    def count(self, batch: Batch) -> Mapping[str, float]:
        labels = self.placed(batch["labels"])
        if self.width and self.kind not in FLOATS:
            self._check_classes(labels)
        return {"loss": int(self.known(labels).sum())}

    def loss(
        self, model: nn.Module, batch: Batch
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        return {"loss": self.summed_loss(self.passed(model, batch), batch["labels"])}, {}

    def summed_loss(self, outputs: Tensor | tuple[Tensor, Any], labels: Tensor) -> Tensor:
        """Returns () the sum over the targets: of cross-entropy for classes and marks, of squares for numbers.

        Squares are in units of the training targets' variance: fp16 holds neither prices nor their gradients.
        """
        outputs, labels = self.matched(outputs, labels)
        if isinstance(outputs, tuple):
            weights = evaluation.weights(self, outputs[0], self.width or chunks.width(*outputs))
            return chunks.loss(*outputs, labels, weights)
        if self.kind in FLOATS:
            distance = F.mse_loss if self.kind == "numbers" else F.binary_cross_entropy_with_logits
            each = distance(outputs, labels.nan_to_num(), reduction="none")
            total = torch.where(self.known(labels), each, 0.0).sum()
            has_unit = self.kind == "numbers" and not outputs.is_meta
            if has_unit:
                return total / self.learned().get("variance of targets", 1.0)
            return total
        weights = evaluation.weights(self, outputs, outputs.shape[-1])
        return F.cross_entropy(
            outputs.flatten(0, -2), labels.flatten(), weights, ignore_index=IGNORED, reduction="sum"
        )

    def matched(self, outputs: Any, labels: Tensor) -> tuple[Any, Tensor]:
        """Returns outputs in fp32, or a pair as it is, and labels in shapes that fit. Raises BadInput."""
        labels = self.placed(labels)
        head = None
        if isinstance(outputs, tuple) and self.kind in ("next_tokens", "text"):
            outputs, head = outputs
        if self.kind == "next_tokens":
            outputs = outputs[:, :-1]
        else:
            outputs = evaluation.classes_last(self.kind, outputs, labels)
        if head is None:
            width = outputs.shape[-1]
        else:
            width = self.width or chunks.width(outputs, head)
        if advice := evaluation.misfit(self.kind, outputs, labels, width):
            shapes = f"has the shape {tuple(outputs.shape)}, and the labels {tuple(labels.shape)}"
            raise BadInput(f"{type(self).__name__}.outputs {shapes}. {advice}")
        if self.kind not in FLOATS and self.width != width and not outputs.is_meta:
            self.width = width
            self._check_classes(labels)
        if head is not None:
            return (outputs, head), labels
        return outputs.float().reshape(
            labels.shape
        ) if self.kind == "numbers" else outputs.float(), labels

    def placed(self, labels: Tensor) -> Tensor:
        if self.kind == "next_tokens":
            return labels[:, 1:]
        return labels

    def known(self, labels: Tensor) -> Tensor:
        if self.kind in FLOATS:
            return ~labels.isnan()
        return labels != IGNORED

    def _check_classes(self, labels: Tensor) -> None:
        """Raises BadInput where a label is no class of the outputs: on a GPU it would end the process."""
        known = labels[self.known(labels)]
        least, most = (int(known.min()), int(known.max())) if len(known) else (0, 0)
        most = max(most, len(self.known_names()) - 1)
        if least < 0 or most >= self.width:
            what = f"The labels go from {least} to {most}, and the model has outputs for {self.width} classes"
            raise BadInput(
                f"{what}, which are labelled 0 to {self.width - 1}. {IGNORED} is for no target."
            )

    def judged(self, labels: Tensor, values: Tensor | None = None) -> Tensor:
        """Returns what belongs to known labels: of numbers rows with one (others stay NaN), of marks rows with all."""
        values = labels if values is None else values
        known = self.known(labels)
        if self.kind == "labels":
            return values[known.all(1)].long()
        if self.kind == "numbers" and labels.dim() > 1:
            values = values.flatten(1)
            known = known.flatten(1).any(1)
            if values.shape[1] > 1:
                return values[known]
            return values[known][:, 0]
        return values[known]

    def targets(self, part: str) -> np.ndarray:
        """Returns the known targets of a part as its batches have them: (targets,), or (samples, numbers)."""
        if self.kind == "text":
            return text.targets(self.parts[part])
        if part not in self._seen:
            self._seen[part] = np.concatenate([*evaluation.targets(self, self.parts[part])])
        return self._seen[part]

    def class_counts(self, part: str) -> np.ndarray:
        """Returns how often each class is a target of a part, (classes); no more targets than a batch's are held."""
        if (key := f"classes of {part}") not in self._seen:
            counts = np.zeros(0, np.int64)
            for labels in evaluation.targets(self, self.parts[part]):
                more = np.bincount(labels, minlength=len(counts))
                more[: len(counts)] += counts
                counts = more
            self._seen[key] = counts
        return self._seen[key]

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the samples: a loader worker is sent those that it needs."""
        without: dict[str, Any] = {"_seen": {}, "_tested": {}, "_beside": {}, "_passed": None}
        samples = ("parts", "_parts_and_notes", "guesses", "_hashes", "replaceable")
        return {name: value for name, value in vars(self).items() if name not in samples} | without
