"""Turns conversations into rows of three splits, and finds near rows."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainbook import split
from trainbook.supervised.notes import note
from trainbook.supervised.splits import part_of
from workloads.chat.messages import (
    TEXT,
    TOOLS,
    Message,
    Turns,
    calls_of,
    is_trained,
    text_of,
    untrained,
)
from workloads.chat.records import read_records

_TRIED = 8  # nearest rows; the best fitting one is taken


class Written(str):
    """A rendered answer with more than text, and its `message`."""

    message: Message


class _Exchange(NamedTuple):
    turns: Turns
    answer: str


class Row(_Exchange):
    """A conversation: the turns before the last answer, and that answer.

    Rows are compared, split and hashed without the fields below.
    """

    origin = ""  # file and line
    conversation = ""  # the question of the whole conversation that this answer belongs to
    number = 0  # the answer's in its conversation

    @property
    def last(self) -> str:
        """The content of the answer."""
        if isinstance(self.answer, Written):
            return self.answer.message
        return self.answer

    @property
    def whole(self) -> Turns:
        if self.answer:
            return (*self.turns, ("assistant", self.last))
        return self.turns

    @property
    def exchange(self) -> Turns:
        """The turns from the last user's on, before the answer."""
        users = [number for number, (role, _) in enumerate(self.turns) if role == "user"]
        if users:
            return self.turns[users[-1] :]
        return (("user", ""),)

    @property
    def question(self) -> str:
        return "\n".join(
            text_of(content) for role, content in self.exchange if role in ("user", "tool")
        )

    @property
    def has_calls(self) -> bool:
        return any(calls_of(content) for _, content in self.whole)

    @property
    def has_tools(self) -> bool:
        return self.turns[:1] != () and self.turns[0][0] == TOOLS


class Placed(Row):
    """A row with its origin."""


def placed(row: Row, origin: str = "", conversation: str = "", number: int = 0) -> Placed:
    place = Placed(*row)
    vars(place).update(origin=origin, conversation=conversation, number=number)
    return place


def row_of(turns: Turns) -> Row:
    """Takes the last answer from the turns, "" if they end with another role."""
    if turns and turns[-1][0] == "assistant":
        return Row(turns[:-1], turns[-1][1])
    return Row(turns, "")


def read_files(source: Path, is_new: bool = False) -> dict[Path, list[Row]]:
    """Returns the rows of a file, or of a folder's files. New data needs no answers. Raises BadInput."""
    files: dict[Path, list[Row]] = {}
    for path, records in read_records(source, is_new).items():
        files[path] = [placed(row_of(turns), origin) for origin, turns in records]
    return files


def read(source: Path) -> dict[str, list[Row]]:
    """Returns the rows of a source by split: by a file's name (train, validation, val, dev, test) or by question."""
    parts: dict[str, list[Row]] = {}
    for path, rows in read_files(source).items():
        part = part_of(Path(path.name)) if source.is_dir() else ""
        parts.setdefault(part, []).extend(map(trimmed, rows))
    _note_trimmed([row for rows in parts.values() for row in rows])
    held_out: dict[str, list[Row]] = {
        part: parts[part] for part in ("validation", "test") if part in parts
    }
    shares = {}
    if held_out:
        shares = {part: 0.1 * (part not in held_out) for part in ("validation", "test")}
    rest = [*parts.get("", []), *parts.get("train", [])]
    return {**split(rest, **shares), **held_out}


def trimmed(row: Row) -> Row:
    """Returns a row that ends with its last trained answer; a later turn teaches nothing."""
    numbers = _trained(row)
    if not numbers or numbers[-1] + 1 == len(row.whole):
        return row
    shorter = placed(row_of(row.whole[: numbers[-1] + 1]), row.origin)
    vars(shorter).update(is_trimmed=True)
    return shorter


def _note_trimmed(rows: Sequence[Row]) -> None:
    if shorter := [row for row in rows if getattr(row, "is_trimmed", False)]:
        note(
            f"{len(shorter):,} conversations go on after their last trained answer (the first: {shorter[0].origin}). "
            f"Their later turns are left out."
        )


