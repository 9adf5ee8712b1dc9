"""Judgments with the roles of their sentences: lines of text files, or tables with named columns; and new ones."""

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lib.errors import BadInput, check_limit, printable
from lib.supervised import tables
from workloads.legal.sentences import one_line, split_text
from workloads.legal.settings import Columns, Settings

CATEGORIES, LABELS = "categories.txt", "labels.txt"
MOST_LETTERS = 100_000  # of a sentence; a whole title page has some 6,000
_OPTIONAL = ("document", "category")  # columns

Row = tuple[int, str, str, str, str]  # its number, document, sentence, role, category


@dataclass(frozen=True)
class Document:
    """A judgment: its sentences, the role of each (none where they are unknown), and where it begins."""

    name: str
    category: str
    sentences: tuple[str, ...]
    roles: tuple[str, ...] = ()
    file: str = ""
    line: int = 1  # or row of a table

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def place(self) -> str:
        return _place(self.file, self.line)


def read(source: Path, settings: Settings) -> tuple[list[Document], str]:
    """Returns the documents of a folder or of one file, and how many sentences matched. Raises BadInput."""
    unmatched: list[str] = []
    others: list[str] = []
    rows: dict[tuple[str, str], list[Row]] = {}
    labels = [] if settings.names else [line.strip() for line in _lines_of(LABELS, source) if line.strip()]
    names, where = settings.names or labels, "workload.classes" if settings.names else LABELS
    for shown, path in tables.find_files(source, settings.source.files).items():
        if path.name in (CATEGORIES, LABELS):
            continue
        if path.suffix.lower() != ".txt":
            of_file = _of_table(path, shown, settings.columns)
        elif "\t" in (text := tables.read_text(path, shown)):
            of_file = _of_lines(text, shown, unmatched)
        else:
            others.append(shown)
            continue
        for number, document, sentence, role, category in of_file:
            is_number = role.isdecimal() and role not in names
            role = names[int(role)] if is_number and int(role) < len(names) else role
            if wrong := _wrong(sentence, role, names if settings.names or is_number else (), where):
                unmatched.append(f"{_place(shown, number)}: {wrong}")
            else:
                rows.setdefault((shown, document), []).append((number, document, sentence, role, category))
    check_limit("Lines that cannot be used", unmatched, settings.bad_input_limit)
    if not rows:
        raise BadInput(f"There is no sentence with a role in {printable(source)}. Look at data.dir.")
    first = "".join(f"\n  {printable(one)}" for one in unmatched[:3])
    count = sum(map(len, rows.values()))
    text = f"Sentences with a role: {count:,} in {len(rows):,} documents; left out: {len(unmatched):,}.{first}"
    if others:
        text += f"\nFiles without a tab, which are no documents: {len(others):,} ({printable(', '.join(others[:3]))})."
    return _documents(rows, _categories(source)), text


def _of_lines(text: str, shown: str, unmatched: list[str]) -> Iterator[Row]:
    """Yields the sentences of a text file; a blank line ends a document."""
    lines = [line.strip("\r") for line in text.split("\n")]
    filled = [bool(line.strip()) for line in lines]
    begins = [is_filled and not (n and filled[n - 1]) for n, is_filled in enumerate(filled)]
    name, part = PurePosixPath(shown).stem, 0
    for number, line in enumerate(lines):
        part += begins[number]
        cells = line.split("\t")
        has_confidence = len(cells) == 3 and cells[2].strip().replace(".", "", 1).isdecimal()
        if len(cells) == 2 or has_confidence:
            yield number + 1, f"{name}/{part}" if sum(begins) > 1 else name, one_line(cells[0]), one_line(cells[1]), ""
        elif filled[number]:
            place, form = _place(shown, number + 1), "sentence, tab, role, and perhaps tab, confidence"
            unmatched.append(f"{place}: There are {len(cells) - 1} tabs. Write {form}.")


def _of_table(path: Path, shown: str, columns: Columns) -> Iterator[Row]:
    names = vars(columns)
    optional = [name for name in _OPTIONAL if names[name] == name]  # which a file may lack
    for number, row in enumerate(tables.read_table(path, shown, names, optional).to_dict("records"), 1):
        yield number, row["document"] or PurePosixPath(shown).stem, row["sentence"], row["role"], row["category"]


