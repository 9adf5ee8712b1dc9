"""Checks a task before quota is spent. Your test is one line: `def test_my_task(): check("my.yaml")`."""

import dataclasses
import itertools
import math
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib.config import Config, resolve_lengths
from lib.errors import BadInput
from lib.machine import memory
from lib.ranks.sums import add_counts
from lib.report.findings import Finding
from lib.report.progress import working
from lib.task import SPLITS, Batch, Task, load_config, load_task
from lib.task import contract as returned
from lib.task.place import naming
from lib.training import data, learned, norms
from lib.training.evaluation import EvaluationLoader, baseline_of
from lib.training.optimization import groups_of
from lib.training.order import INITIALISE, Order, mix, put_back, seed_all, seeded_draws
from lib.training.precision import autocast, choose_precision, keep_in_fp32, widen_on_cpu

_SIZE = 4  # samples of a batch: two halves of two
_SEED = 11
_OTHER = 12
_DRAWS = 8  # as many passes of a loss that draws have their means compared
_SLOW = 1.0  # seconds of a pass, from which a model is evaluated on fewer samples
_SEEDED = "Draw from torch, np.random or random, which are seeded; change copies (.clone()), and keep no state."
_passed: "weakref.WeakSet[Task]" = weakref.WeakSet()


def check(config: str | Path | Config) -> None:
    """Raises BadInput with a sentence for each check that the task of a configuration fails; doubts are warnings."""
    task = load_task(config if isinstance(config, Config) else load_config(config))
    for doubt in require(task, task.config, thorough=True):
        warnings.warn(doubt.value, stacklevel=2)


def require(task: Task, config: Config, thorough: bool = False) -> list[Finding]:
    """Checks a task once in this process, before it trains; returns the doubts. Raises BadInput as `check` does."""
    if task in _passed:
        return []
    findings = examine(task, config, thorough)
    mistakes = [f"\n- {finding.value}" for finding in findings if finding.verdict == "bad"]
    if mistakes:
        raise BadInput(f"The task {type(task).__name__} breaks its contract:{''.join(mistakes)}")
    _passed.add(task)
    return findings


def examine(task: Task, config: Config, thorough: bool = True) -> list[Finding]:
    """Checks a task on some samples; returns mistakes and doubts. Unless `thorough`, data and model are made once."""
    former = task.config
    probe = _Probe(task, config, thorough)
    findings = list[Finding]()
    try:
        for run in _CHECKS:
            try:
                run(probe)
            except BadInput as error:
                findings.append(Finding(run.__name__.strip("_"), str(error), "bad"))
                if run in (_data, _model):  # which the others need
                    break
    except Exception as error:
        if not memory.is_oom(error):
            raise
        probe.doubts.append(
            f"Memory ran out while {probe.name} was checked, so a part of it was not."
        )
    finally:
        task.config = former
        memory.clear_memory()  # so that the card is the run's
    findings += [Finding("task", doubt, "warning") for doubt in dict.fromkeys(probe.doubts)]
    return findings


