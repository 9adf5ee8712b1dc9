"""Finds the pictures of a folder, each with its class (by folder or table) or its mask.

Folders called train, test, valid, images, masks and the like are never classes. Notes count all
other files.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.errors import BadInput
from trainbook.supervised import listing
from trainbook.supervised.listing import Data
from trainbook.supervised.names import any_of, folded
from trainbook.supervised.notes import note
from trainbook.supervised.pictures import Mask, Picture
from trainbook.supervised.places import (
    MASKS,
    PICTURES,
    Form,
    Place,
    both,
    counted,
    inputs_and_others,
    named,
    note_others,
    note_unused,
    place_of,
)
from trainbook.supervised.samples import PARTS, split

_MASK_WORD = any_of(MASKS)
# a_mask_1 is a mask of a, and a_sat the picture of a_mask
_AFFIX = re.compile(rf"(?i)^{_MASK_WORD}[ _.-]+|[ _.-]+{_MASK_WORD}(?:[ _.-]?[0-9]+)?$")
_OF_IMAGE = re.compile(r"(?i)[ _.-]+(?:image|img|sat|rgb)$")
_SHARE = 0.15  # of the training, without a folder called validation or test
# Patterns by which a mounted input is recognised
_USUAL = (
    "[pP][nN][gG]", "[jJ][pP][gG]", "[jJ][pP][eE][gG]", "[wW][eE][bB][pP]",
    "[bB][mM][pP]", "[gG][iI][fF]", "[tT][iI][fF]", "[tT][iI][fF][fF]",
)  # fmt: skip
_ABOVE_CLASSES = ("*/*", "[tT]rain/*/*", "[tT]raining/*/*")
IN_FOLDERS = tuple(f"{above}.{suffix}" for above in _ABOVE_CLASSES for suffix in _USUAL)
BESIDE_MASKS = tuple(
    f"{above}images/*.{suffix}" for above in ("", "[tT]rain/") for suffix in _USUAL
)


# --- classes ----------------------------------------------------------------------------------------------------------


def labelled_pictures(
    source: Path, classes: Collection[str] = (), table: str = "", target: str = ""
) -> dict[str, list[tuple[Path, str]]]:
    """Returns pictures with their classes by split: by a folder for each class, or a table.

    A table lists pictures if a column has their names, with or without suffixes. The class is its
    only other column, or the one called `target`. `table` names the file. Folders or tables called
    train, validation and test, or a column of these words, are the splits; missing ones are dealt.
    Notes list used and unused files. Raises BadInput without folders of classes or a table.
    """
    return labelled(source, PICTURES, classes, table, target)


def labelled(
    source: Path, form: Form, classes: Collection[str], table: str, target: str
) -> dict[str, list[tuple[Path, str]]]:
    """Returns files of a form with their classes by split, as `labelled_pictures` does."""
    inputs, others = inputs_and_others(source, form)
    places = {path: place_of(path.relative_to(source), classes) for path in inputs}
    usable = [path for path in inputs if not places[path].is_mask]
    by_folder, nested = _classes_of_folders(usable, places, classes)
    data = Data(source, form, inputs, usable, places, by_folder, others)
    rows = None
    if table or target or {*classes}.isdisjoint(by_folder.values()):
        rows = listing.find(data, table, target)
    note_others((path for path in others if not rows or path not in rows.tables), form)
    parts = {path: place.part for path, place in places.items()}
    if rows:
        labels = listing.classes(rows, data, target)
        parts |= rows.parts
    elif nested:
        raise BadInput(nested)
    else:
        labels = by_folder
        _check_folders(data, classes)
    samples = {path: (form.path(path), label) for path, label in labels.items()}
    return _dealt(samples, parts, rows.split if rows else "the folders", form)


def _classes_of_folders(
    paths: Sequence[Path], places: Mapping[Path, Place], classes: Collection[str]
) -> tuple[dict[Path, str], str]:
    """Returns the class of each picture by its folders, and a message if it may be several."""
    folders = {path: places[path].folders for path in paths if places[path].folders}
    around = _folders_around([*folders.values()])
    labels = {}
    nested = ""
    for path, names in folders.items():
        inner = names[around:]
        known = [name for name in inner if name in classes] or inner
        labels[path] = known[-1]
        if len(known) > 1 and not nested:
            nested = (
                f"{named(path)} lies in the folders {named(' and '.join(known))}: which is its "
                "class? Put the folders of classes side by side, or list them in workload.classes."
            )
    return labels, nested


def _folders_around(folders: Sequence[tuple[str, ...]]) -> int:
    """Returns how many nested folders contain all others."""
    deepest = min(map(len, folders), default=0) - 1
    for level in range(deepest):
        if len({names[level] for names in folders}) > 1:
            return level
    return max(deepest, 0)


def _check_folders(data: Data, classes: Collection[str]) -> None:
    """Raises BadInput if folders give fewer than two classes; notes files without a class."""
    number = len({*data.classes.values()})
    least = 1 if classes else 2
    word = data.form.word
    if data.inputs and number < least:
        lack = "only one folder that may be a class" if number else "no folder of a class"
        raise BadInput(
            f"{named(data.source)} has {word}s ({counted(data.inputs, data.source)}), but "
            f"{lack}, and no table that lists them by name. Folders called train, test, images and "
            "the like are no classes. Give a folder for each class, or a table with a column of "
            "the files' names (workload.table) and one of their classes (workload.target)."
        )
    rest = [path for path in data.inputs if path not in data.classes]
    note_unused(f"{word.capitalize()}s in no folder of a class", rest, data.source)


# --- masks ------------------------------------------------------------------------------------------------------------


def pictures_with_masks(source: Path) -> dict[str, list[tuple[Path, Path]]]:
    """Returns pictures with their masks by split; a mask has the stem of its picture.

    A mask is in a folder called masks, labels or the like, or its stem ends in `_mask`. Notes count
    pictures without a mask and masks without a picture. Raises BadInput for repeated stems.
    """
    paths, others = inputs_and_others(source, PICTURES)
    places = {path: place_of(path.relative_to(source)) for path in paths}
    images, masks = _images_and_masks(paths, places)
    pairs = {}
    for image in images:
        mask = _mask_of(image, masks, places)
        if mask:
            pairs[image] = mask
    _check_stems(pairs)
    if not pairs:
        number = len(paths) - len(images)
        raise BadInput(
            f"{named(source)} has {len(images):,} pictures and {number:,} masks "
            f"({counted(paths, source)}), and none belong together. Give each picture a mask of "
            "the same name, in the folders images and masks. Write masks that stand in a table, such "
            "as run lengths, to PNG files first."
        )
    note_others(others, PICTURES)
    used = {*pairs.values()}
    bare = [image for image in images if image not in pairs]
    single = [mask for several in masks.values() for mask in several if mask not in used]
    note_unused("Pictures without a mask", bare, source)
    note_unused("Masks without a picture", single, source)
    samples = {image: (Picture(image), Mask(mask)) for image, mask in pairs.items()}
    parts = {image: places[image].part for image in pairs}
    return _dealt(samples, parts, "the folders", PICTURES)


def _images_and_masks(
    paths: Sequence[Path], places: Mapping[Path, Place]
) -> tuple[list[Path], dict[str, list[Path]]]:
    """Returns the pictures, and masks by the stems of pictures."""
    stems = {stem for path in paths for stem in _stems(path)}
    images = []
    masks = defaultdict[str, list[Path]](list)
    for path in paths:
        stem = folded(path.stem)
        bare = _AFFIX.sub("", stem)
        if bare != stem and bare in stems:
            masks[bare].append(path)
        elif places[path].is_mask:
            masks[stem].append(path)
        else:
            images.append(path)
    return images, masks


def _stems(image: Path) -> list[str]:
    """Returns the casefolded stems that a picture's mask may have."""
    stem = folded(image.stem)
    return [*dict.fromkeys((stem, _OF_IMAGE.sub("", stem)))]


