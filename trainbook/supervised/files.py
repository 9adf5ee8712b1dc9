"""Finds users' files and reads their text: unpacked, with or without a byte order mark, in no guessed encoding."""

import bz2
import codecs
import gzip
import io
import lzma
import re
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any

from lib.config.files import check_no_pointer, read_bytes
from lib.errors import BadInput, printable
from trainbook.supervised import coverage

_MOST_BYTES = 2**30  # of a file, also when it is unpacked
# By the first bytes, not by the name: servers unpack files and keep their names
_PACKERS: dict[re.Pattern[bytes], Any] = {  # modules
    re.compile(rb"\x1f\x8b"): gzip,
    re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"): bz2,
    re.compile(rb"\xfd7zXZ\x00"): lzma,
}
_ZIP = b"PK\x03\x04"
_OTHERS = {  # files that are saved under the name of a table or a picture, and what to do
    re.compile(
        rb"version https://git-lfs"
    ): "is a pointer of Git LFS to the file. Run `git lfs pull`",
    re.compile(
        rb"\s*<(!doctype )?html.*</html>\s*$", re.IGNORECASE | re.DOTALL
    ): "is a web page. Download the file",
    re.compile(
        rb"\xd0\xcf\x11\xe0"
    ): "is a workbook, or another document of Office. Save its sheet as CSV in UTF-8",
    re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL): "is a HEIC. Convert it to JPEG or PNG",
    re.compile(rb"\s*(<\?xml[^>]*>\s*)?<svg"): "is an SVG. Convert it to PNG",
    re.compile(rb"%PDF"): "is a PDF. Export its pages as PNG, or its table as CSV",
}
_MARKS = {  # the longest first: UTF-32 begins as UTF-16 does
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_UTF_8 = "UTF-8"
_BROKEN = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)


def matching(source: Path, pattern: str) -> dict[str, Path]:
    """Returns a file, or the files of a folder that match, by their names below it; no hidden ones."""
    if source.is_file():
        return {source.name: source}
    paths = sorted(source.glob(pattern.lstrip("/") or "*"))
    files = [path for path in paths if path.is_file() and path.name[0] != "."]
    return {path.relative_to(source).as_posix(): path for path in files}


def find_files(source: Path, pattern: str) -> dict[str, Path]:
    """Returns what `matching` returns. Raises BadInput for no file."""
    files = matching(source, pattern)
    if not files:
        where = f"below {printable(source)} matches workload.source.files, {printable(pattern)}"
        raise BadInput(f"No file {where}.")
    if source.is_dir():
        coverage.add_folder(source)
    return files


def unpacked(path: Path, shown: str) -> tuple[str, bytes]:
    """Returns the suffix and the bytes of a file, or of the one file that is packed in it. Raises BadInput."""
    name = path.name.lower()
    while name.endswith(coverage.PACKED):
        name = name.rpartition(".")[0]
    try:
        content = read_bytes(path, _MOST_BYTES)
        check_no_pointer(content)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error  # without the path, which `shown` has
        raise BadInput(f"{shown} cannot be read ({printable(why)}).") from None
    if what := other_kind(content):
        raise BadInput(f"{shown} {what}.")
    try:
        if content.startswith(_ZIP):
            name, content = _member(content, shown)
        for magic, packer in _PACKERS.items():
            if magic.match(content):
                content = _bounded(packer.open(io.BytesIO(content)), shown)
    except BadInput:
        raise
    except _BROKEN as error:
        raise BadInput(
            f"{shown} cannot be unpacked ({error}). Copy it again, or unpack it."
        ) from None
    return PurePosixPath(name).suffix, content


def packed(content: bytes, like: Path) -> bytes:
    """Packs bytes as a file is packed; those of a ZIP archive stay as they are."""
    with like.open("rb") as file:
        first = file.read(16)
    packers = [packer for magic, packer in _PACKERS.items() if magic.match(first)]
    if packers:
        return packers[0].compress(content)
    return content


def other_kind(content: bytes) -> str:
    """Returns what a file is that is no table and no picture, by its first bytes, and what to do; "" if not known."""
    return next((what for pattern, what in _OTHERS.items() if pattern.match(content)), "")


def _member(content: bytes, shown: str) -> tuple[str, bytes]:
    """Returns the name and the bytes of the one file in a ZIP archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        hidden = re.compile(r"(^|/)(\.|__MACOSX/)")
        names = [name for name in names if not hidden.search(name)]
        if "[Content_Types].xml" in names:
            raise BadInput(f"{shown} is a workbook. Save its sheet as CSV in UTF-8.")
        if len(names) != 1:
            inside = printable(", ".join(names), most=200) or "none"
            raise BadInput(f"{shown} holds {len(names)} files ({inside}). Pack one, or unpack it.")
        with archive.open(names[0]) as file:
            return names[0].lower(), _bounded(file, shown)


def _bounded(file: IO[bytes], shown: str) -> bytes:
    content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{shown} has more than {_MOST_BYTES:,} bytes unpacked. Split it.")
    return content


def decoded(content: bytes, shown: str) -> tuple[str, str]:
    """Returns text without its byte order mark, and the encoding. Raises BadInput with the line of a wrong byte.

    No encoding is guessed: Windows-1252 reads almost any bytes, those of Cyrillic or Polish pages as wrong letters.
    """
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), _UTF_8)
    try:
        text = content.decode(encoding).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        line = content[: error.start].decode(encoding, "replace").count("\n") + 1
        before = content[max(0, error.start - 10) : error.start].rpartition(b"\n")[2]
        after = content[error.start : error.start + 10].partition(b"\n")[0]
        around = (before + after).decode("cp1252", "replace").strip()
        guess = f" In Windows-1252 it would be in {around!r}." if encoding == _UTF_8 else ""
        byte = f"Byte 0x{content[error.start]:02x} is not {encoding}."
        raise BadInput(f"{shown}:{line}: {byte}{guess} Save the file as UTF-8.") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise BadInput(
            f"{shown}:{line}: There is a NUL byte, as in UTF-16 without a mark. Save the file as UTF-8."
        )
    return text, encoding


def read_text(path: Path, shown: str) -> str:
    """Returns the text of a file. Raises BadInput with the line of a wrong byte."""
    text, encoding = decoded(unpacked(path, shown)[1], shown)
    if encoding != _UTF_8:
        coverage.add(coverage.Report(path, remarks=[encoding]))
    return text


def lines_of(text: str) -> list[str]:
    r"""Splits a text into lines with their ends: \n, \r\n or \r, and no other one (U+2028 may stand in a cell)."""
    return list(io.StringIO(text, newline=""))


def read_lines(path: Path, shown: str) -> list[str]:
    """Returns the lines of a file without their ends. Raises BadInput with the line of a wrong byte."""
    return [line.rstrip("\r\n") for line in lines_of(read_text(path, shown))]
