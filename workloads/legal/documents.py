"""Judgments with the roles of their sentences, out of whatever form of file they come in; and plain ones without."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from lib.errors import BadInput, check_limit, first_ten, printable
from workloads.legal.document import Document, Unreadable, one_line, text_of
from workloads.legal.labels import FILES, LabelLists, is_label_list
from workloads.legal.nested import read_nested
from workloads.legal.rows import read_rows
from workloads.legal.sentences import split_text
from workloads.legal.tabbed import read_tabbed

CATEGORIES = "categories.txt"
# What lies beside documents and is none
_ABOUT = {
    "source", "sources", "notice", "copying", "citation", "changelog", "changes", "requirements", "categories",
    "metadata", "dataset-metadata", "dataset_info", "dataset_infos", *FILES,
}  # fmt: skip
_FORMS = (".txt", ".json", ".jsonl", ".csv")
_SNIFFED = 2**16  # bytes in which a file of labelled lines has its first tab
_SHORTEST, _LONGEST, _STRETCHES = 20, 150, 20  # sentences of a stretch of a document that is alone; how many of them


def read(source: Path, classes: Sequence[str] = (), limit: int = 0) -> list[Document]:
    """Returns the documents of a folder of any depth, or of one file, in the order of their files.

    `.txt` files hold lines of sentence, tab, role, perhaps tab and confidence; a blank line ends a document. `.json`
    and `.jsonl` files hold documents with a list of sentences and one of roles, or annotations of Label Studio; roles
    may be numbers of a list of labels. A `.csv` file has columns `text`, `label`, and perhaps `document`. With
    `classes` any other role is a problem. Of more problems than `limit` BadInput is raised with file and line; up to
    it they are printed, and what is wrong is left out.
    """
    problems: list[str] = []
    root = source if source.is_dir() else source.parent
    documents: list[Document] = []
    lists = LabelLists(root, classes)
    for path in _files(source):
        reader = {".txt": read_tabbed, ".csv": read_rows}.get(path.suffix.lower(), read_nested)
        try:
            documents += reader(path, path.relative_to(root).as_posix(), classes, problems, lists)
        except Unreadable as problem:
            problems.append(str(problem))
    documents = _without_copies(_named(documents), problems)
    check_limit("What cannot be read of the documents", problems, limit)
    if problems:
        print(f"Left out {len(problems):,} (workload.bad_input_limit {limit:,}):\n{first_ten(problems)}", flush=True)
    if not documents:
        raise BadInput(f"There is no document in {printable(source)}. Look at data.dir.")
    return _with_categories(_in_stretches(documents), source)


def class_names(documents: Sequence[Document], most: int) -> tuple[str, ...]:
    """Returns the roles of documents in alphabetical order, numbers in theirs. Raises BadInput for more than `most`.

    Many different roles are mostly sentences in the place of roles, and two that differ in case alone a mistake.
    """
    counts = Counter(role for document in documents for role in document.roles)
    if len(counts) > most:
        rare = ", ".join(repr(role) for role, _ in counts.most_common()[:-4:-1])
        raise BadInput(
            f"The documents have {len(counts):,} different roles, more than workload.classes allows ({most:,}), among "
            f"them {printable(rare, most=200)}. If these are roles, allow more; if not, look at the order of columns."
        )
    folded: dict[str, str] = {}
    for role in sorted(counts):
        if other := folded.get(role.casefold()):
            raise BadInput(
                f"The roles {other!r} ({counts[other]:,} sentences) and {role!r} ({counts[role]:,}) differ in case "
                "alone. Write them alike, or list both in workload.classes."
            )
        folded[role.casefold()] = role
    return tuple(sorted(counts, key=lambda role: (not role.isdecimal(), int(role) if role.isdecimal() else 0, role)))


def read_plain(path: Path) -> Document:
    """Returns a judgment without roles: a file of one sentence a line, or of running text, which is split.

    Of a file whose every line is a sentence, a tab and a role it has the sentences. Raises BadInput.
    """
    text = text_of(path, path.name).replace("\r\n", "\n").replace("\r", "\n")
    rows = [(number, line.split("\t")) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if all(len(cells) in (2, 3) and all(map(str.strip, cells[:2])) for _, cells in rows):
        found = [(number, one_line(cells[0])) for number, cells in rows]
    else:
        found = split_text(text)
    found = [(number, sentence) for number, sentence in found if sentence]
    if not found:
        raise BadInput(f"{path.name} has no sentence. Give a judgment as text.")
    numbers, sentences = zip(*found, strict=True)
    return Document(path.stem, "", tuple(sentences), (), path.name, tuple(numbers))


def _files(source: Path) -> list[Path]:
    """Returns the files to read: one itself, of a folder all of the one form that it has. Raises BadInput."""
    if source.is_file():
        if source.suffix.lower() not in _FORMS:
            raise BadInput(f"{printable(source)} is none of {', '.join(_FORMS)}. Look at data.dir.")
        return [source]
    by_form: dict[str, list[Path]] = {form: [] for form in _FORMS}
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source).parts
        hidden = any(part.startswith((".", "__MACOSX")) for part in inside)
        if path.suffix.lower() in by_form and not hidden and not _is_about(path) and path.is_file():
            by_form[path.suffix.lower()].append(path)
    tabbed, nested, table = by_form[".txt"], by_form[".json"] + by_form[".jsonl"], by_form[".csv"]
    if nested:
        nested = [path for path in nested if not is_label_list(path)]
    if (nested or table) and not any(map(_has_tab, tabbed)):
        tabbed = []
    forms = [files for files in (tabbed, nested, table) if files]
    if not forms:
        raise BadInput(
            f"There is no document in {printable(source)}: no .txt file of sentence, tab, role, no .json file of "
            "segments and labels, no .csv file of text and label. Look at data.dir."
        )
    for others in forms[1:]:
        print(
            f"{len(others):,} {others[0].suffix} files are not read, because the folder has {forms[0][0].suffix} "
            "files; name one of them in data.dir to read it instead.",
            flush=True,
        )
    return forms[0]


def _is_about(path: Path) -> bool:
    return path.stem.lower() in _ABOUT or path.stem.lower().startswith(("readme", "license", "licence"))


def _has_tab(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\t" in file.read(_SNIFFED)
    except OSError:  # whoever reads it says so
        return True


def _named(documents: Sequence[Document]) -> list[Document]:
    """Returns the documents with names that tell them apart: with the folder where a file's name is there twice."""
    count = Counter(document.name for document in documents)
    found, taken = [], Counter()
    for document in documents:
        name = document.name
        if count[name] > 1:
            folder = Path(document.file).parent.as_posix()
            name = name if folder == "." else f"{folder}/{name}"
        taken[name] += 1
        found.append(replace(document, name=name if taken[name] == 1 else f"{name} ({taken[name]})"))
    return found


