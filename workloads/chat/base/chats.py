"""Generates the chats that the small base learns from: copies, JSON, examples to follow, invented functions.

No chat has a function, a wording or a held-out value of the task "call".
"""

import json
import random
from collections.abc import Iterable
from typing import NamedTuple

from workloads.chat.generated import API, NUMBERS, SYLLABLES, WORDS, split_of

START = "<|im_start|>"
STOP = "<|im_end|>"
_FORMS = ("{k} is {v}", "{k}: {v}", "{v} as {k}", "{k} {v}", "the {k} {v}")
Turn = tuple[str, str]  # question and answer


class Function(NamedTuple):
    """An invented function: its slots, and wordings of random words around them."""

    head: str
    name: str
    slots: list[str]
    wordings: list[str]


def question_of(text: str) -> str:
    """Returns a user's turn and the beginning of the answer, as the template of the base writes them."""
    return f"{START}user\n{text}{STOP}\n{START}assistant\n"


def written(turns: Iterable[Turn]) -> str:
    return "".join(f"{question_of(question)}{answer}{STOP}\n" for question, answer in turns)


def as_json(pairs: Iterable[Turn]) -> str:
    """Writes an object whose values are integers if they are written like one."""
    values: dict[str, str | int] = {}
    for key, value in pairs:
        is_integer = value.isdigit() and str(int(value)) == value
        values[key] = int(value) if is_integer else value
    return json.dumps(values)


