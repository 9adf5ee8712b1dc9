"""Tiles are cut once, from folders and archives, each pixel once; memory and disk do not grow with the data."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lib.errors import BadInput
from lib.scores import IGNORE
from tests.conftest import ROOT
from tests.workloads.glacier.files import scene, write_bands, write_patches, write_scenes, write_tiff
from workloads.glacier.data import download, layout, sampling
from workloads.glacier.data.cutter import Cutter
from workloads.glacier.settings import Cut, Source

TWO = Source(bands=("red", "nir"))
SMALL = Cut(size=32)


def cut(root, folder, source=TWO, options=SMALL, limit=0):
    return Cutter(folder, source, options, limit).all(layout.find(root, source))


def test_tiles_of_a_scene_hold_its_pixels_and_their_places_and_a_small_scene_is_filled_with_no_data(tmp_path):
    image, classes = scene()
    write_bands(tmp_path / "data", "img001", image, classes, origin=(600, 9000))
    store = cut(tmp_path / "data", tmp_path / "store")
    assert len(store) == 4
    for index, (row, column) in enumerate(((0, 0), (0, 32), (32, 0), (32, 32))):
        got, target = store.read(index)
        assert np.array_equal(got, image[:, row : row + 32, column : column + 32])
        assert np.array_equal(target, classes[row : row + 32, column : column + 32])
        left, top = 600 + 30 * column, 9000 - 30 * row
        assert store.table.bounds[index].tolist() == [left, top - 960, left + 960, top]
    assert store.table.counts.tolist() == (1024 * np.eye(4, dtype=int)).tolist()
    image, classes = scene(size=(20, 24))
    write_bands(tmp_path / "small", "img001", image, classes)
    got, target = cut(tmp_path / "small", tmp_path / "store").read(0)
    assert np.array_equal(got[:, :20, :24], image) and np.isnan(got[:, 20:]).all()
    assert (target[20:] == IGNORE).all() and (target[:, 24:] == IGNORE).all()


def test_filters_leave_tiles_out_and_half_precision_refuses_what_it_cannot_hold(tmp_path, capsys):
    image, classes = scene()
    image[:, :32, 32:] = np.nan  # the tile of class 1 has no data
    write_bands(tmp_path / "data", "img001", image, classes)
    store = cut(tmp_path / "data", tmp_path / "store", options=Cut(size=32, min_label_share=0.05))
    assert store.table.counts.sum(0).tolist() == [0, 0, 1024, 1024]
    assert "left out 1 with fewer than 10% valid pixels and 1 with fewer than 5% labelled" in capsys.readouterr().out
    write_bands(tmp_path / "data", "img001", image.round(), classes)
    store = cut(tmp_path / "data", tmp_path / "store", options=Cut(size=32, storage="float16"))
    assert np.array_equal(store.read(0)[0], image.round()[:, :32, :32])
    write_bands(tmp_path / "data", "img001", image * 1000, classes)
    with pytest.raises(BadInput, match=r"Band1/img001.tif holds values above 65,504"):
        cut(tmp_path / "data", tmp_path / "store", options=Cut(size=32, storage="float16"))


def test_unusable_scenes_are_all_named_and_refused_past_the_limit(tmp_path, capsys):
    data, (image, classes) = write_scenes(tmp_path / "data", 3), scene()
    for name, values in (("img100", np.full_like(image, np.nan)), ("img101", image), ("img102", image)):
        write_bands(data, name, values, classes)
    write_tiff(data / "label" / "img101.tif", np.full((64, 64), np.nan, np.float32))
    band = data / "Band2" / "img102.tif"
    band.write_bytes(band.read_bytes()[:9000])
    with pytest.raises(BadInput) as refused:
        cut(data, tmp_path / "store")
    sentences = str(refused.value)
    assert sentences.startswith("Scenes that cannot be used: 3; workload.bad_input_limit allows 0.")
    assert "Band1/img100.tif holds no data at all" in sentences
    assert "label/img101.tif labels none of the pixels" in sentences
    assert "Band2/img102.tif ends or breaks in the middle" in sentences
    capsys.readouterr()
    assert len(cut(data, tmp_path / "store", limit=3)) == 12
    text = capsys.readouterr().out
    assert "Left out 3 unusable scenes" in text and "img100.tif" in text and "img102.tif" in text
    assert not list((tmp_path / "store").glob("*.tmp")), "nothing half written stays"


MEMORY = """
import resource, sys
from pathlib import Path
from workloads.glacier.data import layout
from workloads.glacier.settings import Cut, Source
from workloads.glacier.data.cutter import Cutter
source = Source(bands=("a", "b", "c", "d"))
match = layout.find(Path(sys.argv[1]), source)
for few in (match.scenes[:1], match.scenes[1:2], match.scenes[2:]):  # the 2nd grows what the 1st did not
    Cutter(Path(sys.argv[2]), source, Cut(size=128)).all(match._replace(scenes=few))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_stays_while_five_times_the_data_is_cut(tmp_path):
    write_scenes(tmp_path / "data", 7, size=(512, 512), bands=4)  # 4 MiB of pixels each
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "data"), str(tmp_path / "store")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    first, second, last = (int(line) for line in done.stdout.splitlines() if line.isdecimal())  # KiB
    assert last - second < second - first + 2 * 1024


