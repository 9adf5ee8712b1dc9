"""Finds users' files and reads their text: unpacked, without a byte order mark, never guessing."""

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
from trainbook.supervised.names import listed

_MOST_BYTES = 2**30  # in a file, also when it is unpacked
# By the first bytes, not by the name: servers unpack files and keep their names
_PACKERS: dict[bytes, Any] = {  # modules by patterns
    rb"\x1f\x8b": gzip,
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": bz2,
    rb"\xfd7zXZ\x00": lzma,
}
_ZIP = b"PK\x03\x04"
_OTHERS = {  # other files saved under the name of a table or a picture, and the remedy
    rb"version https://git-lfs": "is a pointer of Git LFS to the file. Run `git lfs pull`",
    rb"(?is)\s*<(!doctype )?html.*</html>\s*$": "is a web page. Download the file",
    rb"\xd0\xcf\x11\xe0": "is a workbook, or another document of Office. "
    "Save its sheet as CSV in UTF-8",
    rb"(?s)....ftyp(hei|hev|mif1|msf1)": "is a HEIC. Convert it to JPEG or PNG",
    rb"\s*(<\?xml[^>]*>\s*)?<svg": "is an SVG. Convert it to PNG",
    rb"%PDF": "is a PDF. Export its pages as PNG, or its table as CSV",
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
    """Returns a file, or the matching files in a folder without hidden ones, by relative name."""
    if source.is_file():
        return {source.name: source}
    paths = sorted(source.glob(pattern.lstrip("/") or "*"))
    files = [path for path in paths if path.is_file()]
    visible = [path for path in files if not path.name.startswith(".")]
    return {path.relative_to(source).as_posix(): path for path in visible}


def find_files(source: Path, pattern: str) -> dict[str, Path]:
    """Returns the matching files. Raises BadInput without any."""
    files = matching(source, pattern)
    if not files:
        raise BadInput(
            f"No file below {printable(source)} matches workload.source.files, "
            f"{printable(pattern)}."
        )
    if source.is_dir():
        coverage.add_folder(source)
    return files


def unpacked(path: Path, shown: str) -> tuple[str, bytes]:
    """Returns the suffix and bytes of a file, or of the one file packed in it. Raises BadInput."""
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
            if re.match(magic, content):
                content = _bounded(packer.open(io.BytesIO(content)), shown)
    except BadInput:
        raise
    except _BROKEN as error:
        raise BadInput(
            f"{shown} cannot be unpacked ({error}). Copy it again, or unpack it."
        ) from None
    return PurePosixPath(name).suffix, content


def packed(content: bytes, like: Path) -> bytes:
    """Packs bytes like a file; not into a ZIP archive."""
    with like.open("rb") as file:
        first = file.read(16)
    for magic, packer in _PACKERS.items():
        if re.match(magic, first):
            return packer.compress(content)
    return content


def other_kind(content: bytes) -> str:
    """Returns the kind of a file (not a table or picture) with its remedy; "" if unknown."""
    kinds = [kind for magic, kind in _OTHERS.items() if re.match(magic, content)]
    return [*kinds, ""][0]


def _member(content: bytes, shown: str) -> tuple[str, bytes]:
    """Returns the name and the bytes of the one file in a ZIP archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        hidden = re.compile(r"(^|/)(\.|__MACOSX/)")
        names = [name for name in names if not hidden.search(name)]
        if "[Content_Types].xml" in names:
            raise BadInput(f"{shown} is a workbook. Save its sheet as CSV in UTF-8.")
        if len(names) != 1:
            raise BadInput(
                f"{shown} holds {len(names)} files ({listed(names)}). Pack one, or unpack it."
            )
        with archive.open(names[0]) as file:
            return names[0].lower(), _bounded(file, shown)


def _bounded(file: IO[bytes], shown: str) -> bytes:
    content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{shown} has more than {_MOST_BYTES:,} bytes unpacked. Split it.")
    return content


def decoded(content: bytes, shown: str) -> tuple[str, str]:
    """Returns text without its byte order mark, and the encoding. Raises BadInput with the line.

    No encoding is guessed: Windows-1252 decodes almost any bytes, Cyrillic or Polish pages into
    wrong letters.
    """
    encodings = [name for mark, name in _MARKS.items() if content.startswith(mark)]
    encoding = [*encodings, _UTF_8][0]
    try:
        text = content.decode(encoding).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        place = error.start
        line = content[:place].decode(encoding, "replace").count("\n") + 1
        before = content[max(0, place - 10) : place].rpartition(b"\n")[2]
        after = content[place : place + 10].partition(b"\n")[0]
        around = (before + after).decode("cp1252", "replace").strip()
        guess = f" In Windows-1252 it would be in {around!r}." if encoding == _UTF_8 else ""
        raise BadInput(
            f"{shown}:{line}: Byte 0x{content[place]:02x} is not {encoding}.{guess} "
            "Save the file as UTF-8."
        ) from None
    if "\0" in text:
        line = text.partition("\0")[0].count("\n") + 1
        raise BadInput(
            f"{shown}:{line}: There is a NUL byte, as in UTF-16 without a mark. "
            "Save the file as UTF-8."
        )
    return text, encoding


def read_text(path: Path, shown: str) -> str:
    """Returns the text of a file. Raises BadInput with the line."""
    text, encoding = decoded(unpacked(path, shown)[1], shown)
    if encoding != _UTF_8:
        coverage.add(coverage.Report(path, remarks=[encoding]))
    return text


def lines_of(text: str) -> list[str]:
    r"""Splits a text into lines with their ends: \n, \r\n or \r (U+2028 may be in a cell)."""
    return list(io.StringIO(text, newline=""))


def read_lines(path: Path, shown: str) -> list[str]:
    """Returns the lines of a file without line ends. Raises BadInput with the line."""
    return [line.rstrip("\r\n") for line in lines_of(read_text(path, shown))]
