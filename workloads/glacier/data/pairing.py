"""Which files of an unknown layout are the images and which are their masks, by what their names have in common."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from workloads.glacier.data.naming import affixes, is_mask, mask_words, part_of, stripped

_MOST_KINDS = 40  # of files, under one way to tell them apart
_FEW = 0.03  # of the files of a folder: an ending that fewer have tells no kind of files
_TAIL = re.compile(r"[_\-. ](?=[^_\-. ])")
_HEAD = re.compile(r"[A-Za-z]+")
_INNER = re.compile(r"(?<=[0-9A-Za-z])(?=([_\-.][0-9A-Za-z]*[A-Za-z][0-9A-Za-z]*[_\-.])[0-9A-Za-z])")
_MODES = ("", "tail", "two tails", "head", "ends", "whole")  # how kinds of files in one folder are told apart
_ALONE = 4  # files for each that one scene alone may leave unused
_NEARLY = 0.4  # of the most that are paired: there may be reasons for the other pairs


@dataclass(frozen=True)
class Pair:
    """Patterns of images and of masks, in which each * stands for a part of a scene's name."""

    images: str
    masks: str
    scenes: int  # that have both
    is_told: bool  # whether words such as label or mask say which of them are the masks

    @property
    def order(self) -> tuple[int, int, str, str]:
        """What pairs are sorted by: the most scenes first, then the fewest stars."""
        return -self.scenes, self.images.count("*") + self.masks.count("*"), self.images, self.masks


@dataclass(eq=False)
class _Kind:
    """Files of one format, in folders that are alike but for those at `starred`."""

    folders: tuple[str, ...]
    starred: tuple[int, ...]
    suffix: str
    is_mask: bool
    head: str = ""  # that all of their names have, and stems are without
    files: list[tuple[tuple[str, ...], str]] = field(default_factory=list)  # names of starred folders; the stem

    @property
    def stems(self) -> list[str]:
        return sorted({stem for _, stem in self.files})

    def level(self, number: int) -> list[str]:
        """Returns the names of a starred folder."""
        return sorted({above[number] for above, _ in self.files})

    def names(self, levels: Sequence["_Cut"], cut: "_Cut") -> set[tuple[str, ...]]:
        """Returns what the stars of a pattern stand for in each file; `levels` are the cuts of its starred folders."""
        found = set()
        for above, stem in self.files:
            if (inner := cut.parts(stem)) is not None:
                outer = [level.parts(name) or () for name, level in zip(above, levels, strict=True)]
                found.add((*itertools.chain(*outer), *inner))
        return found

    def pattern(self, levels: Sequence["_Cut"], cut: "_Cut") -> str:
        parts = list(self.folders)
        for place, level in zip(self.starred, levels, strict=True):
            parts[place] = level.pattern
        return "/".join([*parts, f"{self.head}{cut.pattern}{self.suffix}"])


@dataclass(frozen=True)
class _Cut:
    """What the names of a kind begin and end with, or have in their middle; `whole` where it is all of the name."""

    before: str = ""
    after: str = ""
    middle: str = ""
    whole: str = ""

    @property
    def pattern(self) -> str:
        return self.whole or (f"*{self.middle}*" if self.middle else f"{self.before}*{self.after}")

    def parts(self, stem: str) -> tuple[str, ...] | None:
        """Returns what the stars of the pattern stand for; None for another name."""
        if self.whole:
            return () if stem == self.whole else None
        if self.middle:
            left, found, right = stem.rpartition(self.middle)
            return (left, right) if found else None
        is_one = stem.startswith(self.before) and stem.endswith(self.after)
        return (_core(stem, self.before, self.after),) if is_one else None


def _core(text: str, before: str, after: str) -> str:
    return text[len(before) : len(text) - len(after)]


def guess(paths: Sequence[str]) -> list[Pair]:
    """Returns patterns of images and of masks among relative paths, those that pair the most files first.

    Masks are told by words such as label or mask in the names of folders and files. Where no such word is, or each file
    has it, each of two kinds of files may be the masks: pairs come both ways.
    """
    common = set.intersection(*map(mask_words, paths)) if paths else set()
    files = [(PurePosixPath(path), is_mask(path, common)) for path in paths]
    is_told = any(marked for _, marked in files) and not all(marked for _, marked in files)
    found: dict[tuple[str, str], Pair] = {}
    most = 1
    for kinds in _divisions(files):
        for image, mask in itertools.permutations(kinds, 2):
            if (image.is_mask, mask.is_mask) != (False, is_told) or not _may_pair(image, mask, most):
                continue
            if pair := _pair(image, mask, is_told):
                found.setdefault((pair.images, pair.masks), pair)
                most = max(most, pair.scenes)
    if most == 1 < len(paths) // _ALONE:
        return []
    return sorted((pair for pair in found.values() if pair.scenes >= _NEARLY * most), key=lambda pair: pair.order)


def _may_pair(image: _Kind, mask: _Kind, most: int) -> bool:
    """Says whether two kinds have as many stars, are both arrays or both rasters, and have files enough."""
    is_alike = len(image.starred) == len(mask.starred) and (image.suffix == ".npy") == (mask.suffix == ".npy")
    return is_alike and min(len(image.files), len(mask.files)) >= _NEARLY * most


