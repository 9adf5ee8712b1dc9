"""The archive of the runs, and the table at a notebook's end."""

import dataclasses
import os
import random
import shutil
import tarfile

import pytest

from lib.errors import BadInput
from lib.machine import platform
from trainbook.kaggle import kernel
from trainbook.launch import ensemble
from trainbook.outputs import packing


@pytest.fixture
def here(tmp_path):
    """Kaggle's batch session, with room for 100 files and 1 MB."""
    local = platform.detect()
    return dataclasses.replace(
        local,
        name="kaggle",
        batch=True,
        output_dir=tmp_path / "out",
        output_bytes=10**6,
        output_files=100,
    )


@pytest.fixture
def run(here):
    """A run with 60 small maps, a checkpoint, a plot, and links."""
    folder = here.output_dir / "toy"
    for name in (
        "checkpoints/step-00000001/state.json",
        "best/step-00000001/state.json",
        "plots/metrics.png",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "config.yaml").write_text("task: toy")
    (folder / "maps" / "deep").mkdir(parents=True)
    for number in range(60):
        (folder / "maps" / "deep" / f"{number:02}.txt").write_text(str(number))
    (folder / "tracking").mkdir()
    (folder / "tracking" / "debug.log").symlink_to(folder / "config.yaml")
    (folder / "tracking" / "logs").symlink_to(folder / "maps")
    return folder


def test_the_archive_has_files_of_runs_without_checkpoints_and_links(here, run):
    assert not packing.is_current(here.output_dir)
    final = packing.package(here.output_dir)
    with tarfile.open(final) as packed:
        names = packed.getnames()
        assert all(entry.isreg() for entry in packed)
    maps = [f"toy/maps/deep/{n:02}.txt" for n in range(60)]
    assert names == [
        "toy/best/step-00000001/state.json",
        "toy/config.yaml",
        *maps,
        "toy/plots/metrics.png",
    ]
    assert packing.is_current(here.output_dir)
    os.utime(final, (2e9, 2e9))
    os.utime(run / "config.yaml", (2e9 + 1, 2e9 + 1))
    assert not packing.is_current(here.output_dir)


@pytest.mark.parametrize(
    "unpack", [kernel.unpack, ensemble.unpack], ids=["kaggle fetch", "predict"]
)
def test_an_archive_that_is_damaged_anywhere_is_refused(here, run, tmp_path, unpack):
    """tarfile takes a header that it cannot read for the end, so runs would be missing in silence."""
    (run / "summary.json").write_bytes(random.Random(0).randbytes(20_000))
    for number in (1, 2):
        shutil.copytree(run, run.with_name(f"toy{number}"))
    whole = packing.package(here.output_dir).read_bytes()
    (tmp_path / "whole.tar.gz").write_bytes(whole)
    unpack(tmp_path / "whole.tar.gz", tmp_path / "whole")
    assert len(list((tmp_path / "whole").glob("*/summary.json"))) == 3
    for at in range(10, len(whole) - 4, len(whole) // 10):
        bad = tmp_path / "bad.tar.gz"
        damaged = bytearray(whole)
        for place in range(at, at + 4):
            damaged[place] ^= 255
        bad.write_bytes(damaged)
        with pytest.raises(BadInput, match="cannot be unpacked|is not unpacked"):
            unpack(bad, tmp_path / f"at {at}")
