"""Finds mounted inputs by their name or by the files in them, and the runs of earlier sessions."""

import contextlib
import fnmatch
import glob
import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib import untrusted
from lib.errors import BadInput, printable
from lib.machine.platform import Platform, detect
from lib.machine.platform import output_dir as output_folder

# Folders between /kaggle/input/<kind> and the input itself, e.g. datasets/<owner>/<slug>
_NEW_LAYOUT = {"datasets": 2, "notebooks": 2, "competitions": 1, "models": 5}
_MOST_BYTES = 2**24  # of a summary.json or a state.json
# Files that a run writes into its folder, or the one above
WRITTEN_BY_A_RUN = ({"outputs.tar.gz"}, {"config.yaml", "summary.json"})
# Published weights, whose vocabulary is a text file too
_PUBLISHED = [
    {f"{name}{end}"}
    for name in ("model.safetensors", "pytorch_model.bin")
    for end in ("", ".index.json")
]


def mounted(platform: Platform) -> list[Path]:
    """Lists the mounted inputs, sorted, in both of Kaggle's layouts."""
    mounts: list[Path] = []
    if not platform.has_mounts or platform.input_dir is None:
        return mounts
    for folder in _folders(platform.input_dir):
        below = [folder]
        for _ in range(_NEW_LAYOUT.get(folder.name, 0)):
            below = [inner for outer in below for inner in _folders(outer)]
        # a data set of the old layout may be called "datasets" too; then nothing lies as deep as in
        # the new one
        mounts += below or [folder]
    return sorted(mounts)


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        folders = [path for path in folder.iterdir() if path.is_dir()]
        return sorted(path for path in folders if not path.name.startswith("."))
    return []


def find_input(name: str, platform: Platform) -> Path:
    """Returns an input by path, "slug" or "owner/slug".

    Raises BadInput, with the mounted inputs, unless it is one.
    """
    base = platform.input_dir
    shown = printable(name, most=200)
    try:
        path = Path(name).expanduser()
        for place in (path, base / path) if base else (path,):
            if place.exists():
                return place
    except (OSError, RuntimeError, ValueError) as error:  # too long, a NUL, an unknown user's home
        raise BadInput(f"There is no input {shown} ({error}). Give a path that exists.") from None
    matches = named(name, platform)
    if len(matches) == 1:
        return matches[0]
    listed = matches or mounted(platform)
    names = ", ".join(printable(mount.relative_to(base)) for mount in listed if base) or "nothing"
    if matches:
        raise BadInput(
            f"The name {shown} stands for {len(matches)} mounted inputs: {names}. Give one of these."
        )
    raise BadInput(
        f"There is no input {shown}: no such path, and no such mounted input (mounted: {names}). "
        "Give a path that exists, or add the input with Kaggle's Add Input."
    )


def named(name: str, platform: Platform) -> list[Path]:
    """Returns the mounted inputs of a slug or an owner/slug."""
    wanted = Path(name).parts
    count = len(wanted)

    def goes_by_it(parts: tuple[str, ...]) -> bool:
        if len(parts) == 1:  # the old layout has no owners
            return count <= 2 and parts[0] == wanted[-1]
        if parts[0] == "models":  # models/<owner>/<model>/<framework>/<variation>/<version>
            return wanted in (parts[1 : 1 + count], parts[2 : 2 + count])
        return parts[1:][-count:] == wanted

    base = platform.input_dir or Path()
    return [mount for mount in mounted(platform) if goes_by_it(mount.relative_to(base).parts)]


def earlier_runs(name: str, platform: Platform) -> list[Path]:
    """Lists the folders that a run may have in outputs, data sets or a mounted run; not all exist."""
    folders: list[Path] = []
    for mount in mounted(platform):
        folders += [mount / name, *(inner / name for inner in _folders(mount))]
        if (mount / "checkpoints").is_dir() and _run_in(mount) == name:
            folders.append(mount)
    return folders


