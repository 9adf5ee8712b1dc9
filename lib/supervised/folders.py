"""Finds the pictures of a folder with what belongs to each: a class by its folder or by a table, or a mask.

Folders called train, test, valid, images, masks and the like are never classes. What is no sample is counted in notes.
"""

import csv
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from lib.config.files import absolute
from lib.errors import BadInput, first_ten, printable
from lib.supervised.pictures import SUFFIXES, Mask, Picture, paths_in
from lib.supervised.samples import PARTS, input_of, records, split
from lib.task.contract import canonical, sketch
from lib.task.notes import note

_PARTS = {
    "train": "train", "training": "train", "test": "test", "testing": "test", "holdout": "test", "val": "validation",
    "valid": "validation", "validation": "validation", "dev": "validation", "eval": "validation",
}  # fmt: skip
_MASKS = ("mask", "label", "annotation", "annot", "groundtruth", "gt", "segmentation", "segmentationclass",
          "segmentationobject", "seg")  # fmt: skip
_IMAGES = ("image", "img", "picture", "photos", "jpeg", "jpg", "png")
_HELPERS = ("data", "dataset", "set", "fold", "stage", "part", "split", "batch", "all", "new", "raw", "folder", "file")


def _any_of(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(sorted(words, key=len, reverse=True))})s?"


_STRONG = _any_of((*_PARTS, *_MASKS, *_IMAGES))
_RESERVED = re.compile(rf"(?:{_any_of(_HELPERS)})*{_STRONG}(?:{_STRONG}|{_any_of(_HELPERS)})*")
_PART, _MASK = (re.compile(rf"(?<![a-z]){_any_of(words)}") for words in (_PARTS, _MASKS))
# a_mask is the mask of a, and so is a_mask_1
_AFFIX = re.compile(rf"^{_any_of(_MASKS)}[ _.-]+|[ _.-]+{_any_of(_MASKS)}(?:[ _.-]?\d+)?$", re.IGNORECASE)
_OF_IMAGE = re.compile(r"[ _.-]+(?:image|img|sat|rgb)$", re.IGNORECASE)  # a_sat is the picture of a_mask
_OTHER_SYSTEMS = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "thumbs.db", "ehthumbs.db",
                  "desktop.ini"}  # fmt: skip
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
_MOST_BYTES = 2**28  # of a table
_FOLDED = 0.15  # share of the training that is a split which no folder is called
# By which a mounted input is recognised
_USUAL = ("[pP][nN][gG]", "[jJ][pP][gG]", "[jJ][pP][eE][gG]", "[wW][eE][bB][pP]", "[bB][mM][pP]", "[gG][iI][fF]",
          "[tT][iI][fF]", "[tT][iI][fF][fF]")  # fmt: skip
IN_FOLDERS = tuple(f"{above}*/*.{suffix}" for above in ("", "[tT]rain/", "[tT]raining/") for suffix in _USUAL)
BESIDE_MASKS = tuple(f"{above}/*.{suffix}" for above in ("images", "[tT]rain/images") for suffix in _USUAL)


class Place(NamedTuple):
    """What the folders above a file say: its part, whether it is a mask, and names that may be a class."""

    part: str
    is_mask: bool
    folders: tuple[str, ...]


def is_of_another_system(path: PurePosixPath | Path) -> bool:
    """Returns whether a file, by its path below the data, is one that macOS, Windows or a NAS leaves in folders."""
    return any(name[0] == "." or name.casefold() in _OTHER_SYSTEMS for name in path.parts)


def files(source: Path) -> list[Path]:
    """Returns the files in a folder and below it, sorted, without those that other systems leave there."""
    paths = [source] if source.is_file() else [*_walked(source)]
    return sorted(path for path in paths if not is_of_another_system(path.relative_to(source)))


def _walked(source: Path) -> Iterator[Path]:
    """Yields files below a folder, through links to folders, each real folder once."""
    seen = {os.path.realpath(source)}
    for parent, inner, names in os.walk(source, followlinks=True):
        real = {name: os.path.realpath(f"{parent}{os.sep}{name}") for name in inner}
        inner[:] = [name for name in inner if real[name] not in seen]
        seen |= {*real.values()}
        yield from (Path(parent, name) for name in names)


