"""Archives are unpacked scene by scene, never lie on disk as a whole, and are named where they are damaged."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from lib.errors import BadInput
from tests.workloads.glacier.files import PATCHES, TWO, write_patches, write_scenes
from workloads.glacier.data import cutter, layout
from workloads.glacier.settings import Cut, Settings


def packed(folder: Path, suffix: str) -> Path:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    archive = folder.with_suffix(f".{suffix}")
    if suffix == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
            for path in files:
                out.write(path, path.relative_to(folder))
    else:
        with tarfile.open(archive, "w:gz" if suffix == "tar.gz" else "w") as out:
            for path in files:
                out.add(path, path.relative_to(folder))
    return archive


def cut_archives(place, *given, source=PATCHES):
    """Their tiles, by way of a folder `downloads`, for paths or addresses."""
    settings = Settings(source=source, tiles=Cut(size=32))
    return cutter.cut_archives(
        [str(archive) for archive in given], place / "downloads", place / "store", settings
    )


@pytest.mark.parametrize(
    "suffix, source, write", [("zip", PATCHES, write_patches), ("tar.gz", TWO, write_scenes)]
)
def test_what_comes_out_of_an_archive_is_what_a_folder_gives(
    tmp_path, suffix, source, write, capsys
):
    archive = packed(write(tmp_path / "data"), suffix)
    store = cut_archives(tmp_path, archive, source=source)
    there = cutter.cut(
        layout.find(tmp_path / "data", source), tmp_path / "folder", source, Cut(size=32)
    )
    assert store.fingerprint() == there.fingerprint()
    assert len(store) == len(there)
    assert not (tmp_path / "store" / "unpacked").exists(), "what was unpacked is deleted"
    assert archive.is_file(), "an archive given by its path is not ours to delete"
    assert "6 scenes by " in capsys.readouterr().out


def test_the_unpacked_data_never_lies_there_as_a_whole_and_an_interrupted_cut_goes_on(
    tmp_path, monkeypatch, capsys
):
    write_patches(tmp_path / "data", sources=4, patches=4)
    total = sum(path.stat().st_size for path in (tmp_path / "data").rglob("*img*"))
    archive = packed(tmp_path / "data", "tar.gz")
    cut_one = cutter._cut_one
    held = []

    def interrupted(*arguments):
        held.append(
            sum(p.stat().st_size for p in (tmp_path / "store" / "unpacked").rglob("*img*.npy"))
        )
        if len(held) == 5:
            raise KeyboardInterrupt
        return cut_one(*arguments)

    monkeypatch.setattr(cutter, "_cut_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cut_archives(tmp_path, archive)
    store = cut_archives(tmp_path, archive)
    assert "4 scenes were cut before; 12 are to be cut" in capsys.readouterr().out
    assert len(store) == 16
    assert len(held) == 17, "one image at a time"
    assert max(held) <= total / 16, "one image at a time"
    archive.unlink()
    assert cut_archives(tmp_path, archive).fingerprint() == store.fingerprint(), (
        "a finished cut needs no archive"
    )


@pytest.mark.parametrize("damage", ["one bit zip", "a header tar"])
def test_a_damaged_archive_is_named_and_a_broken_header_not_taken_for_the_end(tmp_path, damage):
    archive = packed(write_patches(tmp_path / "data"), damage.split()[-1])
    content = bytearray(archive.read_bytes())
    middle = len(content) // 2
    if damage == "a header tar":
        with tarfile.open(archive) as members:
            offset = members.getmembers()[7].offset
        content[offset + 148 : offset + 156] = b"xxxxxxxx"  # the header's checksum
    else:
        content[middle] ^= 16
    archive.write_bytes(bytes(content))
    sentence = (
        "a header in the middle is broken"
        if "header" in damage
        else rf"The archive {archive} is damaged"
    )
    with pytest.raises(BadInput, match=sentence):
        cut_archives(tmp_path, archive)


def test_an_address_is_fetched_and_deleted_and_a_wrong_one_is_refused(
    tmp_path,
):
    data = write_patches(tmp_path / "there" / "data")
    for path in data.rglob("*_mask_*"):
        place = tmp_path / "too" / path.relative_to(tmp_path / "there")
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    addresses = [
        packed(folder, "zip").as_uri() for folder in (data, tmp_path / "too" / "data")
    ]  # of one name
    assert len(cut_archives(tmp_path, *addresses)) == 6
    assert not [path for path in (tmp_path / "downloads").rglob("*") if path.is_file()]
    for address, sentence in (
        ((tmp_path / "none.zip").as_uri(), "not be fetched"),
        ("nowhere/a.zip", "is not a file"),
    ):
        with pytest.raises(BadInput, match=sentence):
            cutter.fetch(address, tmp_path)
    (tmp_path / "other").mkdir()
    with tarfile.open(tmp_path / "other" / "evil.tar", "w") as out:
        entry = tarfile.TarInfo("../evil_img_000.npy")
        entry.size = 3
        out.addfile(entry, io.BytesIO(b"abc"))
    with pytest.raises(BadInput, match="points outside of the archive"):
        cut_archives(tmp_path / "other", tmp_path / "other" / "evil.tar")
    assert not [*tmp_path.rglob("evil_img_000.npy")]
