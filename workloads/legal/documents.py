"""Judgments with the roles of their sentences: lines of text files, or tables, split into three parts; and new ones."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
import yaml

from lib.errors import BadInput, check_limit, first_ten, printable
from trainbook.supervised import coverage, tables
from trainbook.supervised.notes import note
from trainbook.supervised.splits import makes_a_split, part_of, stratify
from workloads.legal.settings import Columns, Settings, Split

CATEGORIES = "categories.txt"
_OPTIONAL = ("document", "category")  # columns
_BREAK = re.compile(r"[.?!][\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9]|\(([ivxlc]{1,6}|[a-z])\))")
_LIST_MARK = re.compile(r"[\"'“‘(\[]*(\d{1,3}|[ivxlc]{1,6}|[a-z])[.)]+", re.IGNORECASE)
_OPEN = "\"'“‘(["
_SHUT = "\"'”’)]"
_ABBREVIATIONS = frozenset(
    yaml.safe_load(Path(__file__).with_name("sentences.yaml").read_text("utf-8")).split()
)
_WRAPPED = 0.4  # share of lines that begin in lower case from which on lines end anywhere
_SPLIT = 1.25  # sentences a line up to which a file has one sentence a line
# Words of a long sentence; shorter ones ("Appeal dismissed") stand in many judgments
_LONG = 5
_SAME = 0.5  # share of a document's long sentences in another one that makes both the same judgment
_FEWEST = 3  # long sentences that can show it
_DECILES = 10

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


def position_features(document: Document) -> np.ndarray:
    """Returns (sentences, POSITIONS) features of each place from the beginning and the end, about 0 to 1."""
    count = len(document)
    begin = np.arange(count)
    end = begin[::-1]
    share = begin / max(1, count - 1)
    tenth = np.minimum((share * _DECILES).astype(int), _DECILES - 1)
    near_begin = [begin == 0, begin == 1, begin < 4]
    near_end = [end == 0, end == 1, end < 4, end < 8]
    words = np.array([sentence.count(" ") + 1 for sentence in document.sentences])
    smooth = [share, share**2, np.log1p(begin) / 6, np.log1p(end) / 6]
    sizes = [np.full(count, np.log1p(count) / 6), np.log1p(words) / 4]
    features = np.stack([*near_begin, *near_end, *smooth, *sizes], 1)
    return np.hstack([np.eye(_DECILES)[tenth], features])


def by_category(documents: Sequence[Document]) -> np.ndarray:
    """Returns (documents, categories) with a 1 for the category of each."""
    categories, number = np.unique([d.category for d in documents], return_inverse=True)
    return np.eye(len(categories))[number]


# --- files ------------------------------------------------------------------------------------------------------------


def read(source: Path, settings: Settings) -> tuple[list[Document], str]:
    """Returns the documents of a folder or of one file, and how many sentences matched. Raises BadInput."""
    unmatched: list[str] = []
    empty: list[str] = []
    rows: dict[tuple[str, str], list[Row]] = {}
    for shown, path in tables.find_files(source, settings.source.files).items():
        if path.name == CATEGORIES:
            continue
        before = len(rows)
        for row in _rows(path, shown, settings.columns, unmatched):
            number, document, sentence, role, _ = row
            if wrong := _wrong(sentence, role, settings.names):
                unmatched.append(f"{_place(shown, number)}: {wrong}")
            else:
                rows.setdefault((shown, document), []).append(row)
        if len(rows) == before:
            empty.append(shown)
    check_limit("Lines that cannot be used", unmatched, settings.bad_input_limit)
    if not rows:
        raise BadInput(
            f"There is no sentence with a role in {printable(source)}. Look at data.dir."
        )
    if empty:
        names = printable(", ".join(empty[:3]), most=300)
        more = f" and {len(empty) - 3:,} more" if len(empty) > 3 else ""
        note(f"Files without a sentence and its role: {names}{more}.")
    first = "".join(f"\n  {printable(line)}" for line in unmatched[:3])
    count = sum(map(len, rows.values()))
    total = f"{count:,} in {len(rows):,} documents"
    categories = _categories(source)
    documents = _documents(rows, categories)
    _note_categories(documents, categories)
    return documents, f"Sentences with a role: {total}; left out: {len(unmatched):,}.{first}"


def _note_categories(documents: Sequence[Document], categories: Mapping[str, str]) -> None:
    """Notes names in the file of categories that are no documents, and documents without a category."""
    if not categories:
        return
    names = {document.name for document in documents}
    names |= {PurePosixPath(name).name for name in names}
    if unknown := sorted(categories.keys() - names):
        shown = printable(", ".join(unknown), most=300)
        note(f"Names in {CATEGORIES} that are no document: {shown}.")
    if missing := [document.name for document in documents if not document.category]:
        example = printable(missing[0], most=100)
        note(f"Documents without a category: {len(missing):,}, such as {example}.")


def _rows(path: Path, shown: str, columns: Columns, unmatched: list[str]) -> Iterator[Row]:
    if path.suffix.lower() == ".txt":
        return _of_lines(path, shown, unmatched)
    return _of_table(path, shown, columns)


def _of_lines(path: Path, shown: str, unmatched: list[str]) -> Iterator[Row]:
    """Yields the sentences of a text file; a blank line ends a document. A file without a tab is none."""
    lines = tables.read_lines(path, shown)
    if not any("\t" in line for line in lines):
        coverage.add(coverage.Report(path))  # which `read` names
        return
    is_text = [bool(line.strip()) for line in lines]
    blank = {"blank": is_text.count(False)}
    coverage.add(coverage.Report(path, is_text.count(True), len(lines), blank))
    begins = [here and not before for before, here in pairwise([False, *is_text])]
    name = PurePosixPath(shown).stem
    part = 0
    for number, line in enumerate(lines, 1):
        part += begins[number - 1]
        document = f"{name}/{part}" if sum(begins) > 1 else name
        cells = [one_line(cell) for cell in line.split("\t")]
        if len(cells) == 2:
            yield number, document, cells[0], cells[1], ""
        elif line.strip():
            unmatched.append(
                f"{_place(shown, number)}: There are {len(cells) - 1} tabs. Write sentence, tab, role."
            )


def _of_table(path: Path, shown: str, columns: Columns) -> Iterator[Row]:
    names = vars(columns)
    optional = [name for name in _OPTIONAL if names[name] == name]  # which a file may lack
    rows = tables.read_table(path, shown, names, optional).to_dict("records")
    for number, row in enumerate(rows, 1):
        document = row["document"] or PurePosixPath(shown).stem
        yield number, document, row["sentence"], row["role"], row["category"]


def _documents(
    rows: dict[tuple[str, str], list[Row]], category_of: dict[str, str]
) -> list[Document]:
    """Returns the documents; names that two files share have the file's path, too."""
    shared = Counter(name for _, name in rows)
    documents = []
    for (shown, name), of_document in rows.items():
        numbers, _, sentences, roles, categories = zip(*of_document, strict=True)
        named = category_of.get(name) or category_of.get(PurePosixPath(name).name)
        category = named or categories[0]
        unique = name
        if shared[name] > 1:
            unique = (PurePosixPath(shown).with_suffix("") / name).as_posix()
        documents.append(Document(unique, category, sentences, roles, shown, numbers[0]))
    return documents


