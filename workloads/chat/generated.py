"""Generates the task "call": a sentence becomes the JSON call of a small API, with values never seen in training."""

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import yaml

from workloads.chat.rows import Row

_CALL = yaml.safe_load(Path(__file__).with_name("call.yaml").read_text("utf-8"))
SYLLABLES, WORDS, NUMBERS = (_CALL[name].split() for name in ("syllables", "words", "numbers"))
CLOSED = {kind: values.split() for kind, values in _CALL["closed"].items()}
OPENINGS = _CALL["openings"]
API = _CALL["functions"]
Combination = tuple[str, int, int, bool]  # function, wording, opening, and whether the tail follows


def _share(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8


def split_of(value: str) -> str:
    """Returns the split of a free value by its hash: 70 % train, 15 % validation, 15 % test."""
    share = _share(f"value {value}")
    if share < 0.7:
        return "train"
    return "validation" if share < 0.85 else "test"


def drawn(kind: str, split: str, rng: random.Random) -> tuple[str, str | int]:
    """Draws a slot's value for the sentence and for the call: "3 pm" and "15:00".

    Each free value (name, text, number, minute) belongs to one split.
    """
    if kind == "time":
        hour = rng.randint(1, 11)
        form = rng.choice(["am", "pm", "clock", "clock", "noon"])
        if form == "noon":
            return rng.choice([("noon", "12:00"), ("midnight", "00:00")])
        if form != "clock":
            return f"{hour} {form}", f"{hour + 12 * (form == 'pm'):02d}:00"
    elif kind == "count":
        number = rng.randint(1, 12)
        word = NUMBERS[number - 1] if rng.random() < 0.5 else str(number)
        return word, number
    elif kind in CLOSED:
        value = rng.choice(CLOSED[kind])
        return value, value
    while split_of(value := _free(kind, rng)) != split:
        pass
    if kind in ("number", "degrees"):
        return value, int(value)
    return value, value


def _free(kind: str, rng: random.Random) -> str:
    if kind == "time":
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    if kind == "number":
        return str(rng.randint(2, 999))
    if kind == "degrees":
        return str(rng.randint(10, 99))
    if kind == "name":
        syllables = rng.choices(SYLLABLES, k=rng.choice([2, 2, 3]))
        return "".join(syllables).capitalize()
    fewest = int(kind[-1])
    most = 3 if fewest == 1 else 5
    return " ".join(rng.choices(WORDS, k=rng.randint(fewest, most)))


def combinations(held_out: bool) -> list[Combination]:
    """Returns function, wording, opening and whether the tail follows; a fifth, by hash, is only in the test."""
    every: list[Combination] = []
    for name, function in API.items():
        wordings = range(len(function["wordings"]))
        tails = [False, True] if function["tail"] else [False]
        every += itertools.product([name], wordings, range(len(OPENINGS)), tails)
    return [each for each in every if (_share(f"combination {each}") < 0.2) == held_out]


def pairs(seed: int, split: str, count: int) -> Iterator[tuple[str, str]]:
    """Yields distinct (sentence, JSON call); every second one of the test has a combination held out."""
    rng = random.Random(f"{split} {seed}")
    prompts = set[str]()
    by_name = {held_out: _by_name(combinations(held_out)) for held_out in (False, True)}
    while len(prompts) < count:
        choices = by_name[split == "test" and len(prompts) % 2 == 1]
        name = rng.choice([name for name in API if name in choices])
        function = API[name]
        _, wording, opening, has_tail = rng.choice(choices[name])
        text = OPENINGS[opening] + function["wordings"][wording] + function["tail"] * has_tail
        words: dict[str, str] = {}
        call: dict[str, str | int] = {"call": name}
        for slot, kind in function["slots"].items():
            if f"{{{slot}}}" in text:
                words[slot], call[slot] = drawn(kind, split, rng)
        prompt = text.format(**words)
        if prompt not in prompts:
            prompts.add(prompt)
            yield prompt, json.dumps(call)


def _by_name(every: list[Combination]) -> dict[str, list[Combination]]:
    groups: dict[str, list[Combination]] = {}
    for combination in every:
        groups.setdefault(combination[0], []).append(combination)
    return groups


def splits(seed: int, train: int, validation: int, test: int) -> dict[str, list[Row]]:
    """Generates rows by split; validation and test depend on the seed by left-out sentences only.

    Those have no free value ("timer two minutes") and occur in an earlier split.
    """
    parts = dict[str, list[Row]]()
    prompts = set[str]()
    for split, count in {"train": train, "validation": validation, "test": test}.items():
        answers = dict(pairs(seed * (split == "train"), split, count))
        new = [prompt for prompt in answers if prompt not in prompts]
        parts[split] = [Row((("user", prompt),), answers[prompt]) for prompt in new]
        prompts |= answers.keys()
    return parts