def _documents(rows: dict[tuple[str, str], list[Row]], category_of: dict[str, str]) -> list[Document]:
    """Returns the documents; names that two files share have the file's folder, too."""
    shared = Counter(name for _, name in rows)
    documents = []
    for (shown, name), own in rows.items():
        numbers, _, sentences, roles, categories = zip(*own, strict=True)
        category = category_of.get(name) or category_of.get(PurePosixPath(name).name) or categories[0]
        file = PurePosixPath(shown)
        above = file.parent if name.startswith(file.stem) else file.with_suffix("")
        whole = name if shared[name] == 1 else (above / name).as_posix()
        documents.append(Document(whole, category, sentences, roles, shown, numbers[0]))
    return documents


def _wrong(sentence: str, role: str, names: Sequence[str], where: str) -> str:
    """Returns why a line cannot be used; nothing where it can. Without names any role is one."""
    if not sentence or not role:
        return f"There is no {'role' if sentence else 'sentence'}."
    if len(sentence) > MOST_LETTERS:
        return f"The sentence has {len(sentence):,} letters, and at most {MOST_LETTERS:,} are one sentence. Split it."
    if not names or role in names:
        return ""
    near = difflib.get_close_matches(role, names, 1)
    hint = f" Is {near[0]!r} meant?" if near else ""
    return f"The role {printable(repr(role), most=60)} is none of {where}.{hint}"


def _place(file: str, number: int) -> str:
    return f"{file}, {'line' if file.lower().endswith('.txt') else 'row'} {number}"


def _lines_of(name: str, source: Path) -> list[str]:
    """Returns the lines of the file of a name in a folder or beside a file; none where there is no such file."""
    paths = sorted(source.rglob(name)) if source.is_dir() else [source.with_name(name)]
    return next((tables.read_text(path, name).splitlines() for path in paths if path.is_file()), [])


def _categories(source: Path) -> dict[str, str]:
    """Returns the category of each document's name by lines of category, tab, names. Raises BadInput."""
    categories: dict[str, str] = {}
    for number, line in enumerate(_lines_of(CATEGORIES, source), 1):
        category, tab, names = line.partition("\t")
        if line.strip() and not (tab and category.strip()):
            raise BadInput(f"{CATEGORIES}, line {number}: Write a category, a tab, and names of documents with spaces.")
        for name in names.split():
            if categories.setdefault(name, category.strip()) != category.strip():
                raise BadInput(f"{CATEGORIES}, line {number}: {printable(name)} is in two categories. Name it in one.")
    return categories


def class_names(documents: Sequence[Document], most: int) -> tuple[str, ...]:
    """Returns the roles in alphabetical order, numbers in theirs. Raises BadInput for too many."""
    counts = Counter(role for document in documents for role in document.roles)
    if len(counts) > most:
        rare = ", ".join(repr(role) for role, _ in counts.most_common()[:-4:-1])
        how = f"among them {printable(rare, most=200)}. Allow more if these are roles; if not, look at the columns."
        raise BadInput(f"The documents have {len(counts):,} roles, more than workload.classes ({most:,}), {how}")
    return tuple(sorted(counts, key=lambda role: (not role.isdecimal(), int(role) if role.isdecimal() else 0, role)))


def read_plain(path: Path) -> Document:
    """Returns a judgment without roles: a sentence a line, running text, or the sentences of labelled lines."""
    text = tables.read_text(path, path.name).replace("\r\n", "\n").replace("\r", "\n")
    rows = [line.split("\t") for line in text.split("\n") if line.strip()]
    is_labelled = all(len(cells) in (2, 3) and all(map(str.strip, cells[:2])) for cells in rows)
    sentences = [one_line(cells[0]) for cells in rows] if is_labelled else split_text(text)
    if not sentences:
        raise BadInput(f"{path.name} has no sentence. Give a judgment as text.")
    return Document(path.stem, "", tuple(sentences))
