"""Documents in JSON, in the forms that corpora of roles are published in.

A document is an object with a list of sentences (`segments`, `sentences`, `text`) and a list of as many roles
(`labels`, `roles`), or with one list of objects that have a text and a label each, or with annotations of Label Studio.
A file is a list of documents, an object of them by name, one document, or a document a line; or a list of objects that
are a sentence each. Roles are names, or numbers of a list of labels: in the file, in a file beside it, or the classes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from lib.errors import BadInput, printable
from workloads.legal.document import Document, Sentences, Unreadable, one_line, quoted, text_of
from workloads.legal.labels import KEYS, LabelLists, Names, names_in

_SENTENCES = ("segments", "sentences", "text", "texts", "sents", "lines", "rows", "annotations", "data")
_TEXT = ("text", "segment", "sentence")
_ROLES = ("labels", "label", "roles", "role", "rhetorical_roles", "rhetorical_role", "complete", "tags")
_NAMES = (
    "id", "name", "doc_id", "document_id", "document", "doc", "case_id", "case", "file_name", "filename", "file",
    "title",
)  # fmt: skip
_DOCUMENT = ("document", "document_id", "doc", "doc_id", "case", "case_id", "file_name", "filename", "file")
_CATEGORIES = ("category", "group", "domain")
_LABELS_OF_DOCUMENT = ("label_list", "label_names", "id2label", "label2id")


def read_nested(
    path: Path, shown: str, classes: Sequence[str], problems: list[str], lists: LabelLists
) -> list[Document]:
    """Returns a file's documents; notes a problem for each that cannot be used. Raises Unreadable."""
    value = _parsed(path, shown)
    found = []
    for number, (key, entry) in enumerate(_entries(value, path.stem), 1):
        name = key or _first_text(entry, _NAMES)
        unit = f"document {number}{f' ({printable(name, most=60)})' if name else ''}"
        sentences = Sentences(problems, classes, cache(partial(_names_of, entry, value, path, lists)))
        before = len(problems)
        try:
            for line, (text, role) in enumerate(_pairs(entry), 1):
                if not isinstance(text, str) or text.strip():  # of blanks alone Label Studio's exports have some
                    _add(sentences, text, role, line, f"{shown}, {unit}, sentence {line}")
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


def _names_of(entry: Any, value: Any, path: Path, lists: LabelLists) -> Names:
    """Returns the list of labels of a document: its own, that of its file, or one in a file beside it."""
    keys = _LABELS_OF_DOCUMENT
    if _objects(entry) is not None:  # then its list of labels is not that of its sentences
        keys = (*keys, "labels")
    inside = names_in(entry, keys)
    if not inside and isinstance(value, dict) and not _is_document(value):
        inside = names_in(value, KEYS)
    return inside or lists.of(path)


def _add(sentences: Sentences, text: Any, role: Any, line: int, where: str) -> None:
    """Takes one sentence whose text and role may have any form of JSON, or notes why it cannot be used."""
    if isinstance(text, dict):
        text = _first(text, _TEXT)
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
        sentences.add(text, str(role), line, where)


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
