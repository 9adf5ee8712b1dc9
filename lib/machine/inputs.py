"""Finds mounted inputs by their name or by the files in them, and the runs of earlier sessions."""

import fnmatch
import json
import os
from collections.abc import Sequence
from pathlib import Path

from lib.errors import BadInput
from lib.machine.platform import Platform

# Folders between /kaggle/input/<kind> and the input itself, e.g. datasets/<owner>/<slug>
_NEW_LAYOUT = {"datasets": 2, "notebooks": 2, "competitions": 1, "models": 5}


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
    path = Path(name).expanduser()
    if path.exists():
        return path
    mounts = mounted(platform)
    matches: list[Path] = []
    if platform.input_dir:
        if (platform.input_dir / path).exists():
            return platform.input_dir / path
        matches = [mount for mount in mounts if _is_named(mount.relative_to(platform.input_dir).parts, path.parts)]
    if len(matches) == 1:
        return matches[0]
    listed = [str(m.relative_to(platform.input_dir)) for m in matches or mounts if platform.input_dir]
    names = ", ".join(listed) or "nothing"
    if matches:
        raise BadInput(f"The name {name} stands for {len(matches)} mounted inputs: {names}. Give one of these.")
    advice = "Add it with Add Input, or correct the name." if platform.name == "kaggle" else "Give a path that exists."
    raise BadInput(f"There is no input {name}: no such path, and no such mounted input (mounted: {names}). {advice}")


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
                is_run = json.loads((mount / "summary.json").read_text("utf-8"))["run"] == name
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                is_run = False
            folders += [mount] if is_run else []
    return folders


def search(folders: list[Path], sentinels: Sequence[str], limit: int = 20_000) -> list[Path]:
    """Lists the folders, among these and below them, that hold a file matching a glob pattern, shallow ones first.

    It follows no links to folders, opens no further folder after `limit` entries, and then prints a line about it.
    """
    level, matches, count = folders, [], 0
    while level:
        below: list[Path] = []
        for folder in level:
            if count >= limit:
                print(f"Only {count:,} entries of the mounted inputs were searched. Name the folder in data.dir.")
                return matches
            try:
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError:
                entries = []
            inner = [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            files = [entry.name for entry in entries if not entry.is_dir()]
            count += len(files) + len(inner)
            if any(fnmatch.fnmatchcase(name, pattern) for name in files for pattern in sentinels):
                matches.append(folder)
            below += inner
        level = below
    return matches
