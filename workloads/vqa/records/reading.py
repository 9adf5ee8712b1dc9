"""Reads records: tables as files have them, questions joined with annotations, pictures found and looked at."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lib.errors import BadInput, check_limit, first_ten, printable
from lib.machine import inputs, platform
from lib.machine.published import has_weights
from workloads.vqa import pictures
from workloads.vqa.records import fields
from workloads.vqa.records.files import FORMS, Table, plain, tables
from workloads.vqa.records.folders import PictureFiles
from workloads.vqa.records.record import OTHER, Collection, Record
from workloads.vqa.records.settings import Source
from workloads.vqa.scoring import normal

_SNIFFED = 2**14  # bytes in which a file of records has a question
_MOST_FILES = 200  # of a folder that are looked into
_VIVQA = "ViVQA's CSV"
_RARE = 0.01  # of the records: slips, several types in one, ids


def read(folder: Path, source: Source, limit_pixels: int, limit: int) -> Collection:
    """Returns the records below a folder. Raises BadInput, see `records.read`."""
    reader = _Reader(folder, source)
    for table in reader.asked():
        reader.add(table)
    found = reader.with_pictures(limit_pixels)
    check_limit("What cannot be used of the records", reader.problems, limit)
    if reader.problems:
        reader.notes.append(f"Records that are left out: {len(reader.problems):,}.\n{first_ten(reader.problems)}")
    if not found:
        raise BadInput(f"There is no record that can be used in {printable(folder)}. Look at data.dir.")
    found = reader.without_copies(found)
    return Collection(reader.with_parts(reader.with_kinds(found)), reader.layout, reader.notes)


def looks_asked(folder: Path) -> bool:
    """Says whether a folder has a file of questions with answers, by the begin of its files."""
    if has_weights(folder):
        return False
    files = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in FORMS and path.is_file())
    return any(_is_asked(path) for _, path in zip(range(_MOST_FILES), files, strict=False))


def _is_asked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            begin = file.read(_SNIFFED).decode("utf-8", "ignore").casefold()
    except OSError:
        return False
    names = [name for name in fields.USUAL["question"] if len(name) > 1]
    if path.suffix.lower() in (".csv", ".tsv"):
        head = {plain(cell) for cell in begin.split("\n")[0].replace("\t", ",").replace(";", ",").split(",")}
        return bool(head & {*names}) and bool(head & {*fields.USUAL["image"]})
    if path.suffix.lower() == ".txt":
        return begin.split("\n")[0].count("|") >= 2
    return any(f'"{name}"' in begin for name in names) or (begin.lstrip().startswith("[[") and "?" in begin)


class _Reader:
    """What is read of a folder so far, with all that is wrong in it."""

    def __init__(self, folder: Path, source: Source):
        self.folder, self.source = folder, source
        self.root = folder if folder.is_dir() else folder.parent
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.missing: list[str] = []
        self.drafts: list[tuple[str, Record]] = []  # each with its place
        self.layouts: Counter[str] = Counter()
        self.pictures = PictureFiles(self._picture_roots())

    def _picture_roots(self) -> list[Path]:
        if not self.source.images:
            return [self.root]
        found = inputs.find_input(self.source.images, platform.detect())
        if not found.is_dir():
            raise BadInput(
                f"workload.source.images is {printable(found)}, which is no folder. Name the pictures' folder."
            )
        return [found]

    @property
    def layout(self) -> str:
        return ", ".join(sorted(self.layouts))

    # --- tables ---------------------------------------------------------------------------------------------------

    def asked(self) -> list[Table]:
        """Returns the tables with questions and answers. Raises BadInput where there is none."""
        found = tables(self.folder, fields.known(self.source, "question"), fields.known(self.source, "answer"))
        lists = [one for one in found if not one.is_named and len(one.columns) > 2]
        named = [one for one in found if one.is_named]
        asked = [one for one in named if fields.has(one, self.source, "question")]
        whole = [one for one in asked if fields.has(one, self.source, "answer")]
        answered = [one for one in named if one not in asked and fields.has(one, self.source, "answer")]
        for table in asked:
            if table not in whole:
                joined = self._joined(table, answered)
                whole += [joined] if joined.rows else []
        if whole and lists:
            self.notes.append(f"Without names of columns, and so not read: {', '.join(one.file for one in lists[:5])}.")
        if not whole and not lists:
            self._refuse(asked or named)
        mounts = [] if self.source.images else inputs.mounted(platform.detect())
        if mounts and not any(map(self._shows, whole or lists)):  # they may be another input of the notebook
            self.pictures = PictureFiles([self.root, *mounts])
        return whole or [one for one in lists if self._shows(one)] or lists

    def _shows(self, table: Table) -> bool:
        """Says whether a cell of the first rows of a table stands for a picture."""
        near = self.root / table.file
        return any(self.pictures.find(cell, near) for _, row in table.rows[:9] for cell in row.values())

    def _refuse(self, found: Sequence[Table]) -> None:
        if not found:
            raise BadInput(
                f"There are no questions in {printable(self.folder)}: no CSV with a head of question, answer and "
                "image, no JSON of such objects or of lists [question, answer, image]. Look at data.dir; save tables "
                "of other kinds (.parquet, .xlsx) as CSV, and pictures within them as files."
            )
        missing = "answer" if fields.has(found[0], self.source, "question") else "question"
        raise fields.no_column(found[0], missing, self.source)

    def _joined(self, table: Table, answered: Sequence[Table]) -> Table:
        """Returns a table of questions with the answers that others have under the same ids."""
        answers: dict[Any, tuple[str, dict[str, Any]]] = {}  # by the question's id, with their places
        for other in (one for one in answered if one.part == table.part or not (one.part and table.part)):
            for number, row in other.rows:
                key = fields.filled(row, fields.USUAL["id"])
                place, first = answers.setdefault(key, (other.place(number), row))
                if key is not None and first != row:
                    self.problems.append(f"{other.place(number)}: The question {key} is answered in {place} too.")
        answers.pop(None, None)
        joined = []
        for number, row in table.rows:
            if answer := answers.get(fields.filled(row, fields.USUAL["id"])):
                joined.append((number, {**answer[1], **row}))
        if without := len(table.rows) - len(joined):
            self.notes.append(f"{table.file}: {without:,} questions have no answer and are not read.")
        return Table(table.file, table.part, table.unit, joined, table.problems)

    def add(self, table: Table) -> None:
        """Takes the rows of a table."""
        near = self.root / table.file
        columns = fields.choose(table, self.source, self.pictures, near)
        is_vivqa = fields.is_vivqa(table)
        self.problems += table.problems
        self.layouts[_layout(table, is_vivqa)] += 1
        first: dict[str, tuple[int, Any]] = {}  # by the question's id
        for number, row in table.rows:
            place = table.place(number)
            try:
                given = fields.values(row, columns, self.source.kinds, is_vivqa)
                key = fields.text(fields.filled(row, columns.get("id", ())))
                other, same = first.setdefault(key, (number, row))
                if key and same != row:
                    raise ValueError(f"The question {key} is in {table.unit} {other} too, with other content.")
                if image := self._picture(row, columns["image"], table, near, place):
                    record = Record(number, image=image, picture="", part=table.part, file=table.file, **given)
                    self.drafts.append((place, record))
            except (ValueError, RecursionError) as error:
                self.problems.append(f"{place}: {error}")

    def _picture(self, row: dict[str, Any], names: Sequence[str], table: Table, near: Path, place: str) -> str:
        """Returns the path of a row's picture; "" where it is not there. Raises ValueError where it cannot be told."""
        value = fields.one(fields.filled(row, names))
        if value is None:
            raise ValueError(f"There is nothing in {names[0]}, which names the picture.")
        shown = printable(repr(value), most=100)
        found = self.pictures.find(value, near, table.part)
        if len(found) > 1:
            raise ValueError(
                f"{shown} stands for several pictures, {printable(found[0])} and {printable(found[1])}. Name the "
                "folder of the right ones in workload.source.images."
            )
        if not found:
            self.missing.append(f"{place}: {shown}")
        return str(found[0]) if found else ""

    # --- records --------------------------------------------------------------------------------------------------

    def with_pictures(self, limit_pixels: int) -> list[Record]:
        """Returns the records whose pictures are there and can be decoded. Raises BadInput for too many without."""
        total, limit = len(self.drafts) + len(self.missing), self.source.missing_limit
        if len(self.missing) > limit or (self.missing and not self.drafts):
            where = ", ".join(printable(root) for root in self.pictures.roots[:3])
            what, more = f"None of {total:,} records has its picture", ""
            if self.drafts:
                what = f"{len(self.missing):,} of {total:,} records have no picture"
                more = f" Or leave them out by workload.source.missing_limit: {len(self.missing)} (it is {limit:,})."
            elif _VIVQA in self.layouts:
                more = " ViVQA's ids are those of COCO's pictures: 123 is COCO_train2014_000000000123.jpg."
            raise BadInput(
                f"{what}; {self.pictures.count:,} pictures lie below {where}. Name the pictures' folder in "
                "workload.source.images, or the column that names them in workload.source.image."
                f"{more}\n{first_ten(self.missing)}"
            )
        if self.missing:
            self.notes.append(f"Records without their picture, which are left out: {len(self.missing):,} of {total:,}.")
        judged = pictures.check(sorted({record.image for _, record in self.drafts}), limit_pixels)
        found = []
        for place, record in self.drafts:
            digest, wrong = judged[record.image]
            if wrong:
                self.problems.append(f"{place}: {wrong}")
            else:
                found.append(replace(record, picture=digest))
        return found

    def without_copies(self, records: Sequence[Record]) -> list[Record]:
        """Returns the records without those that repeat another one; of the copies that which says most stays."""
        best: dict[tuple[str, str, str], Record] = {}
        answers: dict[tuple[str, str], set[str]] = defaultdict(set)
        for one in records:
            key = (one.picture, normal(one.question), normal(one.answer))
            other = best.setdefault(key, one)
            if (bool(one.reasoning), bool(one.part)) > (bool(other.reasoning), bool(other.part)):
                best[key] = replace(one, part=one.part or other.part)
            answers[key[:2]].add(key[2])
        if copies := len(records) - len(best):
            self.notes.append(f"Records that repeat another one and are left out: {copies:,}.")
        if several := sum(len(found) > 1 for found in answers.values()):
            self.notes.append(
                f"Questions with different answers about the same picture, which are all kept: {several:,}."
            )
        return list(best.values())

    def with_kinds(self, records: list[Record]) -> list[Record]:
        """Returns the records with one question type in the place of all rare ones; with none where all are rare."""
        counts = Counter(one.kind for one in records if one.kind)
        rare = {kind for kind, count in counts.items() if count < _RARE * len(records)}
        if self.source.kinds or not rare:
            return records
        common = OTHER if len(rare) < len(counts) else ""
        shown = printable(str(sorted(rare)[:5])[1:-1], most=200)
        self.notes.append(
            f"{len(rare):,} question types, such as {shown}, have fewer than {_RARE:.0%} of the records each and "
            f"{f'are taken together as {OTHER!r}' if common else 'do not count'}. List all types in "
            "workload.source.kinds to keep them, or name another column in workload.source.kind."
        )
        return [replace(one, kind=common) if one.kind in rare else one for one in records]

    def with_parts(self, records: list[Record]) -> list[Record]:
        """Returns the records, without the parts of their files where these show the same pictures."""
        sides: dict[str, set[str]] = defaultdict(set)
        for one in records:
            sides[one.picture].add(one.part)
        if shared := sum(len(parts - {""}) > 1 for parts in sides.values()):
            self.notes.append(
                f"The files' own parts share {shared:,} of {len(sides):,} pictures, so that a test would ask about "
                "pictures that were trained on. They do not count: the pictures are dealt anew."
            )
            return [replace(one, part="") for one in records]
        return records


def _layout(table: Table, is_vivqa: bool) -> str:
    columns = {*table.columns}
    if is_vivqa:
        return _VIVQA
    if "teacher_answer" in columns:
        return "a teacher's records"
    if not table.is_named:
        return "lists of question, answer and picture"
    return "CSV" if table.file.lower().endswith((".csv", ".tsv", ".txt")) else "JSON"
