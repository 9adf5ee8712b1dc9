"""Names of files that stand for scenes: patterns with *, and what names of images and masks have in common."""

import glob
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from lib.errors import BadInput

RASTERS = (".tif", ".tiff", ".jp2", ".img", ".png", ".jpg", ".jpeg")  # never .vrt, which names other files
_SPELLINGS = {".tiff": ".tif", ".jpeg": ".jpg"}
PARTS = {
    "train": "train", "training": "train", "val": "validation", "valid": "validation", "validation": "validation",
    "dev": "validation", "test": "test", "testing": "test", "hold": "test", "holdout": "test",
}  # fmt: skip
_MASK_WORDS = {
    "label", "labels", "mask", "masks", "annotation", "annotations", "ann", "gt", "gts", "truth", "groundtruth",
    "target", "targets", "seg", "segmentation", "segmentations", "lab", "msk", "reference", "semantic",
}  # fmt: skip
_MASK_ENDINGS = ("mask", "masks", "label", "labels", "truth")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_BOUNDARY = re.compile(r"(?<=[^0-9A-Za-z])(?=[0-9A-Za-z])|(?<=[0-9A-Za-z])(?=[^0-9A-Za-z])|(?<=[a-z])(?=[A-Z0-9])")
_MOST_NAMES = 2_000  # of a side that are compared
Affixes = list[tuple[str, str]]  # what the names of each side begin and end with


def rasters(folder: Path) -> list[Path]:
    """Returns the rasters in a folder, sorted and of one format: the first of RASTERS that is there.

    A quick look in another format, or what macOS writes beside each file (._NAME), is no scene.
    """
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if is_raster(path.name) and path.is_file()]
    order = min((_format(path.name) for path in paths), default=0)
    return sorted(path for path in paths if _format(path.name) == order)


def others(folder: Path) -> list[str]:
    """Returns the names of the rasters in a folder that `rasters` leaves out for their format, sorted."""
    taken = {path.name for path in rasters(folder)}
    return sorted(p.name for p in folder.iterdir() if is_raster(p.name) and p.is_file() and p.name not in taken)