def _wrong(sentence: str, role: str, names: Sequence[str]) -> str:
    """Returns why a line cannot be used; nothing where it can. Without names any role is one."""
    if not sentence or not role:
        return f"There is no {'role' if sentence else 'sentence'}."
    if not names or role in names:
        return ""
    return f"The role {printable(role, most=60)} is none of workload.classes."


def _place(file: str, number: int) -> str:
    return f"{file}, {'line' if file.lower().endswith('.txt') else 'row'} {number}"


def _categories(source: Path) -> dict[str, str]:
    """Returns the category of each document's name, by lines of category, tab, names in a file below or beside."""
    if source.is_dir():
        paths = sorted(source.rglob(CATEGORIES))
    else:
        paths = [source.with_name(CATEGORIES)]
    categories: dict[str, str] = {}
    for path in filter(Path.is_file, paths):
        lines = tables.read_lines(path, CATEGORIES)
        coverage.add(coverage.Report(path))
        for line in lines:
            category, _, names = line.partition("\t")
            for name in names.split():
                if categories.setdefault(name, category.strip()) != category.strip():
                    raise BadInput(
                        f"{CATEGORIES}: {printable(name)} has two categories, "
                        f"{printable(categories[name])} and {printable(category)}. Keep one."
                    )
    return categories


