"""Which mounted inputs hold judgments: beside them there are encoders, other people's tables, and outputs of runs."""

from collections.abc import Sequence
from pathlib import Path

from lib.machine.published import has_weights
from workloads.legal.rows import ROLES, TEXTS

_SUFFIXES = (".txt", ".json", ".jsonl", ".csv")
_SNIFFED = 2**16  # bytes of a file
_MOST = 500  # files of a folder that are looked into
_SENTENCES = (b'"segments"', b'"sentences"', b'"annotations"', b'"text"')
_LABELS = (b'"labels"', b'"label"', b'"roles"', b'"role"', b'"annotations"')


def homes(folders: Sequence[Path]) -> list[Path]:
    """Returns those of the folders with a file that looks like judgments whose sentences have roles."""
    return [folder for folder in folders if _holds_judgments(folder)]


def _holds_judgments(folder: Path) -> bool:
    if has_weights(folder):
        return False
    files = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _SUFFIXES and path.is_file())
    return any(_looks_labelled(path) for _, path in zip(range(_MOST), files, strict=False))


def _looks_labelled(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            begin = file.read(_SNIFFED)
    except OSError:
        return False
    suffix = path.suffix.lower()
    if suffix == ".txt":
        lines = [line for line in begin.splitlines()[:-1] or begin.splitlines() if line.strip()]
        return bool(lines) and sum(b"\t" in line for line in lines) > len(lines) / 2
    if suffix == ".csv":
        columns = {cell.strip(' "').lower() for cell in begin.split(b"\n")[0].decode("utf-8", "replace").split(",")}
        return bool(columns & {*TEXTS}) and bool(columns & {*ROLES})
    return any(word in begin for word in _SENTENCES) and any(word in begin for word in _LABELS)