def is_raster(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in RASTERS and not name.startswith("._")


def has_pixels(name: str) -> bool:
    """Says whether a file is a raster or an array."""
    return is_raster(name) or (name.lower().endswith(".npy") and not name.startswith("._"))


def _format(name: str) -> int:
    """Returns the place of a file's format in RASTERS; two spellings are one."""
    suffix = PurePosixPath(name).suffix.lower()
    return RASTERS.index(_SPELLINGS.get(suffix, suffix))


def part_of(names: Iterable[str]) -> str:
    """Returns the part that the first of some folders' names stands for: train, validation or test; else ""."""
    return next((PARTS[name.lower()] for name in names if name.lower() in PARTS), "")


class Pattern:
    """Files below a folder, such as S1Hand/*_S1Hand.tif: what each * stands for is the name of the scene."""

    def __init__(self, text: str):
        self.text = text
        self._regex = re.compile("([^/]*)".join(map(re.escape, text.split("*"))))

    def name(self, path: str) -> str | None:
        """Returns the scene's name in a path relative to the folder; None for one that does not match."""
        match = self._regex.fullmatch(path)
        return ("/".join(filter(None, match.groups())) or "scene") if match else None

    def files(self, root: Path) -> Iterator[tuple[str, Path]]:
        """Yields the name and the path of each file below a folder, sorted."""
        for path in sorted(root.glob("*".join(map(glob.escape, self.text.split("*"))))):
            name = self.name(path.relative_to(root).as_posix())
            if name and path.is_file() and not path.name.startswith("._"):
                yield name, path


def common_pattern(*sides: Collection[str]) -> str:
    """Returns a regular expression whose group is what the names of all sides share; "" where less than half do."""
    if not all(sides):
        return ""
    ends, matched = affixes(*map(sorted, sides))
    if matched * 2 < len(sides[0]):
        return ""
    before, after = (_either({affix[end] for affix in ends}) for end in (0, 1))
    text = f"^{before}(.+?){after}$"
    found = [{match[1] for name in names if (match := re.match(text, name))} for names in sides]
    return text if matched and len(set.intersection(*found)) >= matched else ""


def _either(texts: Collection[str]) -> str:
    """Returns an expression for one of some texts, the longest first."""
    choices = sorted(map(re.escape, texts), key=lambda text: (-len(text), text))
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


def affixes(first: Sequence[str], *others: Sequence[str]) -> tuple[Affixes, int]:
    """Returns what each side's names begin and end with, and how many are alike on all sides without it.

    Of those under which most are alike it is the shortest.
    """
    sides = [stripped(names[:_MOST_NAMES]) for names in others]
    best: tuple[Affixes, int] = [], 0
    for before, after, cores in stripped(first[:_MOST_NAMES]):
        chosen = [max(side, key=lambda one: len(one[2] & cores), default=("", "", set())) for side in sides]
        shared = cores.intersection(*(one[2] for one in chosen))
        shared = {core for core in shared if any(map(str.isalnum, core))}
        if len(shared) > best[1]:
            first_ones, last_ones = ({core[end] for core in shared} for end in (0, -1))
            head, tail = (ends.pop() if len(ends) == 1 else "" for ends in (first_ones, last_ones))
            head, tail = (end if end and not end.isalnum() else "" for end in (head, tail))  # a separator of words
            ends = [(before, after), *((one[0], one[1]) for one in chosen)]
            best = [(f"{before}{head}", f"{tail}{after}") for before, after in ends], len(shared)
    return best


def stripped(names: Sequence[str]) -> list[tuple[str, str, set[str]]]:
    """Returns beginnings and ends, at the borders of words, that all names have, each with what is left of the names.

    The whole of a name is left over where there is but one.
    """
    if not names:
        return []
    first, head, tail = names[0], _common_head(names), _common_head([name[::-1] for name in names])
    borders = {match.start() for match in _BOUNDARY.finditer(first)}
    heads = ["", *(first[:border] for border in sorted(borders) if border <= len(head))]
    tails = ["", *(first[border:] for border in sorted(borders) if len(first) - border <= len(tail))]
    pairs = [(h, t) for h in heads for t in tails if len(h) + len(t) < min(map(len, names))]
    pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
    return [(h, t, {name[len(h) : len(name) - len(t)] for name in names}) for h, t in pairs]


def _common_head(names: Sequence[str]) -> str:
    """Returns the letters that all names begin with."""
    low, high = min(names), max(names)  # what these share, those between them have too
    return low[: next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]


def shared_bands(paths: Sequence[str]) -> list[str]:
    """Returns the names of several images beside one mask where each scene has a folder with files of the same names.

    They may be its bands. Without their endings, sorted; none where there are fewer than two.
    """
    _, images, masks = _shared(paths)
    return [PurePosixPath(image).stem for image in images] if len(images) > 1 and len(masks) == 1 else []


def _shared(paths: Sequence[str]) -> tuple[list[tuple[str, ...]], list[str], list[str]]:
    """Returns the folders, and the names of images and of masks that all of them have; nothing where there is none."""
    names: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in paths:
        pure = PurePosixPath(path)
        if len(pure.parts) > 1 and is_raster(pure.name):
            names[pure.parts[:-1]].add(pure.name)
    if len(names) < 2 or len({len(folders) for folders in names}) > 1:
        return [], [], []
    shared = sorted(set.intersection(*names.values()))
    return list(names), [n for n in shared if not is_mask(n)], [n for n in shared if is_mask(n)]


def mask_words(path: str) -> set[str]:
    """Returns the words of a file's name and of its folders' that mean a mask, or end in one that does."""
    words = {word.lower() for word in _WORD.findall(path)}
    return {word for word in words if word in _MASK_WORDS or word.endswith(_MASK_ENDINGS)}


def is_mask(path: str, common: Collection[str] = ()) -> bool:
    """Says whether a word of a file's name or of its folders' means a mask, but for those that all files have."""
    return bool(mask_words(path).difference(common))


def printable(paths: Iterable[Path]) -> list[Path]:
    """Sorts paths. Raises BadInput where a name would steer the terminal that it is printed on."""
    paths = sorted(paths)
    for path in paths:
        if not path.name.isprintable():
            raise BadInput(f"{path.parent} holds a name with control characters, {path.name!a}. Rename it.")
    return paths


def same_name(one: Path, other: Path, name: str) -> BadInput:
    return BadInput(
        f"{one} and {other} are both called {name} by workload.source.name_pattern. Change it so that their names "
        "differ."
    )


class NamesDiffer(BadInput):
    """No scene has a file of its name on all sides; `pattern` is what the names would share, "" where nothing is."""

    def __init__(self, sides: Sequence[Sequence[str]], places: Sequence[str]):
        self.pattern = common_pattern(*sides)
        examples = ", ".join(min(names, default="nothing") for names in sides)
        advice = (
            f"Set workload.source.name_pattern: '{self.pattern}', whose group is what they share."
            if self.pattern
            else "Give workload.source.name_pattern, a regular expression whose group is what they share, for example "
            r"'(\d+_\d+)' or 'img(\d+)'."
        )
        super().__init__(
            f"No scene has all of its bands, and its mask, by one name in {', '.join(places)} (names there: "
            f"{examples}). {advice}"
        )
