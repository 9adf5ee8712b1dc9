"""Documents in JSON, in the forms that corpora of roles are published in.

A document is an object with a list of sentences (`segments`, `sentences`, `text`) and a list of as many roles
(`labels`, `roles`), or with one list of objects that have a text and a label each, or with annotations of Label Studio.
A file is a list of documents, an object of them by name, one document, or a document a line; or a list of objects that
are a sentence each. Roles are names, or numbers of a list of labels: in the file, in a file beside it, or the classes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.tasks.legal.document import Document, Sentences, Unreadable, one_line, quoted, text_of

_SENTENCES = ("segments", "sentences", "text", "texts", "sents", "lines", "rows", "annotations", "data")
_TEXT = ("text", "segment", "sentence")
_ROLES = ("labels", "label", "roles", "role", "rhetorical_roles", "rhetorical_role", "complete", "tags")
_NAMES = (
    "id", "name", "doc_id", "document_id", "document", "doc", "case_id", "case", "file_name", "filename", "file",
    "title",
)  # fmt: skip
_DOCUMENT = ("document", "document_id", "doc", "doc_id", "case", "case_id", "file_name", "filename", "file")
_CATEGORIES = ("category", "group", "domain")
_LABEL_LISTS = ("label_list", "label_names", "labels", "classes", "names", "roles", "id2label", "label2id")
LABEL_FILES = ("labels", "label_list", "label_names", "classes", "roles", "id2label", "label2id", "label_map")
_LABELS_OF_DOCUMENT = ("label_list", "label_names", "id2label", "label2id")
_MOST_LABEL_BYTES = 2**16
Names = Mapping[int, str]


class LabelLists:
    """The lists of labels beside the files below a folder; each folder is looked through once."""

    def __init__(self, root: Path):
        self.root = root
        self._found: dict[Path, dict[str, Names]] = {}

    def of(self, path: Path) -> Names:
        """Returns the list nearest to a file, in its folder or one above it. Raises BadInput for several."""
        folder = path.parent
        while True:
            if folder not in self._found:
                self._found[folder] = _lists_in(folder)
            found = self._found[folder]
            if len({tuple(sorted(names.items())) for names in found.values()}) > 1:
                lists = ", ".join(map(printable, found))
                raise BadInput(f"{printable(folder)} has several lists of labels, {lists}. Leave one of them there.")
            if found or folder == self.root or self.root not in folder.parents:
                return next(iter(found.values()), {})
            folder = folder.parent


def read_nested(
    path: Path, shown: str, classes: Sequence[str], problems: list[str], lists: LabelLists
) -> list[Document]:
    """Returns a file's documents; notes a problem for each that cannot be used. Raises Unreadable."""
    value = _parsed(path, shown)
    found = []
    for number, (key, entry) in enumerate(_entries(value, path.stem), 1):
        name = key or _first_text(entry, _NAMES)
        unit = f"document {number}{f' ({printable(name, most=60)})' if name else ''}"
        labels = _Labels(path, value, entry, classes, lists)
        sentences = Sentences(problems, classes)
        before = len(problems)
        try:
            for line, (text, role) in enumerate(_pairs(entry), 1):
                if not isinstance(text, str) or text.strip():  # of blanks alone Label Studio's exports have some
                    _add(sentences, text, role, labels, line, f"{shown}, {unit}, sentence {line}")
        except BadInput:
            raise
        except ValueError as error:
            problems.append(f"{shown}, {unit}: {error}")
            continue
        if len(sentences):
            category = _first_text(entry, _CATEGORIES) or _first_text(_object(entry, "meta"), _CATEGORIES)
            found.append(sentences.document(name or f"{path.stem}/{number}", category, shown, f"{unit}, sentence"))
        elif len(problems) == before:
            problems.append(f"{shown}, {unit}: The document is empty. Remove it.")
    if not found and not problems:
        raise Unreadable(f"{shown}: There is no document in it. Remove the file.")
    return found


