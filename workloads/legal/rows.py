"""Documents in a .csv file: a row a sentence, with columns for its text, its role and its document."""

import csv
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lib.errors import printable
from workloads.legal.document import Document, Sentences, Unreadable, one_line, text_of
from workloads.legal.labels import LabelLists

# What the columns are called, the likeliest first
TEXTS = ("text", "sentence", "segment", "sentences", "segments", "texts")
ROLES = ("label", "role", "rhetorical_role", "labels", "roles", "rhetorical_roles", "class", "annotation")
DOCUMENTS = ("document", "document_id", "doc", "doc_id", "case", "case_id", "judgment", "file", "filename", "file_name")
CATEGORIES = ("category", "group", "domain")


def read_rows(path: Path, shown: str, classes: Sequence[str], problems: list[str], lists: LabelLists) -> list[Document]:
    """Returns a file's documents; notes a problem for each row that cannot be used. Raises Unreadable.

    Without a column for the document an empty row ends one. A column of it may come back to a document.
    """
    reader = csv.reader(io.StringIO(text_of(path, shown), newline=""))
    found: dict[str, Sentences] = {}
    category: dict[str, str] = {}
    empty_rows = before = 0
    try:
        head = [one_line(cell).lower() for cell in next(reader, [])]
        text, role = _column(head, TEXTS, shown), _column(head, ROLES, shown)
        document, group = _found(head, DOCUMENTS), _found(head, CATEGORIES)
        before = reader.line_num
        for row in reader:
            number, before = before + 1, reader.line_num
            if not any(cell.strip() for cell in row):
                empty_rows += 1
                continue
            if len(row) != len(head):
                problems.append(f"{shown}, line {number}: There are {len(row)} columns; the head has {len(head)}.")
                continue
            name = f"{path.stem}/{empty_rows}" if document is None else one_line(row[document]) or path.stem
            sentences = found.setdefault(name, Sentences(problems, classes, partial(lists.of, path)))
            category.setdefault(name, "" if group is None else one_line(row[group]))
            sentences.add(row[text], row[role], number, f"{shown}, line {number}")
    except csv.Error as error:
        raise Unreadable(
            f"{shown}, line {before + 1}: This is no CSV ({error}). Look for an open quotation mark."
        ) from None
    filled = {name: sentences for name, sentences in found.items() if len(sentences)}
    if not filled and not found:
        raise Unreadable(f"{shown}, line 1: The table has no rows. Remove the file.")
    is_one = document is None and len(filled) == 1
    return [
        sentences.document(path.stem if is_one else name, category[name], shown) for name, sentences in filled.items()
    ]


def _found(head: Sequence[str], names: Sequence[str]) -> int | None:
    return next((head.index(name) for name in names if name in head), None)


def _column(head: Sequence[str], names: Sequence[str], shown: str) -> int:
    place = _found(head, names)
    if place is None:
        columns = printable(", ".join(head), most=200) or "none"
        raise Unreadable(
            f"{shown}, line 1: There is no column {names[0]} (or {', '.join(names[1:4])}); the columns are {columns}. "
            "Write a head of text,label, and document where there are several."
        )
    return place
