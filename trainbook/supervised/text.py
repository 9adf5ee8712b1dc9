"""Texts that a model writes: how near they are to the right ones, and how they are written in batches that fit."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.errors import BadInput
from lib.machine import memory
from lib.task import Batch
from trainbook.supervised import scoring
from trainbook.supervised.batches import in_batches
from trainbook.supervised.samples import IGNORED, target_of


def normal(text: str) -> str:
    """Returns a text as it is compared: NFC, small letters, single spaces, without punctuation around it."""
    text = " ".join(
        unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).lower()).split()
    )
    begin = 0
    end = len(text)
    is_outer = [unicodedata.category(letter)[0] in "PZC" for letter in text]
    while (
        begin < end and is_outer[begin] and not text[begin + 1 : begin + 2].isdecimal()
    ):  # the sign of -5
        begin += 1
    while end > begin and is_outer[end - 1]:
        end -= 1
    return text[begin:end] or text


def words(text: str) -> list[str]:
    """Returns the words of a text in order, with their accents: neither punctuation nor signs are any."""
    letters = (c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in normal(text))
    return "".join(letters).split()


def exact(right: str, written: str) -> float:
    return float(normal(written) == normal(right))


def token_f1(right: str, written: str) -> float:
    """Returns the harmonic mean of precision and recall of words, as SQuAD has it, without leaving any word out."""
    wanted = words(right)
    given = words(written)
    if not given or not wanted:  # signs alone, "-" or "+"
        return exact(right, written)
    return 2 * sum((Counter(given) & Counter(wanted)).values()) / (len(given) + len(wanted))


def rouge_l(right: str, written: str) -> float:
    """Returns the harmonic mean over the longest common subsequence of words (Lin, 2004, with beta 1)."""
    wanted = words(right)
    given = words(written)
    if not given or not wanted:
        return exact(right, written)
    row = [0] * (len(wanted) + 1)
    for word in given:
        above = row
        row = [0]
        for place, other in enumerate(wanted):
            row.append(above[place] + 1 if word == other else max(above[place + 1], row[place]))
    return 2 * row[-1] / (len(given) + len(wanted))


METRICS: Mapping[str, Callable[[str, str], float]] = {
    "exact": exact,
    "token_f1": token_f1,
    "rouge_l": rouge_l,
}


class Mean:
    """A metric of texts: the mean over them of a score by name, or of a function of (right, written)."""

    def __init__(self, metric: Any):
        self.__name__ = scoring.name_of(metric)
        self.score = METRICS.get(metric, metric)
        if isinstance(self.score, str):
            raise BadInput(
                f"There is no metric {metric!r} of texts. Name {', '.join(METRICS)}, or write a function."
            )

    def each(self, right: np.ndarray, written: np.ndarray) -> list[float]:
        return [self.score(*pair) for pair in zip(right, written, strict=True)]

    def __call__(self, right: np.ndarray, written: np.ndarray) -> float:
        return sum(self.each(right, written)) / len(right)


def commonest(texts: Iterable[str]) -> str:
    """Returns the commonest text as it is mostly spelled; of equally many the first by the alphabet."""
    spelled = Counter(texts)
    counts: Counter[str] = Counter()
    for text, number in spelled.items():
        counts[normal(text)] += number
    best = min(counts, key=lambda text: (-counts[text], text))
    return min(
        (text for text in spelled if normal(text) == best), key=lambda text: (-spelled[text], text)
    )


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """(B, L, V), (B, L) -> (B, L) cross-entropies; 0 where a label is IGNORED."""
    flat = (
        outputs.float().flatten(0, 1),
        labels.flatten(),
    )  # of more dimensions a GPU refuses it, if deterministic
    return F.cross_entropy(*flat, reduction="none", ignore_index=IGNORED).view_as(labels)


def generate(model: Any, beams: int, length: int, returned: int = 1, **inputs: Any) -> Tensor:
    """Returns (samples * returned, tokens) what a model of transformers writes; one beam takes the likeliest token."""
    options = {
        "num_beams": beams,
        "num_return_sequences": returned,
        "max_new_tokens": length,
        "do_sample": False,
    }
    prompt = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    return model.generate(**inputs, **options, use_cache=True)[:, prompt:]


def in_parts(
    task: Any, model: nn.Module, batch: Batch, beams: int, work: Callable[..., Sequence[Any]]
) -> list[Any]:
    """Returns `work(model, batch, beams)` in parts of `task.beams_at_once` beams; half as many once memory runs out."""
    size = len(next(iter(batch.values())))
    most = max(1, (task.beams_at_once or size * beams) // beams)

    def part(rows: Sequence[int]) -> Sequence[Any]:
        try:
            return work(
                model, {name: value[rows[0] : rows[-1] + 1] for name, value in batch.items()}, beams
            )
        except Exception as error:
            if memory.is_oom(error):
                task.beams_at_once = max(1, len(rows) // 2) * beams
            raise

    parts: Iterable[Sequence[Any]] = in_batches(part, range(size), most)
    return [text for texts in parts for text in texts]


@torch.no_grad()
def evaluate(task: Any, model: nn.Module, loader: Any) -> tuple[dict[str, float], scoring.Judged]:
    """Returns the mean loss of a token of the right texts with the task's metrics, and right and written texts."""
    dataset = loader.dataset
    written = list[str]()
    total = 0.0
    tokens = 0
    for batch in loader:
        labels = batch["labels"]
        outputs = task.outputs(model, batch)
        if isinstance(outputs, tuple):
            each = task.summed_loss(outputs, labels)
        else:
            each = losses(outputs, labels)
        total += float(each if each.dim() == 0 else each[labels != IGNORED].sum())
        tokens += int((labels != IGNORED).sum())
        written += in_parts(task, model, batch, task.beams(dataset.name), task.write)
    right = targets(dataset)[: len(written)]  # a check looks at the first ones alone
    judged = scoring.Judged(right, np.array(written, object), sample=np.arange(len(written)))
    return {"loss": total / max(tokens, 1), **scoring.scores(task.metrics, judged)}, judged


def targets(part: Any) -> np.ndarray:
    return np.array([target_of(sample) for sample in part.samples], object)


def together(
    task: Any, models: Sequence[nn.Module], samples: Sequence[Any]
) -> list[dict[str, float]]:
    """Returns the different texts for each sample with their mean probability by several models, spelled as first."""
    device = next(models[0].parameters()).device
    batch = {name: value.to(device) for name, value in task.labelled(samples).items()}
    by_model = [
        in_parts(task, model, batch, task.beams("test"), task.candidates) for model in models
    ]
    rows = []
    for candidates in zip(*by_model, strict=True):
        first: dict[str, str] = {}
        shares: dict[str, float] = {}
        for text, share in (pair for texts in candidates for pair in texts.items()):
            spelled = first.setdefault(normal(text), text)
            shares[spelled] = shares.get(spelled, 0.0) + share / len(models)
        rows.append(shares)
    return rows
