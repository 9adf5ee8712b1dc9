"""Packs a workload's data or a run's output as a data set, and uploads it to Kaggle."""

import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
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
TITLE, SUBTITLE = (6, 50), (20, 80)  # characters, of a title and of a slug; of a subtitle (kaggle 2.2.4)
_LEFT_OUT = re.compile(r"(^|/)(\.[^/]+|__pycache__|[^/]+\.(tmp|del|old|damaged))(/|$)")
_SHOWN = 10  # names of files that were left out


@dataclass(frozen=True)
class Package:
    """A folder that is ready for upload. `left_out` names the files of the source that are not in it."""

    folder: Path
    dataset: str  # owner/slug
    files: int
    size: int  # bytes unpacked
    packed: int  # bytes of the archive
    left_out: list[str]
    config: str  # the configuration that reads it; empty for a run's output


@dataclass(frozen=True)
class Labels:
    """What Kaggle shows of a data set. `license` is a name that Kaggle knows; it refuses others."""

    dataset: str
    license: str
    title: str = ""
    subtitle: str = ""

    def checked(self) -> "Labels":
        """Returns them with a title and a subtitle. Raises BadInput for what Kaggle would refuse."""
        slug = self.dataset.partition("/")[2]
        if not re.fullmatch(r"[\w-]+/[a-z0-9]+(-[a-z0-9]+)*", self.dataset):
            raise BadInput(f"{self.dataset!r} is no owner/slug: a slug has small letters, digits and single hyphens.")
        title = self.title or slug.replace("-", " ")
        subtitle = self.subtitle or f"Packed by Trainbook from {slug}"[: SUBTITLE[1]]
        limits = {"slug": (slug, TITLE), "title": (title, TITLE), "subtitle": (subtitle, SUBTITLE)}
        for what, (text, (least, most)) in limits.items():
            if not least <= len(text) <= most:
                raise BadInput(f"The {what} {text!r} has {len(text)} characters; Kaggle takes {least} to {most}.")
        return Labels(self.dataset, self.license, title, subtitle)


def pack_data(config: Config, labels: Labels, least: int, file: str = "") -> Package:
    """Packs the data folder of a configuration, of which `file` is the name, after the task has read and validated it.

    Raises BadInput for data that the task refuses, fewer than `least` training samples, limits and credentials.
    """
    labels = labels.checked()
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
    files, left_out = _files(source)
    about = [
        f"Data of the workload `{label(config.task)}`, read and validated by it before packing.",
        "",
        task.describe_data().replace(str(source), labels.dataset),
        "",
        "Samples: " + ", ".join(f"{count:,} {name}" for name, count in sizes.items()) + ".",
    ]
    return _pack(files, left_out, labels, about, "data", file)


def pack_run(run: Path, labels: Labels) -> Package:
    """Packs the output of a run, with its checkpoints, so that another session can mount it and resume.

    Raises BadInput where the folder is no run's, and for limits and credentials.
    """
    labels = labels.checked()
    summary = Summary.read(run)
    if summary is None or not (run / "config.yaml").is_file():
        raise BadInput(f"{run} has no config.yaml with a summary.json. Give the folder of a run: runs/graphmer.")
    from lib.task.files import label  # not at the top: torch takes seconds to import

    files, left_out = _files(run)
    about = [
        f"The run `{run.name}` of the workload `{label(summary.task)}`: {summary.reason} at step {summary.step:,}.",
        "",
        f"A notebook of that workload that mounts this data set resumes `{run.name}` from it.",
    ]
    # The archive is unpacked to a folder with its name, so the run lies where one of an earlier session would.
    return _pack(files, left_out, labels, about, run.name, "")


def _files(source: Path) -> tuple[dict[str, Path], list[str]]:
    """Returns the files below a folder by relative name, sorted, and what is left out: hidden, half written, links."""
    files: dict[str, Path] = {}
    left_out: list[str] = []
    for parent, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            path = Path(parent) / name
            relative = path.relative_to(source).as_posix()
            if name in credentials.FILES:
                credentials.refuse_in_files([path])
            if _LEFT_OUT.search(relative) or path.is_symlink() or not path.is_file():
                left_out.append(relative)
            else:
                files[relative] = path
    if not files:
        raise BadInput(f"{source} holds no files that could be packed.")
    return files, left_out


def _pack(
    files: Mapping[str, Path], left_out: list[str], labels: Labels, about: Sequence[str], stem: str, config: str
) -> Package:
    """Writes archive, README and metadata into the data set's folder below runs/kaggle."""
    credentials.refuse_in_files(files.values())
    size = sum(path.stat().st_size for path in files.values())
    if size > (limit := int(FACTS["kaggle_dataset_bytes"].value)):
        raise BadInput(f"The data has {size:,} bytes; Kaggle takes {limit:,} a data set. Split it.")
    folder = HOME / labels.dataset.partition("/")[2] / "dataset"
    if folder.exists():
        disk.remove_tree(folder)
    disk.make_folders(folder)
    archive = folder / f"{stem}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for name, path in sorted(files.items()):
            packed.write(path, name)
    contents = f"{len(files):,} files, {size:,} bytes unpacked. Licence: {labels.license}."
    readme = "\n".join([f"# {labels.title}", "", *about, "", contents, ""])
    described = {
        "id": labels.dataset,
        "title": labels.title,
        "subtitle": labels.subtitle,
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
    return Package(folder, labels.dataset, len(files), size, archive.stat().st_size, left_out, config)


def upload(package: Package, notes: str) -> str:
    """Uploads it as a new data set, or a new version of one; returns its address. Raises BadInput."""
    status = client.insist(lambda: client.dataset_status(package.dataset))
    return client.upload_dataset(package.folder, notes, version=bool(status))


def describe(package: Package) -> str:
    """Returns sizes as text, and the names of files that were left out."""
    sizes = f"{package.files:,} files, {amount(package.size)}, packed {amount(package.packed)}"
    lines = [f"{package.folder}: {sizes}"]
    if package.left_out:
        names = ", ".join(package.left_out[:_SHOWN])
        lines.append(f"Left out ({len(package.left_out)}: hidden, links, or half written): {names}")
    return "\n".join(lines)


def steps(package: Package, uploaded: bool) -> str:
    """Returns what to do next, in the browser and on the command line."""
    push = f"trainbook kaggle push {package.config or 'NOTEBOOK'} --dataset {package.dataset}"
    push += f" --param DATA_DIR={package.dataset}" * bool(package.config)
    upload = f"In the browser: Create > New Dataset, and drop the archive of {package.folder} onto the page."
    mount = f"In the browser: open the notebook, Add Input > Your Datasets > {package.dataset}, then Save Version."
    return "\n".join([*([] if uploaded else [upload]), mount, f"On the command line: {push}"])
