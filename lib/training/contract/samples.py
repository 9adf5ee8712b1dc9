"""Checks of the data: descriptions, data sets, what a batch is made of, and that it follows from its seed alone."""

import os
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from torch import Tensor

from lib.errors import BadInput
from lib.machine import hardware
from lib.report.progress import working
from lib.task import SPLITS, Batch, checked_datasets
from lib.training import learned
from lib.training.contract.asked import Asked, alike, fetch, fetch_one
from lib.training.contract.sentences import asking
from lib.training.data import check_samples
from lib.training.draws import put_back, seeded_draws

BATCHES = 3  # drawn of the training data, at different places
_SEED, _OTHER = 11, 12  # of two slots


def descriptions(asked: Asked) -> Iterator[str]:
    """Checks `describe_data` and `fingerprint`."""
    with asking(f"{asked.name}.describe_data()"):
        described = asked.task.describe_data()
    if not isinstance(described, str):
        yield f"{asked.name}.describe_data() returns a {type(described).__name__}. Return one paragraph of text."
    with asking(f"{asked.name}.fingerprint()"):
        first, again = asked.task.fingerprint(), asked.task.fingerprint()
    if not isinstance(first, str):
        yield f"{asked.name}.fingerprint() returns a {type(first).__name__}. Return a text: a hash of the data."
    elif first != again:
        yield (
            f"{asked.name}.fingerprint() returns {first!r} and then {again!r}, so no run could ever be resumed. Hash "
            "what the files hold, or their names and sizes: no time, no id() and nothing random."
        )


def items(asked: Asked) -> Iterator[str]:
    """Checks that the first and the last sample of each data set can be read."""
    with seeded_draws(_SEED):
        for split in SPLITS:
            for index in sorted({0, len(asked.sets[split]) - 1}):
                fetch_one(asked, asked.sets[split], index, split)
    yield from ()


def batches(asked: Asked) -> list[Batch]:
    """Returns some training batches. Raises BadInput where one does not have the samples first, all of them."""
    train_set = asked.train_set(asked.sets)
    sizes = [asked.size] * BATCHES + [asked.size + 1]  # of another size, which tells classes from samples
    drawn = []
    for number, size in enumerate(sizes):
        indices = asked.indices(train_set, number * 7, size)
        batch = fetch(asked, train_set, indices, _SEED + number).batch
        if not isinstance(batch, dict):
            raise BadInput(f"{asked.name}.collate() returns a {type(batch).__name__}. Return tensors by name: a dict.")
        check_samples(batch)
        rows = len(next(iter(batch.values())))
        if rows != size:
            raise BadInput(
                f"{asked.name}.collate() makes {rows} rows of {size} samples. Each sample must be one row of each "
                "tensor: leave samples out in datasets(), and put what belongs to one sample into a further dimension."
            )
        if trained := [name for name, value in batch.items() if value.requires_grad]:
            raise BadInput(
                f"{asked.name}.collate() returns {trained[0]!r} with a gradient, which no process that loads data can "
                "hand over. Compute what has weights in loss()."
            )
        drawn.append(batch)
    return drawn[:BATCHES]


def repeated(asked: Asked) -> Iterator[str]:
    """Checks that a batch read again is the same one, from the same data sets."""
    train_set = asked.train_set(asked.sets)
    indices = asked.indices(train_set)
    first = fetch(asked, train_set, indices, _SEED)
    changed = first.before is not None and not alike(first.before, first.after)
    fetch(asked, train_set, asked.indices(train_set, 1), _OTHER)
    again = fetch(asked, train_set, indices, _SEED)
    if alike(first.batch, again.batch):
        return
    if changed:
        yield (
            f"{asked.name}.collate() changes the samples that it is handed in place, so they are others the next time. "
            "Copy before changing: .copy() or .clone()."
        )
    elif first.before is not None and again.before is not None and not alike(first.before, again.before):
        yield (
            f"{asked.name}.datasets()['train'] gives another sample when the same one is read again, so a resumed run "
            "would see others. Draw from torch, np.random or random, which are seeded for each batch, and not from a "
            "generator of your own, the system or the clock; change copies of what is kept (.copy(), .clone())."
        )
    else:
        yield (
            f"{asked.name}.collate() makes another batch of the same samples, so a resumed run would see others. Draw "
            "from its generator, torch, np.random or random, which are seeded for each batch, and not from a generator "
            "of your own, the system or the clock."
        )


def read_again(asked: Asked) -> Iterator[str]:
    """Checks that data sets made a second time have the same samples, whatever was read before and was drawn."""
    held = psutil.Process(os.getpid()).memory_info().rss
    if not asked.thorough or hardware.ram().available < held:  # a second copy might not fit
        return
    with working("Reading the data a second time"):
        sets, fingerprint = _fresh(asked, _SEED)
    if asked.task.fingerprint() == asked.task.fingerprint() != fingerprint:
        yield (
            f"{asked.name}.fingerprint() differs when the data is read again, so no run could ever be resumed. Hash "
            "what the files hold, in sorted order: no time, no id() and nothing random."
        )
    first, again = ({**named, "train": asked.train_set(named)} for named in (asked.sets, sets))
    if len(first["train"]) == len(again["train"]):
        fetch(asked, again["train"], asked.indices(first["train"]), _OTHER)  # what this draws must not stay
    different = [split for split in SPLITS if _difference(asked, first[split], again[split], split)]
    if not different:
        return
    unread = [_fresh(asked, seed)[0] for seed in (_SEED, _OTHER)]
    split = different[0]
    yield _difference(asked, unread[0][split], unread[1][split], split) or (
        f"{asked.name}.datasets()[{split!r}] keeps what it drew when a sample was first read, so a resumed run, which "
        "begins with other samples, would see others. Keep samples as they are before anything random, and draw each "
        "time."
    )


