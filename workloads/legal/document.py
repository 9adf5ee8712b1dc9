"""A judgment as its sentences, and what every form of file has in common: text that is UTF-8, sentences of a length."""

import codecs
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.config.files import read_bytes
from lib.errors import BadInput, printable

MOST_WORDS = 10_000  # of a sentence; the longest of the sample corpus has 332, a whole title page some 1,000
MOST_LETTERS = 100_000
_MOST_BYTES = 2**30  # of a file
_QUOTED = 60  # letters of what a file says
_NUMBER = re.compile(r"-?\d{1,9}(\.0)?")  # of a list of labels; a table with gaps has 3.0 for 3


@dataclass(frozen=True)
class Document:
    """A judgment: its sentences, the role of each (none where they are unknown), and where they were read.

    `lines` are the lines of the sentences in `file`, or their numbers within the document where `unit` says so.
    """

    name: str
    category: str
    sentences: tuple[str, ...]
    roles: tuple[str, ...] = ()
    file: str = ""
    lines: tuple[int, ...] = ()
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.sentences)

    def place(self, sentence: int) -> str:
        """Returns where a sentence stands, for a message: "data/a.txt, line 12"."""
        return f"{self.file or self.name}, {self.unit} {self.lines[sentence] if self.lines else sentence + 1}"


class Unreadable(BadInput):
    """A whole file that cannot be used: the sentence names it."""


def text_of(path: Path, shown: str) -> str:
    """Returns the text of a UTF-8 file, without a byte order mark. Raises Unreadable, with the line that is none."""
    try:
        content = read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise Unreadable(f"{shown} cannot be read ({error.strerror or error}).") from None
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Unreadable(f"{shown}, line 1: The file is UTF-16. Save it as UTF-8.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            f"{shown}, line {line}: Byte 0x{content[error.start]:02x} is not UTF-8, so the file may be Latin-1 or "
            "Windows-1252. Save it as UTF-8."
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Unreadable(f"{shown}, line {line}: There is a zero byte, which no text has. Save the file as UTF-8.")
    return text


def one_line(text: str) -> str:
    """Returns a text with single spaces for every run of spaces, tabs and line ends."""
    return " ".join(text.split())


def quoted(text: object) -> str:
    return printable(repr(text), most=_QUOTED)


class Sentences:
    """The sentences of one document while it is read: what is wrong with one is a problem, and it is left out."""

    def __init__(self, problems: list[str], classes: Sequence[str], names: Callable[[], Mapping[int, str]]):
        """`names` returns what numbers in the place of roles stand for; it is called for the first of them."""
        self.problems, self.classes, self._names = problems, classes, names
        self.texts: list[str] = []
        self.roles: list[str] = []
        self.lines: list[int] = []

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, text: str, role: str, line: int, where: str) -> None:
        """Takes one sentence with its role, or notes why it cannot be used; `where` names its place."""
        text, given = one_line(text), one_line(role)
        role = self._named(given)
        if wrong := _wrong_text(text) or self._wrong_role(role, given):
            self.problems.append(f"{where}: {wrong}")
            return
        self.texts.append(text)
        self.roles.append(role)
        self.lines.append(line)

    def _named(self, role: str) -> str:
        """Returns the name of a role that is a number of a list of labels; nothing where the list has no such one."""
        if not _NUMBER.fullmatch(role):
            return role
        number, names = role.removesuffix(".0"), self._names()
        return number if not names or number in names.values() else names.get(int(number), "")

    def _wrong_role(self, role: str, given: str) -> str:
        if not given:
            return "There is no role."
        if not role:
            return f"Label {given} is none of the {len(self._names())} labels of the list."
        if self.classes and role not in self.classes:
            near = difflib.get_close_matches(role, self.classes, 1)
            hint = f" Is {quoted(near[0])} meant?" if near else ""
            return f"The role {quoted(role)} is none of workload.classes.{hint}"
        return ""

    def document(self, name: str, category: str, file: str, unit: str = "line") -> Document:
        return Document(name, category, tuple(self.texts), tuple(self.roles), file, tuple(self.lines), unit)


def _wrong_text(text: str) -> str:
    words = text.count(" ") + 1
    if not text:
        return "There is no sentence."
    if words > MOST_WORDS or len(text) > MOST_LETTERS:
        return (
            f"The sentence has {words:,} words and {len(text):,} letters; at most {MOST_WORDS:,} words and "
            f"{MOST_LETTERS:,} letters are one sentence. Split it."
        )
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        return "There is half of a character (a lone surrogate), which no text file can hold."
    return ""