def place_of(path: Path, classes: Collection[str] = ()) -> Place:
    """Reads the folders of a path below the data."""
    part, is_mask, names = "", False, []
    for name in path.parts[:-1]:
        if name in classes or not _is_reserved(name):
            names.append(name)
            continue
        word = _PART.search(_spaced(name))
        part = _PARTS.get(word[0], _PARTS.get(word[0].removesuffix("s"), "")) if word else part
        is_mask = is_mask or bool(_MASK.search(_spaced(name)))
    return Place(part, is_mask, tuple(names))


def _is_reserved(name: str) -> bool:
    return bool(_RESERVED.fullmatch(re.sub(r"[\W\d_]", "", name.casefold())))


def _spaced(name: str) -> str:
    """Returns the words of a name: trainImages and train_images are `train images`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[\W\d_]+", " ", name).casefold()


def _pictures(source: Path) -> tuple[list[Path], list[Path]]:
    """Returns the pictures below a folder, and the other files."""
    paths = files(source)
    pictures = [path for path in paths if path.suffix.lower() in SUFFIXES]
    return pictures, [path for path in paths if path.suffix.lower() not in SUFFIXES]


def _note_others(paths: Iterable[Path]) -> None:
    counts = Counter(path.suffix.lower() or "without an ending" for path in paths)
    shown = [f"{number:,} {printable(suffix, most=30)}" for suffix, number in counts.most_common(8)]
    if shown:
        note(f"Files that are no picture: {', '.join(shown)}{' and others' if len(counts) > 8 else ''}.")


def _counted(paths: Iterable[Path], source: Path) -> str:
    """Returns how many of some files lie in each folder: `test_images: 300`."""
    counts = Counter(path.parent.relative_to(source).as_posix() for path in paths)
    names = {name: "in no folder" if name == "." else printable(name, most=80) for name in counts}
    shown = [f"{names[name]}: {number:,}" for name, number in counts.most_common(5)]
    return ", ".join(shown) + (f" and {len(counts) - 5:,} folders more" if len(counts) > 5 else "")


# --- classes ----------------------------------------------------------------------------------------------------------


def labelled_pictures(
    source: Path, classes: Collection[str] = (), table: str = "", target: str = ""
) -> dict[str, list[tuple[Path, str]]]:
    """Returns pictures with their classes, in parts: of a folder for each class, else of a table that lists them.

    A table lists pictures where a column has their names, with or without endings. Its one other column is the class,
    or the one called `target`. `table` names the file. Folders called train, validation and test are the split; what
    lacks of it is dealt. Notes say what was taken and what was left out. Raises BadInput where neither is there.
    """
    pictures, others = _pictures(source)
    places = {path: place_of(path.relative_to(source), classes) for path in pictures}
    usable = [path for path in pictures if not places[path].is_mask]
    by_folder, nested = _classes_of_folders(usable, places, classes)
    data = Data(source, pictures, usable, places, by_folder)
    listing = None
    if table or target or {*classes}.isdisjoint(by_folder.values()):
        listing = _listing(data, others, table, target)
    _note_others([path for path in others if not (listing and path == listing.path)])
    if listing:
        labels = _labels(listing, data, target)
    elif nested:
        raise BadInput(nested)
    else:
        labels = by_folder
        _check_folders(data, classes)
    return _dealt([((Picture(path), label), places[path].part) for path, label in labels.items()])


class Data(NamedTuple):
    """The pictures of a folder, those of them that are no masks, and what their folders say."""

    source: Path
    pictures: list[Path]
    usable: list[Path]
    places: dict[Path, Place]
    by_folder: dict[Path, str]


def _classes_of_folders(
    paths: Sequence[Path], places: Mapping[Path, Place], classes: Collection[str]
) -> tuple[dict[Path, str], str]:
    """Returns the class of each picture that lies in the folder of one, and a sentence where two folders may be it."""
    folders = {path: places[path].folders for path in paths if places[path].folders}
    while len({names[0] for names in folders.values()}) == 1 and min(map(len, folders.values())) > 1:
        folders = {path: names[1:] for path, names in folders.items()}  # one folder around all
    labels, nested = {}, ""
    for path, names in folders.items():
        known = [name for name in names if name in classes] or names
        labels[path] = known[-1]
        if len(known) > 1 and not nested:
            nested = f"{printable(path, most=200)} lies in the folders {printable(' and '.join(known), most=200)}: "
            nested += "which is its class? Put the folders of classes side by side, or list them in workload.classes."
    return labels, nested


def _check_folders(data: Data, classes: Collection[str]) -> None:
    """Raises BadInput where folders tell no classes apart; notes the pictures that lie in no folder of a class."""
    rest = [path for path in data.pictures if path not in data.by_folder]
    number = len({*data.by_folder.values()})
    if data.pictures and number < (1 if classes else 2):
        what = "only one folder that may be a class" if number else "no folder of a class"
        there = _counted(data.pictures, data.source)
        raise BadInput(
            f"{printable(data.source, most=200)} has pictures ({there}), but {what}, and no table that lists them by "
            "name. Folders called train, test, images and the like are no classes. Give a folder for each class, or a "
            "table with a column of the files' names (workload.table) and one of their classes (workload.target)."
        )
    if rest:
        note(f"Pictures in no folder of a class, which are not used: {len(rest):,} ({_counted(rest, data.source)}).")


# --- tables -----------------------------------------------------------------------------------------------------------


class Listing(NamedTuple):
    """A table that lists pictures: its rows, the column of their names, and the picture of each row, if any."""

    path: Path
    columns: list[str]
    rows: list[Mapping[str, Any]]
    key: str
    pictures: list[Path | None]

    @property
    def others(self) -> list[str]:
        return [name for name in self.columns if name != self.key]


def _listing(data: Data, others: Sequence[Path], table: str, target: str) -> Listing | None:
    """Returns the table that lists the pictures; None where there is none, or says what the folders say.

    Raises BadInput where there are several, where folders say something else, and where the one named lists nothing.
    """
    candidates = [path for path in others if path.name.lower().endswith(_TABLES)]
    candidates = [_named_table(data.source, table)] if table else candidates
    index = _index(data.usable, data.source)
    listings = [_as_listing(path, data, index, is_named=bool(table)) for path in candidates]
    fitting = [listing for listing in listings if listing and _covers(listing, data.by_folder)]
    if len(fitting) > 1:
        names = printable(", ".join(_shown(listing.path, data.source) for listing in fitting), most=300)
        raise BadInput(f"{len(fitting)} tables list the pictures: {names}. Name the one to train on in workload.table.")
    if not fitting and (table or target):
        key = f"workload.table is {printable(table)}" if table else f"workload.target is {printable(target)}"
        names = printable(", ".join(_shown(path, data.source) for path in candidates[:5]), most=300)
        there = f"no column of {names}" if names else "there is no table with a column that"
        raise BadInput(f"{key}, and {there} has the names of the pictures ({_counted(data.pictures, data.source)}).")
    if not fitting or table or target or len({*data.by_folder.values()}) < 2:
        return fitting[0] if fitting else None
    if _agrees(fitting[0], data.by_folder):
        return None
    classes = printable(", ".join(sorted({*data.by_folder.values()})), most=200)
    columns = printable(", ".join(fitting[0].others), most=200)
    raise BadInput(
        f"The pictures lie in folders that may be classes ({classes}), and {_shown(fitting[0].path, data.source)} "
        f"lists them with the columns {columns}. List the folders in workload.classes, or name the column of the class "
        "in workload.target."
    )


def _shown(path: Path, source: Path) -> str:
    return path.relative_to(source).as_posix() if path.is_relative_to(source) else str(path)


def _named_table(source: Path, name: str) -> Path:
    paths = [path for path in (source / name, Path(name)) if path.is_file()]
    if not paths:
        raise BadInput(f"There is no table {printable(name)} in {printable(source)}. Correct workload.table.")
    return paths[0]


def _index(pictures: Iterable[Path], source: Path) -> dict[str, list[Path]]:
    """Returns pictures by path, path without ending, name and stem, in small letters."""
    index = defaultdict[str, list[Path]](list)
    for path in pictures:
        inner = PurePosixPath(path.relative_to(source).as_posix())
        for name in {inner.as_posix(), inner.with_suffix("").as_posix(), inner.name, inner.stem}:
            index[name.casefold()].append(path)
    return index


def _as_listing(path: Path, data: Data, index: Mapping[str, list[Path]], is_named: bool) -> Listing | None:
    """Returns a table as a listing by the column that names most pictures; None where it names too few, or a test."""
    shown = printable(_shown(path, data.source))
    is_of_test = "submission" in path.name.casefold() or place_of(Path(path.stem, "x")).part == "test"
    if is_of_test and not is_named:
        note(f"{shown} is not used: it is called as a table of a test.")
        return None
    try:
        rows = list(records(path)) if path.stat().st_size <= _MOST_BYTES else []
    except (BadInput, ValueError, csv.Error) as error:
        if is_named:
            raise
        note(f"{shown} is not used ({printable(error, most=200)}).")
        return None
    columns = [name for name in rows[0] if name is not None] if rows else []
    resolved = {name: [_resolved(row.get(name), index, data.places) for row in rows] for name in columns}
    numbers = {name: len({*paths} - {None}) for name, paths in resolved.items()}
    key = max(numbers, key=numbers.__getitem__, default="")
    number = numbers.get(key, 0)
    least = 1 if is_named else max(1, min(len(rows), len(data.usable)) / 2)
    if number < least or (not is_named and {data.places[p].part for p in resolved[key] if p} == {"test"}):
        return None
    same = [name for name in columns if name != key and resolved[name] == resolved[key]]  # a name and its stem, say
    return Listing(path, [name for name in columns if name not in same], rows, key, resolved[key])


def _resolved(cell: Any, index: Mapping[str, list[Path]], places: Mapping[Path, Place]) -> Path | None:
    """Returns the picture that a cell names, of two of one name the one outside of a test."""
    name = str(cell or "").strip().replace("\\", "/").removeprefix("./").casefold()
    inner = PurePosixPath(name)
    names = [name, inner.name, *([inner.stem] if inner.suffix in SUFFIXES else [])]
    paths = next((index[key] for key in names if key in index), [])
    if len(paths) > 1:
        paths = [path for path in paths if places[path].part != "test"]
    if len(paths) > 1:
        both = f"{printable(paths[0], most=200)} and {printable(paths[1], most=200)}"
        raise BadInput(f"{printable(name, most=100)} is the name of two pictures, {both}. Write their folders in the "
                       "table, or rename one.")  # fmt: skip
    return paths[0] if paths else None


def _covers(listing: Listing, by_folder: Mapping[Path, str]) -> bool:
    """Returns whether a table lists at least half of the pictures in folders that may be classes."""
    listed = {*listing.pictures}
    return 2 * sum(path in listed for path in by_folder) >= len(by_folder)


def _agrees(listing: Listing, by_folder: Mapping[Path, str]) -> bool:
    """Returns whether a column of a table says what the folders say."""
    rows = [(row, path) for row, path in zip(listing.rows, listing.pictures, strict=True) if path in by_folder]
    return any(all(row.get(name) == by_folder[path] for row, path in rows if path) for name in listing.others)


def _labels(listing: Listing, data: Data, target: str) -> dict[Path, str]:
    """Returns the class of each picture that a row names. Raises BadInput for rows without one, or with another."""
    shown, others = printable(_shown(listing.path, data.source)), listing.others
    columns = printable(", ".join(others), most=300) or "none"
    if target and target not in listing.columns:
        what = f"{shown} has no column {printable(target)}"
        raise BadInput(f"{what}. Its columns beside {listing.key}: {columns}. Correct workload.target.")
    if not target and len(others) != 1:
        what = f"{shown} lists the pictures by its column {printable(listing.key)}"
        raise BadInput(f"{what}, and its other columns are: {columns}. Name the one of the class in workload.target.")
    target = target or others[0]
    labels: dict[Path, str] = {}
    problems = []
    for number, (row, path) in enumerate(zip(listing.rows, listing.pictures, strict=True), 1):
        label = str(row.get(target) or "").strip()
        if path is None:
            continue
        if not label:
            problems.append(f"row {number}: {printable(path.name)} has no {printable(target)}")
        elif labels.setdefault(path, label) != label:
            problems.append(f"row {number}: {printable(path.name)} is {label}, and {labels[path]} in an earlier row")
    if problems:
        what = f"{shown}: {len(problems):,} rows give no class, or another one than an earlier row"
        raise BadInput(f"{what}. A picture has one class. Correct or delete the rows.\n{first_ten(problems)}")
    _note_listing(listing, data, labels, target)
    return labels


def _note_listing(listing: Listing, data: Data, labels: Mapping[Path, str], target: str) -> None:
    """Notes which rows and pictures belong together, and counts those that do not."""
    lacking = [row[listing.key] for row, path in zip(listing.rows, listing.pictures, strict=True) if path is None]
    bare = [path for path in data.pictures if path not in labels]
    repeats = len(listing.rows) - len(lacking) - len(labels)
    unused = [name for name in listing.others if name != target]
    sentences = [
        f"{printable(_shown(listing.path, data.source))} lists the samples: {len(labels):,} pictures in "
        f"{len(listing.rows):,} rows, by the column {printable(listing.key)}; {printable(target)} is the class."
    ]
    if lacking:
        sentences.append(f"Rows without a picture: {len(lacking):,}, such as {printable(lacking[0], most=60)}.")
    if repeats:
        sentences.append(f"Rows that repeat another: {repeats:,}.")
    if bare:
        sentences.append(f"Pictures without a row, which are not used: {len(bare):,} ({_counted(bare, data.source)}).")
    if unused:
        sentences.append(f"Columns that are not used: {printable(', '.join(unused), most=300)}.")
    note(" ".join(sentences))


# --- masks ------------------------------------------------------------------------------------------------------------


def pictures_with_masks(source: Path) -> dict[str, list[tuple[Path, Path]]]:
    """Returns pictures with their masks, in parts: those of one stem, whatever the endings.

    A mask lies in a folder called masks, labels or the like, or is called as its picture with `_mask` behind. Notes
    count pictures without a mask and masks without a picture. Raises BadInput for two files of one stem.
    """
    paths, others = _pictures(source)
    places = {path: place_of(path.relative_to(source)) for path in paths}
    stems = {stem for path in paths for stem in _stems(path)}
    masks, images = defaultdict[str, list[Path]](list), []
    for path in paths:
        bare = _AFFIX.sub("", path.stem).casefold()
        is_named_for_one = bare != path.stem.casefold() and bare in stems
        if places[path].is_mask or is_named_for_one:
            masks[bare if is_named_for_one else path.stem.casefold()].append(path)
        else:
            images.append(path)
    pairs = {image: mask for image in images if (mask := _mask_of(image, masks, places))}
    _check_stems(pairs, places)
    if not pairs:
        there = f"{len(images):,} pictures and {sum(map(len, masks.values())):,} masks ({_counted(paths, source)})"
        raise BadInput(f"{printable(source, most=200)} has {there}, and none belong together. Give each picture a mask "
                       "of the same name, in the folders images and masks.")  # fmt: skip
    _note_others(others)
    bare = [image for image in images if image not in pairs]
    if bare:
        note(f"Pictures without a mask, which are not used: {len(bare):,} ({_counted(bare, source)}), such as "
             f"{printable(bare[0].name, most=100)}.")  # fmt: skip
    used = {*pairs.values()}
    single = [path for several in masks.values() for path in several if path not in used]
    if single:
        note(f"Masks without a picture, which are not used: {len(single):,} ({_counted(single, source)}), such as "
             f"{printable(single[0].name, most=100)}.")  # fmt: skip
    return _dealt([((Picture(image), Mask(mask)), places[image].part) for image, mask in pairs.items()])


def _stems(image: Path) -> list[str]:
    stem = image.stem.casefold()
    return list(dict.fromkeys([stem, _OF_IMAGE.sub("", stem)]))


def _mask_of(image: Path, masks: Mapping[str, list[Path]], places: Mapping[Path, Place]) -> Path | None:
    """Returns the mask of a picture: of its stem, and of no other part or folder."""
    part, _, folders = places[image]
    several = next((masks[stem] for stem in _stems(image) if stem in masks), [])
    exact = [path for path in several if (places[path].part, places[path].folders) == (part, folders)]
    near = [p for p in several if "" in (part, places[p].part) or part == places[p].part]
    near = [p for p in near if () in (folders, places[p].folders) or folders == places[p].folders]
    fitting = exact or near
    if len(fitting) > 1:
        both = f"{printable(fitting[0], most=200)} and {printable(fitting[1], most=200)}"
        raise BadInput(f"{printable(image, most=200)} has two masks, {both}. Remove one, or rename it.")
    return fitting[0] if fitting else None


def _check_stems(pairs: Mapping[Path, Path], places: Mapping[Path, Place]) -> None:
    """Raises BadInput where two pictures share a mask."""
    first: dict[Path, Path] = {}
    for image, mask in pairs.items():
        other = first.setdefault(mask, image)
        if other != image:
            both = f"{printable(other, most=200)} and {printable(image, most=200)}"
            raise BadInput(f"{both} have one stem, and one mask, {printable(mask.name)}. Remove one, or rename it.")


def _dealt(items: Sequence[tuple[Any, str]]) -> dict[str, list[Any]]:
    """Returns samples in the parts that their folders are called, else as `split` deals them. Raises BadInput."""
    named = {part for _, part in items}
    if len(named) < 2 or not {"", "train"} & named:
        return split(sample for sample, _ in items)
    if "" in named:
        inside, outside = (next(s for s, part in items if bool(part) == has) for has in (True, False))
        what = f"{printable(inside[0], most=200)} lies in a folder that is called as a split"
        raise BadInput(f"{what}, and {printable(outside[0], most=200)} in none. Put all pictures into such, or none.")
    lacking = [part for part in PARTS if part not in named]
    shares = {part: _FOLDED if part in lacking else 0.0 for part in PARTS[1:]}
    parts = split((sample for sample, part in items if part == "train"), **shares)
    for part in named - {"train"}:
        parts[part] += [sample for sample, other in items if other == part]
    dealt = f"; {' and '.join(lacking)} is dealt from the training" if lacking else ""
    note(f"The split is that of the folders{dealt}.")
    return parts


# --- files that may be replaced ---------------------------------------------------------------------------------------


def replaceable(parts: Mapping[str, Any], digests: Mapping[Path, Mapping[Path, str]]) -> dict[str, Any]:
    """Returns hashes by which a run recognises data of which files alone were replaced.

    `digests` are of the files of each source. "rest" is a hash of all samples with their targets and parts, and of the
    files that no sample is; "files" a sketch of those that samples are without their targets. {} where samples are read
    lazily or have no text.
    """
    if not all(isinstance(part.samples, list | tuple) for part in parts.values()):
        return {}
    rest, inputs = hashlib.sha256(), set[Path]()
    try:
        for name, part in parts.items():
            for sample in part.samples:
                rest.update(f"{name} {canonical(sample, part.task.source)}\n".encode("utf-8", "surrogateescape"))
                inputs |= {absolute(path) for path in paths_in(input_of(sample))}
    except BadInput:
        return {}
    replaced: dict[str, str] = {}
    for source, digest_of in digests.items():
        for path, digest in digest_of.items():
            inner = path.relative_to(source)
            if absolute(path) in inputs:
                replaced[inner.as_posix()] = digest
            elif not is_of_another_system(inner):
                rest.update(f"{inner.as_posix()} {digest}\n".encode("utf-8", "surrogateescape"))
    return {"rest": rest.hexdigest(), "number": len(replaced), "files": sketch(replaced)} if replaced else {}
