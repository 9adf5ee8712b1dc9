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
from lib.supervised import chunks, evaluation, samples, scoring, start, text
from lib.supervised.methods import Comparing
from lib.supervised.samples import FLOATS, IGNORED, Item, Part, names_in, target_of, with_target
from lib.supervised.simple import Simple, fit
from lib.task import Batch
from lib.task.contract import to_write
from lib.task.loading import locate_data

Kind = Literal["classes", "numbers", "tokens", "next_tokens", "labels", "text"]
_METRICS = {"numbers": ("rmse", "r2"), "text": ("exact", "token_f1")}  # of a class that names none
_MOST_NAMES = 100_000


class Supervised(Comparing):
    """A task whose samples have targets: write `model`, `read`, `batch` and `example`, and perhaps `outputs`.

    The batch's "labels" are the targets. `kind` says what they are: "classes" (a number or a name a sample), "numbers"
    (one or several a sample), "tokens" (a class for each position) or "next_tokens" (the same, and the output at a
    position is for the label of the next one, as transformers' causal models have it), or "labels" (any number of
    classes a sample: names, or a mark of 0 or 1 for each class), or "text" (tokens of the text that `write` should
    write). A label of -100 is no target; among numbers and marks it is NaN. `metrics` are names in scikit-learn
    ("macro_f1", "rmse", "roc_auc", "zero_one_loss"), or functions of (true, guess); of texts "exact", "token_f1",
    "rouge_l", or functions of one (right, written). The first decides which weights are best, unless `selection` names
    another. With `balanced` all classes weigh as much as each other in the loss. Names of classes come from a setting
    `classes`, or from the training data. Whatever is not as it should be can be written anew: it is still a Task.
    """

    kind: ClassVar[Kind] = "classes"
    balanced: ClassVar[bool] = False
    tta: bool = False  # whether an answer to an image (4 dimensions) is the mean over it and its mirror image
    sentinels: ClassVar[tuple[str, ...]] = ("*", "*/*", "*/*/*", "*/*/*/*")  # the input itself, whatever is in it
    selection: ClassVar[tuple[str, str]] = ("accuracy", "max")
    shown: ClassVar[tuple[str, ...]] = ("accuracy",)
    beams_at_once: int = 0  # of the texts of all samples; 0: any number

    def __init_subclass__(cls, **more: Any):
        """Sets `selection` and `shown` from `metrics`, unless the class sets them. Raises BadInput."""
        super().__init_subclass__(**more)
        fields = vars(cls)
        if "model" in fields:
            cls.model = start.with_buffers(cls.model)  # type: ignore[assignment, method-assign]
        if cls.kind not in get_args(Kind):
            raise BadInput(f"{cls.__name__}.kind is {cls.kind!r}. It is one of: {', '.join(get_args(Kind))}.")
        if cls.balanced and cls.kind in FLOATS:
            raise BadInput(f"{cls.__name__}.balanced is for classes and tokens, and its kind is {cls.kind!r}.")
        if cls.metrics is Supervised.metrics:
            cls.metrics = _METRICS.get(cls.kind, cls.metrics)
        elif isinstance(metric := fields.get("metrics"), str) or callable(metric):
            cls.metrics = (metric,)
        if {"metrics", "kind"} & fields.keys():
            names = tuple(map(scoring.name_of, cls.metrics)) or ("loss",)
            better = scoring.better(cls.metrics[0]) if cls.metrics else "min"
            cls.selection, cls.shown = fields.get("selection", (names[0], better)), fields.get("shown", names)
            if not cls.selection[1]:
                what = f"Whether more or less of the metric {names[0]!r} is better cannot be seen from its name"
                advice = f'selection = ("{names[0]}", "min") or ("{names[0]}", "max") in {cls.__name__}'
                raise BadInput(f"{what}. Write {advice}.")
        if cls.kind == "text":
            cls.metrics = tuple(text.Mean(metric) for metric in cls.metrics)

    def __init__(self, config: Any, source: Path | Sequence[Path] | None = None):
        super().__init__(config, source)
        self._learned: dict[str, Any] | None = None
        self._seen: dict[str, np.ndarray] = {}  # the targets of parts, once they were looked at
        self.starts, cls = config.training.start_from_baseline, type(self)
        is_own = (cls.combined, cls.collate) != (Supervised.combined, Supervised.collate)
        if self.starts and (is_own or self.kind in ("next_tokens", "text")):
            why = "which has its own `combined` or `collate`" if is_own else f"whose kind is {self.kind!r}"
            raise BadInput(f"training.start_from_baseline is not for {cls.__name__}, {why}. Leave the key out.")

    def read(self, source: Path) -> Mapping[str, Any] | Iterable[Any]:
        """Returns lists of raw samples "train", "validation" and "test", or one list, which is dealt as `split` does.

        A sample is a tuple whose last element is its target. Where the data does not come from `data.dir`, give
        `source` a default.
        """
        raise to_write(self, "read(source)", "the samples as a list of tuples whose last element is the target")

    def batch(self, samples: list[Any], training: bool) -> Batch:
        """Returns tensors, samples first, the targets as "labels". It may draw from torch, NumPy and `random`."""
        raise to_write(self, "batch(samples, training)", 'tensors, samples first, with the targets as "labels"')

    def example(self) -> Any:
        """Returns one raw sample of the largest size that can occur. It reads no data."""
        raise to_write(self, "example()", "one raw sample of the largest size that can occur, made without data")

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Any]:
        """Returns (samples, classes), (samples, tokens, classes), or numbers in the shape of the labels.

        The classes of tokens may also come second, as PyTorch has those of pixels: (samples, classes, height, width).
        By default it is what the model returns for the batch without its labels, or the `logits` in that: by name where
        `forward` has one of these names, as those of transformers have, and in the batch's order where it has none.

        With kind "next_tokens" or "text" it may be a pair instead: hidden states (samples, tokens, D), and the head
        that makes logits of them, a module or a weight (classes, D). The loss is then computed in chunks of positions,
        and again in the backward pass: of a large vocabulary whole logits would take most of the memory.

            return model.model(**inputs).last_hidden_state, model.lm_head
        """
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        parameters = inspect.signature(model.forward).parameters
        is_named = any(name in inputs or p.kind is p.VAR_KEYWORD for name, p in parameters.items())
        answer = model(**inputs) if is_named else model(*inputs.values())
        answer = getattr(answer, "logits", answer)
        if not isinstance(answer, Tensor):
            what = f"The model returned a {type(answer).__name__} without `logits`."
            raise BadInput(f"{what} Write outputs(model, batch) in {type(self).__name__}, which returns a tensor.")
        return answer

    def features(self, batch: Batch) -> Tensor | Sequence[str]:
        """Returns what the simple method beside the network sees of a batch: texts, or a tensor, samples first.

        A tensor is (samples, numbers), (samples, tokens) of whole numbers or (samples, channels, height, width). By
        default it is the batch's first but the labels. Nothing in it may follow from the targets.
        """
        return next(value for name, value in batch.items() if name != "labels")

    def learn(self, samples: Any) -> Mapping[str, Any]:
        """Returns what the training samples teach: a mean, a vocabulary; values that JSON has. `learned()` has them.

        They are kept with the weights: a resumed run and `predict` take them from there, and this is not called.
        """
        return {}

    def write(self, model: nn.Module, batch: Batch, beams: int) -> Sequence[str]:
        """Returns the text for each sample of a batch, with kind "text"; `generate` searches with `beams`."""
        raise to_write(self, "write(model, batch, beams)", "the text for each sample of the batch")

    def candidates(self, model: nn.Module, batch: Batch, beams: int) -> Sequence[Mapping[str, float]]:
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
        if not self._has_data():
            where = f" with {', '.join(self.sentinels)}" if type(self).sentinels != Supervised.sentinels else ""
            raise BadInput(f"data.dir is empty, and there is no mounted input{where}. Give the folder of the data.")
        return samples.read_parts(self)

    def _has_data(self) -> bool:
        """Whether there is a source, or `read` needs none."""
        parameters = inspect.signature(self.read).parameters.values()
        return self.source is not None or all(parameter.default is not parameter.empty for parameter in parameters)

    def datasets(self) -> dict[str, Any]:
        scoring.check(self.metrics, self.kind)
        parts = dict(self.parts)
        self.check_groups()
        if self.kind in ("classes", "labels") and self.names:
            samples.check_names(parts, self.names)
        return parts

    def describe_data(self) -> str:
        names = [printable(name, most=40) for name in self.names[:12]]
        more = f" and {len(self.names) - 12} more" if len(self.names) > 12 else ""
        return super().describe_data() + (f" Classes: {', '.join(names)}{more}." if names else "")

    @cached_property
    def _digest(self) -> str:
        return " ".join([*([self._files_hash] if self.source else []), samples.digest(self.parts)])

    def fingerprint(self) -> str:
        """Returns a hash of the files, and one of which samples are in which part; of data without files the latter."""
        return self._digest

    prepared = samples.prepared

    def collate(self, samples: list[Any], generator: torch.Generator) -> Batch:
        if not all(isinstance(sample, Item) for sample in samples):
            raise BadInput(f"{type(self).__name__}.datasets() is its own. Then write collate(samples, generator) too.")
        batch = self.labelled([item.sample for item in samples], samples[0].training)
        return batch if samples[0].training else start.batch(self, batch)

    def labelled(self, samples: list[Any], training: bool = False) -> Batch:
        """Returns `batch` of these samples. Raises BadInput where its labels are not those of `kind`."""
        batch, name = self.batch(samples, training), f"{type(self).__name__}.batch"
        labels = batch.get("labels") if isinstance(batch, Mapping) else None
        if not isinstance(labels, Tensor):
            raise BadInput(f'{name} returned no tensor "labels". Put the targets there.')
        if self.kind == "labels" and bool(((labels != 0) & (labels != 1) & ~labels.isnan()).any()):  # on the CPU
            marks = "a label is 1 where the sample has the class and 0 elsewhere; NaN: unknown"
            raise BadInput(f"With kind = 'labels' {marks}.")
        is_float = labels.is_floating_point()
        if is_float and self.kind not in FLOATS:
            what = f"{name} returned labels of {labels.dtype}. Classes are whole numbers; or set kind = 'numbers'"
            raise BadInput(f"{what}, or 'labels' where a sample has any number of classes, each marked by 0 or 1.")
        return batch if is_float else {**batch, "labels": labels.float() if self.kind in FLOATS else labels.long()}

    def example_batch(self, size: int, device: torch.device) -> Batch:
        example = self.example()
        if names_in(self.kind, target_of(example)):  # which may come from data
            example = with_target(example, 0 if self.kind == "classes" else [0.0] * len(self.names))
        return {name: value.to(device) for name, value in self.labelled([example] * size).items()}

    @property
    def names(self) -> list[str]:
        """The names of the classes in their order, as given or of the training data. Raises BadInput if these lack."""
        names = self.known_names()
        is_unknown = not names and self._learned is None and not self._has_data()
        if is_unknown and names_in(self.kind, target_of(self.example())):
            what = f"The names of the classes of {type(self).__name__} come from its training samples"
            advice = "For a plan without data give the classes in a setting `classes`, in the order of the outputs."
            raise BadInput(f"{what}, and there is no data here (data.dir). {advice}")
        return names

    def known_names(self) -> list[str]:
        return self._given_names() or ([] if self.kind == "numbers" else list(self.learned().get("classes", [])))

    def _given_names(self) -> list[str]:
        names = getattr(self, "classes", None) or getattr(self.settings, "classes", None)
        return [*map(str, names)] if isinstance(names, tuple | list) else []

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
                try:  # as the values come back from a checkpoint: lists for tuples, text for keys
                    self._learned = json.loads(json.dumps(values, allow_nan=False))
                except (TypeError, ValueError) as error:
                    what = f"{type(self).__name__}.learn returned values that JSON cannot hold ({error})"
                    raise BadInput(f"{what}. Return numbers, text, or lists of them.") from None
                if self.kind == "numbers":
                    self._learned["variance of targets"] = evaluation.variance(self)
                if self.starts:  # whose batches need what is learned so far
                    self._learned |= start.learned(self)
            else:  # in a plan, which is not handed the data
                data = None
                with contextlib.suppress(BadInput):
                    data = locate_data(next(iter(self.config.data.dirs), ""), self.sentinels)
                plain = with_changes(self.config, {"training.start_from_baseline": False})
                self._learned = type(self)(plain, data).learned() if data else None
            # in a plan where there is no data shapes count, and not values
            return dict(self.learn([self.example()] * 2)) if self._learned is None else self._learned

    def take_learned(self, values: Mapping[str, Any]) -> None:
        for name in {"classes", "suffixes", "folder"} & values.keys():
            texts = [values[name]] if name == "folder" else values[name]
            if not isinstance(texts, list) or len(texts) > _MOST_NAMES or not all(isinstance(t, str) for t in texts):
                raise BadInput(f"{name} of what was learned from data are no names: {printable(repr(texts), most=60)}.")
        self._learned = dict(values)
        self._seen.clear()
        for name in ("_numbers", "simple"):
            vars(self).pop(name, None)

    @cached_property
    def simple(self) -> Simple | None:
        """The simple method: what the run learned where it starts from it, else fitted now; None in a plan."""
        if self.starts:
            values = self.learned().get(start.KEY)
            return Simple.from_json(values) if values else None
        return None if self.kind == "text" else fit(self)

    def baselines(self) -> Mapping[str, Any]:
        """Returns what the simple method answers; write it for others, or `{**super().baselines(), ...}` for more."""
        return evaluation.simple_rows(self)

    # --- targets and losses -------------------------------------------------------------------------------------------

    def count(self, batch: Batch) -> Mapping[str, float]:
        labels = self.placed(batch["labels"])
        if self.width and self.kind not in FLOATS:
            self._check_classes(labels)
        return {"loss": int(self.known(labels).sum())}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
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
            return total / self.learned().get("variance of targets", 1.0) if has_unit else total
        weights = evaluation.weights(self, outputs, outputs.shape[-1])
        return F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), weights, ignore_index=IGNORED, reduction="sum")

    def matched(self, outputs: Any, labels: Tensor) -> tuple[Any, Tensor]:
        """Returns outputs in fp32, or a pair as it is, and labels in shapes that fit. Raises BadInput."""
        labels, head = self.placed(labels), None
        if isinstance(outputs, tuple) and self.kind in ("next_tokens", "text"):
            outputs, head = outputs
        outputs = outputs[:, :-1] if self.kind == "next_tokens" else evaluation.classes_last(self.kind, outputs, labels)
        width = outputs.shape[-1] if head is None else self.width or chunks.width(outputs, head)
        if advice := evaluation.misfit(self.kind, outputs, labels, width):
            shapes = f"has the shape {tuple(outputs.shape)}, and the labels {tuple(labels.shape)}"
            raise BadInput(f"{type(self).__name__}.outputs {shapes}. {advice}")
        if self.kind not in FLOATS and self.width != width and not outputs.is_meta:
            self.width = width
            self._check_classes(labels)
        if head is not None:
            return (outputs, head), labels
        return outputs.float().reshape(labels.shape) if self.kind == "numbers" else outputs.float(), labels

    def placed(self, labels: Tensor) -> Tensor:
        return labels[:, 1:] if self.kind == "next_tokens" else labels

    def known(self, labels: Tensor) -> Tensor:
        return ~labels.isnan() if self.kind in FLOATS else labels != IGNORED

    def _check_classes(self, labels: Tensor) -> None:
        """Raises BadInput where a label is no class of the outputs: on a GPU it would end the process."""
        known = labels[self.known(labels)]
        least, most = (int(known.min()), int(known.max())) if len(known) else (0, 0)
        most = max(most, len(self.known_names()) - 1)
        if least < 0 or most >= self.width:
            what = f"The labels go from {least} to {most}, and the model has outputs for {self.width} classes"
            raise BadInput(f"{what}, which are labelled 0 to {self.width - 1}. {IGNORED} is for no target.")

    def judged(self, labels: Tensor, values: Tensor | None = None) -> Tensor:
        """Returns what belongs to known labels: of numbers rows with one (others stay NaN), of marks rows with all."""
        values, known = labels if values is None else values, self.known(labels)
        if self.kind == "labels":
            return values[known.all(1)].long()
        if self.kind == "numbers" and labels.dim() > 1:
            values, known = values.flatten(1), known.flatten(1).any(1)
            return values[known] if values.shape[1] > 1 else values[known][:, 0]
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
        return {name: value for name, value in vars(self).items() if name not in ("parts", "guesses")} | without