class _Probe:
    """A task under examination: its data sets, a model, and batches as training gets them."""

    def __init__(self, task: Task, config: Config, thorough: bool):
        self.task = task
        self.config = config
        self.thorough = thorough
        self.name = type(task).__name__
        self.device = memory.device()
        self.sets: dict[str, Any] = {}
        self.batches: list[Batch] = []
        self.learned: Mapping[str, Any] = {}
        self.train_set: Any = None
        self.model: Any = None
        self.doubts: list[str] = []
        self.is_slow = False

    def train_batch(self, number: int, size: int = _SIZE, seed: int = _SEED) -> Batch:
        """Collates a training batch, in the order of the run."""
        order = Order.of(self.train_set, self.config)
        order = dataclasses.replace(order, effective_batch=size, slots=1)
        return self.batch(self.train_set, order.indices(number, 0), seed)

    def batch(
        self, dataset: Any, indices: Sequence[int], seed: int = _SEED, split: str = "train"
    ) -> Batch:
        """Collates samples as a slot with this seed does. Raises BadInput."""
        place = f"{self.name}.datasets()[{split!r}] of {len(dataset)} samples"
        with seeded_draws(seed), naming(place):
            samples = [dataset[index] for index in indices]
        with seeded_draws(seed), naming(f"{self.name}.collate()"):
            return self.task.collate(samples, torch.Generator().manual_seed(seed))

    def bare(self) -> Task:
        """Returns the task without its data, as the planner has it, with the values learned from data."""
        advice = "Read data in datasets(): the planner has none."
        with naming(f"{self.name}(config) without data", advice):
            bare = type(self.task)(self.config)
            if self.learned:
                bare.take_learned(self.learned)
            return bare

    def make_model(self) -> Any:
        advice = "It must do without data: sizes are settings (workload:)."
        with put_back(), naming(f"{self.name}.model()", advice):
            seed_all(mix(INITIALISE, self.config.seed), torch.device("cpu"))  # as a run does
            return self.bare().model()


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor], *, share: float = 0.0) -> bool:
    """Compares tensors by name, element by element, to a share of their size; NaN equals NaN."""
    if first.keys() != second.keys():
        return False
    for name, value in first.items():
        other = second[name]
        if value.shape != other.shape or value.dtype != other.dtype:
            return False
        if torch.equal(value, other):  # which is faster
            continue
        if not torch.isclose(value, other, rtol=share, atol=0, equal_nan=True).all():
            return False
    return True


def _data(probe: _Probe) -> None:
    """Reads the data: three splits with samples, a stable fingerprint, batches with the samples first."""
    task = probe.task
    name = probe.name
    with naming(f"{name}.learned() or take_learned()"):
        probe.learned = learned.take(task, None)  # through JSON, as a resumed run gets it
    with naming(f"{name}.datasets()", "Look at data.dir, and at how the data is read."):
        probe.sets = returned.checked_datasets(task)
    with naming(f"{name}.fingerprint() or describe_data()"):
        if task.describe_data() and task.fingerprint() != task.fingerprint():
            raise BadInput(
                f"{name}.fingerprint() differs each time, so no run could be resumed. Hash what files hold."
            )
    config = probe.config
    probe.train_set = data.subset(probe.sets["train"], config.data.subset_ratio, config.seed)
    config, _ = resolve_lengths(config, len(probe.train_set))
    probe.config = config
    task.config = config
    for split in SPLITS:
        samples = probe.sets[split]
        probe.batch(samples, [0, len(samples) - 1], _SEED, split)
    # the last one has another size, which tells samples from classes
    for number, size in enumerate((_SIZE, _SIZE, _SIZE + 1)):
        batch = probe.train_batch(number * 7, size, _SEED + number)
        with naming(f"{name}.collate()", "Return tensors by name: a dict."):
            data.check_samples(batch)
        if data.size_of(batch) != size:
            raise BadInput(
                f"{name}.collate() makes {data.size_of(batch)} rows of {size} samples: make one of each."
            )
        probe.batches.append(batch)


def _repeats(probe: _Probe) -> None:
    """Compares a batch that is read again, from the same data sets and from new ones."""
    batch = probe.train_batch(0)
    probe.train_batch(1, seed=_OTHER)  # its random draws must leave no trace
    if not _same(batch, probe.train_batch(0)):
        raise BadInput(
            f"{probe.name}.datasets() or collate() makes another batch of the same samples. {_SEEDED}"
        )
    if not probe.thorough:
        return
    with (
        working("Reading the data a second time"),
        seeded_draws(_SEED),
        naming(f"{probe.name}.datasets()"),
    ):
        task = type(probe.task)(probe.config, probe.task.sources)
        has_files = any(isinstance(value, Path) for value in probe.learned.values())
        if has_files:  # a resumed run keeps its data
            task.take_learned(probe.learned)
        learned.take(task, None)
        again = returned.checked_datasets(task)
        differs = task.fingerprint() != probe.task.fingerprint()
    options = probe.config
    train_set = data.subset(again["train"], options.data.subset_ratio, options.seed)
    last = len(train_set) - 1
    probe.batch(train_set, [last, 0], _OTHER)  # samples read first must leave no trace
    before = {**probe.sets, "train": probe.train_set}
    again = {**again, "train": train_set}
    if differs or any(_differs(probe, split, before[split], again[split]) for split in SPLITS):
        raise BadInput(
            f"{probe.name}.datasets() or fingerprint() differs when the data is read again. "
            "Sort what is read; shuffle with a seeded generator: random.Random(0)."
        )


