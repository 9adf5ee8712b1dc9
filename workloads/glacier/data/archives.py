"""Archives by path or address, cut into tiles; what is in them never lies on disk as a whole.

Masks are unpacked before images. A scene is cut, and its files are emptied, as soon as all of them are there.
"""

import contextlib
import hashlib
import json
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import torch

from lib.errors import BadInput
from lib.machine import disk
from lib.report.progress import counted
from workloads.glacier.data import layout
from workloads.glacier.data.cutter import Store, cut, earlier, file_name, stored
from workloads.glacier.data.readers import Scene
from workloads.glacier.settings import Settings

_BROKEN = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)


def cut_archives(addresses: Sequence[str], downloads: Path, folder: Path, settings: Settings) -> Store:
    """Cuts all scenes of some archives into a store's folder; `downloads` holds those fetched, which are deleted then.

    Once all are cut no archive is needed. Raises BadInput for one that cannot be fetched or is damaged.
    """
    how, complete, unpacked = (folder, settings.source, settings.tiles), folder / "complete.json", folder / "unpacked"
    if complete.exists():
        known = json.loads(complete.read_bytes())
        if all(records := [earlier(folder, file) for file in known["files"]]):
            return stored(records, known["problems"], *how, settings.bad_input_limit)
    archives = [fetch(address, downloads) for address in addresses]
    stamps = {unpacked / name: [name, size] for archive in archives for name, size, _ in _members(archive)}
    shutil.rmtree(unpacked, ignore_errors=True)
    for path in stamps:  # empty files of the right names: the layout is found before anything is unpacked
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    match = layout.find(unpacked, settings.source)
    print(match.text, flush=True)
    scenes = {scene: [stamps[path] for path in scene.files] for scene in match.scenes}
    store = cut(match, *how, settings.bad_input_limit, _whole(scenes, archives, folder))
    with disk.whole(complete, cache=True) as aside:
        aside.write_text(json.dumps({"files": store.files, "problems": match.problems}), "utf-8")
    shutil.rmtree(unpacked)
    for archive in archives:
        if archive.parent == downloads:  # one that was given by its path is not ours
            archive.unlink()
    return store


def _whole(scenes: Mapping[Scene, Any], archives: Sequence[Path], folder: Path) -> Iterator[tuple[Scene, Any]]:
    """Yields the scenes with their stamps: those cut before, and each other one while all of its files are there."""
    missing = {scene: {*scene.files} for scene, stamp in scenes.items() if not earlier(folder, file_name(scene), stamp)}
    yield from ((scene, stamp) for scene, stamp in scenes.items() if scene not in missing)
    print(f"{len(scenes) - len(missing):,} scenes were cut before; {len(missing):,} are to be cut.", flush=True)
    scene_of = {path: scene for scene in missing for path in scene.files}
    masks = {scene.mask for scene in missing if scene.mask}
    files = _unpacked(archives, folder / "unpacked", masks, scene_of.keys() - masks)
    for path in counted(files, "files unpacked", len(scene_of)):
        scene = scene_of[path]
        missing[scene].discard(path)
        if not missing[scene]:
            yield scene, scenes[scene]
            for done in scene.files:
                done.write_bytes(b"")


def _unpacked(archives: Sequence[Path], folder: Path, *wanted: set[Path]) -> Iterator[Path]:
    """Unpacks the files of each set in turn and yields their paths."""
    for files in wanted:
        for archive in archives if files else ():
            for name, _, content in _members(archive):
                if (path := folder / name) in files:
                    with _naming_damage(archive), path.open("wb") as file:
                        shutil.copyfileobj(content(), file)
                    yield path


def fetch(address: str, folder: Path) -> Path:
    """Returns the path of an archive, fetched if it is an address. Raises BadInput if it cannot be fetched."""
    if not urlsplit(address).scheme:
        path = Path(address).expanduser()
        if not path.is_file():
            raise BadInput(f"workload.download names {address}, which is no file. Give a path or an address.")
        return path
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]  # archives of several addresses may have one name
    path = folder / f"{digest}-{PurePosixPath(unquote(urlsplit(address).path)).name}"
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
            while packed.fileobj.read(2**20):  # up to the checksum of the compression
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