def is_label_list(path: Path) -> bool:
    """Says whether a JSON file lists the names of roles alone."""
    try:
        value = json.loads(read_bytes(path, _MOST_LABEL_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return bool(_names(value) or (isinstance(value, dict) and len(value) == 1 and _names_in(value, _LABEL_LISTS)))


def _parsed(path: Path, shown: str) -> Any:
    """Returns the value of a file of JSON, or the list of its lines' values."""
    text = text_of(path, shown)
    try:
        return json.loads(text)
    except RecursionError:
        raise Unreadable(f"{shown}: The JSON is nested too deeply for documents.") from None
    except json.JSONDecodeError as error:
        if path.suffix.lower() != ".jsonl" and not (error.msg == "Extra data" and error.lineno > 1):
            raise Unreadable(f"{shown}, line {error.lineno}: This is no JSON ({error.msg}).") from None
    except ValueError as error:  # a number of thousands of digits
        raise Unreadable(f"{shown}: This is no JSON of documents ({error}).") from None
    values = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"{shown}, line {number}: This line is no JSON ({error}).") from None
    return values


def _entries(value: Any, stem: str) -> Iterator[tuple[str, Any]]:
    """Yields the documents of a file, each with the name that it goes by in the file, if any."""
    if isinstance(value, list) and value and all(map(_is_row, value)):
        by_document: dict[str, list[Any]] = {}
        for row in value:
            by_document.setdefault(_first_text(row, _DOCUMENT) or stem, []).append(row)
        yield from ((name, {"rows": rows, **_of_all(rows)}) for name, rows in by_document.items())
    elif isinstance(value, list):
        yield from (("", entry) for entry in value)
    elif isinstance(value, dict) and _is_document(value):
        yield from _columns(value) or [("", value)]
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, list) and inner and all(isinstance(one, dict) for one in inner):
                yield from _entries(inner, key)
            elif isinstance(inner, dict) and _is_document(inner):
                yield key, inner


