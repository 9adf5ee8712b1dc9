"""Archives by address or path: fetched with resume, unpacked file by file, sliced, and deleted again.

At no time does the unpacked data lie on disk as a whole: masks are unpacked first, then images; as soon as all files of
a scene are there it is cut into tiles, and its files are emptied. What was cut before is not unpacked again.
"""

import contextlib
import errno
import lzma
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import unquote, urlsplit

from lib.errors import BadInput
from lib.text import amount
from workloads.glacier.data import layout
from workloads.glacier.data.cutter import Cutter
from workloads.glacier.data.scenes import Scene
from workloads.glacier.data.tiles import Store

_CHUNK = 2**20
_ATTEMPTS = 5
_PROGRESS_SECONDS = 15.0
_NO_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG}  # of the disk, not of the network
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)


def cut(addresses: Sequence[str], folder: Path, cutter: Cutter) -> Store:
    """Returns the tiles of all scenes in some archives; `folder` holds what is deleted at the end.

    Raises BadInput where an archive cannot be fetched or read, or where too many scenes are unusable.
    """
    if earlier := cutter.finished():
        return earlier
    archives = [fetch(address, folder) for address in addresses]
    unpacked = folder / "unpacked"
    stamps = {unpacked / name: [name, size] for archive in archives for name, size, _ in _members(archive)}
    for path in stamps:  # empty files of the right names: the layout is found before anything is unpacked
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    match = layout.look(unpacked, cutter.source)
    print(match.text, flush=True)
    cutter.problems += match.problems
    _unpack(archives, unpacked, match.scenes, stamps, cutter)
    store = cutter.finish(complete=True)
    shutil.rmtree(unpacked)
    for archive in archives:
        if archive.parent == folder:  # one that was given by its path is not ours
            archive.unlink(missing_ok=True)
    return store


def _unpack(
    archives: Sequence[Path], unpacked: Path, scenes: Sequence[Scene], stamps: dict[Path, list], cutter: Cutter
) -> None:
    """Unpacks the files of scenes that are not yet cut, masks first; cuts each scene whose files are complete."""
    stamp_of = {scene: [stamps[path] for path in scene.files] for scene in scenes}
    remaining = [scene for scene in scenes if not cutter.take(scene, stamp_of[scene])]
    print(f"{len(scenes) - len(remaining):,} scenes were cut before; {len(remaining):,} are to be cut.", flush=True)
    scene_of = {path: scene for scene in remaining for path in scene.files}
    missing = {scene: set(scene.files) for scene in remaining}
    masks = {scene.mask for scene in remaining}
    shown = time.monotonic()
    for files in (masks, set(scene_of) - masks):
        for archive in archives if files else ():
            for name, _, content in _members(archive):
                if (path := unpacked / name) not in files:
                    continue
                with _naming_damage(archive), path.open("wb") as file:
                    shutil.copyfileobj(content(), file, _CHUNK)
                scene = scene_of[path]
                missing[scene].discard(path)
                if not missing[scene]:
                    cutter.add(scene, stamp_of[scene])
                    del missing[scene]
                    for unpacked_file in scene.files:
                        unpacked_file.write_bytes(b"")
                if time.monotonic() - shown > _PROGRESS_SECONDS:
                    shown = time.monotonic()
                    print(f"Slicing: {len(remaining) - len(missing):,} of {len(remaining):,} scenes", flush=True)


def fetch(address: str, folder: Path) -> Path:
    """Returns the path of an archive, fetched if it is an address. A partial download is resumed.

    Raises BadInput if it cannot be fetched, or the disk has no room for it.
    """
    if not urlsplit(address).scheme:
        path = Path(address).expanduser()
        if not path.is_file():
            raise BadInput(f"workload.download names {address}, which is no file. Give a path or an address.")
        return path
    final = folder / (PurePosixPath(unquote(urlsplit(address).path)).name or "archive")
    part = final.with_name(final.name + ".part")
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        if final.is_file():
            break
        try:
            _continue(address, part)
            part.replace(final)
        except urllib.error.HTTPError as error:
            raise BadInput(f"{address} answers {error.code} {error.reason}. Correct workload.download.") from None
        except (OSError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in _NO_WRITING:
                raise
            if attempt == _ATTEMPTS:
                raise BadInput(
                    f"{address} could not be fetched in {_ATTEMPTS} attempts ({error}). Run again to resume, or switch "
                    "the internet on (Kaggle: Settings > Internet)."
                ) from None
            time.sleep(min(2**attempt, 10))
    return final


def _continue(address: str, part: Path) -> None:
    """Appends what is missing to `part`. Raises OSError or EOFError if the connection ends too early."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if have and error.code == 416:  # nothing is missing
            return
        raise
    with response:
        if response.status != 206:  # the server does not support ranges
            have = 0
        left = int(response.headers.get("Content-Length") or 0)
        free = shutil.disk_usage(part.parent).free
        if left > free:
            raise BadInput(f"{address} has {amount(left)} more, and {part.parent} has {amount(free)} free.")
        expected, shown = have + left, time.monotonic()
        with part.open("ab" if have else "wb") as file:
            while chunk := response.read(_CHUNK):
                have += file.write(chunk)
                if time.monotonic() - shown > _PROGRESS_SECONDS:
                    shown = time.monotonic()
                    print(f"Fetching {address}: {amount(have)}{f' of {amount(expected)}' * bool(left)}", flush=True)
    if left and have < expected:
        raise EOFError(f"the connection ended after {have:,} of {expected:,} bytes")


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yields (name, size, a function that opens it) of the images and masks, in the archive's order.

    Raises BadInput where the archive is damaged, or holds a name that points outside of it.
    """
    with _naming_damage(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for info in opened.infolist():
                    if _is_data(info.filename, archive):
                        yield info.filename, info.file_size, lambda info=info: opened.open(info)
            return
        with tarfile.open(archive) as packed:
            for member in packed:
                if member.isfile() and _is_data(member.name, archive):
                    yield member.name, member.size, lambda member=member: packed.extractfile(member)
            # tarfile takes a broken header in the middle for the end of the archive and raises nothing
            packed.fileobj.seek(packed.offset)
            if packed.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise tarfile.ReadError("a header in the middle is broken")
            while packed.fileobj.read(_CHUNK):  # up to the checksum of the compression
                pass


def _is_data(name: str, archive: Path) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise BadInput(f"{archive} holds {name}, which points outside of the archive. Do not unpack it.")
    return layout.has_pixels(path.name)


@contextlib.contextmanager
def _naming_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk, not the archive
            raise
        raise BadInput(f"The archive {archive} is damaged ({error}). Delete it, and fetch it again.") from error
