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
from lib.task.contract import most_tokens
from trainbook.supervised import scoring
from trainbook.supervised.batches import in_batches
from trainbook.supervised.samples import IGNORED, target_of
from trainbook.supervised.scoring import Judged

_LONGEST_RUN = 6  # letters, in chrF
_AT_ONCE = 256  # texts beside all training texts


def normal(text: str) -> str:
    """Normalises a text for comparison: NFC, small letters, single spaces, without punctuation around it."""
    small = unicodedata.normalize("NFC", text).lower()
    text = " ".join(unicodedata.normalize("NFC", small).split())
    begin = 0
    end = len(text)
    is_outer = [unicodedata.category(letter)[0] in "PZC" for letter in text]
    while begin < end and is_outer[begin]:
        if text[begin + 1 : begin + 2].isdecimal():  # the sign of -5
            break
        begin += 1
    while end > begin and is_outer[end - 1]:
        end -= 1
    return text[begin:end] or text


def words(text: str) -> list[str]:
    """Returns the words of a text in order, with their accents, without punctuation and signs."""
    letters = [letter if _is_of_word(letter) else " " for letter in normal(text)]
    return "".join(letters).split()


def _is_of_word(letter: str) -> bool:
    return letter.isalnum() or unicodedata.category(letter)[0] == "M"


def exact(right: str, written: str) -> float:
    return float(normal(written) == normal(right))


def token_f1(right: str, written: str) -> float:
    """Returns the harmonic mean of precision and recall of words, as SQuAD has it, without leaving any word out."""
    wanted = words(right)
    given = words(written)
    if not given or not wanted:  # only a sign, "-" or "+"
        return exact(right, written)
    common = Counter(given) & Counter(wanted)
    return 2 * sum(common.values()) / (len(given) + len(wanted))


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
            longest = max(above[place + 1], row[place])
            row.append(above[place] + 1 if word == other else longest)
    return 2 * row[-1] / (len(given) + len(wanted))


def chrf(right: str, written: str) -> float:
    """Returns the F score of runs of 1 to 6 letters without spaces, recall counted twice (Popovic, 2015, chrF2)."""
    precision = 0.0
    recall = 0.0
    orders = 0
    for length in range(1, _LONGEST_RUN + 1):
        wanted = _runs(right, length)
        given = _runs(written, length)
        if not wanted or not given:
            continue
        common = sum((wanted & given).values())
        precision += common / sum(given.values())
        recall += common / sum(wanted.values())
        orders += 1
    if not precision + recall:
        return exact(right, written)
    return 5 * precision * recall / (4 * precision + recall) / orders


def _runs(text: str, length: int) -> Counter[str]:
    letters = "".join(text.split())
    return Counter(letters[place : place + length] for place in range(len(letters) - length + 1))


METRICS: Mapping[str, Callable[[str, str], float]] = {
    "exact": exact,
    "chrf": chrf,
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
                f"There is no metric {metric!r} of texts. "
                f"Name {', '.join(METRICS)}, or write a function."
            )

    def each(self, right: np.ndarray, written: np.ndarray) -> list[float]:
        return [self.score(*pair) for pair in zip(right, written, strict=True)]

    def __call__(self, right: np.ndarray, written: np.ndarray) -> float:
        return sum(self.each(right, written)) / len(right)


def commonest(texts: Iterable[str]) -> str:
    """Returns the commonest text in its commonest spelling; ties go to the first by the alphabet."""
    spelled = Counter(texts)
    counts: Counter[str] = Counter()
    for text, number in spelled.items():
        counts[normal(text)] += number
    best = min(counts, key=lambda text: (-counts[text], text))
    spellings = [text for text in spelled if normal(text) == best]
    return min(spellings, key=lambda text: (-spelled[text], text))


