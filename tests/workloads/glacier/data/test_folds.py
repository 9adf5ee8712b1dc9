"""No ground is on two sides of a split; tiles are weighed and crops drawn towards wanted shares of the classes."""

import contextlib
import itertools

import numpy as np
import pytest
import torch

from lib.errors import BadInput
from lib.task import load_task
from lib.training.order import Order
from tests.workloads.glacier.files import (
    PATCHES,
    TWO,
    scene,
    write_bands,
    write_image,
    write_patches,
    write_scenes,
)
from trainbook import IGNORED
from workloads.glacier.data import cutter, datasets, folds, layout
from workloads.glacier.data.cutter import cut
from workloads.glacier.data.datasets import ANYWHERE, augment, corner
from workloads.glacier.settings import Cut, Sampling, Source, Split


def store_of(root, source=TWO):
    return cut(layout.find(root, source), root.parent / "store", source, Cut(size=32))


def split(store, source=TWO, **options):
    return folds.parts(store, Split(**options), source.classes)


def sides(values, parts):
    """The values of the tiles of training, validation and test; no two parts have a value in common."""
    indices = (parts.train, parts.validation, parts.test)
    train, validation, test = ({values[s] for s in part} for part in indices)
    assert not train & validation
    assert not train & test
    assert not validation & test
    return [sorted(side) for side in (train, validation, test)]


def scenes_of(store, parts):
    return sides([store.names[s] for s in store.table.scene], parts)


def test_folds_divide_what_is_not_the_test_and_share_one_test(tmp_path):
    store = store_of(write_scenes(tmp_path / "data", 12))
    every = [split(store, folds=5, test=0.15, fold=k) for k in range(5)]
    test = every[0].test
    for parts in every:
        assert np.array_equal(parts.test, test)
        assert sides(store.table.scene, parts)
    everything = np.concatenate([test, *(parts.validation for parts in every)])
    assert np.array_equal(np.sort(everything), np.arange(len(store)))


def test_without_a_test_the_validation_is_repeated(tmp_path):
    store = store_of(write_scenes(tmp_path / "data", 12))
    parts = split(store, validation=0.15, test=0)
    assert np.array_equal(parts.test, parts.validation)
    assert any("repeats the validation" in note for note in parts.notes)


def test_one_large_scene_is_split_by_squares_of_the_map(tmp_path):
    size = (512, 512)
    classes = np.random.default_rng(0).integers(0, 4, size, dtype=np.uint8)
    image, _ = scene(size=size)
    write_bands(tmp_path / "data", "scene", image, classes, origin=(960_000, 9_600_000))
    store = store_of(tmp_path / "data")
    parts = split(store, by="map", square=2, test=0.2, validation=0.2)
    assert len(parts.train) + len(parts.validation) + len(parts.test) == len(store) == 256
    with pytest.raises(BadInput, match="has 1 groups to split"):
        split(store)


def overlapping(table, first, others):
    """Whether a tile of one side touches one of the other in the same space, by looking at all pairs."""
    boxes = table.bounds
    for i, o in itertools.product(first, others):
        low = np.maximum(boxes[i, :2], boxes[o, :2])
        high = np.minimum(boxes[i, 2:], boxes[o, 2:])
        if table.space[i] == table.space[o] and (high - low > 1).all():
            return True
    return False


def test_training_tiles_that_show_held_out_ground_are_left_out_and_said(tmp_path):
    write_scenes(tmp_path / "data", 8)
    image, classes = scene(3)
    half_over_img003 = (3 * 100_000 + 480, 0)
    write_bands(tmp_path / "data", "img900", image + 1, classes, origin=half_over_img003)
    store = store_of(tmp_path / "data")
    notes = []
    for seed in range(12):
        parts = split(store, seed=seed)
        held = np.concatenate([parts.validation, parts.test])
        assert not overlapping(store.table, parts.train, held)
        assert not overlapping(store.table, parts.validation, parts.test)
        notes += parts.notes[:1]
    assert "show ground of" in notes[0], "where the two fell to different parts"
    assert "img" in notes[0]


def test_a_copy_of_a_scene_under_another_name_is_a_leak_too(tmp_path):
    numbers = {f"img{n:03d}": n for n in range(8)}
    for name, number in {**numbers, "copy": 3}.items():
        write_bands(tmp_path / "data", name, *scene(number), crs=None)
    store = store_of(tmp_path / "data")
    digests = [store.digests[s] for s in store.table.scene]
    left_out = 0
    for seed in range(20):
        with contextlib.suppress(BadInput):  # the copy was all that this part had
            parts = split(store, seed=seed, test=0.3, validation=0.3)
            left_out += any("share windows of pixels" in note for note in parts.notes)
            sides(digests, parts)
    assert left_out