def _fresh(asked: Asked, seed: int) -> tuple[dict[str, Any], str]:
    """Returns data sets and fingerprint of another task on the same data, made where other numbers are drawn."""
    with seeded_draws(seed), asking(f"{asked.name}.datasets()"):
        sources = asked.task.sources
        task = type(asked.task)(asked.config, sources if len(sources) > 1 else asked.task.source)
        if asked.task.kept_from:
            task.take_kept(asked.task.kept_from)
        learned.take(task, None, asked.doubts.append)
        return checked_datasets(task), task.fingerprint()


def _difference(asked: Asked, one: Any, other: Any, split: str) -> str:
    """Returns a sentence where two data sets that should be the same are not; empty where they are."""
    name = f"{asked.name}.datasets()[{split!r}]"
    mend = (
        "A resumed run would train on other samples. Sort what is read (a folder has no order), and shuffle or split "
        "with a generator that is seeded in datasets(), such as random.Random(0)."
    )
    if len(one) != len(other):
        return f"{name} has {len(one):,} samples, and {len(other):,} when it is made again. {mend}"
    spread = sorted({number * (len(one) - 1) // max(1, asked.size - 1) for number in range(asked.size)})
    indices = asked.indices(one) if split == "train" else (spread * asked.size)[: asked.size]
    first, second = (fetch(asked, dataset, indices, _SEED, split).batch for dataset in (one, other))
    return "" if alike(first, second) else f"{name} has other samples when it is made again. {mend}"


def shared(asked: Asked) -> Iterator[str]:
    """Doubts a split whose samples are also those of another one."""
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        first, second = asked.sets[one], asked.sets[other]
        texts, others = (None, None) if first is second else (_texts(first), _texts(second))
        if texts is not None and others is not None:
            known = set(texts)
            number = sum(text in known for text in others)
            is_all = number == len(others)
        else:
            is_all = first is second or _same_samples(asked, first, second)
            number = len(second) if is_all else 0
        if is_all:
            asked.doubts.append(
                f"{asked.name}.datasets() has the same samples as {one!r} and as {other!r}, so the scores say nothing "
                "of unseen data. Split them."
            )
        elif number:
            asked.doubts.append(
                f"{asked.name}.datasets() has {number:,} of the {len(second):,} samples of {other!r} in {one!r} too, "
                "but for their targets. What is scored on them says nothing of unseen data. Split them, by "
                "lib.supervised.split say, which keeps the same ones together."
            )
    yield from ()


def _texts(dataset: Any) -> list[str] | None:
    """Returns a text for each sample, without its target, of a data set that has them; None for any other."""
    texts = getattr(dataset, "texts", None)
    try:
        found = texts() if callable(texts) else None
        return None if found is None else [*found]
    except BadInput:  # of what has no text
        return None


def _same_samples(asked: Asked, first: Any, second: Any) -> bool:
    """Says whether samples of the shorter set are those at the beginning, or at the end, of the longer one."""
    shorter, longer = sorted((first, second), key=len)
    if len(shorter) < len(longer) and isinstance(fetch_one(asked, shorter, 0, "test"), int):
        return False  # numbers from which samples are made begin at 0 in many a set
    number = min(asked.size, len(shorter))
    spread = [index * (len(shorter) - 1) // max(1, number - 1) for index in range(number)]
    indices = (spread * asked.size)[: asked.size]
    these = fetch(asked, shorter, indices, _SEED).batch
    for skipped in {0, len(longer) - len(shorter)}:
        those = fetch(asked, longer, [index + skipped for index in indices], _SEED).batch
        if alike(these, those):
            return True
    return False


def example(asked: Asked, drawn: list[Batch]) -> Iterator[str]:
    """Checks that `example_batch` is as large as each batch that was drawn."""
    name, bare = f"{asked.name}.example_batch()", asked.bare()
    size = asked.size
    with put_back(), asking(name, "It makes a batch of the largest shape without reading data."):
        example = bare.example_batch(size, torch.device("cpu"))
        check_samples(example)
    for key in drawn[0]:
        if key not in example:
            yield f"{name} has no {key!r}, which collate returns. The memory plan needs every tensor of a batch."
            continue
        for batch in drawn:
            if problem := _too_small(example[key], batch[key], size):
                yield f"{name} has {key!r} {problem}. The memory plan would be too small; give it the largest real one."
                break


def _too_small(example: Tensor, real: Tensor, size: int) -> str:
    if example.dtype != real.dtype:
        return f"as {example.dtype} where a real batch has {real.dtype}"
    if example.dim() != real.dim():
        return f"of shape {tuple(example.shape)} where a real batch has {tuple(real.shape)}"
    if len(example) != size:
        return f"with {len(example)} samples where {size} were asked for"
    if any(a < b for a, b in zip(example.shape, real.shape, strict=True)):
        return f"of shape {tuple(example.shape)}, and a real batch has {tuple(real.shape)}"
    return ""
