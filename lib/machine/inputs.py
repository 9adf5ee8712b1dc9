"""Finds mounted inputs by their name or by the files in them, and the runs of earlier sessions."""

import contextlib
import fnmatch
import glob
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib import untrusted
from lib.config import Config
from lib.errors import BadInput, printable
from lib.machine.platform import Platform, detect, output_dir

# Folders between /kaggle/input/<kind> and the input itself, e.g. datasets/<owner>/<slug>
_NEW_LAYOUT = {"datasets": 2, "notebooks": 2, "competitions": 1, "models": 5}
_MOST_BYTES = 2**24  # of a summary.json or a state.json
WRITTEN_BY_A_RUN = (
    {"outputs.tar.gz"},
    {"config.yaml", "summary.json"},
)  # into its folder, or the one above
# Published weights, whose vocabulary is a text file too
_PUBLISHED = [
    {f"{name}{end}"}
    for name in ("model.safetensors", "pytorch_model.bin")
    for end in ("", ".index.json")
]


def mounted(platform: Platform) -> list[Path]:
    """Lists the mounted inputs in both of Kaggle's layouts, sorted; none on a platform without a folder of inputs."""
    mounts: list[Path] = []
    has_mounts = platform.has_mounts and platform.input_dir is not None
    for folder in _folders(platform.input_dir) if has_mounts else ():
        below = [folder]
        for _ in range(_NEW_LAYOUT.get(folder.name, 0)):
            below = [inner for outer in below for inner in _folders(outer)]
        # a data set of the old layout may be called "datasets" too; then nothing lies as deep as in the new one
        mounts += below or [folder]
    return sorted(mounts)


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    return []


def find_input(name: str, platform: Platform) -> Path:
    """Returns an input by path, "slug" or "owner/slug". Raises BadInput, with what is mounted, unless it is one."""
    base = platform.input_dir
    shown = printable(name, most=200)
    try:
        path = Path(name).expanduser()
        for place in (path, base / path) if base else (path,):
            if place.exists():
                return place
    except (OSError, RuntimeError, ValueError) as error:  # too long, a NUL, nobody's home
        raise BadInput(f"There is no input {shown} ({error}). Give a path that exists.") from None
    if len(matches := named(name, platform)) == 1:
        return matches[0]
    names = (
        ", ".join(
            printable(mount.relative_to(base)) for mount in matches or mounted(platform) if base
        )
        or "nothing"
    )
    if matches:
        raise BadInput(
            f"The name {shown} stands for {len(matches)} mounted inputs: {names}. Give one of these."
        )
    advice = "Give a path that exists, or add the input with Kaggle's Add Input."
    raise BadInput(
        f"There is no input {shown}: no such path, and no such mounted input (mounted: {names}). {advice}"
    )


def named(name: str, platform: Platform) -> list[Path]:
    wanted = Path(name).parts

    def goes_by_it(parts: tuple[str, ...]) -> bool:
        if len(parts) == 1:  # the old layout has no owners
            return len(wanted) <= 2 and parts[0] == wanted[-1]
        if parts[0] == "models":  # models/<owner>/<model>/<framework>/<variation>/<version>
            return wanted in (parts[1:][: len(wanted)], parts[2:][: len(wanted)])
        return parts[1:][-len(wanted) :] == wanted

    base = platform.input_dir or Path()
    return [mount for mount in mounted(platform) if goes_by_it(mount.relative_to(base).parts)]


def earlier_runs(name: str, platform: Platform) -> list[Path]:
    """Lists the folders that a run may have in outputs, data sets or a mounted run; not all exist."""
    folders: list[Path] = []
    for mount in mounted(platform):
        folders += [mount / name, *(inner / name for inner in _folders(mount))]
        with contextlib.suppress(
            OSError, BadInput
        ):  # not by report.Summary, which stands above the machine
            if (mount / "checkpoints").is_dir():
                summary = untrusted.objects(untrusted.read(mount / "summary.json", _MOST_BYTES))
                folders += [mount] if summary.get("run") == name else []
    return folders


def run_folders(config: Config) -> list[Path]:
    """Returns the folders that may hold an earlier state of a run. Raises BadInput without the named one."""
    name = config.run.name
    here = detect()
    if config.run.resume_from:
        base = find_input(config.run.resume_from, here)
        inner = sorted(path.parent for path in base.glob(f"*/{glob.escape(name)}/checkpoints"))
        return [base, base / name, *inner]
    return [output_dir(config.output_dir) / name, *earlier_runs(name, here)]


def saved_facts(key: str, *runs: Path) -> dict[str, Any]:
    """Returns a key of the newest readable checkpoint, else best weights, of the first run that has it, or {}."""
    for folder in (run / kind for run in runs for kind in ("checkpoints", "best")):
        steps = sorted(
            int(path.name[5:]) for path in folder.glob("step-*") if path.name[5:].isdecimal()
        )
        for path in (folder / f"step-{step:08d}" / "state.json" for step in reversed(steps)):
            with contextlib.suppress(OSError, BadInput):
                if (
                    isinstance(
                        facts := untrusted.objects(untrusted.read(path, _MOST_BYTES)).get(key), dict
                    )
                    and facts
                ):
                    return facts
    return {}


def search(folders: list[Path], sentinels: Sequence[str], limit: int = 20_000) -> list[Path]:
    """Lists the outermost folders here and below with a file that matches a glob: for train/*/*.png that with train."""
    patterns = [pattern.split("/") for pattern in sentinels]
    highest = max(map(len, patterns), default=1) - 1
    matches: dict[Path, int] = {}  # with their depths
    ends = [*WRITTEN_BY_A_RUN, *(names for names in _PUBLISHED if names.isdisjoint(sentinels))]
    waiting: deque[tuple[Path, tuple[str, ...]]] = deque((folder, ()) for folder in folders)
    count = 0
    while waiting:
        folder, inside = waiting.popleft()
        depth = len(inside)
        if any(
            matches.get(above, depth + 1) <= depth - highest for above in folder.parents[:depth]
        ):
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
            is_here = up <= depth and all(map(fnmatch.fnmatchcase, inside[depth - up :], above))
            if is_here and fnmatch.filter(files, last):
                matches[(folder, *folder.parents)[up]] = depth - up
        waiting += (
            (folder / n, (*inside, n)) for n in sorted(inner) if not (folder / n).is_symlink()
        )
    outer = [folder for folder in matches if matches.keys().isdisjoint(folder.parents)]
    return sorted(outer, key=matches.__getitem__)
