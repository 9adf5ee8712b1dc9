"""What comes out of an archive, which may be anybody's: known names, plain files, bounded sizes, weights as sealed."""

import gzip
import io
import re
import shutil
import tarfile
import zlib
from pathlib import Path

from lib import checkpoint
from lib.config.files import size_of
from lib.errors import BadInput, printable
from lib.text import amount

# In a run's folder, at the top or one below it.
_WANTED = re.compile(
    r"([^/]{1,200}/)?(config\.yaml|summary\.json"
    r"|named/[\w.]{1,100}/\w[\w. -]{0,100}"  # small files that settings of a task name
    r"|data/\w[\w.-]{0,100}"  # what a task keeps of its data
    r"|(best|frozen)/step-[0-9]{8,18}/(manifest\.json|state\.json|[a-z_]{1,40}\.safetensors))"
)
_CODE = re.compile(r"([^/]{1,200}/)?code/([\w-]{1,100}/){0,8}[\w. -]{1,100}\.py")  # a task's own files
_MOST_MEMBERS = 20_000
_MOST_BYTES = 2**36  # unpacked: 64 GiB
_MOST_RATIO = 100  # weights hardly shrink; text shrinks to a tenth
_ALWAYS_BYTES = 2**26  # may be unpacked of however small an archive
_MOST_AT_ONCE = 2**22  # of a header; tarfile would take any length into memory
_CHUNK = 2**20
_GZIP = b"\x1f\x8b"


class _TooMuch(Exception):
    """An archive is larger than it may be; the message says in what."""


class _Bounded(io.RawIOBase):
    """A stream of unpacked bytes that ends with _TooMuch instead of growing without end."""

    def __init__(self, stream: io.IOBase, most: int):
        self.stream, self.most = stream, most

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        if not 0 <= size <= _MOST_AT_ONCE:
            raise _TooMuch(f"it has a header of {size:,} bytes")
        content = self.stream.read(size)
        self._check(self.stream.tell())
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check(offset)
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        return self.stream.tell()

    def _check(self, position: int) -> None:
        if position > self.most:
            raise _TooMuch(f"unpacked it has more than {amount(self.most)}")


def unpack(archive: Path, folder: Path, with_code: bool = False) -> None:
    """Writes configurations, summaries, weights and kept data of the runs in an archive into a folder, and no more.

    `with_code` also takes the files of tasks, for who trusts whoever made the archive. Links, devices and other names
    stay packed. Raises BadInput.
    """
    try:
        most = min(_MOST_BYTES, max(_ALWAYS_BYTES, _MOST_RATIO * size_of(archive)))
        with archive.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if is_gzip else raw
            with tarfile.open(fileobj=_Bounded(stream, most), mode="r:") as packed:  # type: ignore[call-overload]
                _take(packed, folder, with_code)
    except _TooMuch as error:
        raise BadInput(f"{printable(archive)} is not unpacked: {error}. No archive of runs is like that.") from None
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, RecursionError) as error:
        why = printable(getattr(error, "strerror", None) or error, most=200)
        raise BadInput(f"{printable(archive)} cannot be unpacked ({why}). Download it again.") from None


def _take(packed: tarfile.TarFile, folder: Path, with_code: bool) -> None:
    for number, member in enumerate(packed, 1):
        if number > _MOST_MEMBERS:
            raise _TooMuch(f"it has more than {_MOST_MEMBERS:,} members")
        name = member.name.removeprefix("./")
        if (
            not member.isreg()
            or member.issparse()
            or not (_WANTED.fullmatch(name) or (with_code and _CODE.fullmatch(name)))
            or ".." in name.split("/")
            or printable(name) != name
        ):
            continue
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        content = packed.extractfile(member)
        with place.open("xb") as file:
            shutil.copyfileobj(content, file, _CHUNK)  # type: ignore[type-var]


def damaged(run: Path) -> str:
    """Returns which weights or checkpoint in a run's folder do not match their manifest, and why; "" for none."""
    for manifest in sorted(run.glob("*/step-*/manifest.json")):
        try:
            checkpoint.verify(manifest.parent)
        except checkpoint.DamagedCheckpoint as damage:
            return f"{manifest.parent.name} is damaged: {damage}"
    return ""