def _trained(row: Row) -> list[int]:
    """Returns the numbers of the trained turns."""
    numbers = []
    for number, (role, content) in enumerate(row.whole):
        if role == "assistant" and is_trained(content):
            numbers.append(number)
    return numbers


def answered(row: Row) -> list[Row]:
    """Returns a row for each trained answer with its preceding turns, whose answers are untrained."""
    numbers = _trained(row)
    whole = row.whole
    if len(numbers) <= 1:
        return [row]
    before = tuple(map(_untrained_turn, whole))
    rows = [Row(before[:number], whole[number][1]) for number in numbers]
    conversation = question(row)
    return [placed(each, row.origin, conversation, number) for number, each in enumerate(rows)]


def _untrained_turn(turn: tuple[str, str]) -> tuple[str, str]:
    role, content = turn
    if role == "assistant":
        return role, untrained(content)
    return turn


def question(row: Row) -> str:
    """Returns the question without case and spacing, by which rows are compared."""
    texts = [text_of(content) for role, content in row.turns if role not in ("system", TOOLS)]
    return " ".join("\n".join(texts).casefold().split())


def pieces(text: str, count: int, length: int) -> list[Row]:
    """Cuts a text into `count` pieces of about `length` characters for replay, repeating it if it ends."""
    starts = range(0, max(1, len(text) - length), length)
    texts = [text[start : start + length] for start in starts]
    return [Row(((TEXT, texts[number % len(texts)]),), "") for number in range(count)]


class Rows(list[Row]):
    """Rows with the tokens of each, for batches of rows of one length."""

    def __init__(self, rows: Iterable[Row], lengths: Sequence[int]):
        super().__init__(rows)
        self.lengths = lengths


class Neighbours:
    """The training rows whose questions are nearest, by TF-IDF over words and pairs of words."""

    def __init__(self, rows: Sequence[Row]):
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.rows = [row for row in rows if row.answer]
        self.vectors = TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"[^\s]+"
        )
        self.matrix = self.vectors.fit_transform(row.question for row in self.rows)

    def nearest(self, row: Row, count: int) -> list[Row]:
        vector = self.vectors.transform([row.question])
        similarity = (self.matrix @ vector.T).toarray()[:, 0]
        places = np.argsort(-similarity, kind="stable")[:count]
        return [self.rows[place] for place in places]

    def prompted(self, row: Row, most: int, fits: Callable[[Row], bool]) -> Row:
        """Returns a row after as many of its `most` nearest examples as fit, as earlier turns, the nearest last."""
        head = [turn for turn in row.turns if turn[0] in ("system", TOOLS)]
        rest = [turn for turn in row.turns if turn not in head]
        for near in self.nearest(row, most):
            longer = [*near.exchange, ("assistant", near.last), *rest]
            prompted = Row((*head, *longer), row.answer)
            if not fits(prompted):
                break
            row = prompted
            rest = longer
        return row

    def replaced(self, row: Row) -> str:
        """Adapts a near answer: replaces words that differ between the questions by this question's.

        The nearest row is chosen whose answer has all of its differing words, and that shares most words.
        """
        best = ""
        best_score: tuple[float, int] = (-np.inf, 0)
        words = row.question.split()
        for near in self.nearest(row, _TRIED):
            answer, score = _replaced(near, words)
            if score > best_score:
                best = answer
                best_score = score
        return best


def _replaced(near: Row, words: Sequence[str]) -> tuple[str, tuple[float, int]]:
    """Returns a near row's answer with the words of another question, and its score.

    The score is minus the number of differing words that are not in the answer, then the number of shared words.
    """
    other = near.question.split()
    answer = near.answer
    lost = 0
    shared = 0
    matcher = difflib.SequenceMatcher(None, other, words, autojunk=False)
    for kind, begin, end, new_begin, new_end in matcher.get_opcodes():
        if kind == "equal":
            shared += end - begin
            continue
        old = " ".join(other[begin:end]).strip(",.:;?!")
        new = " ".join(words[new_begin:new_end]).strip(",.:;?!")
        if old and old in answer:
            answer = answer.replace(old, new, 1)
        else:
            lost += end - begin + new_end - new_begin
    return answer, (-lost, shared)