def _differs(probe: _Probe, split: str, first: Any, second: Any) -> bool:
    """Compares the number of samples, and a batch of samples from all over a split."""
    if len(first) != len(second):
        return True
    last = len(first) - 1
    places = [number * last // (_SIZE - 1) for number in range(_SIZE)]
    batch = probe.batch(first, places, _SEED, split)
    return not _same(batch, probe.batch(second, places, _SEED, split))


def _splits(probe: _Probe) -> None:
    """Doubts a split that shares samples with another one: by all texts, otherwise by the first and last samples."""
    for one, other in itertools.combinations(SPLITS, 2):
        first = probe.sets[one]
        second = probe.sets[other]
        try:
            texts = {*first.texts()}
            number = sum(text in texts for text in second.texts())
        except (AttributeError, BadInput):  # of a data set that has no texts
            number = len(second) * _overlap(probe, *sorted((first, second), key=len))
        if number:
            share = f"{number:,} of the {len(second):,} samples of {other!r} in {one!r} too"
            probe.doubts.append(
                f"{probe.name}.datasets() has {share}. Split them: trainbook.supervised.split does."
            )


def _overlap(probe: _Probe, shorter: Any, longer: Any) -> bool:
    if len(shorter) < len(longer) and isinstance(shorter[0], int):
        return False  # numbers from which samples are made begin at 0 in many a set
    last = len(shorter) - 1
    indices = sorted({round(number * last / (_SIZE - 1)) for number in range(_SIZE)})
    for shift in (0, len(longer) - len(shorter)):
        shifted = [index + shift for index in indices]
        if _same(probe.batch(shorter, indices), probe.batch(longer, shifted)):
            return True
    return False


def _example_batch(probe: _Probe) -> None:
    """Compares `example_batch` with real batches: as large, of the same types."""
    name = f"{probe.name}.example_batch()"
    bare = probe.bare()
    with put_back(), naming(name, "It makes a batch of the largest shape without reading data."):
        example = bare.example_batch(_SIZE, torch.device("cpu"))
    for key, real in probe.batches[0].items():
        value = example.get(key, torch.empty(0))
        is_alike = value.dim() == real.dim() and value.dtype == real.dtype
        sizes = zip(value.shape, real.shape, strict=False)
        if not is_alike or any(planned < size for planned, size in sizes):
            raise BadInput(
                f"{name} has {_form(value)} as {key!r}, a real batch {_form(real)}: the plan would be too small."
            )


def _form(value: Tensor) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}"


def _model(probe: _Probe) -> None:
    """Makes the model without data, twice: a new one each time, with the same weights of the same seed."""
    name = f"{probe.name}.model()"
    model = probe.make_model()
    weights = list(model.parameters()) if isinstance(model, nn.Module) else []
    if not any(value.requires_grad for value in weights):
        raise BadInput(f"{name} returns no torch.nn.Module with weights to train (requires_grad).")
    if probe.thorough:
        again = probe.make_model()
        if not {*map(id, again.parameters())}.isdisjoint(map(id, weights)):
            raise BadInput(
                f"{name} returns the same weights each time. It must build a new model on every call."
            )
        if not _same(model.state_dict(), again.state_dict()):
            raise BadInput(f"{name} makes other weights from the same seed. {_SEEDED}")
    precision = choose_precision(probe.config.training.precision, probe.device)
    widen_on_cpu(model, precision, probe.device)
    probe.model = model.to(probe.device)
    keep_in_fp32(probe.model, probe.config.training.fp32_modules, probe.device)


