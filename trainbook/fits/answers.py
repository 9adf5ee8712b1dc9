"""Answers `trainbook fits Qwen2.5-7B --method qlora --gpu t4 --length 2048`: memory, time, the largest length."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lib.machine.facts import CARDS
from lib.planner import Prediction
from lib.planner.card import Target
from lib.planner.table import QUOTA_HOURS, quota
from lib.text import computed
from trainbook.fits.folded import Folded, fits, peak_of
from trainbook.fits.language import Question, settings_of


def _lengths() -> Iterator[int]:
    """Yields multiples of 256, each an eighth to a quarter longer than the one before."""
    for number in range(1, 512):
        if number % 2 ** max(0, number.bit_length() - 4) == 0:
            yield 256 * number


_LENGTHS = list(_lengths())
_FAR = 8  # times the longest traced length, at most: a trace takes longer with the length


def answer(
    question: Question, folded: Folded, prediction: Prediction, tokens: int
) -> Iterator[str]:
    """Yields lines to print: memory, assumptions, time for `tokens`, largest length, remedies."""
    yield f"{question.model}, {question.method}, {question.batch} x {question.length:,} tokens:\n{prediction}"
    yield question.assumed
    if question.method != "inference":
        yield _time(question, prediction, tokens)
    if length := _longest(folded, prediction):
        yield f"The largest length that fits: {length:,} tokens, {question.batch} at once."
    if not prediction.fits:
        remedies = "; ".join(_remedies(question, prediction, length))
        yield f"To make it fit: {remedies or 'take a smaller model'}."


def longest(question: Question) -> int:
    """Returns the largest length that fits, of _LENGTHS and the model's maximum; 0 if no length fits."""
    folded = Folded(question)
    return _longest(folded, folded.at(question.length))


def _longest(folded: Folded, prediction: Prediction) -> int:
    """Returns the same, given the prediction at the question's length.

    The peak is convex in the length: the line through two lengths lies above it between them and
    below it beyond them, so most lengths are decided without a trace.
    """
    bound = settings_of(folded.question.model).get("max_position_embeddings") or 2**17
    lengths = [*(length for length in _LENGTHS if length < bound), bound]
    limit = prediction.limit_bytes
    peaks = {folded.question.length: peak_of(prediction)}
    while unknown := [length for length in lengths if _does_fit(length, peaks, limit) is None]:
        length = _next(unknown, peaks, limit, prediction.moments["after load"])
        peaks[length] = folded.peak_at(length)
    return max((length for length in lengths if _does_fit(length, peaks, limit)), default=0)


def _does_fit(length: int, peaks: Mapping[int, float], limit: int) -> bool | None:
    """Returns whether a length fits by the peaks of others; None if they do not decide it."""
    smaller = sorted(other for other in peaks if other <= length)
    larger = sorted(other for other in peaks if other >= length)
    if any(peaks[other] <= limit for other in larger):
        return True
    if any(peaks[other] > limit for other in smaller):
        return False
    if smaller and larger and _line(smaller[-1], larger[0], peaks, length) <= limit:
        return True
    for pair in (smaller[-2:], larger[:2]):
        if len(pair) < 2 or not all(math.isfinite(peaks[other]) for other in pair):
            continue
        first, second = pair
        if _line(first, second, peaks, length) > limit:
            return False
    return None


def _line(first: int, second: int, peaks: Mapping[int, float], length: int) -> float:
    rise = peaks[second] - peaks[first]
    return peaks[first] + rise * (length - first) / (second - first)


def _next(unknown: Sequence[int], peaks: Mapping[int, float], limit: int, weights: int) -> int:
    """Returns the length to trace next.

    After one trace it is the largest that fits if memory beyond the weights is proportional to the length.
    """
    if len(peaks) > 1:
        if min(peaks) < unknown[0] and unknown[-1] < max(peaks):
            return unknown[len(unknown) // 2]
        return unknown[-1]
    traced = max(peaks)
    peaks = {0: weights, **peaks}
    near = [length for length in unknown if length <= _FAR * traced]
    fitting = [length for length in near if _line(0, traced, peaks, length) <= limit]
    if fitting:
        return fitting[-1]
    return unknown[0]


def _time(question: Question, prediction: Prediction, tokens: int) -> str:
    passes = tokens / question.batch / question.length
    low, high = (passes / 3600 * seconds for seconds in prediction.pass_seconds)
    hours = math.sqrt(low * high)
    interval = f"{computed(low)} to {computed(high)}"
    sentence = (
        f"{tokens:,} tokens, padding among them, take {computed(hours)} hours on one"
        f" {prediction.card}, computed ({interval})."
    )
    if prediction.card != CARDS["t4"].name:
        return sentence
    share, sessions = quota(hours * 3600 / 2)
    return (
        f"{sentence} Kaggle's two take half of that: {share} of a week's {QUOTA_HOURS:.0f} hours,"
        f" in {sessions} session{'s' * (sessions > 1)}."
    )


def _remedies(question: Question, prediction: Prediction, length: int) -> Iterator[str]:
    if length:
        yield f"--length {length}"
    elif question.batch > 1 and (single := longest(replace(question, batch=1))):
        yield f"--batch 1 --length {min(single, question.length)}"
    if question.method in ("lora", "full") and fits(replace(question, method="qlora")).fits:
        yield "--method qlora"
    is_16_bit = question.method == "inference" and not question.weights
    if is_16_bit and fits(replace(question, quantised="nf4")).fits:
        yield "--quantised nf4"
    needed = prediction.peak_bytes
    larger = [name for name, card in CARDS.items() if Target(card).limit_bytes >= needed]
    if larger:
        larger.sort(key=lambda name: CARDS[name].memory_gib)
        yield f"--gpu {' or '.join(larger[:3])}"