def _mask_of(
    image: Path, masks: Mapping[str, list[Path]], places: Mapping[Path, Place]
) -> Path | None:
    """Returns the mask with a picture's stem, split and folder, if any. Raises BadInput for two."""
    place = places[image]
    candidates = next((masks[stem] for stem in _stems(image) if stem in masks), [])
    exact = [path for path in candidates if _are_same(places[path], place)]
    near = [path for path in candidates if _may_be_same(places[path], place)]
    fitting = exact or near
    if len(fitting) > 1:
        raise BadInput(f"{named(image)} has two masks, {both(fitting)}. Remove one, or rename it.")
    return fitting[0] if fitting else None


def _are_same(one: Place, other: Place) -> bool:
    return one.part == other.part and one.folders == other.folders


def _may_be_same(one: Place, other: Place) -> bool:
    """Returns whether splits and folders are equal or missing in one of two places."""
    is_same_part = one.part == other.part or not one.part or not other.part
    is_same_folder = one.folders == other.folders or not one.folders or not other.folders
    return is_same_part and is_same_folder


def _check_stems(pairs: Mapping[Path, Path]) -> None:
    """Raises BadInput if two pictures share a mask."""
    first: dict[Path, Path] = {}
    for image, mask in pairs.items():
        other = first.setdefault(mask, image)
        if other != image:
            raise BadInput(
                f"{both([other, image])} have one stem, and one mask, {named(mask.name)}. "
                "Remove one, or rename it."
            )


# --- parts ------------------------------------------------------------------------------------------------------------


def _dealt(
    samples: Mapping[Path, Any], part_of: Mapping[Path, str], teller: str, form: Form
) -> dict[str, list[Any]]:
    """Returns samples by their splits, or as `split` deals them. Raises BadInput."""
    by_part = defaultdict[str, list[Any]](list)
    for path, sample in samples.items():
        by_part[part_of[path]].append(sample)
    train = by_part.pop("train", [])
    loose = by_part.pop("", [])
    if not by_part or not (train or loose):
        return split(samples.values())
    if loose:
        inside = train or next(iter(by_part.values()))
        raise BadInput(
            f"{named(inside[0][0])} lies in a folder that is called as a split, and "
            f"{named(loose[0][0])} in none. Put all {form.word}s into such folders, or none."
        )
    lacking = [part for part in PARTS[1:] if part not in by_part]
    shares = dict.fromkeys(PARTS[1:], 0.0) | dict.fromkeys(lacking, _SHARE)
    parts = {**split(train, **shares), **by_part}
    dealt = f"; {lacking[0]} is dealt from the training" if lacking else ""
    note(f"The split is that of {teller}{dealt}.")
    return parts
