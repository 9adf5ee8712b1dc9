"""Which picture of a folder an id, a name or a path of another machine stands for."""

import os
import re
import unicodedata
from collections import defaultdict
from pathlib import Path

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jfif")
_NO_PICTURE = re.compile(
    r"mask|segm|annot|label|depth|thumb|detection"
)  # what stands beside pictures under their names
_LAST_NUMBER = re.compile(r"\d+$")


class PictureFiles:
    """The picture files below some folders, by name, by name without suffix, and by the number at its end."""

    def __init__(self, roots: list[Path]):
        self.roots, self.count = roots, 0
        self._by_name: dict[str, list[Path]] = defaultdict(list)
        self._by_stem: dict[str, list[Path]] = defaultdict(list)
        self._by_number: dict[int, list[Path]] = defaultdict(list)
        self._found: dict[tuple[str, Path, str], list[Path]] = {}
        for root in roots:
            walked = {os.path.realpath(root)}
            for folder, below, names in os.walk(root, followlinks=True):
                inner = {name: os.path.realpath(Path(folder, name)) for name in below}
                below[:] = sorted(
                    name for name in below if not name.startswith((".", "__MACOSX")) and inner[name] not in walked
                )
                walked.update(inner.values())
                for name in sorted(names):
                    if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                        self._add(Path(folder, name))

    def _add(self, path: Path) -> None:
        self.count += 1
        name = _same(path.name)
        stem = name.rpartition(".")[0]
        self._by_name[name].append(path)
        self._by_stem[stem].append(path)
        if (number := _number(stem)) is not None:
            self._by_number[number].append(path)

    def find(self, value: object, near: Path, part: str = "") -> list[Path]:
        """Returns the file that a value stands for: none where there is none, several where it cannot be told.

        Of files of one name that which shares most folders with the value counts, then the one in a folder of the
        `part`, then the one nearest to `near`, the file that has the value.
        """
        key = (str(value), near, part)
        if key not in self._found:
            text = _same(re.sub(r"^(https?://[^?#]*).*", r"\1", key[0].strip()).replace("\\", "/"))
            text = re.sub(r"^(-?\d+)\.0$", r"\1", text)  # a whole number that a table has made a fraction
            self._found[key] = self._nearest(text, near, part)
        return self._found[key]

    def _nearest(self, text: str, near: Path, part: str) -> list[Path]:
        name = text.rpartition("/")[2]
        stem = name.rpartition(".")[0] if name.endswith(SUFFIXES) else name
        candidates = self._by_name.get(name) or self._by_stem.get(stem) or self._numbered(stem)
        if len(candidates) < 2:
            return candidates
        wanted = text.split("/")

        def rank(path: Path) -> tuple[int, bool, bool, int]:
            folders = [_same(folder) for folder in path.parts]
            is_part = bool(part) and any(part[:3] in folder for folder in folders[-4:-1])
            other = any(_NO_PICTURE.search(folder) for folder in folders[-4:])
            return _shared(folders[-2::-1], wanted[-2::-1]), not other, is_part, _shared(path.parts, near.parts)

        best = max(map(rank, candidates))
        return [path for path in candidates if rank(path) == best]

    def _numbered(self, stem: str) -> list[Path]:
        """Returns files of a number: 123 is COCO_train2014_000000123, and the other way round."""
        number = _number(stem)
        if number is None:
            return []
        return [path for path in self._by_number.get(number, []) if stem.isdecimal() or path.stem.isdecimal()]


def _same(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _number(stem: str) -> int | None:
    found = _LAST_NUMBER.search(stem)
    return int(found[0]) if found and len(found[0]) < 19 else None


def _shared(one: "list[str] | tuple[str, ...]", other: "list[str] | tuple[str, ...]") -> int:
    """Returns with how many equal elements two sequences begin."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
