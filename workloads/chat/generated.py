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


def _share(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8


def split_of(value: str) -> str:
    """Returns the split of a free value by its hash: 70 % train, 15 % validation, 15 % test."""
    share = _share(f"value {value}")
    if share < 0.7:
        return "train"
    return "validation" if share < 0.85 else "test"


def drawn(kind: str, split: str, rng: random.Random) -> tuple[str, str | int]:
    """Draws a slot's value, as the sentence says it and as the call has it: "3 pm" and "15:00".

    Free values (names, texts, numbers, minutes) are of one split alone.
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
        return (NUMBERS[number - 1] if rng.random() < 0.5 else str(number)), number
    elif kind in CLOSED:
        return (value := rng.choice(CLOSED[kind])), value
    while split_of(value := _free(kind, rng)) != split:
        pass
    return value, int(value) if kind in ("number", "degrees") else value


def _free(kind: str, rng: random.Random) -> str:
    if kind == "time":
        return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    if kind in ("number", "degrees"):
        return str(rng.randint(2, 999) if kind == "number" else rng.randint(10, 99))
    if kind == "name":
        return "".join(rng.choices(SYLLABLES, k=rng.choice([2, 2, 3]))).capitalize()
    fewest = int(kind[-1])
    return " ".join(rng.choices(WORDS, k=rng.randint(fewest, 3 if fewest == 1 else 5)))


def combinations(held_out: bool) -> list[tuple[str, int, int, bool]]:
    """Returns function, wording, opening and whether the tail follows; a fifth, by hash, is only in the test."""
    every = [
        combination for name, function in API.items() for combination in itertools.product(
            [name], range(len(function["wordings"])), range(len(OPENINGS)), [False, True][: 1 + bool(function["tail"])])
    ]  # fmt: skip
    return [
        combination
        for combination in every
        if (_share(f"combination {combination}") < 0.2) == held_out
    ]


def pairs(seed: int, split: str, count: int) -> Iterator[tuple[str, str]]:
    """Yields distinct (sentence, JSON call); every second one of the test has a combination held out."""
    rng = random.Random(f"{split} {seed}")
    prompts = set[str]()
    every = [
        (held_out, combination)
        for held_out in (False, True)
        for combination in combinations(held_out)
    ]
    by_name = {
        (is_held, one[0]): [c for h, c in every if (h, c[0]) == (is_held, one[0])]
        for is_held, one in every
    }
    while len(prompts) < count:
        held_out = split == "test" and len(prompts) % 2 == 1
        name = rng.choice([name for name in API if (held_out, name) in by_name])
        _, wording, opening, has_tail = rng.choice(by_name[held_out, name])
        text = OPENINGS[opening] + API[name]["wordings"][wording] + API[name]["tail"] * has_tail
        values = {
            slot: drawn(kind, split, rng)
            for slot, kind in API[name]["slots"].items()
            if f"{{{slot}}}" in text
        }
        prompt = text.format(**{slot: words for slot, (words, _) in values.items()})
        if prompt not in prompts:
            prompts.add(prompt)
            yield (
                prompt,
                json.dumps({"call": name, **{slot: value for slot, (_, value) in values.items()}}),
            )


def splits(seed: int, train: int, validation: int, test: int) -> dict[str, list[Row]]:
    """Returns so many generated rows by split; those of validation and test are the same under every seed.

    But for sentences without a free value ("timer two minutes") that training has, too.
    """
    parts = dict[str, list[Row]]()
    prompts = set[str]()
    for split, count in {"train": train, "validation": validation, "test": test}.items():
        of_split = dict(pairs(seed * (split == "train"), split, count))
        parts[split] = [
            Row((("user", prompt),), of_split[prompt])
            for prompt in of_split
            if prompt not in prompts
        ]
        prompts |= of_split.keys()
    return parts