def _run_in(folder: Path) -> str:
    """Returns the name of the run whose folder this is; "" for another folder."""
    with contextlib.suppress(OSError, BadInput):
        summary = untrusted.objects(untrusted.read(folder / "summary.json", _MOST_BYTES))
        return str(summary.get("run", ""))
    return ""


def made_names(first: str, output_dir: str) -> list[str]:
    """Lists the run of a name and its edits NAME-2, NAME-3 ... that are here or mounted, in order."""
    names: set[str] = set()
    for folder in {folder.parent for folder in run_folders(first, output_dir)}:
        names.add(_run_in(folder))  # a mount that is a run itself
        names.update(path.name for path in _folders(folder))
    edit = re.compile(rf"{re.escape(first)}-([1-9]\d*)")
    numbers = [int(match[1]) for match in map(edit.fullmatch, names) if match]
    return [first, *(f"{first}-{number}" for number in sorted(numbers) if number > 1)]


def run_folders(name: str, output_dir: str, resume_from: str = "") -> list[Path]:
    """Returns the folders that may hold an earlier state of a run, by the configuration's keys.

    Raises BadInput without the input `resume_from`, which alone counts if it is given.
    """
    here = detect()
    if resume_from:
        base = find_input(resume_from, here)
        inner = sorted(path.parent for path in base.glob(f"*/{glob.escape(name)}/checkpoints"))
        return [base, base / name, *inner]
    return [output_folder(output_dir) / name, *earlier_runs(name, here)]


def saved_facts(key: str, *runs: Path) -> dict[str, Any]:
    """Returns a key of the first run's newest checkpoint or best weights that have it, or {}."""
    folders = [run / kind for run in runs for kind in ("checkpoints", "best")]
    for path in (state for folder in folders for state in _states(folder)):
        with contextlib.suppress(OSError, BadInput):
            facts = untrusted.objects(untrusted.read(path, _MOST_BYTES)).get(key)
            if isinstance(facts, dict) and facts:
                return facts
    return {}


def _states(folder: Path) -> list[Path]:
    """Returns the state.json of each checkpoint in a folder, newest first."""
    numbers = [path.name.removeprefix("step-") for path in folder.glob("step-*")]
    steps = sorted(int(number) for number in numbers if number.isdecimal())
    return [folder / f"step-{step:08d}" / "state.json" for step in reversed(steps)]


def search(folders: list[Path], sentinels: Sequence[str], limit: int = 20_000) -> list[Path]:
    """Lists the outermost folders, here and below, with a file that matches a glob.

    For train/*/*.png that is the folder with train. Prints a line if it stops at `limit` entries.
    """
    patterns = [pattern.split("/") for pattern in sentinels]
    highest = max(map(len, patterns), default=1) - 1
    matches: dict[Path, int] = {}  # with their depths
    ends = [*WRITTEN_BY_A_RUN, *(names for names in _PUBLISHED if names.isdisjoint(sentinels))]
    waiting = deque[tuple[Path, tuple[str, ...]]]()
    waiting += [(folder, ()) for folder in folders]
    count = 0
    while waiting:
        folder, inside = waiting.popleft()
        depth = len(inside)
        depths_above = [matches[above] for above in folder.parents[:depth] if above in matches]
        if any(above <= depth - highest for above in depths_above):
            continue  # whatever matches here lies in a match
        if count >= limit:
            print(
                f"Only {count:,} entries of the mounted inputs were searched. Name the folder in data.dir."
            )
            break
        _, inner, files = next(os.walk(folder), ("", [], []))
        count += len(files) + len(inner)
        if any(names.issubset(files) for names in ends):
            continue
        for *above, last in patterns:
            up = len(above)
            if up > depth:
                continue
            fits = all(map(fnmatch.fnmatchcase, inside[depth - up :], above))
            if fits and fnmatch.filter(files, last):
                matches[(folder, *folder.parents)[up]] = depth - up
        for name in sorted(inner):
            if not (folder / name).is_symlink():
                waiting.append((folder / name, (*inside, name)))
    outer = [folder for folder in matches if matches.keys().isdisjoint(folder.parents)]
    return sorted(outer, key=matches.__getitem__)
