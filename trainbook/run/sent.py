"""What a session on Kaggle does with the repository that `kaggle push` sent: unpacks it, and tidies up behind it."""

import contextlib
import hashlib
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from lib.errors import BadInput
from lib.machine import inputs, platform
from lib.text import amount

ARCHIVE = (
    "repository.bin"  # a tar.gz; Kaggle unpacks files with that suffix, and changes names in them
)
FOLDER = "repository"  # in the output folder: the command's working folder


def unpack(dataset: str, files: Mapping[str, str]) -> Path:
    """Writes the repository into the output folder, and installs its wheels; returns its folder.

    `files` are the names in the data set with their hashes. Raises BadInput where one differs.
    """
    here = platform.detect()
    mount = inputs.find_input(dataset, here)
    for name, sha256 in files.items():
        _check(mount / name, sha256, dataset)
    folder = here.output_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(mount / ARCHIVE, "r:gz") as archive:
        members = archive.getmembers()
        archive.extractall(folder, members, filter="data")
    size = sum(member.size for member in members)
    print(f"{len(members):,} files of {dataset}, {amount(size)}, verified, are in {folder}.")
    install([mount / name for name in files if name.endswith(".whl")])
    return folder


def _check(path: Path, sha256: str, dataset: str) -> None:
    if not path.is_file():
        raise BadInput(f"{dataset} has no {path.name}. Push again: it is uploaded then.")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise BadInput(
            f"{path.name} in {dataset} is of another push (sha256 {digest[:12]} instead of "
            f"{sha256[:12]}). Push again, which waits for the new version."
        )


def install(wheels: list[Path]) -> None:
    """Installs wheels without a network and without dependencies. Raises BadInput."""
    if not wheels:
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    if subprocess.run([*command, *map(str, wheels)], check=False).returncode:
        raise BadInput("The wheels above could not be installed. Correct `requirements`.")
    print("Installed:", ", ".join(path.name for path in wheels))


def tidy(dataset: str, folder: Path) -> None:
    """Removes unchanged files of the repository from a batch run's output."""
    here = platform.detect()
    if not here.batch:
        return
    mount = inputs.find_input(dataset, here)
    removed = 0
    with tarfile.open(mount / ARCHIVE, "r:gz") as archive:
        for member in archive:
            path = folder / member.name
            content = archive.extractfile(member)
            if content and path.is_file() and path.read_bytes() == content.read():
                path.unlink()
                removed += 1
    for cache in [*folder.rglob("__pycache__")]:
        for path in cache.iterdir():
            path.unlink()
    for inner in sorted((each for each in folder.rglob("*") if each.is_dir()), reverse=True):
        with contextlib.suppress(OSError):  # it is not empty
            inner.rmdir()
    print(f"{removed:,} files that the command did not change were removed; {dataset} has them.")


@contextlib.contextmanager
def linked(folders: Mapping[str, str]) -> Iterator[None]:
    """Links mounted inputs to the command's data paths, for the block. Raises BadInput for a missing one."""
    here = platform.detect()
    links = []
    try:
        for name, dataset in folders.items():
            path = Path(name)
            if path.exists():
                continue
            if not here.has_mounts:
                raise BadInput(f"{name} does not exist. On Kaggle it is {dataset}; here, make it.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(inputs.find_input(dataset, here))
            links.append(path)
            print(f"{name} is the mounted {dataset}.")
        yield
    finally:
        for path in links:
            path.unlink()
