"""Archives are fetched, unpacked scene by scene, cut, and deleted; damage is named."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from lib.errors import BadInput
from tests.workloads.glacier.files import write_patches, write_scenes
from workloads.glacier.data import download, layout
from workloads.glacier.data.cutter import Cutter
from workloads.glacier.settings import Cut, Source

PATCHES = Source(bands=("a", "b", "c"), classes=("background", "glacier", "debris"), codes=(0, 1, 2))
TWO = Source(bands=("red", "nir"))


def packed(folder: Path, archive: Path) -> Path:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
            for path in files:
                out.write(path, path.relative_to(folder))
    else:
        with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as out:
            for path in files:
                out.add(path, path.relative_to(folder))
    return archive


def cutter(tmp_path, source, name="store"):
    return Cutter(tmp_path / name, source, Cut(size=32))


@pytest.mark.parametrize("suffix, source, write", [("zip", PATCHES, write_patches), ("tar.gz", TWO, write_scenes)])
def test_what_comes_out_of_an_archive_is_what_a_folder_gives(tmp_path, suffix, source, write, capsys):
    write(tmp_path / "data")
    archive = packed(tmp_path / "data", tmp_path / f"data.{suffix}")
    there = cutter(tmp_path, source, "folder").all(*layout.find(tmp_path / "data", source))
    store = download.cut([str(archive)], tmp_path / "downloads", cutter(tmp_path, source))
    assert store.fingerprint() == there.fingerprint() and len(store) == len(there)
    assert not (tmp_path / "downloads" / "unpacked").exists(), "what was unpacked is deleted"
    assert archive.is_file(), "an archive given by its path is not ours to delete"
    assert "6 scenes by " in capsys.readouterr().out


def test_the_unpacked_data_never_lies_there_as_a_whole(tmp_path, monkeypatch):
    write_patches(tmp_path / "data", sources=8, patches=4)
    total = sum(path.stat().st_size for path in (tmp_path / "data").rglob("*img*"))
    archive = packed(tmp_path / "data", tmp_path / "data.tar.gz")
    held = []
    add = Cutter.add

    def measured(self, *arguments):
        held.append(sum(p.stat().st_size for p in (tmp_path / "downloads").rglob("*img*.npy")))
        add(self, *arguments)

    monkeypatch.setattr(Cutter, "add", measured)
    download.cut([str(archive)], tmp_path / "downloads", cutter(tmp_path, PATCHES))
    assert len(held) == 32 and max(held) <= total / 32, "one image at a time"


def test_an_interrupted_cut_goes_on_and_a_finished_one_needs_no_archive(tmp_path, monkeypatch, capsys):
    write_patches(tmp_path / "data")
    archive = packed(tmp_path / "data", tmp_path / "data.zip")
    add, done = Cutter.add, []

    def interrupted(self, *arguments):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(1)
        add(self, *arguments)

    monkeypatch.setattr(Cutter, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download.cut([str(archive)], tmp_path / "downloads", cutter(tmp_path, PATCHES))
    monkeypatch.setattr(Cutter, "add", add)
    store = download.cut([str(archive)], tmp_path / "downloads", cutter(tmp_path, PATCHES))
    assert "4 scenes were cut before; 2 are to be cut" in capsys.readouterr().out and len(store) == 6
    archive.unlink()
    again = download.cut([str(archive)], tmp_path / "downloads", cutter(tmp_path, PATCHES))
    assert again.fingerprint() == store.fingerprint()


@pytest.mark.parametrize("damage", ["holed zip", "one bit zip", "cut off tar.gz", "one bit tar.gz", "a header tar"])
def test_a_damaged_archive_is_named_and_a_broken_header_not_taken_for_the_end(tmp_path, damage):
    write_patches(tmp_path / "data")
    archive = packed(tmp_path / "data", tmp_path / f"data.{damage.split()[-1]}")
    content = bytearray(archive.read_bytes())
    middle = len(content) // 2
    if damage == "holed zip":
        content[middle : middle + 200] = bytes(200)
    elif damage == "cut off tar.gz":
        del content[middle:]
    elif damage == "a header tar":
        with tarfile.open(archive) as members:
            offset = members.getmembers()[7].offset
        content[offset + 148 : offset + 156] = b"xxxxxxxx"  # the header's checksum
    else:
        content[middle] ^= 16
    archive.write_bytes(bytes(content))
    sentence = "a header in the middle is broken" if "header" in damage else rf"The archive {archive} is damaged"
    with pytest.raises(BadInput, match=sentence):
        download.cut([str(archive)], tmp_path / "downloads", cutter(tmp_path, PATCHES))


def test_an_address_is_fetched_and_deleted_when_cut_and_what_is_not_there_or_points_outside_is_refused(tmp_path):
    write_patches(tmp_path / "data")
    archive = packed(tmp_path / "data", tmp_path / "data.zip")
    assert len(download.cut([archive.as_uri()], tmp_path / "downloads", cutter(tmp_path, PATCHES))) == 6
    assert not [path for path in (tmp_path / "downloads").rglob("*") if path.is_file()]
    with pytest.raises(BadInput, match="could not be fetched"):
        download.fetch((tmp_path / "none.zip").as_uri(), tmp_path)
    with pytest.raises(BadInput, match="which is no file"):
        download.fetch("nowhere/a.zip", tmp_path)
    with tarfile.open(tmp_path / "evil.tar", "w") as out:
        entry = tarfile.TarInfo("../evil_img_000.npy")
        entry.size = 3
        out.addfile(entry, io.BytesIO(b"abc"))
    with pytest.raises(BadInput, match="points outside of the archive"):
        download.cut([str(tmp_path / "evil.tar")], tmp_path / "downloads", cutter(tmp_path, PATCHES, "other"))
    assert not (tmp_path / "evil_img_000.npy").exists()
