"""Reads the names of folders: splits, folders of masks, and possible classes."""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from lib.errors import printable
from trainbook.supervised.names import PARTS, any_of, listed, part_of, spaced
from trainbook.supervised.notes import note
from trainbook.supervised.pictures import SUFFIXES, Picture

MASKS = (
    "mask", "label", "annotation", "annot", "groundtruth", "gt",
    "segmentation", "segmentationclass", "segmentationobject", "seg",
)  # fmt: skip
_IMAGES = ("image", "img", "picture", "photos", "jpeg", "jpg", "png")
_HELPERS = (
    "data", "dataset", "set", "fold", "stage", "part", "split", "batch",
    "all", "new", "raw", "folder", "file",
)  # fmt: skip
_WEAK = any_of(_HELPERS)
_STRONG = any_of((*PARTS, *MASKS, *_IMAGES))
_RESERVED = re.compile(f"(?:{_WEAK})*{_STRONG}(?:{_STRONG}|{_WEAK})*")
_MASK = re.compile(f"(?<![a-z]){any_of(MASKS)}")
_NO_LETTER = re.compile(r"[\W\d_]+")
_OTHER_SYSTEMS = {
    "__macosx", "@eadir", "$recycle.bin", "system volume information",
    "thumbs.db", "ehthumbs.db", "desktop.ini",
}  # fmt: skip
_MOST_SHOWN = 5


class Form(NamedTuple):
    """A form of input files: its word in sentences, their suffixes, and the class of their paths."""

    word: str
    suffixes: Collection[str]
    path: type[Path]


PICTURES = Form("picture", SUFFIXES, Picture)


class Place(NamedTuple):
    """Facts by the folders above a file: its split, whether it is a mask, possible classes."""

    part: str
    is_mask: bool
    folders: tuple[str, ...]


def place_of(path: PurePath, classes: Collection[str] = ()) -> Place:
    """Reads the folders of a path below the data."""
    part = ""
    is_mask = False
    names = []
    for name in path.parts[:-1]:
        if name in classes or not is_reserved(name):
            names.append(name)
            continue
        part = part_of(name) or part
        is_mask = is_mask or bool(_MASK.search(spaced(name)))
    return Place(part, is_mask, tuple(names))


def is_reserved(name: str) -> bool:
    """Returns whether a folder is called train, images, masks or the like, as train2017 is."""
    letters = _NO_LETTER.sub("", name.casefold())
    return bool(_RESERVED.fullmatch(letters))


def is_of_another_system(path: PurePath) -> bool:
    """Returns whether a relative path is hidden, or left by macOS, Windows or a NAS."""
    names = [name.casefold() for name in path.parts]
    return any(name.startswith(".") or name in _OTHER_SYSTEMS for name in names)


def inputs_and_others(source: Path, form: Form) -> tuple[list[Path], list[Path]]:
    """Returns the files of a form in a folder and below it, and the other files."""
    walked = sorted(_walked(source))
    paths = [path for path in walked if not is_of_another_system(path.relative_to(source))]
    inputs = [path for path in paths if path.suffix.lower() in form.suffixes]
    others = [path for path in paths if path.suffix.lower() not in form.suffixes]
    return inputs, others


def _walked(source: Path) -> Iterator[Path]:
    """Yields files below a folder, each real folder once, links last. Notes repeated links."""
    seen: set[str] = set()
    repeated: list[Path] = []
    folders = [source]
    while folders:
        folder = folders.pop(0)
        if os.path.realpath(folder) in seen:
            repeated.append(folder)
            continue
        links: list[Path] = []
        for parent, inner, names in os.walk(folder):
            seen.add(os.path.realpath(parent))
            inside = [Path(parent, name) for name in inner]
            links += [path for path in inside if path.is_symlink()]
            yield from (Path(parent, name) for name in names)
        folders += sorted(links)
    if repeated:
        shown = listed(path.relative_to(source) for path in repeated[:_MOST_SHOWN])
        note(
            "Links to folders that are read already, which are left out: "
            f"{len(repeated):,}, such as {shown}."
        )


def named(path: object) -> str:
    return printable(path, most=200)


def both(paths: Sequence[object]) -> str:
    return f"{named(paths[0])} and {named(paths[1])}"


def counted(paths: Iterable[Path], source: Path) -> str:
    """Returns how many files are in each folder: `test_images: 300`."""
    counts = Counter(path.parent.relative_to(source).as_posix() for path in paths)
    shown = []
    for name, number in counts.most_common(_MOST_SHOWN):
        folder = "in no folder" if name == "." else named(name)
        shown.append(f"{folder}: {number:,}")
    if len(counts) > _MOST_SHOWN:
        shown.append(f"and {len(counts) - _MOST_SHOWN:,} folders more")
    return ", ".join(shown)


def note_others(paths: Iterable[Path], form: Form) -> None:
    """Notes how many files are not of a form, by suffix."""
    counts = Counter(path.suffix.lower() or "without a suffix" for path in paths)
    most = counts.most_common(_MOST_SHOWN)
    shown = [f"{number:,} {named(suffix)}" for suffix, number in most]
    if len(counts) > _MOST_SHOWN:
        shown.append(f"and {len(counts) - _MOST_SHOWN:,} kinds more")
    if shown:
        note(f"Files that are no {form.word}: {', '.join(shown)}.")


def note_unused(what: str, paths: Sequence[Path], source: Path) -> None:
    """Notes how many files are not used, with their folders and the name of the first."""
    if paths:
        where = counted(paths, source)
        example = named(paths[0].name)
        note(f"{what}, which are not used: {len(paths):,} ({where}), such as {example}.")
