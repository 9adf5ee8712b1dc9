"""Judgments with the roles of their sentences: lines of text files, or tables with named columns; and new ones."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lib.errors import BadInput, check_limit, printable
from lib.supervised import tables
from workloads.legal.sentences import one_line, split_text
from workloads.legal.settings import Columns, Settings

CATEGORIES = "categories.txt"
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
    rows: dict[tuple[str, str], list[Row]] = {}
    for shown, path in tables.find_files(source, settings.source.files).items():
        if path.name == CATEGORIES:
            continue
        is_text = path.suffix.lower() == ".txt"
        for row in _of_lines(path, shown, unmatched) if is_text else _of_table(path, shown, settings.columns):
            number, document, sentence, role, _ = row
            if wrong := _wrong(sentence, role, settings.names):
                unmatched.append(f"{_place(shown, number)}: {wrong}")
            else:
                rows.setdefault((shown, document), []).append(row)
    check_limit("Lines that cannot be used", unmatched, settings.bad_input_limit)
    if not rows:
        raise BadInput(f"There is no sentence with a role in {printable(source)}. Look at data.dir.")
    first = "".join(f"\n  {printable(one)}" for one in unmatched[:3])
    count = sum(map(len, rows.values()))
    text = f"Sentences with a role: {count:,} in {len(rows):,} documents; left out: {len(unmatched):,}.{first}"
    return _documents(rows, _categories(source)), text


def _of_lines(path: Path, shown: str, unmatched: list[str]) -> Iterator[Row]:
    """Yields the sentences of a text file; a blank line ends a document. A file without a tab is none."""
    text = tables.read_text(path, shown)
    lines = text.split("\n") if "\t" in text else []
    begins = [bool(line.strip()) and not (n and lines[n - 1].strip()) for n, line in enumerate(lines)]
    name, part = PurePosixPath(shown).stem, 0
    for number, line in enumerate(lines, 1):
        part += begins[number - 1]
        cells = line.split("\t")
        if len(cells) == 2:
            yield number, f"{name}/{part}" if sum(begins) > 1 else name, *map(one_line, cells), ""
        elif line.strip():
            unmatched.append(f"{_place(shown, number)}: There are {len(cells) - 1} tabs. Write sentence, tab, role.")


def _of_table(path: Path, shown: str, columns: Columns) -> Iterator[Row]:
    names = vars(columns)
    optional = [name for name in _OPTIONAL if names[name] == name]  # which a file may lack
    for number, row in enumerate(tables.read_table(path, shown, names, optional).to_dict("records"), 1):
        yield number, row["document"] or PurePosixPath(shown).stem, row["sentence"], row["role"], row["category"]


def _documents(rows: dict[tuple[str, str], list[Row]], category_of: dict[str, str]) -> list[Document]:
    """Returns the documents; names that two files share have the file's path, too."""
    shared = Counter(name for _, name in rows)
    documents = []
    for (shown, name), own in rows.items():
        numbers, _, sentences, roles, categories = zip(*own, strict=True)
        category = category_of.get(name) or category_of.get(PurePosixPath(name).name) or categories[0]
        whole = name if shared[name] == 1 else (PurePosixPath(shown).with_suffix("") / name).as_posix()
        documents.append(Document(whole, category, sentences, roles, shown, numbers[0]))
    return documents


def _wrong(sentence: str, role: str, names: Sequence[str]) -> str:
    """Returns why a line cannot be used; nothing where it can. Without names any role is one."""
    if not sentence or not role:
        return f"There is no {'role' if sentence else 'sentence'}."
    if len(sentence) > MOST_LETTERS:
        return f"The sentence has {len(sentence):,} letters, and at most {MOST_LETTERS:,} are one sentence. Split it."
    return "" if not names or role in names else f"The role {printable(role, most=60)} is none of workload.classes."


def _place(file: str, number: int) -> str:
    return f"{file}, {'line' if file.lower().endswith('.txt') else 'row'} {number}"


def _categories(source: Path) -> dict[str, str]:
    """Returns the category of each document's name, by lines of category, tab, names in a file below or beside."""
    paths = sorted(source.rglob(CATEGORIES)) if source.is_dir() else [source.with_name(CATEGORIES)]
    text = next((tables.read_text(path, CATEGORIES) for path in paths if path.is_file()), "")
    rows = (line.partition("\t") for line in text.splitlines())
    return {name: category.strip() for category, _, names in rows for name in names.split()}


def class_names(documents: Sequence[Document], most: int) -> tuple[str, ...]:
    """Returns the roles in alphabetical order. Raises BadInput for too many."""
    counts = Counter(role for document in documents for role in document.roles)
    if len(counts) > most:
        rare = ", ".join(repr(role) for role, _ in counts.most_common()[:-4:-1])
        how = f"among them {printable(rare, most=200)}. Allow more if these are roles; if not, look at the columns."
        raise BadInput(f"The documents have {len(counts):,} roles, more than workload.classes ({most:,}), {how}")
    return tuple(sorted(counts))


def read_plain(path: Path) -> Document:
    """Returns a judgment without roles, of a sentence a line or of running text. Raises BadInput."""
    sentences = split_text(tables.read_text(path, path.name).replace("\r\n", "\n"))
    if not sentences:
        raise BadInput(f"{path.name} has no sentence. Give a judgment as text.")
    return Document(path.stem, "", tuple(sentences))
