"""A split that is given by folders or by a file goes before the shares, and contradictions are refused."""

import numpy as np
import pytest

from lib.errors import BadInput
from lib.task import load_task
from tests.workloads.glacier.files import scene, write_bands, write_patches, write_scenes
from workloads.glacier.data import folds, layout
from workloads.glacier.data.cutter import Cutter
from workloads.glacier.settings import Cut, Source, Split

TWO = Source(bands=("red", "nir"))


def store_of(root, folder, source=TWO):
    return Cutter(folder, source, Cut(size=32)).all(*layout.find(root, source))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    return store_of(write_scenes(folder / "data", 12), folder / "store")


def scenes_of(store, parts):
    return [sorted({store.names[s] for s in store.table.scene[p]}) for p in (parts.train, parts.validation, parts.test)]


def csv(tmp_path, text):
    (tmp_path / "split.csv").write_text(text)
    return str(tmp_path / "split.csv")


def test_a_file_says_the_part_of_each_scene(store, tmp_path):
    lines = [f"img{n:03d}.tif,{part}" for n, part in enumerate(["train"] * 7 + ["val"] * 2 + ["test"] * 2 + ["out"])]
    split = Split(file=csv(tmp_path, "scene,part\n" + "\n".join(lines)))
    parts = folds.parts(store, split, TWO.classes)
    assert scenes_of(store, parts) == [
        [f"img{n:03d}" for n in range(7)], ["img007", "img008"], ["img009", "img010"],
    ]  # fmt: skip
    assert "7 to train, 2 to validate, 2 to test, 1 left out" in parts.notes[0]


def test_a_file_of_groups_keeps_them_together_and_leaves_the_parts_to_the_shares(store, tmp_path):
    lines = [f"img{n:03d},lake{n % 4}" for n in range(12)]
    split = Split(file=csv(tmp_path, "scene,group\n" + "\n".join(lines)), test=0.25, validation=0.25)
    for seed in range(3):
        found = scenes_of(store, folds.parts(store, Split(**{**vars(split), "seed": seed}), TWO.classes))
        groups = [{int(name[3:]) % 4 for name in names} for names in found]
        assert all(groups) and not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]


def test_scenes_without_a_part_are_dealt_to_what_is_not_given(store, tmp_path):
    lines = [f"img{n:03d},{'test' if n < 3 else ''}" for n in range(12)]
    parts = folds.parts(store, Split(file=csv(tmp_path, "scene,part\n" + "\n".join(lines))), TWO.classes)
    train, validation, test = scenes_of(store, parts)
    assert test == ["img000", "img001", "img002"] and len(validation) in (1, 2) and len(train) + len(validation) == 9
    five = [
        folds.parts(store, Split(file=csv(tmp_path, "scene,part\n" + "\n".join(lines)), folds=3, fold=k), TWO.classes)
        for k in range(3)
    ]
    assert all(np.array_equal(parts.test, fold.test) for fold in five)
    assert sorted(name for fold in five for name in scenes_of(store, fold)[1]) == [f"img{n:03d}" for n in range(3, 12)]


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("img000,train\n", "1: The columns are img000, train. The first line of workload.split.file names them"),
        ("", "The columns are empty"),
        ("scene,part\nimg000,practice\n", "csv:2: 'practice' is no part. Write train, validation or test"),
        ("scene,part\nimg000,train\nimg000,test\n", "csv:3: img000 has a line already, 2"),
        ("scene,part\nimg000,train\nx9,test\n", "no line for 11 of 12 scenes, such as img001. It names x9, which is"),
        ("scene,part,group\n" + "".join(f"img{n:03d},{'train' if n else 'test'},a\n" for n in range(12)),
         "the group a lies in two parts"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_followed_is_refused_with_its_line(store, tmp_path, text, sentence):
    with pytest.raises(BadInput, match=sentence):
        folds.parts(store, Split(file=csv(tmp_path, text)), TWO.classes)
    with pytest.raises(BadInput, match="none.csv cannot be read"):
        folds.parts(store, Split(file=str(tmp_path / "none.csv")), TWO.classes)


def test_folders_are_the_split_and_what_they_lack_comes_out_of_the_training(tmp_path):
    for part, first, count in (("train", 0, 8), ("val", 20, 2)):
        for number in range(first, first + count):
            write_bands(tmp_path / "data" / part, f"img{number:03d}", *scene(number), origin=(number * 10**5, 0))
    store = store_of(tmp_path / "data", tmp_path / "store")
    parts = folds.parts(store, Split(test=0.2), TWO.classes)
    train, validation, test = scenes_of(store, parts)
    assert validation == ["val/img020", "val/img021"] and {name[:6] for name in train + test} == {"train/"}
    assert test and "The given split has no test: 20% of its training are held out" in " ".join(parts.notes)


def test_folders_that_part_the_patches_of_an_image_are_not_taken_and_that_is_said(tmp_path):
    source = Source(bands=("a", "b", "c"), classes=("background", "glacier", "debris"), codes=(0, 1, 2))
    for part in ("train", "test"):
        write_patches(tmp_path / "data" / part, sources=6, patches=2)
    store = store_of(tmp_path / "data", tmp_path / "store", source)
    parts = folds.parts(store, Split(), source.classes)
    assert "are not taken as the split: 6 groups of scenes lie in two of them, such as slice_0" in parts.notes[0]
    groups = [{store.groups[s] for s in store.table.scene[p]} for p in (parts.train, parts.validation, parts.test)]
    assert not groups[0] & groups[1] and not groups[0] & groups[2]


def test_the_fingerprint_follows_a_given_split_by_what_it_says(tiny, tmp_path):
    def of(text=None):
        return load_task(tiny({"workload.split.file": csv(tmp_path, text)} if text else {})).fingerprint()

    lines = [f"img{n:03d},{'train' if n < 4 else 'test' if n < 6 else 'val'}" for n in range(8)]
    first = of("scene,part\n" + "\n".join(lines))
    assert first != of() and first == of("scene,part\n" + "\n".join(reversed(lines)))
    assert first != of("scene,part\n" + "\n".join([*lines[:-1], "img007,train"]))
