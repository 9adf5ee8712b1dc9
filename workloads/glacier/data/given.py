"""A split that is given: by folders called train, validation and test, or by a CSV of scene, part and group."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lib.errors import BadInput
from workloads.glacier.data.naming import PARTS, RASTERS
from workloads.glacier.data.tiles import Store
from workloads.glacier.settings import Split

OUT = "out"  # of training and of both held-out parts
_COLUMNS = ("scene", "part", "group")


@dataclass(frozen=True)
class Given:
    """The part of each scene (train, validation, test, OUT, or "" where the shares decide) and its group."""

    parts: list[str]
    groups: list[str]
    notes: list[str]


def given(store: Store, split: Split, name_pattern: str = "", root: Path | None = None) -> Given:
    """Returns what is given of the split of a store's scenes: by the file, else by folders. Raises BadInput.

    A file that is not there is looked for by its name in the folder of the data, `root`.
    """
    if split.file:
        path = Path(split.file)
        if not path.is_file() and root and (root / path.name).is_file():
            path = root / path.name
        found = _of_rows(path, _read(path), store, name_pattern)
        _refuse_divided(found, path)
        return found
    parts = store.parts if split.folders else [""] * len(store.names)
    divided = _divided(parts, store.groups)
    if divided:
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
            f"them: {','.join(_COLUMNS)}, of which part or group may be left out."
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
    short = Counter(name.rpartition("/")[2] for name in store.names)
    index = {name: number for number, name in enumerate(store.names)}
    index |= {last: number for number, name in enumerate(store.names) if short[last := name.rpartition("/")[2]] == 1}
    found: dict[int, tuple[int, dict[str, str]]] = {}
    strange: list[str] = []
    for line, row in rows:
        scene = next((index[name] for name in _spellings(row["scene"], name_pattern) if name in index), None)
        if scene is None:
            strange.append(row["scene"])
        elif scene in found:
            raise BadInput(f"{path}:{line}: {row['scene']} has a line already, {found[scene][0]}. Remove one of them.")
        else:
            found[scene] = line, row
    lacking = [name for number, name in enumerate(store.names) if number not in found]
    if lacking:
        example = f" It names {strange[0]}, which is no scene." if strange else ""
        raise BadInput(
            f"{path} has no line for {len(lacking):,} of {len(store.names):,} scenes, such as {lacking[0]}.{example} "
            f"Give each a line, with the part {OUT} where it is to be left out."
        )
    lines = [found[number][1] for number in range(len(store.names))]
    parts = [OUT if row.get("part", "").lower() == OUT else PARTS.get(row.get("part", "").lower(), "") for row in lines]
    groups = [row.get("group") or group for row, group in zip(lines, store.groups, strict=True)]
    notes = [f"The split is that of {path}: {_counts(parts)}."] if any(parts) else []
    if strange:
        notes.append(f"{path} names {len(strange):,} scenes that are not there, such as {strange[0]}.")
    return Given(parts, groups, notes)


def _spellings(text: str, name_pattern: str) -> list[str]:
    """Returns the ways in which a line may name a scene: as it is, without folders, without ending, by the pattern."""
    names = [text, PurePosixPath(text).name]
    names += [str(PurePosixPath(name).with_suffix("")) for name in names if name.lower().endswith((*RASTERS, ".npy"))]
    found = [match[1] for name in names if name_pattern and (match := re.search(name_pattern, name))]
    return [*names, *found]


def _refuse_divided(found: Given, path: Path) -> None:
    for group in _divided(found.parts, found.groups):
        raise BadInput(
            f"{path}: the group {group} lies in two parts. Give all of its scenes one part, or other groups."
        )


def _divided(parts: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Returns the groups whose scenes have different parts, sorted; scenes that are left out or free have none."""
    of: dict[str, set[str]] = {}
    for part, group in zip(parts, groups, strict=True):
        of.setdefault(group, set()).update({part} - {"", OUT})
    return sorted(group for group, several in of.items() if len(several) > 1)


def _counts(parts: Sequence[str]) -> str:
    named = {"train": "to train", "validation": "to validate", "test": "to test", OUT: "left out", "": "by the shares"}
    return ", ".join(f"{number:,} {text}" for part, text in named.items() if (number := parts.count(part)))
