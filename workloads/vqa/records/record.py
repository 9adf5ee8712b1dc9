"""A question about a picture with its answer, and what a folder holds of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

OTHER = "other types"  # in the place of question types that are rare


@dataclass(frozen=True)
class Record:
    """A question about a picture, with its answer and where it was read."""

    number: int  # line or entry of its file, from 1, for messages
    question: str  # NFC
    answer: str  # NFC, as given
    image: str  # path of the picture on this machine
    picture: str  # identity of the picture, a hash of what is in the file: what splits go by
    kind: str = ""  # question type, "" where unknown
    reasoning: str = ""  # the teacher's reasoning, "" where there is none
    teacher: tuple[tuple[str, float], ...] = ()  # the teacher's answers with their probabilities, where it gave several
    part: str = ""  # train, validation or test, where files or folders are named for these
    file: str = ""  # the file that it was read from, for messages


@dataclass(frozen=True)
class Collection:
    """The records of a folder, the form of their files, and sentences on what a reader should know."""

    records: list[Record]
    layout: str
    notes: list[str]


def fingerprint(records: Sequence[Record]) -> str:
    """Hashes what records say and what their pictures show, wherever they lie."""
    digest = hashlib.sha256()
    for one in records:
        facts = (one.question, one.answer, one.picture, one.kind, one.reasoning, one.teacher, one.part)
        digest.update(repr(facts).encode())
    return digest.hexdigest()