def copied_and_nearest(parts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the test's texts by two methods: its source, and the target of the nearest training source.

    The nearest has the largest cosine of TF-IDF of runs of 1 to 4 letters.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # a second, which no training needs

    sources, targets = zip(*parts["train"].samples, strict=True)
    asked = [source for source, _ in parts["test"].samples]
    runs = TfidfVectorizer(analyzer="char", ngram_range=(1, 4), sublinear_tf=True)
    known = runs.fit_transform(sources)
    nearest = []
    for first in range(0, len(asked), _AT_ONCE):
        likeness = runs.transform(asked[first : first + _AT_ONCE]) @ known.T
        nearest += [targets[place] for place in np.asarray(likeness.argmax(1)).ravel()]
    return {"the source": asked, "nearest source's target": nearest}


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """(B, L, V), (B, L) -> (B, L) cross-entropies; 0 where a label is IGNORED."""
    scores = outputs.float().flatten(0, 1)  # a GPU refuses more dimensions, if deterministic
    each = F.cross_entropy(scores, labels.flatten(), reduction="none", ignore_index=IGNORED)
    return each.view_as(labels)


def generate(model: Any, beams: int, length: int, returned: int = 1, **inputs: Any) -> Tensor:
    """Generates tokens with a transformers model, (samples * returned, tokens); one beam takes the likeliest token."""
    options = {
        "num_beams": beams,
        "num_return_sequences": returned,
        "max_new_tokens": most_tokens(length),
        "do_sample": False,
    }
    prompt = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    return model.generate(**inputs, **options, use_cache=True)[:, prompt:]


def in_parts(
    task: Any, model: nn.Module, batch: Batch, beams: int, work: Callable[..., Sequence[Any]]
) -> list[Any]:
    """Returns `work(model, batch, beams)` in parts of so many beams at once; half as many once memory runs out."""
    size = len(next(iter(batch.values())))
    most = max(1, (task._beams_at_once or size * beams) // beams)

    def part(rows: Sequence[int]) -> Sequence[Any]:
        some = {name: value[rows[0] : rows[-1] + 1] for name, value in batch.items()}
        try:
            return work(model, some, beams)
        except Exception as error:
            if memory.is_oom(error):
                task._beams_at_once = max(1, len(rows) // 2) * beams
            raise

    parts: Iterable[Sequence[Any]] = in_batches(part, range(size), most)
    return [text for texts in parts for text in texts]


@torch.no_grad()
def evaluate(task: Any, model: nn.Module, loader: Any) -> tuple[dict[str, float], Judged]:
    """Returns the mean loss of a token of the right texts with the task's metrics, and right and written texts."""
    part = loader.dataset
    written = list[str]()
    total = 0.0
    tokens = 0
    for batch in loader:
        labels = batch["labels"]
        known = labels != IGNORED
        outputs = task.outputs(model, batch)
        if isinstance(outputs, tuple):
            total += float(task.summed_loss(outputs, labels))
        else:
            total += float(losses(outputs, labels)[known].sum())
        tokens += int(known.sum())
        written += in_parts(task, model, batch, task.beams(part.name), task.write)
    right = targets(part)[: len(written)]  # a check reads only the first ones
    judged = Judged(right, np.array(written, object), sample=np.arange(len(written)))
    return {"loss": total / max(tokens, 1), **scoring.scores(task.metrics, judged)}, judged


def targets(part: Any) -> np.ndarray:
    return np.array([target_of(sample) for sample in part.samples], object)


def together(
    task: Any, models: Sequence[nn.Module], samples: Sequence[Any]
) -> list[dict[str, float]]:
    """Returns the different texts for each sample with their mean probability by several models, spelled as first."""
    device = next(models[0].parameters()).device
    batch = {name: value.to(device) for name, value in task.labelled(samples).items()}
    beams = task.beams("test")
    by_model = [in_parts(task, model, batch, beams, task.candidates) for model in models]
    return [_joined(candidates) for candidates in zip(*by_model, strict=True)]


def _joined(candidates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean probability of each different text over the models, spelled as first."""
    first: dict[str, str] = {}
    shares: dict[str, float] = {}
    for texts in candidates:
        for text, share in texts.items():
            spelled = first.setdefault(normal(text), text)
            shares[spelled] = shares.get(spelled, 0.0) + share / len(candidates)
    return shares