def _without_copies(documents: Sequence[Document], problems: list[str]) -> list[Document]:
    """Returns the documents that have other sentences than all before them; a copy is a problem."""
    first: dict[bytes, Document] = {}
    kept = []
    for document in documents:
        digest = hashlib.sha256("\n".join(document.sentences).casefold().encode("utf-8", "surrogatepass")).digest()
        other = first.setdefault(digest, document)
        if other is document:
            kept.append(document)
        else:
            count = f"{len(document):,} sentences of {other.name}" if len(document) > 1 else f"sentence of {other.name}"
            problems.append(f"{document.place(0)}: {document.name} has the {count} ({other.file}). Remove one of them.")
    return kept


def _in_stretches(documents: list[Document]) -> list[Document]:
    """Returns a long document that is alone as several, and says so: of one nothing could be held out."""
    if len(documents) > 1 or len(documents[0]) < 2 * _SHORTEST:
        return documents
    (one,) = documents
    size = min(_LONGEST, max(_SHORTEST, len(one) // _STRETCHES))
    bounds = range(0, len(one) - _SHORTEST + 1, size)
    found = [
        replace(
            one, name=f"{one.name}/{number}", sentences=one.sentences[begin:end], roles=one.roles[begin:end],
            lines=one.lines[begin:end],
        )
        for number, (begin, end) in enumerate(pairwise([*bounds, len(one)]), 1)
    ]  # fmt: skip
    print(
        f"Nothing in {printable(one.file)} says where a document ends, so its {len(one):,} sentences are taken for "
        f"{len(found)} documents of about {size}. Parts of one judgment may then be trained on and tested, and scores "
        "are too good. Name the document of each row in a column `document`, or put an empty line between two.",
        flush=True,
    )
    return found


def _with_categories(documents: Sequence[Document], source: Path) -> list[Document]:
    """Returns the documents with the categories of `categories.txt`, where there is one. Raises BadInput."""
    root = source if source.is_dir() else source.parent
    paths = source.rglob(CATEGORIES) if source.is_dir() else filter(Path.is_file, [root / CATEGORIES])
    if not (paths := sorted(paths, key=lambda path: (len(path.parts), path))):
        return [*documents]
    shown = paths[0].relative_to(root).as_posix()
    category_of: dict[str, str] = {}
    for number, line in enumerate(text_of(paths[0], shown).splitlines(), 1):
        if not line.strip():
            continue
        category, tab, names = line.partition("\t")
        if not tab or not category.strip():
            raise BadInput(f"{shown}, line {number}: Write a category, a tab, and names of documents with spaces.")
        for name in names.split():
            if category_of.setdefault(name, category.strip()) != category.strip():
                raise BadInput(
                    f"{shown}, line {number}: {printable(name)} is in the categories {printable(category_of[name])} "
                    f"and {printable(category.strip())}. Name it in one."
                )
    return [_in_category(document, category_of) for document in documents]


def _in_category(document: Document, category_of: dict[str, str]) -> Document:
    names = (document.name, Path(document.name).name, Path(document.file).stem)
    found = next((category_of[name] for name in names if name in category_of), document.category)
    return replace(document, category=found)