def class_names(documents: Sequence[Document], most: int) -> tuple[str, ...]:
    """Returns the roles in alphabetical order. Raises BadInput for too many."""
    roles = sorted({role for document in documents for role in document.roles})
    if len(roles) > most:
        names = printable(", ".join(roles), most=200)
        raise BadInput(
            f"The documents have {len(roles):,} roles ({names}), more than workload.classes ({most:,}). "
            f"Allow more if these are roles; if not, look at the columns."
        )
    return tuple(roles)


def read_plain(path: Path) -> Document:
    """Returns a judgment without roles, of a sentence a line or of running text. Raises BadInput."""
    sentences = split_text(tables.read_text(path, path.name).replace("\r\n", "\n"))
    if not sentences:
        raise BadInput(f"{path.name} has no sentence. Give a judgment as text.")
    return Document(path.stem, "", tuple(sentences))


def one_line(text: str) -> str:
    """Returns a text with single spaces for every run of spaces, tabs and line ends."""
    return " ".join(text.split())


def split_text(text: str) -> list[str]:
    """Returns the sentences of a text with one a line, a paragraph a line, or lines that end anywhere."""
    lines = [line.strip() for line in text.split("\n")]
    following = [line for before, line in pairwise(lines) if before and line]
    if sum(line[0].islower() for line in following) > _WRAPPED * len(following):
        paragraphs = re.split(r"\n\s*\n", text)
        return [sentence for text in paragraphs for sentence in split_sentences(text)]
    filled = [one_line(line) for line in lines if line]
    sentences = [sentence for line in filled for sentence in split_sentences(line)]
    if len(filled) > 1 and len(sentences) < _SPLIT * len(filled):
        return filled
    return sentences


def split_sentences(text: str) -> list[str]:
    bounds = [0]
    for match in _BREAK.finditer(text):
        if _ends_sentence(text[bounds[-1] : match.end()].rstrip()):
            bounds.append(match.end())
    bounds.append(len(text))
    pieces = [one_line(text[begin:end]) for begin, end in pairwise(bounds)]
    return [piece for piece in pieces if piece]


def _ends_sentence(before: str) -> bool:
    """Returns whether a sentence ends here; `before` ends in a full stop or another mark."""
    if _LIST_MARK.fullmatch(before):  # 12. or (iv)
        return False
    last = before.split()[-1].rstrip(_SHUT).lstrip(_OPEN)
    word = last.removesuffix(".").lower()
    is_short = word in _ABBREVIATIONS or re.fullmatch(r"[a-z]|(\w{1,3}\.)+\w{1,3}", word)
    return last.endswith(("?", "!")) or not is_short or word.replace(".", "").isdigit()


# --- parts ------------------------------------------------------------------------------------------------------------


def deal(
    documents: Sequence[Document], split: Split, ratio: float = 1.0, copies: str = "refuse"
) -> dict[str, list[Document]]:
    """Deals documents: one fold of several is the test, and a share of the others validates. Raises BadInput.

    Parts that files are named for count, and what they lack is split from the training documents, of which a
    share of `ratio` is left; a smaller one is part of a larger one. Documents in two parts are refused, or with
    `copies` "drop" left out of the earlier part: the test stays whole.
    """
    places = _places(documents, split)
    if empty := _first_empty(places):
        raise BadInput(
            f"No document is left for {empty}: there are {len(documents)} in all. "
            f"Give more documents, or change workload.split."
        )
    if copies == "drop":
        places = _without_copies(documents, places)
    else:
        check_leaks(documents, places)
    if empty := _first_empty(places):
        raise BadInput(f"All documents of {empty} are in another part, too. Give others.")
    drawn = np.random.default_rng(split.partition).permutation(places["train"])
    count = int(np.ceil(ratio * len(drawn) - 1e-9))
    places["train"] = drawn[:count].tolist()
    return {name: [documents[place] for place in sorted(part)] for name, part in places.items()}