def test_statistics_are_those_of_all_pixels_with_data(tmp_path):
    write_scenes(tmp_path / "data", 3)
    image, classes = scene(9)
    image[:, 10:20, 5:9] = np.nan
    write_bands(tmp_path / "data", "img900", image + 50, classes, origin=(0, 900_000))
    store = cut(tmp_path / "data", tmp_path / "store")
    chosen = np.array([0, 3, 5, 12, 13])
    pixels = np.concatenate([store.read(i)[0].reshape(2, -1) for i in chosen], 1).astype(np.float64)
    mean, deviation = sampling.tile_statistics(store.table, chosen)
    assert np.allclose(mean, np.nanmean(pixels, 1), rtol=1e-12)
    assert np.allclose(deviation, np.nanstd(pixels, 1), rtol=1e-12)


PATCHES = Source(bands=("a", "b", "c"), classes=("background", "glacier", "debris"), codes=(0, 1, 2))


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


def cutter_of(tmp_path, source, name="store"):
    return Cutter(tmp_path / name, source, Cut(size=32))


@pytest.mark.parametrize("suffix, source, write", [("zip", PATCHES, write_patches), ("tar.gz", TWO, write_scenes)])
def test_what_comes_out_of_an_archive_is_what_a_folder_gives(tmp_path, suffix, source, write, capsys):
    write(tmp_path / "data")
    archive = packed(tmp_path / "data", tmp_path / f"data.{suffix}")
    there = cutter_of(tmp_path, source, "folder").all(layout.find(tmp_path / "data", source))
    store = download.cut([str(archive)], tmp_path / "downloads", cutter_of(tmp_path, source))
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
    download.cut([str(archive)], tmp_path / "downloads", cutter_of(tmp_path, PATCHES))
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
        download.cut([str(archive)], tmp_path / "downloads", cutter_of(tmp_path, PATCHES))
    monkeypatch.setattr(Cutter, "add", add)
    store = download.cut([str(archive)], tmp_path / "downloads", cutter_of(tmp_path, PATCHES))
    assert "4 scenes were cut before; 2 are to be cut" in capsys.readouterr().out and len(store) == 6
    archive.unlink()
    again = download.cut([str(archive)], tmp_path / "downloads", cutter_of(tmp_path, PATCHES))
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
        download.cut([str(archive)], tmp_path / "downloads", cutter_of(tmp_path, PATCHES))


def test_an_address_is_fetched_and_deleted_when_cut_and_what_is_not_there_or_points_outside_is_refused(tmp_path):
    write_patches(tmp_path / "data")
    archive = packed(tmp_path / "data", tmp_path / "data.zip")
    assert len(download.cut([archive.as_uri()], tmp_path / "downloads", cutter_of(tmp_path, PATCHES))) == 6
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
        download.cut([str(tmp_path / "evil.tar")], tmp_path / "downloads", cutter_of(tmp_path, PATCHES, "other"))
    assert not (tmp_path / "evil_img_000.npy").exists()
