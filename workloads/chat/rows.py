"""Conversations: read in the forms that they come in, in three splits, and those that are near to one."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lib import untrusted
from lib.errors import BadInput, first_ten, printable
from lib.supervised import split
from lib.training.splits import part_of

Turns = tuple[tuple[str, str], ...]  # (role, content)
ROLES = ("system", "user", "assistant", "tool")
TEXT = "text"  # the role of a plain text, of which every token is trained
_SHAREGPT = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant", "function": "tool"}
_TRIED = 8  # nearest rows of which the one that fits best is taken
_COLUMNS = {"prompt": "answer", "question": "answer", "instruction": "output"}


class Row(NamedTuple):
    """A conversation: what stands before the last answer, and that answer."""

    turns: Turns
    answer: str

    @property
    def whole(self) -> Turns:
        return (*self.turns, ("assistant", self.answer)) if self.answer else self.turns

    @property
    def question(self) -> str:
        return next((content for role, content in reversed(self.turns) if role == "user"), "")


class Placed(Row):
    """A row of a file. Its line there is no part of it: rows are compared, split and hashed without."""

    origin: str = ""


def turns_of(record: Mapping[str, Any]) -> Turns:
    """Returns the turns of messages, of ShareGPT's conversations, or of columns with one exchange. Raises BadInput."""
    turns = record.get("messages", record.get("conversations"))
    if isinstance(turns, list) and all(isinstance(turn, Mapping) for turn in turns):
        pairs = ((turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))) for turn in turns)
        return tuple((_SHAREGPT.get(str(role), str(role)), _plain(content)) for role, content in pairs)
    for column, target in _COLUMNS.items():
        if column in record:
            system = (("system", _plain(record["system"])),) if record.get("system") else ()
            question = "\n".join(filter(None, [_plain(record[column]), _plain(record.get("input"))]))
            answer = _plain(record.get(target, record.get("completion")))
            return (*system, ("user", question), ("assistant", answer))
    raise BadInput(f"it has the keys {printable(', '.join(record), most=200)}")


def _plain(content: Any) -> str:
    if isinstance(content, list) and any(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return "" if content is None else content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def row_of(turns: Turns) -> Row:
    """Takes the last answer from the turns; "" where they end otherwise."""
    return Row(turns[:-1], turns[-1][1]) if turns and turns[-1][0] == "assistant" else Row(turns, "")


def read_files(source: Path) -> dict[Path, list[Row]]:
    """Returns the rows of a file, or of *.jsonl in a folder. Raises BadInput that names the lines which are none."""
    paths = [source] if source.is_file() else sorted(source.glob("*.jsonl"))
    files, wrong = {path: list[Row]() for path in paths}, list[str]()
    for path, rows in files.items():
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                if line.strip():
                    rows.append(row := Placed(*row_of(turns_of(untrusted.objects(line)))))
                    row.origin = f"{path.name}:{number}"
            except BadInput as error:
                wrong.append(f"{path}:{number}: {error}.")
    if wrong:
        advice = "Give messages (role, content), conversations (from, value), or prompt and answer, as a JSON object."
        raise BadInput(f"{len(wrong):,} lines are no conversations:\n{first_ten(wrong)}\n{advice}")
    return files


def read(source: Path) -> dict[str, list[Row]]:
    """Returns the rows of *.jsonl by split: by a file's name (train, validation, val, dev, test) or by question."""
    parts: dict[str, list[Row]] = {}
    for path, rows in read_files(source).items():
        parts.setdefault(part_of(Path(path.name)) if source.is_dir() else "", []).extend(rows)
    given = parts.keys() & {"validation", "test"}
    shares = {part: 0.1 * (part not in given) for part in ("validation", "test")} if given else {}
    drawn = split([*parts.get("", []), *parts.get("train", [])], **shares)
    return {**drawn, **{part: parts[part] for part in given}}


def question(row: Row) -> str:
    """Returns what is asked, as two rows with the same are compared: without case and spacing."""
    return " ".join("\n".join(content for role, content in row.turns if role != "system").casefold().split())


def pieces(text: str, count: int, length: int) -> list[Row]:
    """Returns a text in `count` pieces of about `length` characters, begun again at its end, to be replayed."""
    starts = range(0, max(1, len(text) - length), length)
    return [Row(((TEXT, text[starts[k % len(starts)] :][:length]),), "") for k in range(count)]


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
        self.vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"[^\s]+")
        self.matrix = self.vectors.fit_transform(row.question for row in self.rows)

    def nearest(self, row: Row, count: int) -> list[Row]:
        near = (self.matrix @ self.vectors.transform([row.question]).T).toarray()[:, 0]
        return [self.rows[place] for place in np.argsort(-near, kind="stable")[:count]]

    def prompted(self, row: Row, most: int, fits: Callable[[Row], bool]) -> Row:
        """Returns a row after as many of its `most` nearest examples as fit, as earlier turns, the nearest last."""
        head, rest = ([turn for turn in row.turns if (turn[0] == "system") == is_head] for is_head in (True, False))
        for near in self.nearest(row, most):
            longer = [("user", near.question), ("assistant", near.answer), *rest]
            if not fits(more := Row((*head, *longer), row.answer)):
                break
            row, rest = more, longer
        return row

    def replaced(self, row: Row) -> str:
        """Returns a near answer whose words that differ between the questions are those of this one.

        Of the nearest it is the one whose differing words all stand in its answer, and that shares most words.
        """
        best, score, words = "", (-np.inf, 0), row.question.split()
        for near in self.nearest(row, _TRIED):
            other, answer, lost, shared = near.question.split(), near.answer, 0, 0
            for kind, *places in difflib.SequenceMatcher(None, other, words, autojunk=False).get_opcodes():
                if kind == "equal":
                    shared += places[1] - places[0]
                    continue
                ranges = other[places[0] : places[1]], words[places[2] : places[3]]
                old, new = (" ".join(some).strip(",.:;?!") for some in ranges)
                if old and old in answer:
                    answer = answer.replace(old, new, 1)
                else:
                    lost += sum(map(len, ranges))
            if (-lost, shared) > score:
                best, score = answer, (-lost, shared)
        return best