def _of_all(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {"category": _first_text(rows[0], _CATEGORIES)}


def _is_row(value: Any) -> bool:
    """Says whether a value is a sentence with its role."""
    if not isinstance(value, dict):
        return False
    text, role = _first(value, _TEXT), _first(value, _ROLES)
    return isinstance(text, str) and isinstance(role, str | int | float)


def _is_document(value: Mapping[str, Any]) -> bool:
    return any(isinstance(value.get(key), list) for key in _SENTENCES if key not in ("data", "rows")) and (
        any(isinstance(value.get(key), list) for key in _ROLES)
        or _objects(value) is not None
        or _spans(value) is not None
    )


def _columns(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the documents of an object of columns, whose lists have a list for each document; none for another."""
    texts, roles = _first_list(value, _SENTENCES), _first_list(value, _ROLES)
    if not texts or not roles or len(texts) != len(roles):
        return []
    if not all(isinstance(one, list) for one in (*texts, *roles)):
        return []
    names = _first_list(value, _NAMES) or [""] * len(texts)
    return [
        (str(name), {"segments": text, "labels": role}) for name, text, role in zip(names, texts, roles, strict=False)
    ]


def _pairs(entry: Any) -> Iterator[tuple[Any, Any]]:
    """Yields text and role of each sentence of a document. Raises ValueError, a sentence, where there are none."""
    if not isinstance(entry, dict):
        raise ValueError(f"A document is an object with segments and labels, and this is {quoted(entry)}.")
    spans = _spans(entry)
    if spans is not None:
        yield from spans
        return
    objects = _objects(entry)
    if objects is not None:
        yield from objects
        return
    texts, roles = _first_list(entry, _SENTENCES), _first_list(entry, _ROLES)
    if texts is None or roles is None:
        keys = printable(", ".join(map(str, entry)), most=200) or "none"
        missing = "segments" if texts is None else "labels"
        raise ValueError(f"There is no list {missing}; the keys are {keys}.")
    if len(texts) != len(roles):
        raise ValueError(f"There are {len(texts):,} segments and {len(roles):,} labels. Give each segment one label.")
    yield from zip(texts, roles, strict=True)


def _objects(entry: Mapping[str, Any]) -> list[tuple[Any, Any]] | None:
    """Returns text and role of a document's list of objects that have both; None where it has none.

    Instead of a text an object may have where it starts and ends in the document's text.
    """
    whole = entry.get("text") if isinstance(entry.get("text"), str) else _object(entry, "data").get("text")
    for key in _SENTENCES:
        value = entry.get(key)
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            found = [(_text_in(one, whole), _first(one, _ROLES)) for one in value]
            if all(text is not None and role is not None for text, role in found):
                return found
    return None


def _text_in(value: Mapping[str, Any], whole: Any) -> Any:
    """Returns the text of an object, or of where it starts and ends in the whole text; None where it has neither."""
    text = _first(value, _TEXT)
    start, end = value.get("start"), value.get("end")
    if text is None and isinstance(whole, str) and isinstance(start, int) and isinstance(end, int):
        return whole[max(0, start) : max(0, end)]
    return text


def _spans(entry: Mapping[str, Any]) -> list[tuple[Any, Any]] | None:
    """Returns the labelled spans of Label Studio's first finished annotation, in their order in the text."""
    annotations = entry.get("annotations") or entry.get("completions")
    if not (isinstance(annotations, list) and annotations and all(isinstance(one, dict) for one in annotations)):
        return None
    if not any("result" in one for one in annotations):
        return None
    done = [one for one in annotations if not one.get("was_cancelled")] or annotations
    results = done[0].get("result")
    values = [_object(one, "value") for one in results] if isinstance(results, list) else []
    values = [value for value in values if value.get("labels")]
    whole = _object(entry, "data").get("text")
    values.sort(key=lambda value: value["start"] if isinstance(value.get("start"), int) else 0)
    return [(_text_in(value, whole), value["labels"]) for value in values]


class _Labels:
    """What the numbers in the place of roles stand for; the files beside are looked at for the first number alone."""

    def __init__(self, path: Path, value: Any, entry: Any, classes: Sequence[str], lists: LabelLists):
        self._path, self._value, self._entry, self._classes, self._lists = path, value, entry, classes, lists

    @cached_property
    def names(self) -> Names:
        inside = _names_in(self._entry, _LABELS_OF_DOCUMENT)
        if not inside and _objects(self._entry) is not None:  # then its list of labels is not that of its sentences
            inside = _names_in(self._entry, ("labels",))
        if not inside and isinstance(self._value, dict) and not _is_document(self._value):
            inside = _names_in(self._value, _LABEL_LISTS)
        return inside or self._lists.of(self._path) or dict(enumerate(self._classes))

    def name_of(self, role: str | int) -> str | None:
        """Returns the name of a role; of a number without a list of labels itself, of one that is not in it None."""
        if isinstance(role, str) and not role.strip().isdecimal():
            return role
        if isinstance(role, str) and role.strip() in self.names.values():
            return role
        return self.names.get(int(role)) if self.names else str(role)


def _add(sentences: Sentences, text: Any, role: Any, labels: _Labels, line: int, where: str) -> None:
    """Takes one sentence whose text and role may have any form of JSON, or notes why it cannot be used."""
    if isinstance(text, list) and all(isinstance(word, str) for word in text):  # of words
        text = " ".join(text)
    if isinstance(role, list) and len(role) == 1:
        role = role[0]
    if isinstance(role, float) and role.is_integer():
        role = int(role)
    if not isinstance(text, str):
        sentences.problems.append(f"{where}: The segment is no text but {quoted(text)}.")
    elif isinstance(role, list):
        sentences.problems.append(f"{where}: There are {len(role)} labels, {quoted(role)}. Give the segment one.")
    elif isinstance(role, bool) or not isinstance(role, str | int):
        sentences.problems.append(f"{where}: The label is no name but {quoted(role)}.")
    else:
        found = labels.name_of(role)
        if found is None:
            sentences.problems.append(f"{where}: Label {role} is none of the {len(labels.names)} labels of the list.")
        else:
            sentences.add(text, found, line, where)


def _names_in(value: Any, keys: Sequence[str]) -> Names:
    """Returns the list of labels that an object has under one of its keys."""
    if isinstance(value, dict):
        for key in keys:
            if found := _names(value.get(key)):
                return found
    return {}


def _lists_in(folder: Path) -> dict[str, Names]:
    """Returns the lists of labels in a folder by file; by what they hold only where no file is called labels."""
    called, others = {}, {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (".json", ".txt") and path.is_file():
            is_called = path.stem.lower() in LABEL_FILES
            if names := _names_of_file(path, is_called):
                (called if is_called else others)[path.name] = names
    return called or others


def _names_of_file(path: Path, is_called: bool) -> Names:
    if path.suffix.lower() == ".txt" and not is_called:
        return {}
    try:
        text = read_bytes(path, _MOST_LABEL_BYTES).decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            value = json.loads(text)
            return _names(value) or (_names_in(value, _LABEL_LISTS) if is_called else {})
    except (OSError, ValueError, RecursionError):
        return {}
    return _names([one_line(line) for line in text.splitlines() if line.strip()])


def _names(value: Any) -> Names:
    """Returns the names by number of a list of names, or of an object of numbers by name or names by number."""
    if isinstance(value, list) and len(value) > 1 and all(isinstance(one, str) for one in value):
        return dict(enumerate(map(one_line, value)))
    if not isinstance(value, dict) or len(value) < 2:
        return {}
    if all(isinstance(one, int) and not isinstance(one, bool) for one in value.values()):
        return {number: one_line(name) for name, number in value.items()}
    if all(isinstance(one, str) and key.isdecimal() for key, one in value.items()):
        return {int(key): one_line(name) for key, name in value.items()}
    return {}


def _first(value: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)


def _first_list(value: Mapping[str, Any], keys: Sequence[str]) -> list[Any] | None:
    return next((value[key] for key in keys if isinstance(value.get(key), list)), None)


def _first_text(value: Any, keys: Sequence[str]) -> str:
    found = _first(value, keys) if isinstance(value, dict) else None
    return one_line(str(found)) if isinstance(found, str | int) and not isinstance(found, bool) else ""


def _object(value: Any, key: str) -> dict[str, Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}
