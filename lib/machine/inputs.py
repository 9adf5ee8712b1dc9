"""Mounted inputs: data by name or by what lies in it, and the runs of earlier sessions."""

import fnmatch
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib.errors import BadInput
from lib.machine.platform import Platform


def mounted(platform: Platform) -> list[Path]:
    """The mounted inputs in both of Kaggle's layouts, sorted; none where there is no folder of inputs."""
    if platform.name != "kaggle" or platform.input_dir is None:
        return []
    found: list[Path] = []
    for folder in _folders(platform.input_dir):
        depth = _NEW_LAYOUT.get(folder.name)
        below = list(_descend(folder, depth)) if depth else []
        # a data set of the old layout may be called "datasets" too; then nothing lies as deep as in the new one
        found += below or [folder]
    return sorted(found)


# Folders between /kaggle/input/<kind> and the input itself, e.g. datasets/<owner>/<slug>
_NEW_LAYOUT = {"datasets": 2, "notebooks": 2, "competitions": 1, "models": 5}


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


def _descend(folder: Path, depth: int) -> Iterator[Path]:
    for inner in _folders(folder):
        if depth == 1:
            yield inner
        else:
            yield from _descend(inner, depth - 1)


def find_input(name: str, platform: Platform) -> Path:
    """The folder or file of an input: a path, or a mounted one as "slug", "owner/slug" or its path below the inputs.

    Raises BadInput, which lists what is mounted, where there is no such input or more than one.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    mounts = mounted(platform)
    found: list[Path] = []
    if platform.input_dir:
        if (platform.input_dir / path).exists():
            return platform.input_dir / path
        found = [mount for mount in mounts if _answers_to(mount.relative_to(platform.input_dir).parts, path.parts)]
    if len(found) == 1:
        return found[0]
    shown = [str(m.relative_to(platform.input_dir)) for m in found or mounts if platform.input_dir]
    names = ", ".join(shown) or "nothing"
    if found:
        raise BadInput(f"The name {name} stands for {len(found)} mounted inputs: {names}. Give one of these.")
    advice = "Add it with Add Input, or correct the name." if platform.name == "kaggle" else "Give a path that exists."
    raise BadInput(f"There is no input {name}: no such path, and no such mounted input (mounted: {names}). {advice}")


def _answers_to(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether a mount, by its parts below the inputs, is what "slug" or "owner/slug" stands for."""
    if len(parts) == 1:  # the old layout has no owners
        return len(wanted) <= 2 and parts[0] == wanted[-1]
    if parts[0] == "models":  # models/<owner>/<model>/<framework>/<variation>/<version>
        return wanted in (parts[1:][: len(wanted)], parts[2:][: len(wanted)])
    return parts[1:][-len(wanted) :] == wanted


def earlier_runs(name: str, platform: Platform) -> list[Path]:
    """Folders that an earlier session's run `name` would have among the mounted inputs, whether they exist or not.

    A notebook's output has it at its top. A data set is unpacked on Kaggle: then it may lie one folder deeper, or be
    the data set itself, which only its summary tells.
    """
    found: list[Path] = []
    for mount in mounted(platform):
        found += [mount / name, *(inner / name for inner in _folders(mount))]
        found += [mount] if (mount / "checkpoints").is_dir() and _is_run(mount, name) else []
    return found


def _is_run(folder: Path, name: str) -> bool:
    try:
        return json.loads((folder / "summary.json").read_text("utf-8"))["run"] == name
    except (OSError, ValueError, KeyError, TypeError):
        return False


def search_inputs(sentinels: Sequence[str], platform: Platform, limit: int = 20_000) -> list[Path]:
    """Folders of the mounted inputs that hold a file matching one of the glob patterns, shallow ones first.

    Lists no further folder after `limit` entries, and prints a line when something was left out.
    """
    return search(mounted(platform), sentinels, limit)


def search(folders: list[Path], sentinels: Sequence[str], limit: int = 20_000) -> list[Path]:
    """The same in and below these folders."""
    level, found, seen = folders, [], 0
    while level:
        below: list[Path] = []
        for folder in level:
            if seen >= limit:
                print(f"Looked at {seen:,} entries of the mounted inputs, not at all. Name the folder in data.dir.")
                return found
            names, folders = _entries(folder)
            seen += len(names) + len(folders)
            if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in sentinels):
                found.append(folder)
            below += folders
        level = below
    return found


def _entries(folder: Path) -> tuple[list[str], list[Path]]:
    """Names of the files and paths of the folders in a folder, sorted; links to folders are not followed."""
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return [], []
    folders = [folder / entry.name for entry in ordered if entry.is_dir(follow_symlinks=False)]
    return [entry.name for entry in ordered if not entry.is_dir()], folders