def _loss(probe: _Probe) -> None:
    """Compares counts, loss terms and gradients of a batch with the contract, and with its pieces."""
    task = probe.task
    batch = data.to_device(probe.batches[0], probe.device)
    with naming(f"{probe.name}.count()"):
        counts = add_counts([task.count(dict(batch))])
    advice = "The trainer calls it for every step, from 0 to the last."
    for step in (0, probe.config.training.max_steps - 1):
        with naming(f"{probe.name}.term_weights()", advice):
            returned.check_terms(task, counts, task.term_weights(step), counts)
    probe.model.train()
    begin = time.perf_counter()
    first, second = _passes(probe, batch, counts, [_SEED, _SEED])
    probe.is_slow = time.perf_counter() - begin > 2 * _SLOW
    if not _same(first, second, share=1e-4):
        raise BadInput(
            f"{probe.name}.loss() or the model gives another loss for the same seed, or changes the batch. {_SEEDED}"
        )
    _single_samples(probe, batch, counts)
    if any(counts.values()):
        _gradients(probe, _sums(probe, batch, counts), counts)
    probe.model.eval()
    try:
        _passes(probe, batch, counts, [_SEED])
    except BadInput:  # of a model without losses in this mode, such as a detector
        return
    _pieces(probe, batch, counts)


def _single_samples(probe: _Probe, batch: Batch, counts: Mapping[str, float]) -> None:
    """Trains on one sample if a micro-batch of the run will have one: batch norms refuse that."""
    training = probe.config.training
    smallest = norms.smallest_piece(training.slot, training.largest_micro_batch)
    if smallest > 1 or not norms.has_batch_norms(probe.model):
        return
    one = next(data.micro_batches(batch, 1))
    try:
        _passes(probe, one, counts, [_SEED])
    except BadInput as error:
        if error.__cause__ and norms.is_refusal(error.__cause__):
            raise norms.refused(training.slot, training.largest_micro_batch) from None
        raise


def _sums(
    probe: _Probe, batch: Batch, counts: Mapping[str, float], seed: int = _SEED
) -> dict[str, Tensor]:
    """Returns the sums of a batch's loss terms, each of shape (). Raises BadInput for anything else."""
    name = f"{probe.name}.loss()"
    precision = choose_precision(probe.config.training.precision, probe.device)
    mend = f"Return the sum of each loss term by name, and figures to log. The batch has {', '.join(batch)}."
    with put_back(), naming(name, mend), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_all(mix(seed), probe.device)  # as in a step
        with autocast(precision, probe.device):
            sums, _ = probe.task.loss(probe.model, dict(batch))
        returned.check_loss_terms(probe.task, counts, sums)
        returned.check_terms(probe.task, counts, {}, sums)
        sums = {term: value.float().reshape(()) for term, value in sums.items()}
    for term, value in sums.items():
        if counts[term] and not value.isfinite():
            raise BadInput(
                f"{name} gives NaN or infinity as {term!r}. Look for a division by zero, and NaN in data."
            )
    return sums


def _passes(
    probe: _Probe, batch: Batch, counts: Mapping[str, float], seeds: Sequence[int]
) -> list[dict[str, Tensor]]:
    """Returns the losses for each seed, without gradients; buffers stay unchanged."""
    buffers = [value.clone() for value in probe.model.buffers()]
    passes = []
    with torch.no_grad():
        for seed in seeds:
            passes.append(_sums(probe, batch, counts, seed))
            for value, before in zip(probe.model.buffers(), buffers, strict=True):
                value.copy_(before)
    return passes


def _gradients(probe: _Probe, sums: Mapping[str, Tensor], counts: Mapping[str, float]) -> None:
    """Back-propagates once: every trained parameter should get a gradient."""
    terms = [term for term, value in sums.items() if counts[term] and value.requires_grad]
    if not terms:
        raise BadInput(
            f"{probe.name}.loss() has no gradient: no .item(), .detach(), .numpy() or torch.no_grad() on the way."
        )
    advice = "Change no tensor in place: x = x + y, not x += y."
    with naming(f"The backward pass of {probe.name}.loss()", advice):
        torch.stack([sums[term] / counts[term] for term in terms]).sum().backward()
    trained: dict[str, nn.Parameter] = {}
    for group in groups_of(probe.task, probe.model):
        if group.is_trained(probe.task.step):
            trained |= group.parameters
    missing = [name for name, value in trained.items() if value.grad is None]
    probe.model.zero_grad(set_to_none=True)
    if missing:
        probe.doubts.append(
            f"{len(missing)} of {len(trained)} trained parameters, such as {missing[0]!r}, get no gradient from a "
            f"batch. Use them in {probe.name}.loss(), or freeze them: requires_grad_(False)."
        )