def test_folders_are_the_split_and_what_they_lack_comes_out_of_the_training(tmp_path):
    numbers = {**dict.fromkeys(range(8), "train"), 20: "val", 21: "val"}
    for number, part in numbers.items():
        place = {"origin": (number * 10**5, 0)}
        write_bands(tmp_path / "data" / part, f"img{number:03d}", *scene(number), **place)
    store = store_of(tmp_path / "data")
    parts = split(store, test=0.2)
    train, validation, test = scenes_of(store, parts)
    assert validation == ["val/img020", "val/img021"]
    assert {name[:6] for name in train + test} == {"train/"}
    assert test
    assert "The given split has no test: 20% of its training are held out" in " ".join(parts.notes)


def test_a_given_split_that_parts_the_patches_of_an_image_is_not_taken(tmp_path):
    for part in ("train", "test"):
        write_patches(tmp_path / "data" / part, sources=6, patches=2)
    store = store_of(tmp_path / "data", PATCHES)
    parts = split(store, PATCHES)
    assert (
        "do not decide the split: 6 groups of scenes are in two of them, such as slice_0"
        in parts.notes[0]
    )
    assert sides([store.groups[s] for s in store.table.scene], parts)


def ground(seed, size=160, bands=2):
    return np.random.default_rng(seed).normal(100, 10, (bands, size, size)).astype(np.float32)


def pairs(chips):
    return cutter.pairs([cutter.sketch(chip) for chip in chips])


@pytest.mark.parametrize("row, column", [(31, 5), (0, 90)])
def test_chips_that_overlap_anywhere_are_a_pair_and_others_are_none(row, column):
    whole = ground(1)
    elevation = ground(3, 128, 3)
    # one equal band, under another day's light
    elevation[2, :70, :70] = whole[0, row : row + 70, column : column + 70]
    left = whole[:, :160, :]
    part = whole[:, row : row + 96, column : column + 70]
    assert pairs([left, part, ground(2, 128), elevation]) == [(0, 1), (0, 3), (1, 3)]
    assert len(cutter.sketch(ground(3, 512))) == 512, "a sketch does not grow with the scene"


@pytest.fixture(scope="module")
def chips(tmp_path_factory):
    """Eight scenes without a place on the map, of which c6 and c7 share ground."""
    source = Source(bands=("red", "nir"), classes=("land", "ice"), codes=(0, 85))
    folder = tmp_path_factory.mktemp("chips")
    whole = ground(7, 128)
    images = [ground(n, 64) for n in range(6)]
    images += [whole[:, :64, :64], whole[:, 20:84, 20:84]]
    for number, image in enumerate(images):
        write_image(folder / "images" / f"c{number}.tif", image, "GTiff")
        chessboard = np.indices(image.shape[1:]).sum(0) % 2
        write_image(folder / "masks" / f"c{number}.png", (85 * chessboard).astype(np.uint8))
    return store_of(folder, source)


def ground_notes(store, **options):
    """The notes on shared ground of a split."""
    parts = folds.parts(store, Split(**options), "ab")
    return [note for note in parts.notes if "windows of pixels" in note]


FOLDERS = {"t": "train", "v": "validation", "s": "test"}


def test_shared_ground_in_two_folders_is_one_warning(chips, monkeypatch):
    monkeypatch.setattr(chips, "parts", [FOLDERS[letter] for letter in "ttttvstv"])
    (warning,) = ground_notes(chips)
    assert (
        "1 held-out scenes share windows of pixels with another split (such as c6 and c7)"
        in warning
    )
    monkeypatch.setattr(chips, "parts", [FOLDERS[letter] for letter in "ttttvstt"])
    assert ground_notes(chips) == []


def test_shared_ground_in_two_squares_is_a_warning(chips):
    notes = [ground_notes(chips, by="map", square=2, seed=seed) for seed in range(4)]
    assert any("held-out" in note for of_seed in notes for note in of_seed)


@pytest.mark.parametrize("seed", range(4))
def test_scenes_of_shared_ground_are_one_group(chips, seed):
    parts = folds.parts(chips, Split(seed=seed, test=0.25, validation=0.25), "ab")
    assert (
        "2 scenes without a georeference share windows of pixels with another scene"
        in parts.notes[0]
    )
    assert not any("held-out" in note for note in parts.notes)
    names = [chips.names[s] for s in chips.table.scene]
    groups = dict(zip(names, parts.groups, strict=True))
    assert groups["c6"] == groups["c7"]
    assert len(set(groups.values())) == 7


def test_a_crop_around_a_class_shows_one_of_its_pixels_and_stays_inside():
    target = torch.zeros(96, 96, dtype=torch.uint8)
    target[3, 90] = target[50, 50] = 2
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(300):
        top, left = corner(target, 32, 2, generator)
        places = (target[top : top + 32, left : left + 32] == 2).nonzero().tolist()
        assert 0 <= top <= 64
        assert 0 <= left <= 64
        assert places
        seen |= {tuple(place) for place in places}
    assert len(seen) > 120, "the pixel lies at ever new places of the crop"
    places = np.array([corner(target, 32, ANYWHERE, generator) for _ in range(600)])
    assert places.min() == 0
    assert places.max() == 64
    assert abs(places.mean() - 32) < 4


