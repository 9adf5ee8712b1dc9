"""Packs a workload's data or a run's output as a data set for Kaggle."""

import json
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

from lib.config import Config
from lib.errors import BadInput
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.text import amount
from lib.training.summary import Summary
from trainbook.kaggle import client
from trainbook.kaggle.kernel import HOME

METADATA = "dataset-metadata.json"
_UNPACKED = re.compile(r"\.(gz|zip|tar|tgz|bz2|xz|7z)$")
_LEFT_OUT = re.compile(r"(^|/)(\.[^/]+|__pycache__|[^/]+\.(tmp|del|old|damaged))(/|$)")


def check(name: str) -> None:
    if not re.fullmatch(r"[\w-]+/[a-z0-9-]{6,50}", name):
        raise BadInput(
            f"{name} is no owner/slug: a slug has 6 to 50 small letters, digits and hyphens."
        )


def of_data(config: Config, name: str) -> tuple[Path, list[str], str]:
    source = Path(next(iter(config.data.dirs), "")).expanduser()
    if len(config.data.dirs) != 1 or not source.is_dir():
        folders = ", ".join(config.data.dirs) or "An empty data.dir"
        raise BadInput(f"{folders} is no folder. Give one with --data: each is packed by itself.")
    from lib.prepared import in_steps  # not at the top: torch takes seconds to import
    from lib.task.files import label

    task, _, _ = in_steps(config)  # the data of this folder, not of an earlier run
    splits = task.datasets().items()
    sizes = ", ".join(f"{len(samples):,} {split}" for split, samples in splits)
    about = f"Data of the workload `{label(config.task)}`, read and validated by it before packing."
    described = task.describe_data().replace(str(source), name)
    return source, [about, described, f"Samples: {sizes}."], "data"


def of_run(run: Path) -> tuple[Path, list[str], str]:
    """Returns the same for a run's output, which another session can mount and resume."""
    summary = Summary.read(run)
    if summary is None or not (run / "config.yaml").is_file():
        raise BadInput(
            f"{run} has no config.yaml with a summary.json. Give the folder of a run: runs/graphmer."
        )
    from lib.task.files import label  # not at the top: torch takes seconds to import

    end = f"{summary.reason} at step {summary.step:,}"
    about = f"The run `{run.name}` of the workload `{label(summary.task)}`: {end}."
    use = f"A notebook of it that mounts this data set resumes `{run.name}` from it."
    return run, [about, use], run.name


def pack(source: Path, about: Sequence[str], stem: str, name: str, licence: str) -> Path:
    found = [path for path in sorted(source.rglob("*")) if not path.is_dir()]
    paths = {path.relative_to(source).as_posix(): path for path in found}
    files = {}
    for member, path in paths.items():
        if path.is_file() and not path.is_symlink() and not _LEFT_OUT.search(member):
            files[member] = path
    if not files:
        raise BadInput(f"{source} holds no files that could be packed.")
    keys = [path for path in found if path.name in client.KEYS]
    client.refuse_in_files([*keys, *files.values()])
    size = sum(path.stat().st_size for path in files.values())
    if size > (limit := int(FACTS["kaggle_dataset_bytes"].value)):
        raise BadInput(f"The data has {size:,} bytes; Kaggle takes {limit:,} a data set. Split it.")
    slug = name.partition("/")[2]
    folder = HOME / slug / "dataset"
    disk.remove_tree(folder)
    disk.make_folders(folder)
    archive = folder / f"{stem}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for member, path in sorted(files.items()):
            packed.write(path, member)
    contents = f"{len(files):,} files, {size:,} bytes unpacked. Licence: {licence}."
    describe(folder, name, slug, [*about, contents], licence)
    # The client resumes a broken upload of the same path, size and time: unchanged files give the same archive.
    newest = max(path.stat().st_mtime for path in files.values())
    os.utime(archive, (newest, newest))
    packed_size = amount(archive.stat().st_size)
    print(f"{folder}: {len(files):,} files, {amount(size)}, packed {packed_size}")
    if packed_files := [name for name in sorted(files) if _UNPACKED.search(name.lower())]:
        names = ", ".join(packed_files[:10])
        print(
            f"Archives in it ({len(packed_files)}): {names}. Kaggle may unpack them: x.csv.gz is"
            " x.csv in a session."
        )
    if left_out := sorted(paths.keys() - files.keys()):
        names = ", ".join(left_out[:10])
        print(f"Left out ({len(left_out)}: hidden, links, or half written): {names}")
    return folder


def describe(folder: Path, name: str, slug: str, about: Sequence[str], licence: str) -> None:
    """Writes the metadata of a data set into its folder."""
    title = name.partition("/")[2].replace("-", " ")
    metadata = {
        "id": name,
        "title": title,
        "subtitle": f"Packed by Trainbook from {slug}",
        "description": "\n\n".join([f"# {title}", *about]) + "\n",
        "licenses": [{"name": licence}],
    }
    text = json.dumps(metadata, indent=1, ensure_ascii=False)
    (folder / METADATA).write_text(text + "\n", "utf-8")
