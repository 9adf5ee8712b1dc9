"""Packs a workload's data or a run's output as a data set, always to the same bytes, and uploads it to Kaggle."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.config import Config
from lib.errors import BadInput
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.report.summary import Summary
from lib.text import amount
from trainbook.kaggle import browser, client, credentials
from trainbook.kaggle.kernel import HOME, is_configuration, notebook_for

METADATA, README = "dataset-metadata.json", "README.md"
TITLE, SUBTITLE = (6, 50), (20, 80)  # characters, of a title and of a slug; of a subtitle (kaggle 2.2.4)
# The names that the client sends; Kaggle's page of a data set shows their texts.
LICENSES = (
    "CC0-1.0", "CC-BY-4.0", "CC-BY-SA-4.0", "CC-BY-NC-4.0", "CC-BY-NC-SA-4.0", "apache-2.0", "MIT", "other", "unknown",
)  # fmt: skip
_LEVEL = 6  # of the compression: fixed, so that the bytes are the same everywhere
_TIME = (1980, 1, 1, 0, 0, 0)  # of every entry: the oldest date of the format
_LEFT_OUT = re.compile(r"(^|/)(\.[^/]+|__pycache__|[^/]+\.(tmp|del|old|damaged))(/|$)")
_TEXT = (".jsonl", ".csv", ".tsv", ".txt")  # suffixes of files whose lines are counted
_SHOWN = 10  # files that the README names


@dataclass(frozen=True)
class Package:
    """A folder that is ready for upload. `left_out` names the files of the source that are not in it."""

    folder: Path
    dataset: str  # owner/slug
    files: int
    size: int  # bytes unpacked
    packed: int  # bytes of the archive
    left_out: list[str]
    digest: str  # sha256 of the archive
    notebook: str  # what a push calls the notebook that reads it
    archive: Path
    title: str


@dataclass(frozen=True)
class Labels:
    """What Kaggle shows of a data set. `license` is one of LICENSES."""

    dataset: str
    license: str
    title: str = ""
    subtitle: str = ""

    def checked(self) -> "Labels":
        """Returns them with a title and a subtitle. Raises BadInput for what Kaggle would refuse."""
        slug = self.dataset.partition("/")[2]
        filled = dataclasses.replace(
            self,
            title=self.title or slug.replace("-", " "),
            subtitle=self.subtitle or f"Packed by Trainbook from {slug}"[: SUBTITLE[1]],
        )
        if not re.fullmatch(r"[\w-]+/[a-z0-9]+(-[a-z0-9]+)*", self.dataset):
            raise BadInput(f"{self.dataset!r} is no owner/slug: a slug has small letters, digits and single hyphens.")
        for what, text, (least, most) in (
            ("slug", slug, TITLE), ("title", filled.title, TITLE), ("subtitle", filled.subtitle, SUBTITLE),
        ):  # fmt: skip
            if not least <= len(text) <= most:
                raise BadInput(f"The {what} {text!r} has {len(text)} characters; Kaggle takes {least} to {most}.")
        if self.license not in LICENSES:
            raise BadInput(f"A data set needs one licence of {', '.join(LICENSES)}, not {self.license!r}.")
        return filled


def pack_data(config: Config, labels: Labels, least: int, file: str = "") -> Package:
    """Packs the data folder of a configuration, of which `file` is the name, after the task has read and validated it.

    Raises BadInput for data that the task refuses, fewer than `least` training samples, limits and credentials.
    """
    labels = labels.checked()
    if not config.data.dir:
        raise BadInput("Which data? Give its folder with --data, or data.dir in the configuration.")
    if len(config.data.dirs) > 1:
        raise BadInput(
            f"A data set is one folder, and data.dir lists {', '.join(config.data.dirs)}. Pack each by itself: --data."
        )
    source = Path(config.data.dirs[0]).expanduser()
    if not source.is_dir():
        raise BadInput(f"{source} is no folder. Give the one that holds the data.")
    from lib.launch.run import resolved  # not at the top: torch takes seconds to import
    from lib.task.files import label

    task, _, _ = resolved(config)  # of this folder, whatever a run of this name has kept
    sizes = {name: len(part) for name, part in task.datasets().items()}
    if sizes["train"] < least:
        raise BadInput(
            f"{source} has {sizes['train']:,} training samples (what the task trains on: windows of a graph, tiles of "
            f"a scene), fewer than --least {least:,}. It was not packed. Check the folder, or give a smaller --least."
        )
    files, left_out = _files(source)
    about = [
        f"Data of the workload `{label(config.task)}`, read and validated by it before packing.",
        "",
        task.describe_data().replace(str(source), labels.dataset),
        "",
        "Samples: " + ", ".join(f"{count:,} {name}" for name, count in sizes.items()) + ".",
    ]
    return _pack(files, left_out, labels, about, "data", notebook_for(config.task, config.run.name, file))


def pack_run(run: Path, labels: Labels) -> Package:
    """Packs the output of a run, with its checkpoints, so that another session can mount it and resume.

    Raises BadInput where the folder is no run's, and for limits and credentials.
    """
    labels = labels.checked()
    summary = Summary.read(run)
    if summary is None or not (run / "config.yaml").is_file():
        raise BadInput(
            f"{run} is no run: it has no config.yaml with a summary.json. Give a folder such as runs/graphmer."
        )
    from lib.task.files import label  # not at the top: torch takes seconds to import

    task = summary.task or _task(run)  # a failed run of an earlier version names none
    files, left_out = _files(run)
    about = [
        f"The run `{run.name}` of the workload `{label(task)}`: {summary.reason} at step {summary.step:,}.",
        "",
        f"A notebook of that workload that mounts this data set resumes `{run.name}` from it.",
    ]
    # The archive is unpacked to a folder with its name, so the run lies where one of an earlier session would.
    return _pack(files, left_out, labels, about, run.name, notebook_for(task, run.name))


def _task(run: Path) -> str:
    from lib.task import load_config  # not at the top: torch takes seconds to import

    return load_config(run / "config.yaml").task


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
    files: Mapping[str, Path], left_out: list[str], labels: Labels, about: Sequence[str], stem: str, notebook: str
) -> Package:
    """Writes archive, README and metadata into the data set's folder below runs/kaggle."""
    credentials.refuse_in_files(files.values())
    size = sum(path.stat().st_size for path in files.values())
    if size > (limit := int(FACTS["kaggle_dataset_bytes"].value)):
        raise BadInput(f"The data has {size:,} bytes; Kaggle takes {limit:,} a data set. Split it.")
    folder = HOME / labels.dataset.partition("/")[2] / "dataset"
    disk.make_folders(folder)
    archive = folder / f"{stem}.zip"
    for old in folder.iterdir():
        if old.name != archive.name:
            disk.remove_tree(old)
    digest = _archive(files, archive)
    readme = _readme(labels, about, files)
    (folder / README).write_text(readme, "utf-8")
    described = {
        "id": labels.dataset,
        "title": labels.title,
        "subtitle": labels.subtitle,
        "description": readme,
        "licenses": [{"name": labels.license}],
        "keywords": [],
    }
    (folder / METADATA).write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n", "utf-8")
    # The files are dated by the archive's content. The client resumes a broken upload of the same path, size and time
    # in seconds: the same content must keep its time, and another content of the same size must not have it.
    seconds = 10**9 + int(digest[:7], 16)
    for path in folder.iterdir():
        os.utime(path, (seconds, seconds))
    packed = archive.stat().st_size
    return Package(folder, labels.dataset, len(files), size, packed, left_out, digest, notebook, archive, labels.title)


