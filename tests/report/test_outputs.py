"""The table at a notebook's end, and outputs with more files than a platform keeps."""

import dataclasses
import random
import shutil
import tarfile

import pytest

from lib.errors import BadInput
from lib.launch import archive
from lib.machine import platform
from lib.report import outputs
from trainbook.kaggle import kernel


@pytest.fixture
def here(tmp_path):
    """Kaggle's batch session, with room for 100 files and 1 MB."""
    local = platform.detect()
    return dataclasses.replace(
        local, name="kaggle", batch=True, output_dir=tmp_path / "out", output_bytes=10**6, output_files=100
    )


@pytest.fixture
def run(here):
    """A run with 60 small maps, a checkpoint and a plot."""
    folder = here.output_dir / "toy"
    for name in ("checkpoints/step-00000001/state.json", "best/step-00000001/state.json", "plots/metrics.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "config.yaml").write_text("task: toy")
    (folder / "maps" / "deep").mkdir(parents=True)
    for number in range(60):
        (folder / "maps" / "deep" / f"{number:02}.txt").write_text(str(number))
    return folder


def maps(archive):
    with tarfile.open(archive) as packed:
        return {name: packed.extractfile(name).read().decode() for name in packed.getnames()}


def test_many_small_files_go_into_an_archive_and_the_rest_stays(here, run, capsys):
    for files in (100, None):
        outputs.bundle(here.output_dir, dataclasses.replace(here, output_files=files))
        assert (run / "maps").is_dir() and not (run / "maps.tar.gz").exists(), "they are within the limit"
    here = dataclasses.replace(here, output_files=50)
    outputs.bundle(here.output_dir, here)
    assert "60 files, and kaggle takes 50" in capsys.readouterr().out
    assert maps(run / "maps.tar.gz") == {f"maps/deep/{n:02}.txt": str(n) for n in range(60)}
    left = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert left == {
        "checkpoints/step-00000001/state.json", "best/step-00000001/state.json", "plots/metrics.png", "config.yaml",
        "maps.tar.gz",
    }  # fmt: skip
    outputs.package(here.output_dir)
    with tarfile.open(here.output_dir / outputs.ARCHIVE) as packed:
        assert "toy/maps.tar.gz" in packed.getnames()


def test_a_second_bundle_keeps_what_the_first_one_held(here, run):
    here = dataclasses.replace(here, output_files=50)
    outputs.bundle(here.output_dir, here)
    (run / "maps" / "deep").mkdir(parents=True)
    for number in range(59, 120):
        (run / "maps" / "deep" / f"{number:02}.txt").write_text("new")
    outputs.bundle(here.output_dir, here)
    found = maps(run / "maps.tar.gz")
    assert len(found) == 120 and found["maps/deep/00.txt"] == "0" and found["maps/deep/59.txt"] == "new"
    assert not (run / "maps").exists() and not list(run.glob("bundle-*"))


def test_the_table_has_sizes_totals_and_the_way_home(here, run):
    (run / "weights.bin").write_bytes(bytes(300_000))
    outputs.package(here.output_dir)
    lines = outputs.table(here.output_dir, here).splitlines()
    assert lines[0].split() == ["0.3", "MB", "toy/weights.bin"]  # the largest first
    assert any("and 24 smaller files" in line for line in lines)
    assert any("toy/checkpoints/ (for resuming; not in the archive)" in line for line in lines)
    assert any("outputs.tar.gz" in line for line in lines)
    assert lines[-2].endswith("in 66 files, of 0.001 GB and 100 files.")
    assert lines[-1].startswith("Download: the Output tab of this version, outputs.tar.gz")
    assert "TOO MUCH" in outputs.table(here.output_dir, dataclasses.replace(here, output_files=10))


@pytest.mark.parametrize(
    "name, batch, drive, words",
    [
        ("kaggle", False, False, "Save Version first, or this is lost"),
        ("colab", False, False, "files.download("),
        ("colab", False, True, "It is at"),
        ("local", False, False, "It is at"),
    ],
)
def test_each_platform_has_its_way_home(here, run, tmp_path, name, batch, drive, words):
    there = dataclasses.replace(here, name=name, batch=batch, input_dir=tmp_path if drive else None)
    assert words in outputs.table(here.output_dir, there).splitlines()[-1]


def test_an_archive_holds_a_run_only_as_it_is_now(here, run):
    final = outputs.package(here.output_dir)
    assert outputs.holds(final, run)
    (run / "checkpoints" / "step-00000001" / "state.json").write_text("of which there are none in it")
    (here.output_dir / "other").mkdir()
    (here.output_dir / "other" / "config.yaml").write_text("task: other")
    assert outputs.holds(final, run) and not outputs.holds(final, here.output_dir / "other")
    good = final.read_bytes()
    for damaged in (good[:-1], good[: len(good) // 2], b"", good[:-8] + bytes(8)):
        final.write_bytes(damaged)
        assert not outputs.holds(final, run)
    final.write_bytes(good)
    text = (run / "config.yaml").read_text()
    for change in (lambda path: path.write_text(text.upper()), lambda path: path.write_text("longer" + text)):
        change(run / "config.yaml")
        assert not outputs.holds(final, run)
        (run / "config.yaml").write_text(text)
    (run / "new.txt").write_text("")
    assert not outputs.holds(final, run)
    (run / "new.txt").unlink()
    assert outputs.holds(final, run)
    (run / "maps" / "deep" / "00.txt").unlink()
    assert not outputs.holds(final, run)
    final.unlink()
    final.mkdir()
    assert not outputs.holds(final, run)


@pytest.mark.parametrize("unpack", [kernel.unpack, archive.unpack], ids=["kaggle fetch", "predict"])
def test_an_archive_that_is_damaged_anywhere_is_refused(here, run, tmp_path, unpack):
    """tarfile takes a header that it cannot read for the end, so runs would be missing in silence."""
    (run / "summary.json").write_bytes(random.Random(0).randbytes(20_000))
    for number in (1, 2):
        shutil.copytree(run, run.with_name(f"toy{number}"))
    whole = outputs.package(here.output_dir).read_bytes()
    (tmp_path / "whole.tar.gz").write_bytes(whole)
    unpack(tmp_path / "whole.tar.gz", tmp_path / "whole")
    assert len(list((tmp_path / "whole").glob("*/summary.json"))) == 3
    for at in range(10, len(whole) - 4, len(whole) // 40):
        bad = tmp_path / "bad.tar.gz"
        bad.write_bytes(whole[:at] + bytes(byte ^ 255 for byte in whole[at : at + 4]) + whole[at + 4 :])
        with pytest.raises(BadInput, match="cannot be unpacked|is not unpacked"):
            unpack(bad, tmp_path / f"at {at}")


def test_links_are_not_packed(here, run):
    (run / "tracking").mkdir()
    (run / "tracking" / "debug.log").symlink_to(run / "config.yaml")
    (run / "tracking" / "logs").symlink_to(run / "maps")
    final = outputs.package(here.output_dir)
    with tarfile.open(final) as packed:
        assert all(entry.isreg() for entry in packed) and "toy/tracking/debug.log" not in packed.getnames()
    assert outputs.holds(final, run)
