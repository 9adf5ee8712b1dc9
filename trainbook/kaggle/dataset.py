"""Packs a workload's data or a run's output as a data set, and uploads it to Kaggle."""

import json
import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.config import Config
from lib.errors import BadInput
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.report.summary import Summary
from lib.text import amount
from trainbook.kaggle import client, credentials
from trainbook.kaggle.kernel import HOME

METADATA, README = "dataset-metadata.json", "README.md"
_TITLE = (6, 50)  # characters of a title and of a slug (kaggle 2.2.4)
_LEFT_OUT = re.compile(r"(^|/)(\.[^/]+|__pycache__|[^/]+\.(tmp|del|old|damaged))(/|$)")


@dataclass(frozen=True)
class Labels:
    """What Kaggle shows of a data set. `license` is a name that Kaggle knows; it refuses others."""

    dataset: str  # owner/slug
    license: str
    title: str

    def __post_init__(self) -> None:
        """Raises BadInput for what Kaggle would refuse."""
        if not re.fullmatch(r"[\w-]+/[a-z0-9]+(-[a-z0-9]+)*", self.dataset):
            raise BadInput(f"{self.dataset!r} is no owner/slug: a slug has small letters, digits and single hyphens.")
        for what, text in (("slug", self.dataset.partition("/")[2]), ("title", self.title)):
            if not _TITLE[0] <= len(text) <= _TITLE[1]:
                limits = f"{_TITLE[0]} to {_TITLE[1]}"
                raise BadInput(f"The {what} {text!r} has {len(text)} characters; Kaggle takes {limits}.")


def pack_data(config: Config, labels: Labels, least: int) -> Path:
    """Packs the data folder of a configuration, after the task has read and validated it; returns the folder to upload.

    Raises BadInput for data that the task refuses, fewer than `least` training samples, limits and credentials.
    """
    if not config.data.dir:
        raise BadInput("Which data? Give its folder with --data, or data.dir in the configuration.")
    if len(config.data.dirs) > 1:
        raise BadInput(f"data.dir lists {', '.join(config.data.dirs)}. Pack each folder by itself: --data.")
    source = Path(config.data.dirs[0]).expanduser()
    if not source.is_dir():
        raise BadInput(f"{source} is no folder. Give the one that holds the data.")
    from lib.launch.run import resolved  # not at the top: torch takes seconds to import
    from lib.task.files import label

    task, _, _ = resolved(config)  # of this folder, whatever a run of this name has kept
    sizes = {name: len(part) for name, part in task.datasets().items()}
    if sizes["train"] < least:
        raise BadInput(
            f"{source} has {sizes['train']:,} training samples, fewer than --least {least:,}. It was not packed. Check "
            "the folder, or give a smaller --least."
        )
    about = [
        f"Data of the workload `{label(config.task)}`, read and validated by it before packing.",
        task.describe_data().replace(str(source), labels.dataset),
        "Samples: " + ", ".join(f"{count:,} {name}" for name, count in sizes.items()) + ".",
    ]
    return _pack(source, labels, about, "data")


def pack_run(run: Path, labels: Labels) -> Path:
    """Packs the output of a run, with its checkpoints, so that another session can mount it and resume.

    Raises BadInput where the folder is no run's, and for limits and credentials.
    """
    summary = Summary.read(run)
    if summary is None or not (run / "config.yaml").is_file():
        raise BadInput(f"{run} has no config.yaml with a summary.json. Give the folder of a run: runs/graphmer.")
    from lib.task.files import label  # not at the top: torch takes seconds to import

    about = [
        f"The run `{run.name}` of the workload `{label(summary.task)}`: {summary.reason} at step {summary.step:,}.",
        f"A notebook of that workload that mounts this data set resumes `{run.name}` from it.",
    ]
    return _pack(run, labels, about, run.name)  # unpacked to a folder of that name, as an earlier session has it


def _pack(source: Path, labels: Labels, about: Sequence[str], stem: str) -> Path:
    """Writes archive, README and metadata into the data set's folder below runs/kaggle; prints their sizes."""
    paths = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if not path.is_dir()}
    left_out = [name for name, path in paths.items() if _LEFT_OUT.search(name) or path.is_symlink()]
    left_out += [name for name, path in paths.items() if name not in left_out and not path.is_file()]
    files = {name: path for name, path in paths.items() if name not in {*left_out}}
    if not files:
        raise BadInput(f"{source} holds no files that could be packed.")
    hidden = [path for path in paths.values() if path.name in credentials.FILES]
    credentials.refuse_in_files([*hidden, *files.values()])
    size = sum(path.stat().st_size for path in files.values())
    if size > (limit := int(FACTS["kaggle_dataset_bytes"].value)):
        raise BadInput(f"The data has {size:,} bytes; Kaggle takes {limit:,} a data set. Split it.")
    folder = HOME / labels.dataset.partition("/")[2] / "dataset"
    disk.remove_tree(folder)
    disk.make_folders(folder)
    archive = folder / f"{stem}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for name, path in sorted(files.items()):
            packed.write(path, name)
    contents = f"{len(files):,} files, {size:,} bytes unpacked. Licence: {labels.license}."
    readme = "\n\n".join([f"# {labels.title}", *about, contents]) + "\n"
    described = {
        "id": labels.dataset,
        "title": labels.title,
        "subtitle": f"Packed by Trainbook from {labels.dataset.partition('/')[2]}",
        "description": readme,
        "licenses": [{"name": labels.license}],
        "keywords": [],
    }
    (folder / README).write_text(readme, "utf-8")
    (folder / METADATA).write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n", "utf-8")
    # The client resumes a broken upload of the same path, size and time: unchanged files give the same archive.
    newest = max(path.stat().st_mtime for path in files.values())
    for path in folder.iterdir():
        os.utime(path, (newest, newest))
    print(f"{folder}: {len(files):,} files, {amount(size)}, packed {amount(archive.stat().st_size)}")
    if left_out:
        print(f"Left out ({len(left_out)}: hidden, links, or half written):", ", ".join(sorted(left_out)[:10]))
    return folder


def upload(folder: Path, dataset: str, notes: str) -> str:
    """Uploads it as a new data set, or a new version of one; returns its address. Raises BadInput."""
    status = client.insist(lambda: client.dataset_status(dataset))
    return client.upload_dataset(folder, notes, version=bool(status))