def _first_empty(parts: Mapping[str, Sequence[int]]) -> str:
    return next((name for name, places in parts.items() if not places), "")


def _places(documents: Sequence[Document], split: Split) -> dict[str, list[int]]:
    """Returns the numbers of each part's documents, in the order of their names. Raises BadInput."""
    order = sorted(range(len(documents)), key=lambda place: documents[place].name)
    parts = [part_of(Path(document.file)) for document in documents]
    if not makes_a_split(parts):
        parts = ["train"] * len(documents)
    if split.fold and "test" in parts:
        raise BadInput(
            f"workload.split.fold is {split.fold}, and the test that files are named for has no folds."
        )
    folds = [1 / split.folds] * split.folds
    shares = [1 - split.validation, split.validation]
    for name, shares_of_parts, number in (("test", folds, split.fold), ("validation", shares, 1)):
        rest = [place for place in order if parts[place] == "train"]
        if not rest or name in parts:
            continue
        dealt = _dealt([documents[place] for place in rest], shares_of_parts, split.partition)
        for place, part in zip(rest, dealt, strict=True):
            if part == number:
                parts[place] = name
    names = ("train", "validation", "test")
    return {name: [place for place in order if parts[place] == name] for name in names}


def _dealt(documents: Sequence[Document], shares: Sequence[float], seed: int) -> np.ndarray:
    """Returns (documents) the part of each, so that every part has its share of each category, else of each role."""
    counts = by_category(documents)
    if counts.shape[1] < 2:
        roles = class_names(documents, sys.maxsize)
        counts = np.array([[d.roles.count(role) for role in roles] for d in documents], float)
    return stratify(counts, shares, seed)


def check_leaks(documents: Sequence[Document], parts: Mapping[str, Sequence[int]]) -> None:
    """Raises BadInput for documents of two parts with most of their long sentences alike."""
    pairs = []
    for place, twin in copies_in(documents, parts):
        pairs.append(f"{_placed(documents[place])} and {_placed(documents[twin])}")
    if pairs:
        raise BadInput(
            f"Documents that are in two parts: {len(pairs):,}. What is tested would have been trained on. "
            f"Remove the copies, or set workload.copies: drop.\n{first_ten(pairs)}"
        )


def _without_copies(
    documents: Sequence[Document], parts: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """Returns the parts without documents that a later part has, and notes how many these are."""
    twins = dict(copies_in(documents, dict(reversed([*parts.items()]))))
    kept: dict[str, list[int]] = {}
    for name, places in parts.items():
        kept[name] = [place for place in places if place not in twins]
        copied = [place for place in twins if place in places]
        if copied:
            twin = _placed(documents[twins[copied[0]]])
            example = f"such as {_placed(documents[copied[0]])}, a copy of {twin}"
            note(
                f"Documents of {name} that are left out as copies: {len(copied):,}, {printable(example, most=300)}."
            )
    return kept


def copies_in(
    documents: Sequence[Document], parts: Mapping[str, Sequence[int]]
) -> list[tuple[int, int]]:
    """Returns each document most of whose long sentences one of an earlier part has, with the latter, by number."""
    texts = [_long_sentences(document) for document in documents]
    pairs: list[tuple[int, int]] = []
    holders: dict[str, list[int]] = {}  # numbers of the earlier parts' documents, by long sentence
    for chosen in parts.values():
        for place in chosen:
            shared = Counter(holder for text in texts[place] for holder in holders.get(text, ()))
            for twin, count in shared.most_common(1):
                shorter = min(len(texts[place]), len(texts[twin]))
                if count >= _FEWEST and count > _SAME * shorter:
                    pairs.append((place, twin))
        for place in chosen:
            for text in texts[place]:
                holders.setdefault(text, []).append(place)
    return pairs


def _long_sentences(document: Document) -> frozenset[str]:
    sentences = [s for s in document.sentences if s.count(" ") + 1 >= _LONG]
    return frozenset(sentence.casefold() for sentence in sentences)


def _placed(document: Document) -> str:
    return f"{document.name} ({document.place})"
