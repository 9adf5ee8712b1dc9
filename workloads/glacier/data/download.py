"""Archives by address or path: fetched, unpacked file by file, sliced, and deleted again. At no time does the unpacked
data lie on disk as a whole: masks are unpacked first, then images; as soon as all files of a scene are there it is cut
into tiles, and its files are emptied. What was cut before is not unpacked again."""

import contextlib
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import unquote, urlsplit

import torch

from lib.errors import BadInput
from lib.report.progress import counted
from workloads.glacier.data import layout
from workloads.glacier.data.cutter import Cutter, Store

_CHUNK = 2**20
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)


def cut(addresses: Sequence[str], folder: Path, cutter: Cutter) -> Store:
    """Returns the tiles of all scenes in some archives; `folder` holds what is deleted at the end. Raises BadInput."""
    if earlier := cutter.finished():
        return earlier
    archives = [fetch(address, folder) for address in addresses]
    unpacked = folder / "unpacked"
    stamps = {unpacked / name: [name, size] for archive in archives for name, size, _ in _members(archive)}
    for path in stamps:  # empty files of the right names: the layout is found before anything is unpacked
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    match = layout.find(unpacked, cutter.source)
    print(match.text, flush=True)
    cutter.problems += match.problems
    stamp_of = {scene: [stamps[path] for path in scene.files] for scene in match.scenes}
    missing = {scene: set(scene.files) for scene in match.scenes if not cutter.take(scene, stamp_of[scene])}
    print(f"{len(match.scenes) - len(missing):,} scenes were cut before; {len(missing):,} are to be cut.", flush=True)
    scene_of = {path: scene for scene in missing for path in scene.files}
    masks = {scene.mask for scene in missing}
    for path in counted(_unpacked(archives, unpacked, masks, scene_of.keys() - masks), "files unpacked", len(scene_of)):
        scene = scene_of[path]
        missing[scene].discard(path)
        if not missing[scene]:
            cutter.add(scene, stamp_of[scene])
            for done in scene.files:
                done.write_bytes(b"")
    store = cutter.finish(complete=True)
    shutil.rmtree(unpacked)
    for archive in archives:
        if archive.parent == folder:  # one that was given by its path is not ours
            archive.unlink(missing_ok=True)
    return store


def _unpacked(archives: Sequence[Path], folder: Path, *wanted: set[Path]) -> Iterator[Path]:
    """Unpacks the files of each set in turn and yields their paths."""
    for files in wanted:
        for archive in archives if files else ():
            for name, _, content in _members(archive):
                if (path := folder / name) in files:
                    with _naming_damage(archive), path.open("wb") as file:
                        shutil.copyfileobj(content(), file, _CHUNK)
                    yield path


def fetch(address: str, folder: Path) -> Path:
    """Returns the path of an archive, fetched if it is an address. Raises BadInput if it cannot be fetched."""
    if not urlsplit(address).scheme:
        path = Path(address).expanduser()
        if not path.is_file():
            raise BadInput(f"workload.download names {address}, which is no file. Give a path or an address.")
        return path
    path = folder / (PurePosixPath(unquote(urlsplit(address).path)).name or "archive")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not path.is_file():
            torch.hub.download_url_to_file(address, str(path))
    except OSError as error:
        how = "Switch the internet on (Kaggle: Settings > Internet), or fetch it by wget -c and name its path there."
        raise BadInput(f"workload.download: {address} could not be fetched ({error}). {how}") from None
    return path


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yields name, size and a function that opens it of each image and mask. Raises BadInput for a damaged archive."""
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
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise BadInput(f"{archive} holds {name}, which points outside of the archive. Do not unpack it.")
    return layout.has_pixels(PurePosixPath(name).name)


@contextlib.contextmanager
def _naming_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk, not the archive
            raise
        raise BadInput(f"The archive {archive} is damaged ({error}). Delete it, and fetch it again.") from error
