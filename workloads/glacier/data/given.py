"""A split that is given: by folders called train, validation and test, or by a CSV of scene, part and group."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lib.errors import BadInput
from workloads.glacier.data.scenes import PARTS
from workloads.glacier.data.tiles import Store
from workloads.glacier.settings import Split

OUT = "out"  # of training and of both held-out parts


@dataclass(frozen=True)
class Given:
    """The part of each scene (train, validation, test, OUT, or "" if the shares decide) and its group."""

    parts: list[str]
    groups: list[str]
    notes: list[str]


def given(store: Store, split: Split, name_pattern: str = "", root: Path | None = None) -> Given:
    """Returns the split that the file gives for a store's scenes, otherwise the one of folders. Raises BadInput.

    A file that does not exist is searched by its name in the folder of the data, `root`.
    """
    if split.file:
        path = Path(split.file)
        if not path.is_file() and root and (root / path.name).is_file():
            path = root / path.name
        result = _of_rows(path, _read(path), store, name_pattern)
        for group in _divided(result.parts, result.groups):
            raise BadInput(
                f"{path}: the group {group} lies in two parts. Give all of its scenes one part, or other groups."
            )
        return result
    parts = store.parts
    if divided := _divided(parts, store.groups):
        shared = f"{len(divided):,} groups of scenes lie in two of them, such as {divided[0]}"
        note = f"The folders called train, validation and test are not taken as the split: {shared}."
        return Given([""] * len(parts), store.groups, [note])
    return Given(parts, store.groups, [f"The split is that of the folders: {_counts(parts)}."] if any(parts) else [])


def _read(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Returns the lines of the file with their numbers. Raises BadInput."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            names = [name.strip().lower() for name in next(rows, [])]
            cells = [(rows.line_num, [cell.strip() for cell in row]) for row in rows if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"workload.split.file: {path} cannot be read ({why}). Give a CSV of scene,part,group.") from None
    if "scene" not in names or not {"part", "group"} & set(names):
        raise BadInput(
            f"{path}:1: The columns are {', '.join(names) or 'empty'}. The first line of workload.split.file names "
            "them: scene,part,group, of which part or group may be left out."
        )
    lines = [(number, dict(zip(names, row, strict=False))) for number, row in cells]
    for number, row in lines:
        if (part := row.get("part", "").lower()) and part not in (*PARTS, OUT):
            raise BadInput(
                f"{path}:{number}: {row['part']!r} is no part. Write train, validation or test, {OUT} for a scene that "
                "is left out, or nothing where the shares decide."
            )
    return lines


def _of_rows(path: Path, rows: Sequence[tuple[int, dict[str, str]]], store: Store, name_pattern: str) -> Given:
    """Finds the scene of each line. Raises BadInput for a scene with two lines or with none."""
    last = [name.rpartition("/")[2] for name in store.names]
    number_of = {name: number for number, name in enumerate(last) if last.count(name) == 1}
    number_of |= {name: number for number, name in enumerate(store.names)}
    lines: dict[int, tuple[int, dict[str, str]]] = {}
    strange = []
    for line, row in rows:
        scene = next((number_of[name] for name in _spellings(row["scene"], name_pattern) if name in number_of), None)
        if scene is None:
            strange.append(row["scene"])
        elif scene in lines:
            raise BadInput(f"{path}:{line}: {row['scene']} has a line already, {lines[scene][0]}. Remove one of them.")
        else:
            lines[scene] = line, row
    if lacking := [name for number, name in enumerate(store.names) if number not in lines]:
        example = f" It names {strange[0]}, which is no scene." if strange else ""
        raise BadInput(
            f"{path} has no line for {len(lacking):,} of {len(store.names):,} scenes, such as {lacking[0]}.{example} "
            f"Give each a line, with the part {OUT} where it is to be left out."
        )
    ordered = [lines[number][1] for number in range(len(store.names))]
    parts = [row.get("part", "").lower() for row in ordered]
    parts = [OUT if part == OUT else PARTS.get(part, "") for part in parts]
    groups = [row.get("group") or group for row, group in zip(ordered, store.groups, strict=True)]
    notes = [f"The split is that of {path}: {_counts(parts)}."] if any(parts) else []
    if strange:
        notes.append(f"{path} names {len(strange):,} scenes that are not there, such as {strange[0]}.")
    return Given(parts, groups, notes)


def _spellings(text: str, name_pattern: str) -> list[str]:
    """Returns the ways in which a line may name a scene: as it is, without folders or ending, by the pattern."""
    names = [text, PurePosixPath(text).name]
    names += [str(PurePosixPath(name).with_suffix("")) for name in names if PurePosixPath(name).suffix]
    return [*names, *(found[1] for name in names if name_pattern and (found := re.search(name_pattern, name)))]


def _divided(parts: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Returns the groups whose scenes have different parts, sorted; scenes that are left out or free have none."""
    of: dict[str, set[str]] = {}
    for part, group in zip(parts, groups, strict=True):
        of.setdefault(group, set()).update({part} - {"", OUT})
    return sorted(group for group, several in of.items() if len(several) > 1)


def _counts(parts: Sequence[str]) -> str:
    named = {"train": "to train", "validation": "to validate", "test": "to test", OUT: "left out", "": "by the shares"}
    return ", ".join(f"{number:,} {text}" for part, text in named.items() if (number := parts.count(part)))