class Chats:
    """Generated conversations, as turns of (question, answer)."""

    def __init__(self, seed: int, lexicon: list[str], functions: int = 120):
        self.rng = random.Random(seed)
        self.lexicon = lexicon
        self.functions = [self._function() for _ in range(functions)]

    # --- pieces -------------------------------------------------------------------------------------------------------

    def value(self) -> str:
        kind = self.rng.random()
        while True:
            text = self._value(kind)
            if split_of(text) == "train" or text.endswith(":00"):
                return text

    def _value(self, kind: float) -> str:
        """Draws an invented name, a number, an hour or words, by a number from 0 to 1."""
        rng = self.rng
        if kind < 0.4:
            syllables = rng.choices(SYLLABLES, k=rng.choice([2, 2, 3]))
            return "".join(self.doubled(syllables)).capitalize()
        if kind < 0.55:
            return str(rng.randint(0, rng.choice([9, 99, 999, 9999])))
        if kind < 0.65:
            hour = rng.randint(0, 23)
            return f"{hour:02d}:{rng.choice([0, rng.randint(0, 59)]):02d}"
        count = rng.randint(1, 5)
        words = [rng.choice(rng.choice([WORDS, self.lexicon])) for _ in range(count)]
        return " ".join(self.doubled(words))

    def doubled(self, pieces: list[str]) -> list[str]:
        """Repeats one of the pieces at times: a copy by what came before loses it."""
        if self.rng.random() < 0.2:
            place = self.rng.randrange(len(pieces))
            pieces[place : place + 2] = [pieces[place]] * 2
        return pieces

    def spoken(self, value: str) -> str:
        """Returns a value as people speak: 15:00 as "3 pm", 5 as "five"."""
        if self.rng.random() < 0.5 and value.endswith(":00"):
            hour = int(value[:2])
            half = "pm" if hour > 12 else "am"
            return {0: "midnight", 12: "noon"}.get(hour, f"{hour % 12} {half}")
        is_small = value.isdigit() and 1 <= int(value) <= len(NUMBERS)
        if is_small and self.rng.random() < 0.5:
            return NUMBERS[int(value) - 1]
        return value

    def key(self) -> str:
        count = 1 if self.rng.random() < 0.8 else 2
        return "_".join(self.rng.choices(self.lexicon, k=count))

    def keys(self, most: int) -> list[str]:
        """Draws one to `most` keys, without repetitions."""
        count = self.rng.randint(1, most)
        return list(dict.fromkeys([self.key() for _ in range(count)]))

    def _function(self) -> Function:
        rng = self.rng
        name = ""
        while not name or name in API:
            name = f"{rng.choice(self.lexicon)}_{rng.choice(self.lexicon)}"
        slots = self.keys(4)
        wordings = [self._wording(len(slots)) for _ in range(rng.randint(2, 4))]
        return Function(rng.choice(["use", "do", "run"]), name, slots, wordings)

    def _wording(self, count: int) -> str:
        """Returns a format with `count` numbered fields in any order, among random words."""
        rng = self.rng
        places = rng.sample(range(count), count)
        pieces = []
        for _ in range(count + 1):
            pieces.append(" ".join(rng.choices(self.lexicon, k=rng.randint(1, 3))))
        if rng.random() >= 0.4:
            pieces[-1] = ""
        text = pieces[0]
        for place, piece in zip(places, pieces[1:], strict=True):
            text += f" {{{place}}} {piece}"
        return text.strip()

    # --- turns --------------------------------------------------------------------------------------------------------

    def by_function(self) -> Turn:
        function = self.rng.choice(self.functions)
        values = [self.value() for _ in function.slots]
        wording = self.rng.choice(function.wordings)
        question = wording.format(*map(self.spoken, values))
        pairs = zip(function.slots, values, strict=True)
        return question, as_json([(function.head, function.name), *pairs])

    def by_example(self, most: int = 4) -> list[Turn]:
        """Draws two to `most` questions of one form: the answer's form follows from earlier turns."""
        rng = self.rng
        count = rng.randint(1, 3)
        words = rng.choices(self.lexicon, k=count + 1)
        keys = [self.key() for _ in range(count)]
        head = self.key()
        is_json = rng.random() < 0.7
        order = rng.sample(range(count), count)
        turns = []
        for _ in range(rng.randint(2, most)):
            values = [self.value() for _ in range(count)]
            question = words[0]
            for value, word in zip(values, words[1:], strict=True):
                question += f" {value} {word}"
            pairs = [(head, words[0]), *((keys[k], values[k]) for k in order)]
            answer = as_json(pairs) if is_json else " ".join(f"{k} {v}" for k, v in pairs)
            turns.append((question, answer))
        return turns

    def turns(self, hard: float = 1.0, examples: int = 4) -> list[Turn]:
        """Draws a conversation; `hard` is the share that may be more than a copy."""
        rng = self.rng
        kind = rng.random()
        if rng.random() > hard or kind < 0.12:
            value = " ".join(self.value() for _ in range(rng.randint(1, 3)))
            return [("repeat: " + value, value)]
        if kind < 0.45:
            return [self.by_function()]
        if kind < 0.65:
            return self.by_example(examples)
        if kind < 0.68:
            return [self.by_number()]
        return [self.by_pairs(kind)]

    def by_number(self) -> Turn:
        number = self.rng.randint(1, 12)
        hour = f"{self.rng.randint(0, 23):02d}:00"
        in_digits = (f"{NUMBERS[number - 1]} in digits", str(number))
        return self.rng.choice([in_digits, (self.spoken(hour), hour)])

    def by_pairs(self, kind: float) -> Turn:
        """Asks for keys and values in a sentence as JSON, or for one of the values."""
        rng = self.rng
        pairs = [(key, self.value()) for key in self.keys(4)]
        separator = rng.choice(["; ", ", ", " and "])
        phrase = separator.join(rng.choice(_FORMS).format(k=k, v=v) for k, v in pairs)
        key, value = rng.choice(pairs)
        if kind < 0.88:
            return rng.choice(["json: ", "write json: ", "as json "]) + phrase, as_json(pairs)
        if kind < 0.94:
            return f"{key} in {as_json(pairs)}?", value
        return f"{phrase}. what is the {key}?", value

    def text(self, hard: float = 1.0, examples: int = 4) -> str:
        return written(self.turns(hard, examples))