@pytest.fixture
def lakes(tiny, tmp_path):
    """A task whose training draws crops; a lake of four pixels stands in every second scene."""
    crops = {"tiles.size": 64, "tiles.stride": 0, "sampling.crop": 32, "prior": True}
    crops["sampling.target_shares"] = "[]"
    crops["sampling.centred"] = "{lake: 0.5}"
    config = tiny({f"workload.{key}": value for key, value in crops.items()})
    for number in range(8):
        image, classes = scene(number)
        classes = np.minimum(classes, 2)
        if number % 2:
            classes[40:42, 9:11] = 3
        place = {"origin": (number * 100_000, 0)}
        write_bands(tmp_path / "scenes", f"img{number:03d}", image, classes, **place)
    task = load_task(config)
    train = task.datasets()["train"]
    return task, train, Order.of(train, config)


def test_the_wanted_part_of_the_crops_lies_around_the_class(lakes):
    _, train, order = lakes
    drawn = np.concatenate([order._epoch(epoch) for epoch in range(200)])
    draws = train.samples.draws
    around = draws.classes[drawn]
    assert (around == 3).mean() == pytest.approx(0.5, abs=0.02)
    tiles = np.bincount(draws.tiles[drawn[around == ANYWHERE]])
    assert tiles.min() > 0.8 * tiles.mean(), "the others lie evenly"


def test_the_shares_of_drawn_crops_are_estimated(lakes):
    task, train, order = lakes
    counts = np.zeros(4)
    for epoch in range(6):
        samples = [train[int(index)] for index in order._epoch(epoch)[:40]]
        batch = task.collate(samples, torch.Generator().manual_seed(epoch))
        assert batch["image"].shape[2:] == batch["labels"].shape[1:] == (32, 32)
        labels = batch["labels"].flatten()
        counts += np.bincount(labels[labels != IGNORED], minlength=4)
    assert task.data.drawn_shares == pytest.approx(counts / counts.sum(), rel=0.25)


def test_the_prior_takes_the_draw_back(lakes):
    task, _, _ = lakes
    data = task.data
    true = data.counts.sum(0) / data.counts.sum()
    assert data.prior == pytest.approx(np.log(true) - np.log(data.drawn_shares))
    assert data.prior[3] < -0.5
    model = task.model().eval()
    image = torch.randn(1, 2, 32, 32)
    prior = torch.from_numpy(data.prior).float().view(-1, 1, 1)
    with torch.inference_mode():
        corrected = model(image)
        model.prior.zero_()
        assert torch.allclose(corrected - model(image), prior.expand_as(corrected), atol=1e-5)


def test_tilted_weights_reach_the_wanted_shares_where_they_can():
    counts = np.random.default_rng(0).dirichlet((2, 1, 0.5, 0.5), 400) * 1000
    wanted = (0.3, 0.3, 0.25, 0.15)
    weight = datasets.tile_weights(counts, Sampling(target_shares=wanted))
    assert np.allclose(weight.mean(), 1)
    assert weight.min() > 0
    assert np.allclose(datasets.reached(counts, weight), wanted, atol=0.01)


def test_mask_and_image_turn_alike_and_noise_goes_by_each_bands_deviation(
    monkeypatch,
):
    target = torch.arange(64, dtype=torch.uint8).view(8, 8)
    image = torch.stack([target.float(), 100.0 * target])
    empty = torch.zeros(2, 8, 8)
    seen = set()
    offsets = []
    empty[:, 0, 0] = empty[:, 0, 7] = empty[:, 7, 0] = empty[:, 7, 7] = float(
        "nan"
    )  # wherever it is turned

    def changed(seed, image, noise):
        monkeypatch.setitem(augment.__globals__, "BAND_NOISE", noise)
        return augment(
            image, target, torch.tensor([1.0, 100.0]), torch.Generator().manual_seed(seed)
        )

    for seed in range(200):
        turned, mask = changed(seed, image, 0)
        assert torch.equal(turned[0], mask.float())
        assert torch.equal(turned[1], 100 * mask.float())
        assert torch.equal(changed(seed, image, 0.05)[1], mask), "with noise too"
        seen.add(tuple(mask.flatten().tolist()))
        noisy, _ = changed(seed, empty, 0.1)
        assert torch.equal(noisy.isnan(), empty.isnan())
        offsets.append(noisy[:, 3, 3])
    assert len(seen) == 8
    assert torch.stack(offsets).std(0).tolist() == pytest.approx([0.1, 10], rel=0.15)