def _divisions(files: Sequence[tuple[PurePosixPath, bool]]) -> Iterator[list[_Kind]]:
    """Yields ways to take files for a few kinds: by which folders are taken together, and by their names."""
    levels: dict[int, set[str]] = defaultdict(set)
    for path, _ in files:
        for place, name in enumerate(path.parts[:-1]):
            levels[place].add(name)
    varying = [place for place, names in sorted(levels.items()) if len(names) > 1]
    numbered = {place for place in varying if 1 < len(set(map(_without_number, levels[place]))) < len(levels[place])}
    sizes = range(len(varying), -1, -1) if len(varying) < 5 else (len(varying), 1, 0)
    for size in sizes:
        for starred in itertools.combinations(varying, size):
            for apart in (set(), numbered & set(starred)):
                groups = _grouped(files, starred, apart)
                for mode in _MODES if len(groups) <= _MOST_KINDS else ():
                    kinds = [kind for group in groups for kind in _divided(group, mode)]
                    is_new = not mode or len(kinds) > len(groups)
                    if is_new and len(kinds) <= _MOST_KINDS:
                        yield kinds


def _without_number(name: str) -> str:
    return name.rstrip("0123456789")


def _grouped(
    files: Sequence[tuple[PurePosixPath, bool]], starred: Sequence[int], apart: Collection[int]
) -> list[_Kind]:
    """Returns kinds by their folders; at places of `apart` only those are alike that differ in a number at the end."""
    kinds: dict[tuple, _Kind] = {}
    for path, marked in files:
        folders = path.parts[:-1]
        places = tuple(place for place in starred if place < len(folders))
        key = tuple("*" if place in places else name for place, name in enumerate(folders))
        texts = tuple(_without_number(folders[place]) for place in places if place in apart)
        kind = kinds.setdefault((key, texts, path.suffix, marked), _Kind(key, places, path.suffix, marked))
        kind.files.append((tuple(folders[place] for place in places), path.stem))
    return list(kinds.values())


def _divided(kind: _Kind, mode: str) -> list[_Kind]:
    """Returns the kinds among the files of one, by an ending or a beginning that many of them have."""
    if not mode:
        return [kind]
    signs = [_sign(stem, mode) for _, stem in kind.files]
    counts = Counter(signs)
    least = max(2, _FEW * len(signs))
    parts: dict[str, _Kind] = {}
    for sign, one in zip(signs, kind.files, strict=True):
        sign = sign if counts[sign] >= least else ""
        head = sign if mode == "head" else sign.rpartition("*")[0]
        part = parts.setdefault(sign, _Kind(kind.folders, kind.starred, kind.suffix, kind.is_mask, head))
        part.files.append((one[0], one[1][len(head) :]))
    return list(parts.values())


def _sign(stem: str, mode: str) -> str:
    """Returns what may tell a file's kind; "" where it is a number."""
    if mode == "whole":
        return stem
    if mode == "head":
        match = _HEAD.match(stem)
        return match[0] if match else ""
    starts = [match.start() for match in _TAIL.finditer(stem)]
    sign = stem[starts[-2 if len(starts) > 1 and mode == "two tails" else -1] :] if starts else ""
    if mode == "ends" and len(starts) > 2:  # the first two words and the last
        sign = f"{stem[: starts[1]]}*{sign}"
    return sign if re.search("[A-Za-z]", sign) else ""


def _pair(image: _Kind, mask: _Kind, is_told: bool) -> Pair | None:
    """Returns the patterns under which most files of two kinds have the same names; None where none has."""
    levels: list[tuple[_Cut, _Cut]] = []
    for number in range(len(image.starred)):
        names = image.level(number), mask.level(number)
        if not (ends := _around_parts(*names) or _best(*names)):
            return None
        levels.append(ends)
    one, other = ([ends[side] for ends in levels] for side in (0, 1))
    best: tuple[int, _Cut, _Cut] = (0, _Cut(), _Cut())
    for cut, other_cut in _cuts(image.stems, mask.stems):
        matched = len(image.names(one, cut) & mask.names(other, other_cut))
        if matched > best[0]:
            best = (matched, cut, other_cut)
    matched, cut, other_cut = best
    if not matched or (not cut.whole and not other_cut.whole and matched == 1 < min(len(image.files), len(mask.files))):
        return None  # one name alone of several is chance
    return Pair(image.pattern(one, cut), mask.pattern(other, other_cut), matched, is_told)


def _around_parts(images: Sequence[str], masks: Sequence[str]) -> tuple[_Cut, _Cut] | None:
    """Returns what stands around the parts in names of folders, such as train_chips and test_chips; None without."""
    if not set(images) & set(masks):
        return None
    for before, after, cores in stripped(sorted({*images, *masks})):
        if part_of(cores) and all(part_of([core]) for core in cores):
            return _Cut(before, after), _Cut(before, after)
    return None


def _best(images: Sequence[str], masks: Sequence[str]) -> tuple[_Cut, _Cut] | None:
    """Returns the cuts under which most names of folders are alike; None where none is."""
    best, most = None, 0
    for one, other in _cuts(images, masks):
        shared = {one.parts(name) for name in images} & {other.parts(name) for name in masks}
        if len(shared) > most:
            best, most = (one, other), len(shared)
    return best


def _cuts(images: Sequence[str], masks: Sequence[str]) -> Iterator[tuple[_Cut, _Cut]]:
    """Yields what may be cut from the names of two sides to make them equal; the middle where the ends do little."""
    if len(images) == len(masks) == 1:
        yield _Cut(whole=images[0]), _Cut(whole=masks[0])
    ends, matched = affixes(images, masks)
    if matched:
        yield _Cut(*ends[0]), _Cut(*ends[1])
    if matched * 2 < min(len(images), len(masks)):
        for one, other in itertools.product(_middles(images), _middles(masks)):
            if one != other:
                yield _Cut(middle=one), _Cut(middle=other)


def _middles(stems: Sequence[str]) -> list[str]:
    """Returns words between separators that all names have, and separators alone."""
    words = {match[1] for match in _INNER.finditer(stems[0])}
    shared = sorted(word for word in words if all(word in stem for stem in stems))
    return [*shared, *(sign for sign in "_-" if all(sign in stem for stem in stems))]
