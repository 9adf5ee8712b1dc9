"""Mounted inputs in both of Kaggle's layouts, found by name or by what lies in them."""

import re

import pytest

from lib.errors import BadInput
from lib.machine import inputs
from tests.machine.conftest import kaggle

NEW = [
    "datasets/ada/code-graph", "datasets/bob/code-graph", "datasets/ada/tiles", "notebooks/ada/earlier-run",
    "competitions/titanic", "models/google/vit/pytorch/base/1",
]  # fmt: skip
OLD = ["tiles", "titanic"]

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize("layout, names", [
    (NEW, {
        "tiles": NEW[2], "ada/tiles": NEW[2], "bob/code-graph": NEW[1], NEW[1]: NEW[1], "ada/earlier-run": NEW[3],
        "earlier-run": NEW[3], "titanic": NEW[4], "google/vit": NEW[5], "vit": NEW[5], NEW[5].partition("/")[2]: NEW[5],
    }),
    (OLD, {"tiles": "tiles", "ada/tiles": "tiles", "titanic": "titanic"}),
])  # fmt: skip
def test_an_input_is_found_by_slug_or_owner(monkeypatch, tmp_path, layout, names):
    here = kaggle(monkeypatch, tmp_path, layout)
    for name, place in names.items():
        assert inputs.find_input(name, here) == tmp_path / "input" / place


def test_an_input_that_is_not_there_or_ambiguous_is_answered_with_what_is(monkeypatch, tmp_path):
    here = kaggle(monkeypatch, tmp_path, NEW)
    for name in ("tile", "eve/tiles", "code-graph"):
        with pytest.raises(BadInput, match=re.escape(name)) as error:
            inputs.find_input(name, here)
        mounts = NEW[:2] if name == "code-graph" else NEW
        assert all(mount in str(error.value) for mount in mounts)


def files(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_folders_with_a_sentinel_are_found_shallow_ones_first(monkeypatch, tmp_path):
    here = kaggle(monkeypatch, tmp_path, ["datasets/ada/tiles", "old"])
    tiles = tmp_path / "input" / "datasets" / "ada" / "tiles"
    old = tmp_path / "input" / "old"
    files(tiles, "a/b/graph-1.jsonl")
    files(old, "graph-2.jsonl")
    (old / "loop").symlink_to(tmp_path / "input", target_is_directory=True)
    assert inputs.search(inputs.mounted(here), ["graph-*.jsonl"]) == [old, tiles / "a" / "b"]
    assert inputs.search(inputs.mounted(here), ["*.png"]) == []


def test_a_pattern_with_folders_finds_the_folder_above_them_once(monkeypatch, tmp_path):
    here = kaggle(monkeypatch, tmp_path, ["datasets/ada/pets", "flat"])
    pets = tmp_path / "input" / "datasets" / "ada" / "pets"
    flat = tmp_path / "input" / "flat"
    files(pets / "v1", "train/cat/1.png", "train/dog/1.png", "train/dog/2.png", "test/cat/9.png")
    files(flat, "train/cat/1.png", "train/1.png", "other/train/cat/1.png")
    assert inputs.search(inputs.mounted(here), ["train/*/*.png"]) == [flat, pets / "v1"]
    assert (
        inputs.search(inputs.mounted(here), ["val/*/*.png", "train/*/*/*.png", "Train/*/*.png"])
        == []
    )


def test_what_a_run_has_written_is_no_data(monkeypatch, tmp_path):
    here = kaggle(monkeypatch, tmp_path, ["notebooks/ada/earlier", "unpacked", "scenes"])
    places = tmp_path / "input"
    files(
        places / "notebooks" / "ada" / "earlier", "outputs.tar.gz", "masks/x.tif", "toy/config.yaml"
    )
    files(places / "unpacked", "toy/config.yaml", "toy/summary.json", "toy/maps/x.tif")
    assert inputs.search(inputs.mounted(here), ["*.tif"]) == []
    files(places / "scenes", "config.yaml", "x.tif")
    assert inputs.search(inputs.mounted(here), ["*.tif"]) == [places / "scenes"]


@pytest.mark.parametrize("mount, inside", [
    ("notebooks/ada/earlier", "toy"), ("datasets/ada/earlier", "toy"), ("earlier", "outputs/toy"),
])  # fmt: skip
def test_an_earlier_run_is_found_wherever_a_mount_may_hold_it(monkeypatch, tmp_path, mount, inside):
    here = kaggle(monkeypatch, tmp_path, [mount])
    run = tmp_path / "input" / mount / inside
    (run / "checkpoints").mkdir(parents=True)

    def places(name):
        return [
            place for place in inputs.earlier_runs(name, here) if (place / "checkpoints").is_dir()
        ]

    assert places("toy") == [run]
    assert places("other") == []
