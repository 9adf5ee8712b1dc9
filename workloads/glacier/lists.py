"""Splits that a collection brings as lists of names, such as splits/train.txt with a scene a line."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from workloads.glacier.data.naming import PARTS
from workloads.glacier.data.scenes import Scene

_MOST_LISTS = 60
_MOST_BYTES = 4_000_000
_SEPARATOR = re.compile(r"[_\-. ]")
_PARTS = {**PARTS, "trn": "train", "trainval": "", "tst": "test"}


def parts(root: Path, scenes: Sequence[Scene]) -> tuple[dict[str, str], list[str]]:
    """Returns the part of each scene by the lists below a folder, and a sentence for each list.

    A list is a text or CSV of which at least half of the lines begin with a scene's name, a file's, or its end. A scene
    of two lists that do not agree has no part.
    """
    called = _called(scenes)
    found: dict[str, set[str]] = {}
    sentences = []
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in (".txt", ".csv") and path.is_file())
    for path in [path for path in paths if str(path).isprintable()][:_MOST_LISTS]:
        lines = _first_words(path)
        named = [called[word] for word in lines if word in called]
        if len(named) < 2 or len(named) * 2 < len(lines):
            continue
        part = next((_PARTS[word] for word in re.findall("[a-z]+", path.stem.lower()) if word in _PARTS), "")
        for name in named:
            found.setdefault(name, set()).update({part} - {""})
        sentences.append(f"{path.relative_to(root).as_posix()} lists {len(named):,} scenes{f' ({part})' * bool(part)}.")
    return {name: own.pop() for name, own in found.items() if len(own) == 1}, sentences


def _called(scenes: Sequence[Scene]) -> dict[str, str]:
    """Returns the scene of each name that means one scene alone: its own, its files', and what these end with."""
    names: dict[str, set[str]] = {}
    for scene in scenes:
        for text in {scene.name, scene.name.rpartition("/")[2], *(path.stem for path in scene.files)}:
            ends = [match.end() for match in _SEPARATOR.finditer(text)]
            for start in (0, *ends):
                names.setdefault(text[start:], set()).add(scene.name)
    return {text: own.pop() for text, own in names.items() if len(own) == 1 and text}


def _first_words(path: Path) -> list[str]:
    """Returns the first field of each line, without folders and ending; nothing of a file that is no text."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return []
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    fields = [re.split(r"[,;\t]", line.strip())[0].strip('" ') for line in lines if line.strip()]
    return [re.sub(r"\.(tiff?|png|jpe?g|npy|jp2|img)$", "", PurePosixPath(text).name, flags=re.I) for text in fields]
