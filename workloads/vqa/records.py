"""Questions about pictures with their answers: JSON lines, or any table whose columns the configuration names."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from lib.errors import BadInput, check_limit, printable
from lib.machine import inputs, platform
from lib.training.splits import part_of
from workloads.vqa import pictures
from workloads.vqa.scoring import normal
from workloads.vqa.settings import Columns, Settings, Source

OTHER = "other types"  # stands for rare question types
_OPTIONAL = ("kind", "reasoning", "split")
_RARE = 0.01  # of the records: slips, several types in one, ids
_LETTERS, _KIND_LETTERS = 4000, 60  # of a question or an answer (the longest of the sample records has 274); of a type
_WORDS = {"train": "train", "validation": "val", "test": "test"}  # of {split} in a pattern


@dataclass(frozen=True)
class Record:
    """A question about a picture, with its answer and where it was read."""

    number: int  # row of its file, from 1
    question: str  # NFC
    answer: str  # NFC, as given
    image: str  # path of the picture on this machine
    picture: str  # hash of the picture's file, by which splits are made
    kind: str = ""  # question type
    reasoning: str = ""  # of a teacher
    part: str = ""  # train, validation or test, if the split column, files or folders are named so
    file: str = ""


class Collection(NamedTuple):
    """Records, and sentences on what matched and what did not."""

    records: list[Record]
    notes: list[str]


def read(folder: Path, settings: Settings) -> Collection:
    """Returns the records of a folder or of one file, in the order of files and rows. Raises BadInput."""
    source, unmatched = settings.source, []
    root = folder if folder.is_dir() else folder.parent
    if source.images and not (root := inputs.find_input(source.images, platform.detect())).is_dir():
        raise BadInput(f"workload.source.images is {printable(root)}, which is no folder. Name the pictures' folder.")
    drafts = list(_rows(folder, root, settings.columns, source, unmatched))
    judged = pictures.check(sorted({record.image for record in drafts}), settings.pictures.limit_pixels)
    unmatched += [f"{_place(one)}: {judged[one.image][1]}" for one in drafts if judged[one.image][1]]
    matched = [replace(one, picture=judged[one.image][0]) for one in drafts if not judged[one.image][1]]
    check_limit("Rows that cannot be used", unmatched, settings.bad_input_limit if matched else 0)
    if not matched:
        raise BadInput(f"There is no question in {printable(folder)}. Look at data.dir.")
    first = "".join(f"\n  {printable(one)}" for one in unmatched[:3])
    notes = [f"Questions with their picture: {len(matched):,}; rows that are left out: {len(unmatched):,}.{first}"]
    records = _with_kinds(_without_copies(matched, notes), notes)
    return Collection(_with_parts(records, notes), notes)


def fingerprint(records: Sequence[Record]) -> str:
    """Hashes what records say and what their pictures show, wherever they lie."""
    facts = (repr((one.question, one.answer, one.picture, one.kind, one.reasoning, one.part)) for one in records)
    return hashlib.sha256("".join(facts).encode()).hexdigest()


def _rows(folder: Path, root: Path, columns: Columns, source: Source, unmatched: list[str]) -> Iterable[Record]:
    """Yields a record without the hash of its picture for each row; adds the others to `unmatched`."""
    from lib.supervised import tables

    names = vars(columns)
    optional = [name for name in _OPTIONAL if names[name] == name]  # which a file may lack
    for shown, path in tables.find_files(folder, source.files).items():
        for number, row in enumerate(tables.read_table(path, shown, names, optional).to_dict("records"), 1):
            part = part_of(PurePosixPath(row.pop("split") or shown))
            image = row.pop("image")
            record = Record(number, image=str(_path(root, source.picture, image, part, shown)), picture="", part=part,
                            file=shown, **row)  # fmt: skip
            if wrong := _wrong(record, image):
                unmatched.append(f"{_place(record)}: {wrong}")
            else:
                yield record


def _path(root: Path, pattern: str, image: str, part: str, file: str) -> Path:
    """Returns where the picture of a row lies, by the pattern of the configuration. Raises BadInput."""
    inside = PurePosixPath(image.replace("\\", "/"))
    folder = PurePosixPath(file).parent
    try:
        values = {"image": image, "stem": inside.stem, "name": inside.name, "folder": folder}
        name = pattern.format(**values, split=_WORDS.get(part, ""))
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise BadInput(
            f"workload.source.picture {printable(pattern)} cannot be filled in ({printable(repr(error))}). Write "
            "{image}, {name}, {stem}, {split} or {folder} in it."
        ) from None
    return root / name


def _wrong(record: Record, image: str) -> str:
    """Returns why a row cannot be used; nothing where it can."""
    texts = {"question": record.question, "answer": record.answer, "image": image, "reasoning": record.reasoning}
    for name, text in texts.items():
        if not text and name != "reasoning":
            return f"There is no {name}."
        if len(text) > _LETTERS:
            return f"The {name} has {len(text):,} letters, and at most {_LETTERS:,} are read."
    if len(record.kind) > _KIND_LETTERS or any(letter in "[]<>" for letter in record.kind):
        return f"{printable(record.kind, most=60)} is no question type: at most {_KIND_LETTERS} letters, no brackets."
    try:
        is_there = Path(record.image).is_file()
    except (OSError, ValueError):  # a name that no disk takes
        is_there = False
    return "" if is_there else f"There is no picture {printable(record.image, most=200)}."


def _place(record: Record) -> str:
    return f"{record.file}, row {record.number}"


def _without_copies(records: Sequence[Record], notes: list[str]) -> list[Record]:
    """Returns the records without those that repeat another; of copies one with a reasoning stays."""
    best: dict[tuple[str, str, str], Record] = {}
    for one in records:
        key = (one.picture, normal(one.question), normal(one.answer))
        other = best.setdefault(key, one)
        if (bool(one.reasoning), bool(one.part)) > (bool(other.reasoning), bool(other.part)):
            best[key] = replace(one, part=one.part or other.part)
    if copies := len(records) - len(best):
        notes.append(f"Questions that repeat another one and are left out: {copies:,}.")
    return list(best.values())


def _with_kinds(records: list[Record], notes: list[str]) -> list[Record]:
    """Returns the records with all rare question types as one; with none where all are rare."""
    counts = Counter(one.kind for one in records if one.kind)
    rare = {kind for kind, count in counts.items() if count < _RARE * len(records)}
    if not rare:
        return records
    common = OTHER if len(rare) < len(counts) else ""
    notes.append(f"{len(rare):,} question types have fewer than {_RARE:.0%} of the rows each: {common or 'ignored'}.")
    return [replace(one, kind=common) if one.kind in rare else one for one in records]


def _with_parts(records: list[Record], notes: list[str]) -> list[Record]:
    """Returns the records, without the parts of their files where these show the same pictures."""
    parts: dict[str, set[str]] = defaultdict(set)
    for one in records:
        parts[one.picture].add(one.part)
    if not (shared := sum(len(names - {""}) > 1 for names in parts.values())):
        return records
    notes.append(f"Pictures that the files have in two parts: {shared:,}. All pictures are dealt anew.")
    return [replace(one, part="") for one in records]
