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

_LENGTHS = [
    256 * n for n in range(1, 512) if n % 2 ** max(0, n.bit_length() - 4) == 0
]  # the next is an eighth longer

_FAR = 8  # times a length: the time of a trace grows with the length, and the second one is traced with more layers


def answer(
    question: Question, folded: Folded, prediction: Prediction, tokens: int
) -> Iterator[str]:
    """Yields what to print: memory, what was assumed, the time for `tokens`, the largest length, and remedies."""
    yield f"{question.model}, {question.method}, {question.batch} x {question.length:,} tokens:\n{prediction}"
    yield question.assumed
    if question.method != "inference":
        yield _time(question, prediction, tokens)
    if length := _longest(folded, prediction):
        yield f"The largest length that fits: {length:,} tokens, {question.batch} at once."
    if not prediction.fits:
        yield f"To make it fit: {'; '.join(_remedies(question, prediction, length)) or 'take a smaller model'}."


def longest(question: Question) -> int:
    """Returns the largest of _LENGTHS, and of the model's own, that fits; 0 for none."""
    folded = Folded(question)
    return _longest(folded, folded.at(question.length))


def _longest(folded: Folded, prediction: Prediction) -> int:
    """Returns the same from the prediction of the question's own length.

    The peak grows with the length ever faster: the line through two lengths lies above it between them and below it
    beyond them, so most lengths are decided without a trace.
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
    beside = [pair for pair in (smaller[-2:], larger[:2]) if len(pair) == 2]
    lines = [
        _line(*pair, peaks, length)
        for pair in beside
        if all(math.isfinite(peaks[other]) for other in pair)
    ]
    if any(line > limit for line in lines):
        return False
    return None


def _line(first: int, second: int, peaks: Mapping[int, float], length: int) -> float:
    return peaks[first] + (peaks[second] - peaks[first]) * (length - first) / (second - first)


def _next(unknown: Sequence[int], peaks: Mapping[int, float], limit: int, weights: int) -> int:
    """Returns the length to trace next: by one peak that above the weights grows in proportion, else by two."""
    if len(peaks) == 1:
        most = _FAR * max(peaks)
        peaks = {0: weights, **peaks}
        fitting = [
            length for length in unknown if _line(*peaks, peaks, length) <= limit and length <= most
        ]
        if fitting:
            return fitting[-1]
        return unknown[0]
    is_between = min(peaks) < unknown[0] and unknown[-1] < max(peaks)
    if is_between:
        return unknown[len(unknown) // 2]
    return unknown[-1]


def _time(question: Question, prediction: Prediction, tokens: int) -> str:
    low, high = (
        tokens / question.batch / question.length / 3600 * each for each in prediction.pass_seconds
    )
    hours = math.sqrt(low * high)
    takes = f"take {computed(hours)} hours on one {prediction.card}, computed ({computed(low)} to {computed(high)})."
    share, sessions = quota(hours * 3600 / 2)
    week = (
        f"{share} of a week's {QUOTA_HOURS:.0f} hours, in {sessions} session{'s' * (sessions > 1)}"
    )
    halves = f" Kaggle's two take half of that: {week}." * (prediction.card == CARDS["t4"].name)
    return f"{tokens:,} tokens, padding among them, {takes}{halves}"


def _remedies(question: Question, prediction: Prediction, length: int) -> Iterator[str]:
    if length:
        yield f"--length {length}"
    elif question.batch > 1 and (single := longest(replace(question, batch=1))):
        yield f"--batch 1 --length {min(single, question.length)}"
    if question.method in ("lora", "full") and fits(replace(question, method="qlora")).fits:
        yield "--method qlora"
    if (
        question.method == "inference"
        and not question.weights
        and fits(replace(question, quantised="nf4")).fits
    ):
        yield "--quantised nf4"
    if larger := [
        name for name, card in CARDS.items() if Target(card).limit_bytes >= prediction.peak_bytes
    ]:
        yield f"--gpu {' or '.join(sorted(larger, key=lambda name: CARDS[name].memory_gib)[:3])}"