def _pieces(probe: _Probe, batch: Batch, counts: Mapping[str, float]) -> None:
    """Compares counts and losses of a batch with the sums over its halves.

    Losses that draw are compared by their means over `_DRAWS` passes, others by one. Raises BadInput.
    """
    halves = list(data.micro_batches(batch, _SIZE // 2))
    summed = add_counts(map(probe.task.count, halves))
    for term, count in counts.items():
        if not math.isclose(count, summed.get(term, 0), rel_tol=1e-4):
            raise BadInput(
                f"{probe.name}.count() of {term!r} is not the sum over a batch's halves. Count each sample by itself."
            )
    first, second = _passes(probe, batch, counts, [0, 3])
    draws = 1 if _same(first, second) else _DRAWS
    passes = []
    for number, piece in enumerate((batch, *halves)):
        seeds = range(number, 3 * draws, 3)
        passes.append(_passes(probe, piece, counts, seeds))
    for term in filter(counts.get, counts):
        losses = [torch.stack([sums[term] for sums in each]).double() for each in passes]
        whole = losses[0]  # (draws)
        both = torch.stack(losses[1:]).sum(0)  # (draws)
        mean = float(both.mean())
        error = 0.0
        if draws > 1:
            error = float(((whole.var() + both.var()) / draws).sqrt())
        limit = 0.02 * abs(mean) + 6 * error + 1e-12
        if abs(float(whole.mean() - both.mean())) > limit:
            raise BadInput(
                f"{probe.name}.loss() gives {whole.mean():.5g} as {term!r} of a batch, and {mean:.5g} for its halves "
                "together. It is a mean, where a sum is due (reduction='sum'), or samples see each other: "
                "(n, 1) and (n), say."
            )


class _Few(EvaluationLoader):
    """The first batches of a split; `dataset` is the whole, because a task may look at it."""

    batches = 2

    def __iter__(self) -> Iterator[Batch]:
        return itertools.islice(super().__iter__(), self.batches)


class _Fewest(_Few):
    batches = 1


def _evaluation(probe: _Probe) -> None:
    """Evaluates validation and test: the metric of `selection`, the same again, the baseline's, the unchanged model.

    A slow model is evaluated on a batch of each, and of the test once. Texts are cut after a few tokens.
    """
    name = f"{probe.name}.evaluate()"
    metric = probe.task.selection[0]
    probe.model.eval()

    def evaluated(kind: type[EvaluationLoader], size: int) -> dict[str, float]:
        loader = kind(probe.task, probe.sets[split], size, probe.device, step=0)
        place = naming(f"{name} of {split} samples")
        with seeded_draws(_SEED), torch.inference_mode(), returned.rehearsing(), place:
            return returned.checked_scores(probe.task, probe.task.evaluate(probe.model, loader))

    few = _Fewest if probe.is_slow else _Few
    for split in ("validation", "test"):
        try:
            scores = again = evaluated(few, _SIZE)
            if split == "validation" or not probe.is_slow:
                again = evaluated(few, _SIZE)
        except BadInput as error:
            if error.__cause__ is None:  # no error of the task's code
                raise
            scores = again = evaluated(EvaluationLoader, 32)  # it may need the whole split
        for key, value in scores.items():
            is_same = math.isclose(value, again[key], rel_tol=1e-4, abs_tol=1e-9)
            if math.isfinite(value) and not is_same:
                raise BadInput(f"{name} gives another {key!r} of the same samples. {_SEEDED}")
        if not math.isfinite(scores[metric]):
            probe.doubts.append(
                f"{name} gives {scores[metric]} as {metric!r} of a few samples of {split}."
            )
    if any(module.training for module in probe.model.modules()):
        raise BadInput(
            f"{name} leaves the model in training mode, which changes scores. Take out model.train()."
        )

    with put_back(), naming(f"{probe.name}.baseline()"):
        unknown = sorted(baseline_of(probe.task).keys() - scores.keys())
    if unknown:
        raise BadInput(
            f"{probe.name}.baseline() has {unknown[0]!r}, which evaluate() does not: {', '.join(scores)}."
        )


_CHECKS = (_data, _repeats, _splits, _example_batch, _model, _loss, _evaluation)