def _archive(files: Mapping[str, Path], archive: Path) -> str:
    """Writes a zip with the same bytes for the same content, on any machine and at any time; returns its sha256."""
    with (
        disk.whole(archive) as aside,
        zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as packed,
    ):
        for name, path in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            entry.file_size = path.stat().st_size
            with path.open("rb") as file, packed.open(entry, "w", force_zip64=True) as target:
                shutil.copyfileobj(file, target, 2**20)
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _readme(labels: Labels, about: Sequence[str], files: Mapping[str, Path]) -> str:
    """Describes the files with real counts: the largest by name, with the lines of text files, and all by kind."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    kinds = Counter(Path(name).suffix or "no suffix" for name in files)
    rows = []
    for name in sorted(sizes, key=lambda name: (-sizes[name], name))[:_SHOWN]:
        lines = ""
        if files[name].suffix in _TEXT:
            with files[name].open("rb") as file:
                lines = f"{sum(1 for _ in file):,}"
        rows.append(f"| `{name}` | {sizes[name]:,} | {lines} |")
    if len(files) > len(rows):
        rows.append(f"and {len(files) - len(rows):,} smaller files.")
    by_kind = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    return "\n".join(
        [
            f"# {labels.title}",
            "",
            *about,
            "",
            f"{len(files):,} files ({by_kind}), {sum(sizes.values()):,} bytes unpacked. Licence: {labels.license}.",
            "",
            "| file | bytes | lines |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


# --- upload -----------------------------------------------------------------------------------------------------------


def upload(package: Package, notes: str) -> str:
    """Uploads it as a new data set, or a new version of one; returns its address. Raises BadInput."""
    status = client.insist(lambda: client.dataset_status(package.dataset))
    return client.upload_dataset(package.folder, notes, version=bool(status))


def describe(package: Package) -> str:
    """Returns sizes and digest as text, and the names of files that were left out."""
    lines = [
        f"{package.folder}: {package.files:,} files, {amount(package.size)}, packed {amount(package.packed)}",
        f"sha256 of the archive: {package.digest}",
    ]
    if package.left_out:
        names = ", ".join(package.left_out[:_SHOWN])
        lines.append(f"Left out ({len(package.left_out)}: hidden, links, or half written): {names}")
    return "\n".join(lines)


def steps(package: Package, uploaded: bool) -> str:
    """Returns what to do next, in the browser and on the command line."""
    push = f"kaggle push {package.notebook} --dataset {package.dataset}"
    if is_configuration(package.notebook):  # its data.dir may name a folder of this machine
        push += f" --param DATA_DIR={package.dataset}"
    push = f"On the command line: trainbook {push}"
    lines = [browser.mount_by_hand(package.dataset), push]
    if not uploaded:
        lines.insert(0, browser.upload_by_hand(package.archive, package.title, package.dataset))
    return "\n".join(lines)
