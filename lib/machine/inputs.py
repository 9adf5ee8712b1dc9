"""Finds mounted inputs by their name or by the files in them, and the runs of earlier sessions."""

import fnmatch
import json
import os
from collections.abc import Sequence
from pathlib import Path

from lib.config.files import read_bytes
from lib.errors import BadInput, printable
from lib.machine.platform import Platform

# Folders between /kaggle/input/<kind> and the input itself, e.g. datasets/<owner>/<slug>
_NEW_LAYOUT = {"datasets": 2, "notebooks": 2, "competitions": 1, "models": 5}

_MOST_BYTES = 2**22  # of a summary


def mounted(platform: Platform) -> list[Path]:
    """Lists the mounted inputs in both of Kaggle's layouts, sorted; none on a platform without a folder of inputs."""
    if platform.name != "kaggle" or platform.input_dir is None:
        return []
    mounts: list[Path] = []
    for folder in _folders(platform.input_dir):
        below = [folder]
        for _ in range(_NEW_LAYOUT.get(folder.name, 0)):
            below = [inner for outer in below for inner in _folders(outer)]
        # a data set of the old layout may be called "datasets" too; then nothing lies as deep as in the new one
        mounts += below or [folder]
    return sorted(mounts)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


def find_input(name: str, platform: Platform) -> Path:
    """Returns the folder or file of an input: a path, or a mounted one as "slug", "owner/slug" or its path there.

    Raises BadInput, which lists what is mounted, if there is no such input or more than one.
    """
    try:
        path = Path(name).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError, ValueError) as error:  # too long, a NUL, nobody's home
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"There is no input {printable(name, most=200)} ({why}). Give a path that exists.") from None
    mounts = mounted(platform)
    matches: list[Path] = []
    if platform.input_dir:
        if (platform.input_dir / path).exists():
            return platform.input_dir / path
        matches = [mount for mount in mounts if _is_named(mount.relative_to(platform.input_dir).parts, path.parts)]
    if len(matches) == 1:
        return matches[0]
    name = printable(name, most=200)
    listed = [printable(m.relative_to(platform.input_dir)) for m in matches or mounts if platform.input_dir]
    names = ", ".join(listed) or "nothing"
    if matches:
        raise BadInput(f"The name {name} stands for {len(matches)} mounted inputs: {names}. Give one of these.")
    advice = "Add it with Add Input, or correct the name." if platform.name == "kaggle" else "Give a path that exists."
    raise BadInput(f"There is no input {name}: no such path, and no such mounted input (mounted: {names}). {advice}")


def is_mounted(name: str, platform: Platform) -> bool:
    """Says whether a mounted input, or several, go by the name that `find_input` takes."""
    base, parts = platform.input_dir, Path(name).parts
    return base is not None and any(_is_named(mount.relative_to(base).parts, parts) for mount in mounted(platform))


def _is_named(parts: tuple[str, ...], name: tuple[str, ...]) -> bool:
    """Says whether "slug" or "owner/slug", cut at its slashes, names a mount by its parts below the inputs."""
    if len(parts) == 1:  # the old layout has no owners
        return len(name) <= 2 and parts[0] == name[-1]
    if parts[0] == "models":  # models/<owner>/<model>/<framework>/<variation>/<version>
        return name in (parts[1:][: len(name)], parts[2:][: len(name)])
    return parts[1:][-len(name) :] == name


def earlier_runs(name: str, platform: Platform) -> list[Path]:
    """Lists the folders that an earlier session's run `name` may have among the mounted inputs; not all exist.

    A notebook's output has it at its top. A data set is unpacked on Kaggle: then it may lie one folder deeper, or be
    the data set itself, which only its summary tells.
    """
    folders: list[Path] = []
    for mount in mounted(platform):
        folders += [mount / name, *(inner / name for inner in _folders(mount))]
        if (mount / "checkpoints").is_dir():
            try:  # not by report.Summary, which stands above the machine
                is_run = json.loads(read_bytes(mount / "summary.json", _MOST_BYTES))["run"] == name
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                is_run = False
            folders += [mount] if is_run else []
    return folders


def search(folders: list[Path], sentinels: Sequence[str], limit: int = 20_000) -> list[Path]:
    """Lists the folders, among these and below them, that hold a file matching a glob pattern, shallow ones first.

    In a pattern with folders, train/*/*.png, the matching folder is the one that holds train. What lies below a
    matching folder belongs to it. Published weights and what a run has written are no data. The search follows no links
    to folders, opens no further folder after `limit` entries, and then prints a line about it.
    """
    patterns = [tuple(pattern.split("/")) for pattern in sentinels]
    highest, deepest = max(map(len, patterns), default=1) - 1, _DEEPEST + 1
    matches: dict[Path, int] = {}  # with their depths
    level: list[tuple[Path, tuple[str, ...]]] = [(folder, ()) for folder in folders]
    ends = [*WRITTEN_BY_A_RUN, *({name} for name in _PUBLISHED if name not in sentinels)]
    count = 0
    while level:
        below: list[tuple[Path, tuple[str, ...]]] = []
        for folder, inside in level:
            if any(matches.get(above, deepest) <= len(inside) - highest for above in folder.parents[: len(inside)]):
                continue  # whatever would be found here lies in what was found
            if count >= limit:
                print(f"Only {count:,} entries of the mounted inputs were searched. Name the folder in data.dir.")
                return _outermost(matches)
            inner, files = _listed(folder)
            count += len(files) + len(inner)
            if any(names.issubset(files) for names in ends):
                continue
            for pattern in patterns:
                up = len(pattern) - 1
                above, named = inside[len(inside) - up :], fnmatch.filter(files, pattern[-1])
                if up <= len(inside) and named and all(map(fnmatch.fnmatchcase, above, pattern)):
                    matches[(folder, *folder.parents)[up]] = len(inside) - up
            below += [(folder / name, (*inside, name)) for name in inner if len(inside) < _DEEPEST]
        level = below
    return _outermost(matches)


_DEEPEST = 12  # folders below an input
# Published weights, whose vocabulary is a text file too
_PUBLISHED = [f"{name}{end}" for name in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json")]
WRITTEN_BY_A_RUN = ({"outputs.tar.gz"}, {"config.yaml", "summary.json"})  # into its folder, or the one above


def _outermost(matches: dict[Path, int]) -> list[Path]:
    outer = [folder for folder in matches if matches.keys().isdisjoint(folder.parents)]
    return sorted(outer, key=matches.__getitem__)


def _listed(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the names of the folders and of the files in a folder, sorted; none where it cannot be read."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return [], []
    inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return inner, [entry.name for entry in entries if not entry.is_dir()]
